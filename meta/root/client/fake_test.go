package client_test

import (
	"cmp"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

const fakeCluster = 0xc1

// fakeRoot is a cluster of root peers without replication: one log in memory,
// one leader at a time.
type fakeRoot struct {
	t  *testing.T
	mu sync.Mutex
	// leader is who leads; 0: nobody.
	leader uint64
	// hints says whether followers know the leader.
	hints bool
	// delay is how long the leader takes to answer.
	delay time.Duration
	log   []*rootv1.Command
	peers map[uint64]*fakePeer
}

// fakePeer is one peer of a fakeRoot.
type fakePeer struct {
	rootv1.UnimplementedRootServer
	root    *fakeRoot
	id      uint64
	cluster uint64
	server  *grpc.Server
	lis     *bufconn.Listener
	options []grpc.ServerOption // of server, from the next start on
	down    bool
	// at is where it listens when that is not address(id); deaf: whoever dials the
	// address that it has left hears nothing.
	at   string
	deaf bool

	// Guarded by root.mu.
	silent     bool // accepts and says nothing
	dropAfter  int  // breaks a ProposeStream without an answer after so many applied requests; 0: never
	overloaded int  // refuses so many requests
	leaderless uint64
	requests   []int // commands in each Propose request
	reads      int
	confirms   int
	streams    int // for confirmations
	readers    []string
	refuse     error // what every request is refused with
	tailBreaks bool
	names      []uint64 // peers that its Status names
	replaces   []*rootv1.ReplacePeerRequest
}

func newFakeRoot(t *testing.T, n int) *fakeRoot {
	r := &fakeRoot{t: t, hints: true, leader: 1, delay: time.Millisecond, peers: map[uint64]*fakePeer{}}
	for id := uint64(1); id <= uint64(n); id++ {
		p := &fakePeer{root: r, id: id, cluster: fakeCluster}
		r.peers[id] = p
		p.start()
		t.Cleanup(p.stop)
	}
	return r
}

func (p *fakePeer) start() {
	p.lis = bufconn.Listen(1 << 16)
	p.server = grpc.NewServer(p.options...)
	rootv1.RegisterRootServer(p.server, p)
	server, lis := p.server, p.lis
	go func() { _ = server.Serve(lis) }() // Ends with stop.
	p.root.mu.Lock()
	p.down = false
	p.root.mu.Unlock()
}

// stop is a crash: connections break, new ones are refused.
func (p *fakePeer) stop() {
	p.root.mu.Lock()
	p.down = true
	p.root.mu.Unlock()
	p.server.Stop()
}

func (r *fakeRoot) config() client.Config {
	peers := map[uint64]string{}
	for id := range r.peers {
		peers[id] = address(id)
	}
	return client.Config{Peers: peers, DialOptions: []grpc.DialOption{grpc.WithContextDialer(r.dial)}}
}

func address(id uint64) string { return string(rune('a'+id)) + ":1" }

func (r *fakeRoot) dial(ctx context.Context, addr string) (net.Conn, error) {
	r.mu.Lock()
	var lis *bufconn.Listener
	deaf := false
	for id, p := range r.peers {
		if p.where() == addr && !p.down {
			lis = p.lis
		}
		deaf = deaf || p.deaf && address(id) == addr
	}
	r.mu.Unlock()
	if lis == nil && deaf {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if lis == nil {
		return nil, &net.OpError{Op: "dial", Err: net.UnknownNetworkError("refused")}
	}
	return lis.DialContext(ctx)
}

func (p *fakePeer) where() string { return cmp.Or(p.at, address(p.id)) }

func (r *fakeRoot) lead(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader = id
}

func (r *fakeRoot) with(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
}

// start makes a running client that ends with the test.
func (r *fakeRoot) start(cfg client.Config) *client.Client {
	r.t.Helper()
	c, err := client.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run = %v", err)
		}
	})
	return c
}

