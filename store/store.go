// Package store is the reference store of reported keyspaces: a process that hosts
// regions, tells coordinators about them and obeys their hints.
//
// It wires store/local (the disk), store/host (the regions) and store/server (the
// service), and talks to coordinators. It promises: what is hosted is served from local
// state from the start on, whoever of the control plane answers; what coordinators know
// of it is at most a heartbeat old while one answers; a newer process under its id, or
// another cluster, ends it.
//
// Its regions are not replicated: see package host.
package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/channel"
	"github.com/nokv/nokv/mtls"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/host"
	"github.com/nokv/nokv/store/local"
	"github.com/nokv/nokv/store/server"
)

// Config says who the store is and whom it asks.
type Config struct {
	// StoreID is its number, Workdir its folder, which is bound to it. Required.
	StoreID uint64
	Workdir string
	// Advertise is where callers and other stores reach it, host:port. Required.
	Advertise string
	// Coordinators are their addresses. Required.
	Coordinators []string
	// Keyspace is the name of the one whose regions it hosts. Default "default".
	Keyspace string
	// StoreAddrs are addresses of other stores that win over what those register.
	StoreAddrs map[uint64]string
	// Rebind has the cluster that answers take the workdir as it is, though it was that of
	// another one, or another copy of it has run since.
	Rebind bool
	// Heartbeat is the time between two. Default 3 s.
	Heartbeat time.Duration
	// TLS are its certificates, of member store-ID; nil: plain connections.
	TLS *mtls.Source
	// Insecure says that connections are plain where others reach them.
	Insecure bool
	// Budget bounds what callers make it hold. Nil: one of the default size.
	Budget *budget.Budget
	Logger hclog.Logger
}

// DefaultHeartbeat is the time between two heartbeats.
const DefaultHeartbeat = 3 * time.Second

// MemberID is the member that a store is to the control plane.
func MemberID(store uint64) rooted.MemberID { return rooted.MemberID(fmt.Sprintf("store-%d", store)) }

// Validate says what is missing.
func (c *Config) Validate() error {
	switch {
	case c.StoreID == 0:
		return errors.New("store id 0: it is 1 or more")
	case c.Workdir == "":
		return errors.New("store: no workdir")
	case c.Advertise == "":
		return errors.New("store: no address to be reached at")
	case c.Heartbeat < 0:
		return fmt.Errorf("store: heartbeat %v is negative", c.Heartbeat)
	}
	return nil
}

