package router_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// coordinator is one that says what the test says, in memory.
type coordinator struct {
	coordinatorv1.UnimplementedCoordinatorServer
	feed   chan *coordinatorv1.WatchRegionsResponse
	listen *bufconn.Listener
	server *grpc.Server

	mu    sync.Mutex
	gone  rootv1.Reason // why there is no such keyspace
	hangs bool          // it answers no key
	fed   string        // the keyspace whose watch has news; empty: any
	begun time.Time
	index uint64
	asked int           // keys
	calls int           // requests of keys
	takes time.Duration // a request
	// claimed is what every claim makes, of owners m1 to m4.
	claimed *rootv1.Region
	lookup  func(*coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error)
	desk    desk
}

func (c *coordinator) Status(context.Context, *coordinatorv1.StatusRequest) (*coordinatorv1.StatusResponse, error) {
	return &coordinatorv1.StatusResponse{Disclosure: c.says()}, nil
}

func (c *coordinator) says() *coordinatorv1.Disclosure {
	return &coordinatorv1.Disclosure{ClusterId: 7, Era: 1, ServedRootToken: at(c.index), CurrentRootToken: at(c.index)}
}

// RouteStream answers one key after another by lookup.
func (c *coordinator) RouteStream(s grpc.BidiStreamingServer[coordinatorv1.GetRegionsByKeysRequest, coordinatorv1.GetRegionsByKeysResponse]) error {
	for {
		req, err := s.Recv()
		if err != nil {
			return nil
		}
		reply := &coordinatorv1.GetRegionsByKeysResponse{RequestId: req.GetRequestId()}
		c.mu.Lock()
		if c.hangs {
			c.mu.Unlock()
			continue
		}
		reply.Disclosure = c.says()
		c.calls++
		for _, key := range req.GetKeys() {
			c.asked++
			place := uint32(0)
			if c.lookup != nil {
				one, err := c.lookup(&coordinatorv1.GetRegionByKeyRequest{Key: key, Keyspace: req.GetKeyspace(), Read: req.GetRead()})
				if err == nil {
					reply.Regions, reply.Owners = append(reply.Regions, one.GetRegion()), append(reply.Owners, one.GetOwners()...)
					place = uint32(len(reply.Regions))
				}
			}
			reply.RegionOfKey = append(reply.RegionOfKey, place)
		}
		takes := c.takes
		c.mu.Unlock()
		time.Sleep(takes)
		if err := s.Send(reply); err != nil {
			return err
		}
	}
}

func (c *coordinator) ClaimRegions(context.Context, *coordinatorv1.ClaimRegionsRequest) (*coordinatorv1.ClaimRegionsResponse, error) {
	owners, _ := answer(c.claimed)
	return &coordinatorv1.ClaimRegionsResponse{
		Regions: []*coordinatorv1.ClaimedRegion{{Region: c.claimed, Made: true, Token: at(c.index)}},
		Owners:  owners.GetOwners(), Disclosure: c.says(),
	}, nil
}

func (c *coordinator) questions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

func (c *coordinator) requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

