// Package server is the Root gRPC service of one peer.
//
// It owns connections, streams and their limits, and decides nothing about the
// root: that is the replica's. It promises:
//
//  1. Every answer is the replica's, or a refusal with a reason and the way out
//     (a follower names the leader and its address).
//  2. Requests of one ProposeStream reach the replica without waiting for
//     earlier ones; answers come in order of completion. A command that is refused
//     before it is judged is answered as rejected and costs its neighbours nothing. An answer has at most
//     about 3 MiB of records: what does not fit is left out, and said (shorten.go).
//  3. A tail is ordered, has no gap and names the commit index in every message,
//     at least every 100 ms. A position that is not retained, or not of this
//     history, is refused. A peer that does not vote serves no tail and no snapshot:
//     it would not notice that it is left behind.
//  4. Committed entries are encoded once for all readers that are at the same
//     place. A reader that takes nothing for SendTimeout, or falls behind the
//     retained log, is cut, told why and counted.
//  5. Health is a real read index, not older than HealthCache.
//  6. Everything that waits is bounded; beyond the bound REASON_OVERLOADED comes at
//     once. Serve returns within StopTimeout of the end of its context.
//  7. Where callers have certificates, nothing is done that internal/access does not
//     allow, every change has a name, and secrets go to coordinators, and to operators'
//     backups, alone.
//  8. ReplacePeer keeps nothing between two calls: each takes the step that is next
//     by the rooted peers, whoever took the one before. A refusal changed nothing.
//  9. A peer that belongs to no cluster yet is served by Wait: it is not healthy, and
//     whoever asks for anything else is told what it waits for.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Judge answers what only the log can answer. *replica.Replica is one; its
// documentation says what each error means.
type Judge interface {
	Propose(ctx context.Context, commands []*rootv1.Command) ([]*rootv1.CommandResult, error)
	ReadIndex(ctx context.Context) (state.Token, error)
	Claim(ctx context.Context, claim *rootv1.TenureClaimed, windows ...*rootv1.FirstWindow) (*rootv1.ClaimTenureResponse, error)
	Confirm(ctx context.Context, request *rootv1.ConfirmTenureRequest) (*rootv1.ConfirmTenureResponse, error)
	TransferLeadership(ctx context.Context, to uint64) (uint64, error)
}

// Views publishes what the peer knows. Changed returns a channel that is closed
// when a newer View than the one of this moment is there; it is called before View.
type Views interface {
	View() *replica.View
	Changed() <-chan struct{}
}

// Reshaper changes who the root peers are, one step a call.
type Reshaper interface {
	Reshape(ctx context.Context, e *rootv1.Event, force bool) (*rootv1.CommandResult, error)
}

// Replica is what a Server serves.
type Replica interface {
	Judge
	Reshaper
	Views
}

// Log holds the retained entries. Both methods may be called at any time from
// any goroutine; the entries must not be modified. An index that is no longer
// retained is storage.ErrCompacted or raft.ErrCompacted.
type Log interface {
	Committed(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error)
	Term(index uint64) (uint64, error)
}

// Peers knows the other peers.
type Peers interface {
	// Address is a peer's gRPC address, host:port; empty when it has not told.
	Address(node uint64) string
	// Reached is where the peer's transport is reached from here; empty: nowhere now.
	Reached(node uint64) string
	// Connected says that messages to the peer find a connection.
	Connected(node uint64) bool
	// FeatureLevel is the highest that a peer understands, this one included; 0: it
	// is not heard from.
	FeatureLevel(node uint64) uint32
	// Candidate is the peer that waits under a node id to become a root peer, as
	// it said of itself lately; false: nobody does.
	Candidate(node uint64) (storage.Peer, bool)
}

// Server serves one peer. Make it with New.
type Server struct {
	rootv1.UnimplementedRootServer
	cfg    Config
	stats  *rpcstats.Stats
	health *health
	gate   *gate.Gate

	// Requests with the replica. Each kind has places of its own, all together
	// below what the replica takes, so that claims and confirmations, and what else is
	// a holder's, find theirs.
	proposals, reads, authority *places.Places
	waiting                     *budget.Holder // of bytes of proposals
	tails, snapshots            desk

	cut     atomic.Uint64
	batches batchCache // for coordinators
	bare    batchCache // for readers that get no secrets

	listener atomic.Pointer[listen.Listener] // nil before Serve
	made     time.Time
	stopping chan struct{}  // closed when streams should end
	serving  sync.WaitGroup // goroutines that outlive a stream that was cut

	mu      sync.Mutex // guards what follows
	readers map[*reader]struct{}
}

