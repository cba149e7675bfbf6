// Package root puts a root peer together: a workdir, the transport to the other
// peers, the replica, and the gRPC service over it.
//
// It owns the life of these parts and no state of its own. It promises: (1) the
// workdir is locked and checked before anything else happens; (2) until it
// is a member of its cluster, which it founds with others or joins, the peer serves
// nothing but its health, which is bad, and what it waits for; (3) any part that fails
// ends the whole with its error, and nothing is acknowledged after it; so does the news
// that another peer has its place; (4) on
// shutdown leadership is handed over before connections are closed.
package root

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/bearer"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/server"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/meta/root/transport"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Config describes one root peer.
type Config struct {
	// NodeID is this peer's id, Peers the transport addresses of all, by id. With
	// Join, and once the workdir is a member's, they may be some of them.
	NodeID uint64
	Peers  map[uint64]string
	// Transport is where the others reach this peer's transport, host:port. Empty:
	// as in Peers.
	Transport string
	// Join has an empty workdir wait until the peers of a cluster make it one of them.
	Join bool
	// Workdir is this peer's folder; it is made when missing.
	Workdir string
	// Advertise is the gRPC address that clients reach this peer at, host:port.
	Advertise string
	// ElectionTimeout is the silence of a leader after which another one is
	// elected. Default 500 ms.
	ElectionTimeout time.Duration
	// CheckpointEntries is how many entries of the log start the next checkpoint;
	// two fifths of them stay in the log behind it. Default 50,000.
	CheckpointEntries uint64
	// TLS has every connection, of clients and of other peers, show a certificate of
	// the cluster. Nil: plain connections; Insecure says that they are plain where
	// others reach them.
	TLS      *mtls.Source
	Insecure bool
	// Secret opens the keys that are sealed. Nil: bearer tokens are verified only by
	// keys that are not.
	Secret *seal.Key
	// Budget bounds in bytes what callers can make the process hold. Nil: one of the
	// default size of its own.
	Budget *budget.Budget
	// Storage says how the workdir is opened: the file system, and the size of segments.
	// The zero value is right but for tests, as for Clock, the machine's, and Dial, TCP.
	Storage storage.Options
	Clock   clock.Clock
	Dial    transport.Dial
	// Logger takes the lifecycle.
	Logger hclog.Logger
}

// Peer is one root peer. Make it with Open, run it once.
type Peer struct {
	cfg     Config
	clock   clock.Clock
	store   *storage.Storage
	started clock.Instant
	stats   *rpcstats.Stats
	room    *roomWatch

	mu sync.Mutex
	// Guarded by mu: set when the peer has joined its cluster.
	replica   *replica.Replica
	transport *transport.Transport
	server    *server.Server
	waiting   string // what it waits for before
}

// Open locks and checks the workdir. Run or Close must follow.
func Open(cfg Config) (*Peer, error) {
	cfg.Storage.CheckRecords, cfg.Storage.Logger = state.CheckPart, cfg.Logger.Named("storage")
	store, err := storage.Open(cfg.Workdir, cfg.Storage)
	if err != nil {
		return nil, err
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.NewSystem()
	}
	if cfg.Dial == nil {
		cfg.Dial = new(transport.TCP).Dial
	}
	if cfg.Budget == nil {
		cfg.Budget = budget.New(budget.Default())
	}
	p := &Peer{cfg: cfg, clock: cfg.Clock, store: store, stats: rpcstats.New()}
	p.room = &roomWatch{ask: store.Room, clock: cfg.Clock, log: cfg.Logger.Named("storage")}
	p.started = p.clock.Now()
	return p, nil
}

// Close gives up the workdir of a peer that was not run.
func (p *Peer) Close() error { return p.store.Close() }

// Run joins the cluster and serves until ctx ends or something fails. lis is
// for gRPC, peerLis for the other peers; both are closed.
func (p *Peer) Run(ctx context.Context, lis, peerLis net.Listener) error {
	certsCtx, stopCerts := context.WithCancel(ctx)
	var certs sync.WaitGroup
	certs.Go(func() { p.cfg.TLS.Run(certsCtx) })
	err := p.run(ctx, lis, peerLis)
	stopCerts()
	certs.Wait()
	_ = lis.Close()
	_ = peerLis.Close()
	if closeErr := p.store.Close(); err == nil {
		err = closeErr
	}
	return err
}