func (c *coordinator) answers(lookup func(*coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookup = lookup
}

func (c *coordinator) WatchRegions(req *coordinatorv1.WatchRegionsRequest, s grpc.ServerStreamingServer[coordinatorv1.WatchRegionsResponse]) error {
	c.mu.Lock()
	gone, silent := c.gone, c.fed != "" && c.fed != req.GetKeyspace()
	if !silent {
		c.begun = time.Now()
	}
	c.mu.Unlock()
	if gone != rootv1.Reason_REASON_UNSPECIFIED {
		return reason.New(gone, "there is no such keyspace")
	}
	if silent {
		<-s.Context().Done()
		return nil
	}
	for {
		select {
		case m := <-c.feed:
			if err := s.Send(m); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func at(index uint64) *rootv1.RootToken {
	return &rootv1.RootToken{Incarnation: 1, Term: 1, Index: index}
}

// bench is a router in a bubble, with the coordinator that it follows.
type bench struct {
	t testing.TB
	*router.Router
	c *coordinator
}

// start makes one; the caller defers what is returned.
func start(t testing.TB, cfg router.Config) (*bench, func()) {
	t.Helper()
	b := &bench{t: t, c: &coordinator{feed: make(chan *coordinatorv1.WatchRegionsResponse)}}
	end := b.serve()
	cl, err := client.New(client.Config{
		Endpoints: []string{"a"}, WatchSilence: time.Hour,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			b.c.mu.Lock()
			l := b.c.listen
			b.c.mu.Unlock()
			return l.DialContext(ctx)
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Client = cl
	if b.Router, err = router.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	return b, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = cl.Close()
		end()
	}
}

func (b *bench) serve() (end func()) {
	l, s := bufconn.Listen(1<<16), grpc.NewServer()
	coordinatorv1.RegisterCoordinatorServer(s, b.c)
	b.c.mu.Lock()
	b.c.listen, b.c.server = l, s
	b.c.mu.Unlock()
	go func() { _ = s.Serve(l) }()
	return s.Stop
}

// send has the coordinator send a batch: the next position, with a keyspace on a snapshot.
func (b *bench) send(m *coordinatorv1.WatchRegionsResponse) {
	b.c.mu.Lock()
	b.c.index++
	m.Token, m.Disclosure = at(b.c.index), b.c.says()
	m.SentMillis = uint64(time.Since(b.c.begun).Milliseconds()) + 1
	b.c.mu.Unlock()
	if m.GetSnapshot() && m.GetKeyspaces() == nil {
		m.Keyspaces = []*coordinatorv1.KeyspaceChange{{Keyspace: keyspace(1, "default")}}
	}
	b.c.feed <- m
	synctest.Wait()
}

func keyspace(id uint32, name string) *rootv1.Keyspace {
	return &rootv1.Keyspace{Id: id, Name: name, Settings: &rootv1.KeyspaceSettings{Placement: rootv1.Placement_PLACEMENT_ASSIGNED}}
}

// snapshot begins with members m1 to m4 and these regions.
func (b *bench) snapshot(regions ...*rootv1.Region) {
	m := &coordinatorv1.WatchRegionsResponse{Snapshot: true, Changes: now(regions...)}
	for i := range 4 {
		m.Members = append(m.Members, &coordinatorv1.MemberChange{Member: member(i+1, rootv1.MemberState_MEMBER_STATE_ACTIVE)})
	}
	b.send(m)
}

func (b *bench) members(all ...*rootv1.Member) {
	m := &coordinatorv1.WatchRegionsResponse{}
	for _, one := range all {
		m.Members = append(m.Members, &coordinatorv1.MemberChange{Member: one})
	}
	b.send(m)
}

func (b *bench) regions(all ...*rootv1.Region) {
	b.send(&coordinatorv1.WatchRegionsResponse{Changes: now(all...)})
}

func now(regions ...*rootv1.Region) (out []*coordinatorv1.RegionChange) {
	for _, r := range regions {
		out = append(out, &coordinatorv1.RegionChange{Region: r})
	}
	return out
}

func member(n int, state rootv1.MemberState) *rootv1.Member {
	return &rootv1.Member{Id: fmt.Sprintf("m%d", n), Address: fmt.Sprintf("10.0.0.%d:1", n), State: state, Incarnation: 1}
}

// region is [start, end) at a revision, which is its epoch too, with owners at their
// first incarnation.
func region(id uint64, start, end string, revision uint64, owners ...int) *rootv1.Region {
	r := &rootv1.Region{
		Id: id, KeyspaceId: 1, StartKey: []byte(start), EndKey: []byte(end), Revision: revision,
		Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: revision},
	}
	for _, n := range owners {
		r.Owners = append(r.Owners, &rootv1.Owner{MemberId: fmt.Sprintf("m%d", n), Incarnation: 1})
	}
	return r
}

func address(n int) string { return fmt.Sprintf("10.0.0.%d:1", n) }

// answer is what a coordinator says of a region.
func answer(r *rootv1.Region) (*coordinatorv1.GetRegionByKeyResponse, error) {
	reply := &coordinatorv1.GetRegionByKeyResponse{Region: r}
	for _, o := range r.GetOwners() {
		reply.Owners = append(reply.Owners, &coordinatorv1.OwnerAddress{
			MemberId: o.GetMemberId(), Address: "10.0.0." + o.GetMemberId()[1:] + ":1", State: rootv1.MemberState_MEMBER_STATE_ACTIVE, Incarnation: 1,
		})
	}
	return reply, nil
}

func epoch(conf uint64) rooted.Epoch { return rooted.Epoch{Version: 1, ConfVersion: conf} }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serveAgain ends the coordinator's connections; it answers new ones.
func (b *bench) serveAgain() {
	b.c.server.Stop()
	b.t.Cleanup(b.serve())
}
