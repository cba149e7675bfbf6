// Package server is the Coordinator gRPC service: it checks requests, passes
// them to those who know (the view, the Tenure holder, the metadata root), and
// puts answers and refusals into the words of the wire. It decides nothing.
//
// It owns the calls under way and nothing that outlives them, but for what
// heartbeats reported. It promises:
//
//  1. a refusal changed nothing, and its ErrorDetail says why and names the
//     field or the way out; the exception is REASON_OUTCOME_UNKNOWN;
//  2. no request can make it panic: what is malformed is refused before
//     anybody else is asked;
//  3. everything is bounded by a named limit, and what is above is refused at
//     once, not queued;
//  4. every answer from a view says what it is worth (Disclosure), and a view
//     is never older than the request allows;
//  5. the answers of a stream come in the order of its requests, but for lookups
//     that wait for the root, which hold up none behind them; a refusal is an
//     answer; a reader that takes nothing is cut;
//  6. a watcher is taken from token to token by batches that leave out nothing but
//     changes that another one of the same batch overtakes, or is told to start
//     from a snapshot; one that is behind what is kept is cut, and goes on from its
//     token;
//  7. a stop takes no longer than Limits.StopTimeout;
//  8. where callers have certificates, nothing is done that internal/access and the
//     rooted grants do not allow, and every change has its caller's name;
//  9. a call that names another cluster is not begun, and one that changes
//     something must name this one.
//
// Freshness is judged by coordinator/rootview, lookups by coordinator/catalog,
// authority by coordinator/tenure, changes by the root.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/hints"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/channel"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/internal/turns"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// Config says who the coordinator is and whom it asks.
type Config struct {
	// ID is the configured identity, Address where callers reach it
	// (host:port), Incarnation random per process start. Required.
	ID          state.CoordinatorID
	Address     string
	Incarnation uint64
	// Version of the software, shown by Status.
	Version string

	// Views, Authority and Root are asked. Required.
	Views     Views
	Authority Authority
	Root      Root
	// Soft keeps what members report. Nil: one of its own.
	Soft *catalog.Soft
	// RootPeers lists the root peers for Status. Nil: none are shown.
	RootPeers func(context.Context) []*coordinatorv1.RootEndpoint

	// Answers asks who answers at another coordinator's address. Nil: nobody is asked.
	Answers func(ctx context.Context, address string) (state.CoordinatorID, error)

	// Relay opens a member's stream at another coordinator's address, to pass on there
	// what a member says here. Nil: nothing is passed on.
	Relay func(ctx context.Context, to *rootv1.Coordinator) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error)

	// Claims makes regions at first touch. Nil: nobody does here.
	Claims Claims
	// Members hears of members' streams. Nil: nobody does.
	Members MemberEvents
	// Standing says what is thought of a member. Nil: nothing is.
	Standing func(state.MemberID) liveness.Standing
	// Rounds are how keyspaces were evened out last, newest first. Nil: nobody does that.
	Rounds func() []*coordinatorv1.BalanceRound
	// Notes are what is known of regions beside the root. Nil: nothing is.
	Notes Notes

	// Planner plans what is asked for. Nil: nobody does.
	Planner Planner
	// Scaling is how many members keyspaces want, by name. Nil: nobody says.
	Scaling func() []*coordinatorv1.ScalingSignal
	// RestingHooks are the hooks of keyspaces that are of no use. Nil: nobody says.
	RestingHooks func() []*coordinatorv1.RestingHook

	// Limits bound what callers can make it hold. Zero: DefaultLimits.
	Limits Limits
	// Budget bounds it in bytes. Nil: one of the default size of its own.
	Budget *budget.Budget
	// Clock tells ages. Default: the machine's.
	Clock clock.Clock
	// Logger hears of the lifecycle and of failures. Nil: nothing is logged.
	Logger hclog.Logger
	// Stats counts calls. Nil: they are counted where nobody looks.
	Stats *rpcstats.Stats
	// Access judges callers by their certificates. Nil: there are none, and everybody
	// may do everything.
	Access *access.Gate
	// TLS has every caller show a certificate of the cluster. Nil: plain connections.
	TLS *mtls.Source
	// Secret seals the keys that are made here, and opens them. Nil: they are not sealed.
	Secret *seal.Key
	// Insecure says that connections are plain where others reach them, for Status.
	Insecure bool
	// ServerOptions come after the server's own, so they may replace them.
	ServerOptions []grpc.ServerOption
}

