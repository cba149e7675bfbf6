package store

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/proctest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/host"
	"google.golang.org/grpc"
)

// coordinator answers a store.
type coordinator struct {
	coordinatorv1.UnimplementedCoordinatorServer

	mu sync.Mutex
	// Guarded by mu. state is that of the member in answers to heartbeats; told counts the
	// regions that were told of, slow is how long each of them takes, and refuse those that
	// are refused.
	incarnation uint64
	state       rootv1.MemberState
	nonces      []uint64
	beats, told int
	slow        time.Duration
	refuse      uint64
}

var disclosed = &coordinatorv1.Disclosure{
	ClusterId: 16, ServedRootToken: &rootv1.RootToken{Term: 1, Index: 1, Incarnation: 1}, CurrentRootToken: &rootv1.RootToken{Term: 1, Index: 1, Incarnation: 1},
}

func (c *coordinator) with(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *coordinator) Status(context.Context, *coordinatorv1.StatusRequest) (*coordinatorv1.StatusResponse, error) {
	return &coordinatorv1.StatusResponse{CoordinatorId: "c1", Cluster: &rootv1.Cluster{ClusterId: 16, Incarnation: 1}, Disclosure: disclosed}, nil
}

func (c *coordinator) ListMembers(context.Context, *coordinatorv1.ListMembersRequest) (*coordinatorv1.ListMembersResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.nonces) == 0 {
		return &coordinatorv1.ListMembersResponse{Disclosure: disclosed}, nil
	}
	return &coordinatorv1.ListMembersResponse{Disclosure: disclosed, Members: []*coordinatorv1.MemberStatus{{Member: &rootv1.Member{
		Id: "store-1", Incarnation: c.incarnation, State: c.state, StartNonce: c.nonces[len(c.nonces)-1],
	}}}}, nil
}

func (c *coordinator) RegisterMember(_ context.Context, req *coordinatorv1.RegisterMemberRequest) (*coordinatorv1.RegisterMemberResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.incarnation++
	c.state = rootv1.MemberState_MEMBER_STATE_ACTIVE
	c.nonces = append(c.nonces, req.GetMember().GetStartNonce())
	m := req.GetMember()
	m.Incarnation, m.State = c.incarnation, c.state
	return &coordinatorv1.RegisterMemberResponse{Member: m}, nil
}

func (c *coordinator) StoreHeartbeat(context.Context, *coordinatorv1.StoreHeartbeatRequest) (*coordinatorv1.StoreHeartbeatResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beats++
	return &coordinatorv1.StoreHeartbeatResponse{State: c.state}, nil
}

func (c *coordinator) RegionHeartbeat(ctx context.Context, req *coordinatorv1.RegionHeartbeatRequest) (*coordinatorv1.RegionHeartbeatResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse == req.GetRegion().GetId() {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_RANGE, "it overlaps")
	}
	select {
	case <-time.After(c.slow):
	case <-ctx.Done():
	}
	c.told++
	return &coordinatorv1.RegionHeartbeatResponse{Region: req.GetRegion()}, nil
}

// reach makes a store that does not run, with regions that somebody else leads, and its
// coordinator.
func reach(t *testing.T, regions uint64) (*Store, *coordinator) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &coordinator{}
	g := grpc.NewServer()
	coordinatorv1.RegisterCoordinatorServer(g, c)
	go func() { _ = g.Serve(lis) }()
	t.Cleanup(g.Stop)
	s, err := Open(Config{StoreID: 1, Workdir: t.TempDir(), Advertise: "127.0.0.1:1", Coordinators: []string{lis.Addr().String()}, Heartbeat: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	var all []host.Change
	for id := range regions {
		all = append(all, host.Change{Region: rooted.RegionFromProto(&rootv1.Region{
			Id: id + 1, KeyspaceId: 1, Revision: 1, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1},
			Owners: []*rootv1.Owner{{MemberId: "store-2"}, {MemberId: "store-1"}},
		})})
	}
	if err := s.host.Follow(all, true, 1); err != nil {
		t.Fatal(err)
	}
	return s, c
}