// New checks the configuration and returns a server that serves nothing yet.
func New(cfg Config) (*Server, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return newServer(cfg), nil
}

func newServer(cfg Config) *Server {
	s := &Server{cfg: cfg, bare: batchCache{bare: true}, stats: cfg.Stats, made: time.Now(), stopping: make(chan struct{}), readers: map[*reader]struct{}{}}
	s.gate = gate.New(gate.Config{Budget: cfg.Budget, MaxStreams: cfg.MaxStreamsPerConnection, Changes: changes, Logger: cfg.Logger})
	s.proposals, s.reads = places.New("proposals", cfg.MaxProposals), places.New("read indexes", cfg.MaxReads)
	s.authority = places.New("claims and confirmations", cfg.MaxConfirmations)
	s.waiting = cfg.Budget.Holder(budget.Waiting)
	s.tails, s.snapshots = newDesk("tails", int64(cfg.MaxReaders)), newDesk("snapshots", cfg.MaxSnapshots)
	s.health = &health{replica: cfg.Replica, timeout: cfg.HealthTimeout, keep: cfg.HealthCache, stopping: s.stopping}
	return s
}

// Serve serves the Root service, health and reflection on lis until ctx ends or
// accepting fails. It may be called once. When ctx ends, tails end at once with
// Unavailable, other calls have StopTimeout to finish. When ctx ends with a cause
// of its own this peer has failed: nothing is waited for.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	server := grpc.NewServer(s.options()...)
	rootv1.RegisterRootServer(server, s)
	healthv1.RegisterHealthServer(server, s.health)
	reflection.Register(server)
	s.gate.Serves(server)

	failed := make(chan error, 1)
	limited := listen.Limit(lis, gate.Connections(s.cfg.Budget, s.cfg.MaxConnections))
	s.listener.Store(limited)
	looking, stopLooking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLooking()
	var look sync.WaitGroup
	look.Go(func() { s.gate.Run(looking) })
	var accept sync.WaitGroup
	accept.Go(func() { failed <- server.Serve(limited) })
	if s.cfg.RaiseAfter > 0 {
		s.serving.Go(func() { s.raiseWhenLevel(ctx) })
	}
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("serve root on %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	close(s.stopping)
	grace := s.cfg.StopTimeout
	if ctx.Err() != nil && context.Cause(ctx) != ctx.Err() {
		grace = 0
	}
	stopWithin(server, limited, grace)
	accept.Wait()
	s.serving.Wait()
	stopLooking()
	look.Wait()
	return err
}

// stopWithin lets calls finish for a while and then ends them. gRPC knows no
// connection that has not shaken hands, and waits for it: it is closed here.
func stopWithin(server *grpc.Server, lis *listen.Listener, limit time.Duration) {
	end := func() {
		lis.CloseAll()
		server.Stop()
	}
	if limit == 0 {
		end()
		return
	}
	timer := time.AfterFunc(limit, end)
	defer timer.Stop()
	server.GracefulStop()
}

func (s *Server) options() []grpc.ServerOption {
	return slices.Concat(flow.Server(), []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(s.cfg.MaxMessageBytes),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.MaxConcurrentStreams(s.cfg.MaxStreamsPerConnection),
		grpc.ConnectionTimeout(5 * time.Second),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(uint32(4 * runtime.GOMAXPROCS(0))),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 500 * time.Millisecond, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 5 * time.Minute, Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.Creds(s.gate.Credentials(s.cfg.TLS.Server())),
		grpc.InTapHandle(s.gate.Tap),
		grpc.ChainUnaryInterceptor(s.stats.Unary, s.gate.Unary),
		grpc.ChainStreamInterceptor(s.stats.Stream, s.gate.Stream),
	}, s.cfg.Access.Options(), []grpc.ServerOption{grpc.ChainUnaryInterceptor(requireDeadline)}, s.cfg.ServerOptions)
}

// GateVars is what the server's connections hold and what became of them.
func (s *Server) GateVars() gate.Vars { return s.gate.Vars(s.listener.Load()) }

// changes says whether a method may change something.
func changes(method string) bool {
	return method != rootv1.Root_ReadIndex_FullMethodName && method != rootv1.Root_Status_FullMethodName
}

// errStopping ends streams when the server stops; clients go to another peer.
var errStopping = errors.New("server is stopping")