// Validate says what is missing.
func (c *Config) Validate() error {
	switch {
	case c.ID == "":
		return errors.New("coordinator server: no id")
	case c.Address == "":
		return errors.New("coordinator server: no address")
	case c.Views == nil, c.Authority == nil, c.Root == nil:
		return errors.New("coordinator server: views, authority and root are required")
	default:
		return c.Limits.Validate()
	}
}

func (c *Config) channel() channel.Channel {
	return channel.Channel{Certs: c.TLS, Insecure: c.Insecure}
}

func (c *Config) setDefaults() {
	if c.TLS != nil && c.Access == nil {
		c.Access = access.New()
	}
	if c.Limits == (Limits{}) {
		c.Limits = DefaultLimits()
	}
	if c.Budget == nil {
		c.Budget = budget.New(budget.Default())
	}
	if c.Clock == nil {
		c.Clock = clock.NewSystem()
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Soft == nil {
		c.Soft = catalog.NewSoft(catalog.SoftConfig{})
	}
	if c.Stats == nil {
		c.Stats = rpcstats.New()
	}
}

// Server is the service of one coordinator. Make it with New, start it with
// Run, once.
type Server struct {
	coordinatorv1.UnimplementedCoordinatorServer // GetRegionByKey, GetRegionsByKeys, RouteStream, TsoStream and AllocIDStream: see serviceDesc

	cfg     Config
	log     hclog.Logger
	gate    *gate.Gate
	grpc    *grpc.Server
	health  *health
	inside  *inside
	started clock.Instant

	inFlight       *gauge
	reads          *places.Places // that wait for the root
	changes        *places.Places
	numbers        *places.Places
	plans          *places.Places
	watchStreams   *places.Places
	tsoStreams     *places.Places
	idStreams      *places.Places
	routeStreams   *places.Places
	publishStreams *places.Places
	healthStreams  *places.Places
	memberStreams  *places.Places
	revokedStreams *places.Places
	revoked        atomic.Pointer[revoked]
	members        *members
	vain           vain
	hints          *hints.Planner
	streams        streams
	fanout         *fanout
	opening        opening
	long           *turns.Turns // of answers about many regions
	handover       openHandover
	invariants     *invariants
	identities     *identity.Source
	stopping       atomic.Bool
	listener       atomic.Pointer[listen.Listener] // nil before Run

	pins pinRings
}

// New checks the configuration and returns a server that does not serve yet.
func New(cfg Config) (*Server, error) {
	cfg.setDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l, waiting := cfg.Limits, cfg.Budget.Holder(budget.Waiting)
	s := &Server{
		cfg: cfg, log: cfg.Logger, started: cfg.Clock.Now(),
		inFlight:       &gauge{what: "calls", limit: l.MaxInFlight},
		reads:          places.New("reads that wait for the root", waiting.Places(l.MaxWaitingReads, waitingBytes)),
		changes:        places.New("changes that wait for the root", waiting.Places(l.MaxWaitingChanges, waitingBytes)),
		numbers:        places.New("calls for ids and timestamps", waiting.Places(l.MaxWaitingNumbers, waitingBytes)),
		plans:          places.New("plans", maxPlans),
		watchStreams:   places.New("watches", cfg.Budget.Holder(budget.Replies).Places(l.MaxWatchStreams, watchBytes)),
		tsoStreams:     places.New("timestamp streams", l.MaxTsoStreams),
		idStreams:      places.New("id streams", l.MaxIDStreams),
		routeStreams:   places.New("route streams", l.MaxRouteStreams),
		publishStreams: places.New("publish streams", l.MaxPublishStreams),
		healthStreams:  places.New("health watches", l.MaxHealthStreams),
		memberStreams:  places.New("member streams", l.MaxMemberStreams),
		revokedStreams: places.New("watches of revoked certificates", l.MaxMemberStreams),
		streams:        streams{all: map[*live]struct{}{}, limits: l},
		long:           turns.New(0),
		identities:     identity.NewSource(),
		inside:         newInside(),
	}
	s.revoked.Store(&revoked{changed: make(chan struct{})})
	s.fanout = newFanout(cfg.Views)
	s.invariants = newInvariants(cfg.Views, cfg.Clock, cfg.Soft.Leader)
	s.members = newMembers(s)
	s.hints = hints.New(cfg.Soft)
	s.gate = gate.New(gate.Config{Budget: cfg.Budget, MaxStreams: l.MaxStreamsPerConnection, Changes: Changes, Logger: cfg.Logger})
	s.grpc = grpc.NewServer(append(s.options(), cfg.ServerOptions...)...)
	s.grpc.RegisterService(serviceDesc(), s)
	s.health = newHealth(s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.gate.Serves(s.grpc)
	return s, nil
}

// GateVars is what the server's connections hold and what became of them.
func (s *Server) GateVars() gate.Vars { return s.gate.Vars(s.listener.Load()) }

// streamWorkers serve calls without a goroutine start each; more calls than
// that start their own.
const streamWorkers = 64

// options are the settings of the gRPC server.
func (s *Server) options() []grpc.ServerOption {
	l := s.cfg.Limits
	cluster := clusterid.Gate{Own: func() uint64 { return s.view().ClusterID }, Required: NamesCluster}
	first := []grpc.ServerOption{
		grpc.Creds(s.gate.Credentials(s.cfg.TLS.Server())),
		grpc.InTapHandle(s.gate.Tap),
		grpc.ChainUnaryInterceptor(s.cfg.Stats.Unary, s.gate.Unary),
		grpc.ChainStreamInterceptor(s.cfg.Stats.Stream, s.gate.Stream),
	}
	return append(slices.Concat(flow.Server(), first, s.cfg.Access.Options()),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.ChainUnaryInterceptor(cluster.Unary, s.admitUnary),
		grpc.ChainStreamInterceptor(cluster.Stream, s.admitStream),
		grpc.MaxRecvMsgSize(l.MaxMessageBytes),
		grpc.MaxHeaderListSize(l.MaxHeaderBytes),
		grpc.MaxConcurrentStreams(l.MaxStreamsPerConnection),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.WriteBufferSize(64<<10),
		// Each connection has one for as long as it is open, of which there may be one a
		// member. What is larger is read past it.
		grpc.ReadBufferSize(8<<10),
		grpc.ConnectionTimeout(5*time.Second),
		// A connection without calls ends, and its client opens another one when it has one. A connection whose peer is gone is found by pings; a peer that pings
		// more often than every 5 s is cut.
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 5 * time.Minute, Time: 15 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
}

// admitStream says what became of a stream in the words of package reason.
func (s *Server) admitStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := handler(srv, stream); err != nil {
		return s.refusal(err)
	}
	return nil
}

// Run serves until ctx ends or the listener fails. It owns lis and closes it.
// When ctx ends it refuses new calls, cuts the streams, and waits for the calls
// under way for at most Limits.StopTimeout.
func (s *Server) Run(ctx context.Context, lis net.Listener) error {
	bounded := listen.Limit(lis, gate.Connections(s.cfg.Budget, min(s.cfg.Limits.MaxConnections, listen.Connections()*3/4)))
	var background sync.WaitGroup
	defer background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	background.Go(func() { s.forget(ctx) })
	background.Go(func() { s.fanout.run(ctx) })
	background.Go(func() { s.fanout.deliver(ctx) })
	background.Go(func() { s.members.run(ctx) })
	background.Go(func() { s.invariants.run(ctx) })
	background.Go(func() { s.gate.Run(ctx) })
	if s.cfg.Access != nil {
		background.Go(func() { s.followRevoked(ctx) })
	}
	s.listener.Store(bounded)
	failed := make(chan error, 1)
	background.Go(func() { failed <- s.grpc.Serve(bounded) })
	background.Go(func() { _ = s.grpc.Serve(s.inside) }) // ends with the other one
	defer s.inside.shut()
	s.log.Info("coordinator serves", "addr", lis.Addr().String())
	var err error
	select {
	case err = <-failed:
		s.stop()
	case <-ctx.Done():
		s.stop()
		err = <-failed
	}
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve %s: %w", lis.Addr(), err)
	}
	return nil
}

func (s *Server) stop() {
	s.stopping.Store(true)
	s.streams.endAll(status.Errorf(codes.Unavailable, "coordinator %s is stopping: use another one", s.cfg.ID))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.grpc.GracefulStop()
	}()
	late := time.NewTimer(s.cfg.Limits.StopTimeout)
	defer late.Stop()
	select {
	case <-stopped:
	case <-late.C:
		s.log.Warn("calls did not end in time and were cut")
		s.grpc.Stop()
		<-stopped
	}
	s.streams.work.Wait()
}