func (p *Peer) run(ctx context.Context, lis, peerLis net.Listener) error {
	peers, ok := peerLis.(transport.Listener)
	if !ok {
		return fmt.Errorf("listener %s has no deadlines", peerLis.Addr())
	}
	before, _ := p.store.Identity()
	identity, err := p.agree(ctx, lis, peers, before.Member)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	level := uint32(0)
	if !before.Member {
		level = state.SupportedLevel() // As all founders told this process and were told by it.
	}
	if err := p.build(identity, level, peerLis); err != nil {
		return err
	}
	p.cfg.Logger.Info("root peer starts", "peer", p.cfg.NodeID, "cluster", fmt.Sprintf("%016x", identity.ClusterID),
		"addr", lis.Addr(), "transport", peerLis.Addr(), "workdir", p.cfg.Workdir)
	err = p.serve(ctx, lis)
	if stale := new(freshness.StaleError); errors.As(err, &stale) {
		// A crash before this line: the next start is told the same.
		err = errors.Join(err, p.store.Bar(stale.Why))
	}
	p.cfg.Logger.Info("root peer stopped", "peer", p.cfg.NodeID, "err", err)
	return err
}

// agree makes the workdir a member's. Whoever asks meanwhile is told what it waits for.
func (p *Peer) agree(ctx context.Context, lis net.Listener, peers transport.Listener, member bool) (identity storage.Identity, err error) {
	ctx, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	var failed error
	if !member {
		beside.Go(func() {
			defer stop()
			failed = server.Wait(ctx, p.serverConfig(), lis, func() string { return p.waits().Error() })
		})
	}
	identity, err = transport.Agree(ctx, transport.AgreeConfig{
		NodeID: p.cfg.NodeID, Peers: p.cfg.Peers, Address: p.cfg.Transport, Join: p.cfg.Join, Workdir: p.store, FeatureLevel: state.SupportedLevel(),
		Listener: peers, Dial: p.cfg.Dial, TLS: p.cfg.TLS, Logger: p.cfg.Logger.Named("bootstrap"), Waiting: p.waitsFor,
	})
	stop()
	beside.Wait()
	return identity, cmp.Or(failed, err)
}

// serverConfig is what is known before there is a cluster.
func (p *Peer) serverConfig() server.Config {
	return server.Config{
		NodeID: p.cfg.NodeID, Address: p.cfg.Advertise, Clock: p.clock, Stats: p.stats, TLS: p.cfg.TLS, Insecure: p.cfg.Insecure, Budget: p.cfg.Budget,
		Logger: p.cfg.Logger.Named("server"),
	}
}

// build makes the parts that need to know the cluster. level is where it begins, if it
// does now.
func (p *Peer) build(identity storage.Identity, level uint32, peerLis net.Listener) error {
	// Behind the bootstrap, in which nobody has a past, and before the first hello.
	claim, err := p.store.Begin()
	if err != nil {
		return err
	}
	net, err := transport.New(transport.Config{
		Identity: identity, Claim: claim, Memory: p.store.Memory(), Addresses: p.cfg.Peers, Address: p.cfg.Advertise, Listener: peerLis, Dial: p.cfg.Dial, TLS: p.cfg.TLS,
		Checkpoints: p.store, FeatureLevel: state.SupportedLevel(), Logger: p.cfg.Logger.Named("transport"),
	})
	if err != nil {
		return err
	}
	cfg := replica.Defaults()
	cfg.NodeID, cfg.Transport, cfg.Join = p.cfg.NodeID, net, identity.Joined
	if !identity.Joined {
		cfg.Voters, cfg.Bootstrap = founding(identity, level)
	}
	cfg.Logger = p.cfg.Logger.Named("raft")
	if n := p.cfg.CheckpointEntries; n > 0 {
		cfg.CheckpointEntries, cfg.RetainEntries = n, max(n*2/5, 1)
	}
	if p.cfg.ElectionTimeout > 0 {
		cfg.Tick = p.cfg.ElectionTimeout / time.Duration(cfg.ElectionTicks)
	}
	rep, err := replica.New(cfg, p.store, p.clock)
	if err != nil {
		return err
	}
	serving := p.serverConfig()
	serving.ClusterID, serving.Replica, serving.Log, serving.Peers = identity.ClusterID, rep, p.store, net
	serving.NoRoom = func() string { return p.store.Shortage().Why }
	serving.Room = p.room.room
	srv, err := server.New(serving)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replica, p.transport, p.server = rep, net, srv
	return nil
}

