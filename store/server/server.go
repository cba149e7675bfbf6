// Package server is the Store gRPC service: it checks who calls, bounds what callers make
// the process hold, and passes requests on to store/host. It decides nothing.
package server

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/listen"
	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/host"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Limits of what callers can make a store hold.
const (
	maxMessageBytes = 2 << 20
	maxHeaderBytes  = 16 << 10
	maxConnections  = 4096
	maxStreams      = 4096
	maxCalls        = 8192
	maxAdmin        = 64
	// callBytes is about what a call holds.
	callBytes = 64 << 10
	// stopTimeout is how long a stop waits for calls.
	stopTimeout = 5 * time.Second
)

// Config says what is served. Host, Budget and Status are required.
type Config struct {
	Host *host.Host
	// ClusterID is the cluster served; 0: not known yet.
	ClusterID func() uint64
	// Status is what Status answers beside the regions.
	Status func() *storev1.StatusResponse
	// TLS has every caller show a certificate of the cluster. Nil: plain connections.
	TLS    *mtls.Source
	Budget *budget.Budget
	Logger hclog.Logger
}

// Server serves one store. Make it with New, start it with Run, once.
type Server struct {
	storev1.UnimplementedStoreServer
	cfg      Config
	stats    *rpcstats.Stats
	access   *access.Gate
	gate     *gate.Gate
	grpc     *grpc.Server
	calls    *places.Places
	admin    *places.Places
	listener atomic.Pointer[listen.Listener] // nil before Run
}

// New makes a server that does not serve yet.
func New(cfg Config) *Server {
	waiting := cfg.Budget.Holder(budget.Waiting)
	s := &Server{
		cfg: cfg, stats: rpcstats.New(),
		calls: places.New("calls", waiting.Places(maxCalls, callBytes)), admin: places.New("changes of regions", maxAdmin),
	}
	if cfg.TLS != nil {
		s.access = access.New()
	}
	s.gate = gate.New(gate.Config{Budget: cfg.Budget, MaxStreams: maxStreams, Changes: Changes, Logger: cfg.Logger})
	s.grpc = grpc.NewServer(s.options()...)
	storev1.RegisterStoreServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, health.NewServer())
	reflection.Register(s.grpc)
	s.gate.Serves(s.grpc)
	return s
}

// Changes says whether a method, by its full name, changes something: such a call must
// name its cluster.
func Changes(method string) bool {
	switch method {
	case storev1.Store_Put_FullMethodName, storev1.Store_Delete_FullMethodName, storev1.Store_Split_FullMethodName,
		storev1.Store_Merge_FullMethodName, storev1.Store_TransferLeader_FullMethodName, storev1.Store_Import_FullMethodName:
		return true
	}
	return false
}

func (s *Server) options() []grpc.ServerOption {
	cluster := clusterid.Gate{Own: s.cfg.ClusterID, Required: Changes}
	return slices.Concat(flow.Server(), []grpc.ServerOption{
		grpc.Creds(s.gate.Credentials(s.cfg.TLS.Server())),
		grpc.InTapHandle(s.gate.Tap),
		grpc.ChainUnaryInterceptor(s.stats.Unary, s.gate.Unary),
		grpc.ChainStreamInterceptor(s.stats.Stream, s.gate.Stream),
	}, s.access.Options(), []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.ChainUnaryInterceptor(cluster.Unary, s.admit),
		grpc.ChainStreamInterceptor(cluster.Stream),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(5 * time.Second),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 5 * time.Minute, Time: 15 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	})
}

// admit bounds the calls under way, of all callers and of each.
func (s *Server) admit(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return nil, reason.New(rootv1.Reason_REASON_DEADLINE_REQUIRED, "the call has no deadline: set one")
	}
	room := s.calls
	switch info.FullMethod {
	case storev1.Store_Split_FullMethodName, storev1.Store_Merge_FullMethodName, storev1.Store_TransferLeader_FullMethodName:
		room = s.admin
	case healthpb.Health_Check_FullMethodName:
		return handler(ctx, req)
	}
	who := places.Of(ctx)
	if err := room.Enter(who); err != nil {
		return nil, err
	}
	defer room.Leave(who)
	return handler(ctx, req)
}

// Run serves until ctx ends or the listener fails. It owns lis and closes it.
func (s *Server) Run(ctx context.Context, lis net.Listener) error {
	bounded := listen.Limit(lis, gate.Connections(s.cfg.Budget, min(maxConnections, listen.Connections()*3/4)))
	s.listener.Store(bounded)
	looking, stopLooking := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer background.Wait()
	defer stopLooking()
	background.Go(func() { s.gate.Run(looking) })
	failed := make(chan error, 1)
	background.Go(func() { failed <- s.grpc.Serve(bounded) })
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("serve %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	late := time.AfterFunc(stopTimeout, func() {
		bounded.CloseAll()
		s.grpc.Stop()
	})
	defer late.Stop()
	s.grpc.GracefulStop()
	return err
}

