package server_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/server"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

const cluster = 0xc1

// fakeReplica is a replica of one peer: the real state machine over a log in
// memory. It is the server's Log too.
type fakeReplica struct {
	clock *clock.Monotonic

	mu       sync.Mutex
	st       *state.State
	log      []*raftpb.Entry
	first    uint64
	term     uint64
	leader   uint64
	leaderAt clock.Instant
	changed  chan struct{}
	refuse   func([]*rootv1.Command) error
	hold     chan struct{} // proposals wait for it; nil: they do not
	held     int
	reads    int
	readErr  error
	reading  func() // called before a read; nil: nothing happens
	encoded  int    // calls of Committed
	claims   []*rootv1.TenureClaimed
	reshaped int                       // steps that were asked for
	judge    func(*rootv1.Event) error // refuses steps; nil: it does not
	learner  uint64                    // match of peer 4
}

func newFakeReplica(t *testing.T) *fakeReplica {
	r := &fakeReplica{clock: clock.NewMonotonic(), st: state.New(), first: 1, term: 1, leader: 1, changed: make(chan struct{})}
	boot := &rootv1.Cluster{ClusterId: cluster, Incarnation: 1, Peers: []*rootv1.RootPeer{
		{NodeId: 1, Incarnation: 11, TransportAddress: "a:2"}, {NodeId: 2, Incarnation: 12, TransportAddress: "b:2"}, {NodeId: 3, Incarnation: 13, TransportAddress: "c:2"},
	}}
	results := r.apply([]*rootv1.Command{{Events: []*rootv1.Event{{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: boot}}}}}})
	if results[0].GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
		t.Fatalf("bootstrap: %v", results[0])
	}
	return r
}

func (r *fakeReplica) apply(commands []*rootv1.Command) []*rootv1.CommandResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	data, err := proto.Marshal(&rootv1.Entry{Commands: commands})
	if err != nil {
		panic(err)
	}
	index := uint64(len(r.log)) + r.first
	var out state.Applied
	if err := r.st.ApplyEntry(r.term, index, data, &out); err != nil {
		panic(err)
	}
	r.log = append(r.log, &raftpb.Entry{Term: proto.Uint64(r.term), Index: proto.Uint64(index), Data: data})
	r.publishLocked()
	var results []*rootv1.CommandResult
	for _, one := range out.Results {
		results = append(results, one.Proto())
	}
	return results
}

func (r *fakeReplica) publishLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// compact drops entries up to and including index.
func (r *fakeReplica) compact(index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = r.log[index+1-r.first:]
	r.first = index + 1
}

func (r *fakeReplica) lead(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader, r.leaderAt = id, 0
	if id == 0 {
		r.leaderAt = r.clock.Now()
	}
	r.publishLocked()
}

func (r *fakeReplica) with(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
}

func (r *fakeReplica) notLeader() error {
	err := reason.New(rootv1.Reason_REASON_NOT_LEADER, "this peer does not lead")
	err.Detail.LeaderId = r.leader
	return err
}

func (r *fakeReplica) Propose(ctx context.Context, commands []*rootv1.Command) ([]*rootv1.CommandResult, error) {
	r.mu.Lock()
	leader, refuse, hold := r.leader, r.refuse, r.hold
	r.held++
	r.mu.Unlock()
	if leader != 1 {
		return nil, r.notLeader()
	}
	if refuse != nil {
		if err := refuse(commands); err != nil {
			return nil, err
		}
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "the deadline passed")
		}
	}
	return r.apply(commands), nil
}