// founding is what a founder's replica begins with, until the log says more.
func founding(identity storage.Identity, level uint32) (voters []uint64, cluster *rootv1.Cluster) {
	cluster = &rootv1.Cluster{ClusterId: identity.ClusterID, Incarnation: 1, FeatureLevel: level}
	for _, peer := range identity.Peers {
		voters = append(voters, peer.NodeID)
		cluster.Peers = append(cluster.Peers, &rootv1.RootPeer{NodeId: peer.NodeID, Incarnation: peer.Incarnation, TransportAddress: peer.Address})
	}
	return voters, cluster
}

// serve runs the parts. The replica ends first, because it hands leadership
// over through the others; what it hands over to must still hear of it.
func (p *Peer) serve(ctx context.Context, lis net.Listener) error {
	replicaCtx, stopReplica := context.WithCancel(ctx)
	defer stopReplica()
	// The cause of its end is what failed; without one calls under way may finish.
	restCtx, stopRest := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopRest(nil)
	var rest sync.WaitGroup
	errs := make(chan error, 4)
	part := func(what string, run func(context.Context) error) {
		rest.Go(func() {
			if err := run(restCtx); err != nil && restCtx.Err() == nil {
				errs <- fmt.Errorf("%s: %w", what, err)
				stopReplica()
			}
		})
	}
	part("transport", func(ctx context.Context) error { return p.transport.Run(ctx, p.replica) })
	part("serve gRPC", func(ctx context.Context) error { return p.server.Serve(ctx, lis) })
	part("storage", p.store.Run)
	part("watch the disk", p.room.Run)
	if p.cfg.TLS != nil {
		part("follow what is revoked", p.followRevoked)
	}
	err := p.replica.Run(replicaCtx)
	select {
	case e := <-errs:
		err = join(err, e)
	default:
	}
	stopRest(err)
	rest.Wait()
	close(errs)
	for e := range errs {
		err = join(err, e)
	}
	return err
}

// revokedEvery is the time between two looks at what is revoked.
const revokedEvery = 250 * time.Millisecond

// followRevoked has this peer believe no certificate that is revoked, until ctx ends.
func (p *Peer) followRevoked(ctx context.Context) error {
	tick := time.NewTicker(revokedEvery)
	defer tick.Stop()
	for known := uint64(0); ; {
		if version, certificates := p.replica.View().State.RevokedCertificates(); version != known {
			p.cfg.TLS.Revoke(certificates)
			known = version
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// join adds an error, unless it has the same reason: a failed disk is noticed by
// several parts.
func join(err, e error) error {
	if err != nil && errors.Is(err, errors.Unwrap(e)) {
		return err
	}
	return errors.Join(err, e)
}

// parts returns what build made; nils before.
func (p *Peer) parts() (*replica.Replica, *transport.Transport, *server.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.replica, p.transport, p.server
}

// waitsFor notes what the peer waits for while it belongs to no cluster.
func (p *Peer) waitsFor(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = what
}

// waits is what the peer waits for while it belongs to no cluster.
func (p *Peer) waits() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.New(cmp.Or(p.waiting, "it looks for the other root peers"))
}

// Healthy answers whether a read index comes back in time: this peer hears a
// leader that has a quorum. One that does not vote, because its state is in doubt, says so.
func (p *Peer) Healthy(ctx context.Context) error {
	rep, _, _ := p.parts()
	if rep == nil {
		return p.waits()
	}
	if _, err := rep.ReadIndex(ctx); err != nil {
		return fmt.Errorf("read index: %w", err)
	}
	return nil
}

// Verify is whose a bearer token is, by what this peer has applied.
func (p *Peer) Verify(token string) (principal.Principal, error) {
	rep, _, _ := p.parts()
	if rep == nil {
		return principal.Principal{}, p.waits()
	}
	return bearer.Verify(token, rep.View().State, p.cfg.Secret)
}