// admit waits as a leader does and refuses as a follower does.
func (p *fakePeer) admit(ctx context.Context, cluster uint64) error {
	p.root.mu.Lock()
	defer p.root.mu.Unlock()
	if p.silent {
		p.root.mu.Unlock()
		<-ctx.Done()
		p.root.mu.Lock()
		return ctx.Err()
	}
	if p.refuse != nil {
		return p.refuse
	}
	if cluster != 0 && cluster != p.cluster {
		return reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH, "asked for %x, this is %x", cluster, p.cluster)
	}
	if p.overloaded > 0 {
		p.overloaded--
		return reason.New(rootv1.Reason_REASON_OVERLOADED, "full")
	}
	if p.root.leader != p.id {
		err := reason.New(rootv1.Reason_REASON_NOT_LEADER, "peer %d does not lead", p.id)
		if p.root.hints && p.root.leader != 0 {
			err.Detail.LeaderId, err.Detail.LeaderAddress = p.root.leader, p.root.peers[p.root.leader].where()
		}
		return err
	}
	return nil
}

func (p *fakePeer) apply(req *rootv1.ProposeRequest) []*rootv1.CommandResult {
	p.root.mu.Lock()
	defer p.root.mu.Unlock()
	p.requests = append(p.requests, len(req.Commands))
	var results []*rootv1.CommandResult
	for _, c := range req.Commands {
		p.root.log = append(p.root.log, c)
		results = append(results, &rootv1.CommandResult{
			Outcome: rootv1.Outcome_OUTCOME_APPLIED,
			Token:   &rootv1.RootToken{Incarnation: 1, Term: 1, Index: c.RequireEra}, // Echoed, to see that answers are not mixed up.
		})
	}
	return results
}

func (p *fakePeer) ProposeStream(stream grpc.BidiStreamingServer[rootv1.ProposeRequest, rootv1.ProposeResponse]) error {
	var send sync.Mutex
	var answers sync.WaitGroup
	defer answers.Wait()
	for n := 1; ; n++ {
		req, err := stream.Recv()
		if err != nil {
			return nil
		}
		if err := p.admit(stream.Context(), req.ClusterId); err != nil {
			_ = stream.Send(&rootv1.ProposeResponse{RequestId: req.RequestId, Error: reason.From(err)})
			continue
		}
		results := p.apply(req)
		p.root.mu.Lock()
		drop, delay := p.dropAfter, p.root.delay
		p.root.mu.Unlock()
		if drop > 0 && n >= drop {
			return status.Error(codes.Unavailable, "crash after apply")
		}
		answers.Go(func() {
			pause(stream.Context(), delay)
			send.Lock()
			defer send.Unlock()
			_ = stream.Send(&rootv1.ProposeResponse{RequestId: req.RequestId, Results: results})
		})
	}
}

func (p *fakePeer) ReadIndex(ctx context.Context, req *rootv1.ReadIndexRequest) (*rootv1.ReadIndexResponse, error) {
	if err := p.admit(ctx, req.ClusterId); err != nil {
		return nil, err
	}
	p.root.mu.Lock()
	p.reads++
	n, delay := len(p.root.log), p.root.delay
	p.root.mu.Unlock()
	pause(ctx, delay)
	return &rootv1.ReadIndexResponse{Token: &rootv1.RootToken{Incarnation: 1, Term: 1, Index: uint64(n)}}, nil
}

func (p *fakePeer) ConfirmTenure(ctx context.Context, req *rootv1.ConfirmTenureRequest) (*rootv1.ConfirmTenureResponse, error) {
	if err := p.admit(ctx, req.ClusterId); err != nil {
		return nil, err
	}
	p.root.mu.Lock()
	p.confirms++
	delay := p.root.delay
	p.root.mu.Unlock()
	pause(ctx, delay)
	return &rootv1.ConfirmTenureResponse{Active: true, Tenure: &rootv1.Tenure{Era: req.Era, HolderId: req.HolderId}}, nil
}