func (c *Config) setDefaults() {
	if c.Keyspace == "" {
		c.Keyspace = "default"
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = DefaultHeartbeat
	}
	if c.Budget == nil {
		c.Budget = budget.New(budget.Default())
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
}

// Store is one process. Make it with Open, start it with Run, once.
type Store struct {
	cfg    Config
	self   rooted.MemberID
	disk   *local.Disk
	host   *host.Host
	peers  *server.Peers
	server *server.Server
	client *client.Client

	cluster     atomic.Uint64
	incarnation atomic.Uint64
	// nonce is that of the registration asked for last.
	nonce atomic.Uint64
	// followed is closed when everything that the root says has been followed once.
	followed chan struct{}

	// operations are hints that wait to be done, undone how many of them are not.
	operations chan *coordinatorv1.SchedulerOperation
	undone     atomic.Int64
	did        atomic.Uint64

	mu sync.Mutex
	// unheard is why coordinators do not answer, and since when, by what they are asked for;
	// guarded by mu.
	unheard [sources]error
	since   [sources]time.Time
}

// source is what coordinators are heard of by.
type source int

const (
	heartbeats source = iota
	regions
	sources
)

// errNotAsked is why no coordinator has answered yet.
var errNotAsked = errors.New("none was asked yet")

// maxOperations bounds the hints that wait: what does not fit is hinted at again.
const maxOperations = 64

// Open opens the workdir and reads what is hosted; it starts nothing. Close, or Run, must
// follow.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	disk, err := local.Open(cfg.Workdir, cfg.StoreID)
	if err != nil {
		return nil, err
	}
	s := &Store{
		cfg: cfg, self: MemberID(cfg.StoreID), disk: disk, operations: make(chan *coordinatorv1.SchedulerOperation, maxOperations),
		unheard: [sources]error{heartbeats: errNotAsked}, since: [sources]time.Time{heartbeats: time.Now()}, followed: make(chan struct{}),
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Store) open() error {
	if s.cfg.Rebind {
		if err := s.disk.Rebind(); err != nil {
			return err
		}
	}
	identity, err := s.disk.Identity()
	if err != nil {
		return err
	}
	s.cluster.Store(identity.GetClusterId())
	s.client, err = client.New(client.Config{
		Endpoints: s.cfg.Coordinators, ClusterID: identity.GetClusterId(), DiscoverEvery: time.Minute, TLS: s.cfg.TLS, Logger: s.cfg.Logger.Named("client"),
	})
	if err != nil {
		return err
	}
	fixed := map[rooted.MemberID]string{}
	for id, address := range s.cfg.StoreAddrs {
		if id != s.cfg.StoreID {
			fixed[MemberID(id)] = address
		}
	}
	s.peers = server.NewPeers(s.cluster.Load, s.cfg.TLS, fixed)
	s.host, err = host.Open(host.Config{Self: s.self, Disk: s.disk, Root: s.client, Peers: s.peers, Logger: s.cfg.Logger})
	if err != nil {
		return err
	}
	s.server = server.New(server.Config{
		Host: s.host, ClusterID: s.cluster.Load, Status: s.status, TLS: s.cfg.TLS, Budget: s.cfg.Budget, Logger: s.cfg.Logger.Named("server"),
	})
	return nil
}

// Close closes a Store that does not run.
func (s *Store) Close() error {
	var err error
	if s.client != nil {
		err = s.client.Close()
	}
	return errors.Join(err, s.disk.Close())
}

// Run serves on lis until ctx ends, or the store cannot go on. It closes lis and the
// Store.
func (s *Store) Run(ctx context.Context, lis net.Listener) (err error) {
	defer func() { err = errors.Join(err, s.Close()) }()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	outer := context.WithoutCancel(ctx)
	tlsCtx, stopTLS := context.WithCancel(outer)
	var base, work sync.WaitGroup
	base.Go(func() { s.cfg.TLS.Run(tlsCtx) })
	part := func(name string, run func(context.Context) error) {
		work.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	part("serve", func(ctx context.Context) error { return s.server.Run(ctx, lis) })
	part("regions", s.host.Run)
	part("coordinators", s.control)
	part("hints", s.obey)
	work.Wait()
	stopTLS()
	base.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// WorkdirID is the identity of the workdir.
func (s *Store) WorkdirID() []byte { return s.host.WorkdirID() }

// Healthy says whether the store can serve: it waits for coordinators, and needs none
// behind the first answer.
func (s *Store) Healthy(context.Context) error { return s.disk.Broken() }

// heard notes whether coordinators answer.
func (s *Store) heard(what source, err error) {
	s.mu.Lock()
	was := s.unheard[what]
	if err != nil && was == nil {
		s.since[what] = time.Now()
	}
	s.unheard[what] = err
	s.mu.Unlock()
	switch {
	case err != nil && (was == nil || errors.Is(was, errNotAsked)):
		what := "regions are served from local state, and do not change"
		if s.incarnation.Load() == 0 {
			what = "nothing is served before one has answered the registration"
		}
		s.cfg.Logger.Warn("no coordinator answers: "+what, "err", err)
	case err == nil && was != nil:
		s.cfg.Logger.Info("coordinators answer")
	}
}

// unheardError is why coordinators do not answer; empty: they do.
func (s *Store) unheardError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for what, err := range s.unheard {
		if err != nil {
			return fmt.Sprintf("for %s: %v", time.Since(s.since[what]).Round(time.Second), err)
		}
	}
	return ""
}

func (s *Store) status() *storev1.StatusResponse {
	return &storev1.StatusResponse{
		StoreId: s.cfg.StoreID, MemberId: string(s.self), Incarnation: s.incarnation.Load(), ClusterId: s.cluster.Load(),
		Keyspace: s.cfg.Keyspace, ControlPlaneError: s.unheardError(),
	}
}

// Vars is what a store shows at /debug/vars. The field names stay.
type Vars struct {
	StoreID     uint64 `json:"store_id"`
	MemberID    string `json:"member_id"`
	Incarnation uint64 `json:"incarnation"`
	Keyspace    string `json:"keyspace"`
	channel.Vars
	// ControlPlaneError is empty while coordinators answer.
	ControlPlaneError string `json:"control_plane_error"`
	// Regions hosted by role.
	Regions map[string]int `json:"regions"`
	// Requests that were answered, hints that were obeyed.
	Requests   uint64      `json:"requests"`
	Operations uint64      `json:"operations"`
	Server     server.Vars `json:"server"`
	Budget     budget.Vars `json:"budget"`
}

// Vars returns the numbers of a store.
func (s *Store) Vars() any {
	return Vars{
		StoreID: s.cfg.StoreID, MemberID: string(s.self), Incarnation: s.incarnation.Load(), Keyspace: s.cfg.Keyspace,
		Vars:              channel.Channel{Certs: s.cfg.TLS, Insecure: s.cfg.Insecure}.Vars(),
		ControlPlaneError: s.unheardError(), Regions: s.host.Roles(), Requests: s.host.Served(), Operations: s.did.Load(),
		Server: s.server.Vars(), Budget: s.cfg.Budget.Vars(),
	}
}