func (r *fakeReplica) ReadIndex(context.Context) (state.Token, error) {
	if r.reading != nil {
		r.reading()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	return r.st.Token(), r.readErr
}

func (r *fakeReplica) Claim(_ context.Context, claim *rootv1.TenureClaimed, _ ...*rootv1.FirstWindow) (*rootv1.ClaimTenureResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claims = append(r.claims, claim)
	return &rootv1.ClaimTenureResponse{RetryAfterMillis: 5}, nil
}

func (r *fakeReplica) Confirm(_ context.Context, req *rootv1.ConfirmTenureRequest) (*rootv1.ConfirmTenureResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leader != 1 {
		return nil, r.notLeader()
	}
	return &rootv1.ConfirmTenureResponse{Active: req.Era == 1}, nil
}

func (r *fakeReplica) TransferLeadership(_ context.Context, to uint64) (uint64, error) {
	return to, nil
}

func (r *fakeReplica) Reshape(_ context.Context, e *rootv1.Event, _ bool) (*rootv1.CommandResult, error) {
	r.mu.Lock()
	r.reshaped++
	judge, leader := r.judge, r.leader
	r.mu.Unlock()
	if leader != 1 {
		return nil, r.notLeader()
	}
	if judge != nil {
		if err := judge(e); err != nil {
			return nil, err
		}
	}
	return r.apply([]*rootv1.Command{{Events: []*rootv1.Event{e}}})[0], nil
}

func (r *fakeReplica) View() *replica.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.first + uint64(len(r.log)) - 1
	v := &replica.View{
		State: r.st.Fork(), Commit: last, Applied: last, Role: rootv1.RaftRole_RAFT_ROLE_FOLLOWER, Term: r.term, Leader: r.leader,
		LeaderlessSince: r.leaderAt, FirstIndex: r.first, LastIndex: last, Members: r.st.RootMembers(),
	}
	if r.leader == 1 {
		v.Role = rootv1.RaftRole_RAFT_ROLE_LEADER
		v.Peers = map[uint64]replica.Progress{1: {Match: last}, 2: {Match: last - 1}, 4: {Match: r.learner}}
	}
	return v
}

func (r *fakeReplica) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *fakeReplica) Committed(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.encoded++
	if lo < r.first {
		return nil, storage.ErrCompacted
	}
	var out []*raftpb.Entry
	size := uint64(0)
	for _, e := range r.log[lo-r.first:] {
		size += uint64(len(e.Data))
		if e.GetIndex() >= hi || (len(out) > 0 && size > maxBytes) {
			break
		}
		out = append(out, e)
	}
	return out, nil
}

func (r *fakeReplica) Term(index uint64) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if index+1 < r.first {
		return 0, storage.ErrCompacted
	}
	if index+1 == r.first {
		return 1, nil
	}
	return r.log[index-r.first].GetTerm(), nil
}

// fakePeers knows every peer's address and has a connection to peer 2. The nodes
// in it have knocked.
type fakePeers map[uint64]bool

func (p fakePeers) Candidate(id uint64) (storage.Peer, bool) {
	return storage.Peer{NodeID: id, Incarnation: 10 + id, Address: string(rune('a'+id-1)) + ":2"}, p[id]
}

func (fakePeers) Address(id uint64) string { return string(rune('a'+id-1)) + ":1" }
func (fakePeers) Reached(uint64) string    { return "" }
func (fakePeers) Connected(id uint64) bool { return id == 2 }

func (p fakePeers) FeatureLevel(id uint64) uint32 {
	if id == 1 {
		return 4
	}
	if p.Connected(id) {
		return 3
	}
	return 0
}

// served is a running server with connections to it.
type served struct {
	*server.Server
	t    *testing.T
	lis  *bufconn.Listener
	stop func() // returns when Serve has
}

func serve(t *testing.T, r *fakeReplica, change func(*server.Config)) *served {
	t.Helper()
	cfg := server.Config{NodeID: 1, ClusterID: cluster, Address: "a:1", Replica: r, Log: r, Peers: fakePeers{}, Clock: r.clock}
	if change != nil {
		change(&cfg)
	}
	s, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	lis := bufconn.Listen(1 << 16)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, lis) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	t.Cleanup(stop)
	return &served{Server: s, t: t, lis: lis, stop: stop}
}

func (s *served) conn() *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///a:1", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.lis.DialContext(ctx) }))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *served) root() rootv1.RootClient { return rootv1.NewRootClient(s.conn()) }

func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// joined is a command that always applies and takes about size bytes, 16,000 at most.
func joined(id string, size int) *rootv1.Command {
	labels := map[string]string{}
	for n := 0; n*250 < size; n++ {
		labels[fmt.Sprintf("l%d", n)] = strings.Repeat("x", 250)
	}
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member: &rootv1.Member{Id: id, Address: "m:1", StartNonce: 1, Labels: labels},
	}}}}}
}