// A region that coordinators refuse to hear of keeps nobody from hearing of the store, and
// neither do very many that are told slowly.
func TestHeartbeatsGoOnBesideReports(t *testing.T) {
	s, c := reach(t, 40)
	s.cfg.Heartbeat = time.Hour // all are told in one
	c.refuse = 1
	told := map[rooted.RegionID]told{}
	if err := s.tell(t.Context(), 1, 0, told); err != nil || c.beats != 1 || c.told != 39 {
		t.Errorf("one is refused: %v; %d beats, %d told", err, c.beats, c.told)
	}
	clear(told)
	s.cfg.Heartbeat = 5 * time.Millisecond
	c.with(func() { c.told, c.beats, c.slow = 0, 0, 2*time.Millisecond })
	if err := s.tell(t.Context(), 2, 0, told); err != nil || c.beats != 1 || c.told == 39 {
		t.Errorf("all are slow: %v; %d beats, %d told", err, c.beats, c.told)
	}
	for sequence := uint64(3); len(told) < 40; sequence++ {
		if err := s.tell(t.Context(), sequence, 0, told); err != nil || sequence > 10_000 { // on a busy machine there may be time for none in many of them
			t.Fatalf("%v, %d told", err, len(told))
		}
	}
}

// A store that was said to have failed registers again, as a process of its own.
func TestAFailedStoreRegistersAgain(t *testing.T) {
	s, c := reach(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.beat(ctx) }()
	until := func(what string, f func() bool) {
		t.Helper()
		for deadline := time.After(proctest.Patience); ; {
			met := false
			if c.with(func() { met = f() }); met {
				return
			}
			select {
			case <-deadline:
				t.Fatal(what)
			case <-time.After(time.Millisecond):
			}
		}
	}
	until("no heartbeat", func() bool { return c.beats > 0 })
	c.with(func() { c.state = rootv1.MemberState_MEMBER_STATE_FAILED })
	// The store's own word, not the coordinator's: who is cancelled before the answer came has
	// not registered.
	until("it stays failed", func() bool { return s.incarnation.Load() == 2 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(c.nonces) != 2 || c.nonces[0] == c.nonces[1] {
		t.Errorf("nonces %v", c.nonces)
	}
}

// That heartbeats are answered says nothing of a watch that brings nothing.
func TestABrokenWatchIsShown(t *testing.T) {
	s, _ := reach(t, 0)
	s.heard(heartbeats, nil)
	s.heard(regions, errors.New("no permission"))
	s.heard(heartbeats, nil)
	if got := s.unheardError(); !strings.Contains(got, "no permission") {
		t.Errorf("%q", got)
	}
	s.heard(regions, nil)
	if got := s.unheardError(); got != "" {
		t.Errorf("%q", got)
	}
}

// That another process has registered as the store ends this one when its watch says so;
// its own registrations do not.
func TestTheWatchEndsASupersededStore(t *testing.T) {
	s, _ := reach(t, 0)
	hear := func(incarnation, nonce uint64) error {
		return s.learn(&coordinatorv1.MemberChange{Member: &rootv1.Member{Id: "store-1", Address: "127.0.0.1:2", Incarnation: incarnation, StartNonce: nonce}})
	}
	if err := hear(6, 1); err != nil {
		t.Errorf("before it has registered: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	if err := s.enlist(ctx); err != nil {
		t.Fatal(err)
	}
	own := s.incarnation.Load()
	for _, at := range []uint64{own - 1, own} {
		if err := hear(at, 1); err != nil {
			t.Errorf("incarnation %d: %v", at, err)
		}
	}
	if err := hear(own+1, s.nonce.Load()); err != nil {
		t.Errorf("its own, that is not answered yet: %v", err)
	}
	err := hear(own+1, 1)
	if _, fatal := errors.AsType[fatalError](err); !fatal || !strings.Contains(err.Error(), "another process runs as store-1") {
		t.Errorf("another's: %v", err)
	}
}