func (p *fakePeer) ConfirmStream(stream grpc.BidiStreamingServer[rootv1.ConfirmTenureRequest, rootv1.ConfirmTenureResponse]) error {
	p.root.mu.Lock()
	p.streams++
	p.root.mu.Unlock()
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		resp, err := p.ConfirmTenure(stream.Context(), req)
		if err != nil {
			return err
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (p *fakePeer) ClaimTenure(ctx context.Context, req *rootv1.ClaimTenureRequest) (*rootv1.ClaimTenureResponse, error) {
	if err := p.admit(ctx, req.ClusterId); err != nil {
		return nil, err
	}
	return &rootv1.ClaimTenureResponse{RetryAfterMillis: 7}, nil
}

func (p *fakePeer) TransferLeadership(ctx context.Context, req *rootv1.TransferLeadershipRequest) (*rootv1.TransferLeadershipResponse, error) {
	if err := p.admit(ctx, req.ClusterId); err != nil {
		return nil, err
	}
	if req.ClusterId == 0 {
		return nil, status.Error(codes.InvalidArgument, "the client knows the cluster and does not say it")
	}
	p.root.lead(req.NodeId)
	return &rootv1.TransferLeadershipResponse{LeaderId: req.NodeId}, nil
}

func (p *fakePeer) Status(ctx context.Context, _ *rootv1.StatusRequest) (*rootv1.StatusResponse, error) {
	p.root.mu.Lock()
	silent := p.silent
	p.root.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	st := &rootv1.StatusResponse{ClusterId: p.cluster, NodeId: p.id}
	for _, id := range p.names {
		st.Peers = append(st.Peers, &rootv1.RootPeerStatus{NodeId: id, Address: p.root.peers[id].where()})
	}
	return st, nil
}

func (p *fakePeer) ReplacePeer(ctx context.Context, req *rootv1.ReplacePeerRequest) (*rootv1.ReplacePeerResponse, error) {
	if err := p.admit(ctx, req.ClusterId); err != nil {
		return nil, err
	}
	p.root.mu.Lock()
	defer p.root.mu.Unlock()
	p.replaces = append(p.replaces, req)
	if len(p.replaces) == 1 {
		return nil, reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "leadership was lost")
	}
	return &rootv1.ReplacePeerResponse{Stage: rootv1.ReplaceStage_REPLACE_STAGE_DONE}, nil
}

func (p *fakePeer) Tail(req *rootv1.TailRequest, stream grpc.ServerStreamingServer[rootv1.TailResponse]) error {
	p.root.mu.Lock()
	p.readers = append(p.readers, req.ReaderId)
	breaks := p.tailBreaks
	p.root.mu.Unlock()
	if breaks {
		return status.Error(codes.Unavailable, "going down")
	}
	for {
		p.root.mu.Lock()
		silent := p.silent
		msg := &rootv1.TailResponse{ClusterId: p.cluster, LeaderId: p.root.leader, LeaderlessMillis: p.leaderless, CommitIndex: uint64(len(p.root.log)), Incarnation: 1}
		p.root.mu.Unlock()
		if !silent {
			if err := stream.Send(msg); err != nil {
				return err
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *fakePeer) Snapshot(req *rootv1.SnapshotRequest, stream grpc.ServerStreamingServer[rootv1.SnapshotChunk]) error {
	if req.ClusterId != p.cluster {
		return reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH, "x")
	}
	p.root.mu.Lock()
	breaks := p.tailBreaks
	p.root.mu.Unlock()
	if err := stream.Send(&rootv1.SnapshotChunk{}); err != nil {
		return err
	}
	if breaks {
		return status.Error(codes.Unavailable, "going down")
	}
	return stream.Send(&rootv1.SnapshotChunk{Last: true, RecordCount: p.id})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// command is a command that can be told from others by n.
func command(n uint64) *rootv1.Command { return &rootv1.Command{RequireEra: n} }