// Vars is a server as /debug/vars shows it.
type Vars struct {
	Calls       map[string]rpcstats.MethodSnapshot `json:"rpc"`
	Streams     map[string]rpcstats.StreamSnapshot `json:"streams"`
	Connections gate.Vars                          `json:"connections"`
}

// Vars returns its numbers.
func (s *Server) Vars() Vars {
	return Vars{s.stats.Snapshot(), s.stats.Streams(), s.gate.Vars(s.listener.Load())}
}

// Get implements storev1.StoreServer.
func (s *Server) Get(_ context.Context, req *storev1.GetRequest) (*storev1.GetResponse, error) {
	e, err := s.cfg.Host.Get(req.GetRegion(), req.GetKey())
	if err != nil {
		return nil, err
	}
	return &storev1.GetResponse{Found: e.Version != 0, Value: e.Value, Version: e.Version}, nil
}

// Put implements storev1.StoreServer.
func (s *Server) Put(_ context.Context, req *storev1.PutRequest) (*storev1.PutResponse, error) {
	version, err := s.cfg.Host.Put(req.GetRegion(), req.GetKey(), req.GetValue(), req.ExpectedVersion)
	if err != nil {
		return nil, err
	}
	return &storev1.PutResponse{Version: version}, nil
}

// Delete implements storev1.StoreServer.
func (s *Server) Delete(_ context.Context, req *storev1.DeleteRequest) (*storev1.DeleteResponse, error) {
	deleted, err := s.cfg.Host.Delete(req.GetRegion(), req.GetKey(), req.ExpectedVersion)
	if err != nil {
		return nil, err
	}
	return &storev1.DeleteResponse{Deleted: deleted}, nil
}

// Scan implements storev1.StoreServer.
func (s *Server) Scan(_ context.Context, req *storev1.ScanRequest) (*storev1.ScanResponse, error) {
	entries, next, err := s.cfg.Host.Scan(req.GetRegion(), req.GetStartKey(), req.GetEndKey(), req.GetLimit())
	if err != nil {
		return nil, err
	}
	resp := &storev1.ScanResponse{NextKey: next, Entries: make([]*storev1.Entry, len(entries))}
	for i, e := range entries {
		resp.Entries[i] = &storev1.Entry{Key: e.Key, Value: e.Value, Version: e.Version}
	}
	return resp, nil
}

// Split implements storev1.StoreServer.
func (s *Server) Split(ctx context.Context, req *storev1.SplitRequest) (*storev1.SplitResponse, error) {
	left, right, err := s.cfg.Host.Split(ctx, req.GetRegion(), req.GetKey())
	if err != nil {
		return nil, err
	}
	return &storev1.SplitResponse{Left: left.Proto(), Right: right.Proto()}, nil
}

// Merge implements storev1.StoreServer.
func (s *Server) Merge(ctx context.Context, req *storev1.MergeRequest) (*storev1.MergeResponse, error) {
	region, err := s.cfg.Host.Merge(ctx, req.GetLeft(), req.GetRight())
	if err != nil {
		return nil, err
	}
	return &storev1.MergeResponse{Region: region.Proto()}, nil
}

// TransferLeader implements storev1.StoreServer.
func (s *Server) TransferLeader(ctx context.Context, req *storev1.TransferLeaderRequest) (*storev1.TransferLeaderResponse, error) {
	region, keys, err := s.cfg.Host.TransferLeader(ctx, req.GetRegion(), rooted.MemberID(req.GetToMemberId()))
	if err != nil {
		return nil, err
	}
	return &storev1.TransferLeaderResponse{Region: region.Proto(), Keys: keys}, nil
}

// Import implements storev1.StoreServer.
func (s *Server) Import(stream grpc.ClientStreamingServer[storev1.ImportRequest, storev1.ImportResponse]) error {
	// Others wait for their turn meanwhile.
	switch end, bounded := stream.Context().Deadline(); {
	case !bounded:
		return reason.New(rootv1.Reason_REASON_DEADLINE_REQUIRED, "the copy has no deadline: set one")
	case time.Until(end) > 2*copyWithin:
		return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "the copy may take %v, which is above the limit of %v", time.Until(end).Round(time.Second), 2*copyWithin)
	}
	who := places.Of(stream.Context())
	if err := s.admin.Enter(who); err != nil {
		return err
	}
	defer s.admin.Leave(who)
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetHeader() == nil || len(first.GetEntries()) > 0 {
		return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "header: the first message is a header and nothing else")
	}
	from := rooted.MemberID(principal.FromContext(stream.Context()).Name)
	if err := s.cfg.Host.Import(from, first.GetHeader(), stream.Recv); err != nil {
		return err
	}
	return stream.SendAndClose(&storev1.ImportResponse{WorkdirId: s.cfg.Host.WorkdirID()})
}

// Status implements storev1.StoreServer.
func (s *Server) Status(context.Context, *storev1.StatusRequest) (*storev1.StatusResponse, error) {
	resp := s.cfg.Status()
	shown, count := s.cfg.Host.Status()
	resp.Regions, resp.RegionCount, resp.WorkdirId = shown, uint64(count), s.cfg.Host.WorkdirID()
	return resp, nil
}
