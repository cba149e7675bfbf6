package proxy_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// world is a coordinator in memory that says what the test says, a router that follows
// it, and members that are HTTP servers.
type world struct {
	coordinatorv1.UnimplementedCoordinatorServer
	t      testing.TB
	lan    *lan // nil: members listen at ports of the machine
	router *router.Router
	client *client.Client
	feed   chan *coordinatorv1.WatchRegionsResponse

	mu       sync.Mutex
	index    uint64
	begun    time.Time
	revision uint64
	results  []proxy.Result
	members  []*httptest.Server
	shown    *rootv1.Region
	states   map[string]*rootv1.Member
	wanted   chan struct{} // closed when m0 is asked for
	judges   func(*coordinatorv1.CheckAccessRequest) bool
	tokens   map[string]string // whose they are
	lag      uint64            // that the last CheckAccess allowed, in ms
	judged   int
	judging  int           // tokens that are nobody's, now
	most     int           // of these at once
	slow     time.Duration // takes a verdict on one

	revoked chan []string // what WatchRevoked tells; nil: nothing
}

func (w *world) says() *coordinatorv1.Disclosure {
	return &coordinatorv1.Disclosure{ClusterId: 7, Era: 1, ServedRootToken: at(w.index), CurrentRootToken: at(w.index)}
}

func at(index uint64) *rootv1.RootToken {
	return &rootv1.RootToken{Incarnation: 1, Term: 1, Index: index}
}

// Status implements the service.
func (w *world) Status(context.Context, *coordinatorv1.StatusRequest) (*coordinatorv1.StatusResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &coordinatorv1.StatusResponse{Disclosure: w.says()}, nil
}

// CheckAccess implements the service by what the test says.
func (w *world) CheckAccess(_ context.Context, req *coordinatorv1.CheckAccessRequest) (*coordinatorv1.CheckAccessResponse, error) {
	w.mu.Lock()
	w.judged++
	w.lag = req.GetRead().GetMaxRootLagMillis()
	judges, says, bearer := w.judges, w.says(), w.tokens[req.GetBearerToken()]
	w.mu.Unlock()
	switch {
	case judges == nil:
		return nil, status.Error(codes.Unavailable, "nobody knows")
	case bearer != "":
		req.Principal = bearer
		return &coordinatorv1.CheckAccessResponse{Disclosure: says, Allowed: judges(req), Why: "as the test says", Bearer: bearer}, nil
	case req.GetBearerToken() != "":
		w.mu.Lock()
		w.judging++
		w.most = max(w.most, w.judging)
		slow := w.slow
		w.mu.Unlock()
		time.Sleep(slow)
		w.mu.Lock()
		w.judging--
		w.mu.Unlock()
		return &coordinatorv1.CheckAccessResponse{Disclosure: says, Why: "it was revoked"}, nil
	}
	return &coordinatorv1.CheckAccessResponse{Disclosure: says, Allowed: judges(req), Why: "as the test says"}, nil
}

// RouteStream says what the watch has said last.
func (w *world) RouteStream(s grpc.BidiStreamingServer[coordinatorv1.GetRegionsByKeysRequest, coordinatorv1.GetRegionsByKeysResponse]) error {
	for {
		req, err := s.Recv()
		if err != nil {
			return nil
		}
		w.mu.Lock()
		reply := &coordinatorv1.GetRegionsByKeysResponse{RequestId: req.GetRequestId(), Disclosure: w.says(), Regions: []*rootv1.Region{w.shown}}
		for _, o := range w.shown.GetOwners() {
			m := w.states[o.GetMemberId()]
			reply.Owners = append(reply.Owners, &coordinatorv1.OwnerAddress{MemberId: m.GetId(), Address: m.GetAddress(), State: m.GetState(), Incarnation: 1})
		}
		for _, key := range req.GetKeys() {
			place := uint32(0)
			if string(key) < "z" {
				place = 1
			}
			reply.RegionOfKey = append(reply.RegionOfKey, place)
		}
		w.mu.Unlock()
		if err := s.Send(reply); err != nil {
			return err
		}
	}
}

// WatchRegions implements the service.
func (w *world) WatchRegions(_ *coordinatorv1.WatchRegionsRequest, s grpc.ServerStreamingServer[coordinatorv1.WatchRegionsResponse]) error {
	w.mu.Lock()
	w.begun = time.Now()
	w.mu.Unlock()
	for {
		select {
		case m := <-w.feed:
			if err := s.Send(m); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// start makes a world of members with these handlers, of which the first owns [a, z).
func start(t testing.TB, members ...http.Handler) *world { return startWith(t, nil, members...) }

// startWith has members listen with certificates, each with its own; nil: in plain text.
func startWith(t testing.TB, certs func(member int) *mtls.Source, members ...http.Handler) *world {
	t.Helper()
	return startAt(t, nil, certs, members...)
}

// startInMemory has members, and what serves, listen in memory: for a bubble of virtual time.
func startInMemory(t testing.TB, members ...http.Handler) *world {
	t.Helper()
	return startAt(t, &lan{at: map[string]*place{}}, nil, members...)
}

// failedWithin is how long a member that has failed is waited for.
const failedWithin = 20 * time.Millisecond

func startAt(t testing.TB, lan *lan, certs func(member int) *mtls.Source, members ...http.Handler) *world {
	t.Helper()
	w := &world{t: t, lan: lan, feed: make(chan *coordinatorv1.WatchRegionsResponse), revision: 1, states: map[string]*rootv1.Member{}}
	l, s := bufconn.Listen(1<<16), grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	coordinatorv1.RegisterCoordinatorServer(s, w)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	for i, h := range members {
		m := httptest.NewUnstartedServer(h)
		lan.instead(m)
		if certs != nil && certs(i) != nil {
			m.Listener = certs(i).HTTP(m.Listener)
		}
		m.Start()
		t.Cleanup(m.Close)
		w.members = append(w.members, m)
	}
	c, err := client.New(client.Config{
		Endpoints: []string{"a"}, WatchSilence: time.Hour,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })},
	})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	w.client = c
	w.router, err = router.New(router.Config{Client: c, FailedWithin: failedWithin})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.router.Run(ctx) }()
	t.Cleanup(func() { cancel(); must(t, <-done) })
	first := &coordinatorv1.WatchRegionsResponse{Snapshot: true, Keyspaces: []*coordinatorv1.KeyspaceChange{{Keyspace: &rootv1.Keyspace{
		Id: 1, Name: "default", Settings: &rootv1.KeyspaceSettings{Placement: rootv1.Placement_PLACEMENT_ASSIGNED},
	}}}}
	for i := range w.members {
		first.Members = append(first.Members, w.member(i, rootv1.MemberState_MEMBER_STATE_ACTIVE))
	}
	first.Changes = []*coordinatorv1.RegionChange{{Region: w.region(0)}}
	w.send(first)
	must(t, w.router.Wait(t.Context()))
	return w
}

func (w *world) member(i int, state rootv1.MemberState) *coordinatorv1.MemberChange {
	return &coordinatorv1.MemberChange{Member: &rootv1.Member{Id: name(i), Address: w.address(i), State: state, Incarnation: 1}}
}

func name(i int) string               { return fmt.Sprintf("m%d", i) }
func (w *world) address(i int) string { return w.members[i].Listener.Addr().String() }
func (w *world) at(i int, state rootv1.MemberState) { // member i is in a state
	w.send(&coordinatorv1.WatchRegionsResponse{Members: []*coordinatorv1.MemberChange{w.member(i, state)}})
}

func (w *world) region(owner int) *rootv1.Region {
	return &rootv1.Region{
		Id: 1, KeyspaceId: 1, StartKey: []byte("a"), EndKey: []byte("z"), Revision: w.revision, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: w.revision},
		Owners: []*rootv1.Owner{{MemberId: name(owner), Incarnation: 1}},
	}
}

// move gives the region to another member.
func (w *world) move(owner int) {
	w.revision++
	w.send(&coordinatorv1.WatchRegionsResponse{Changes: []*coordinatorv1.RegionChange{{Region: w.region(owner)}}})
}

func (w *world) send(m *coordinatorv1.WatchRegionsResponse) {
	w.mu.Lock()
	w.index++
	for _, c := range m.GetMembers() {
		w.states[c.GetMember().GetId()] = c.GetMember()
	}
	for _, c := range m.GetChanges() {
		w.shown = c.GetRegion()
	}
	m.Token, m.Disclosure, m.SentMillis = at(w.index), w.says(), uint64(time.Since(w.begun).Milliseconds())+1
	w.mu.Unlock()
	w.feed <- m
}

// heard waits until the router has heard all that was sent.
func (w *world) heard() {
	w.t.Helper()
	w.mu.Lock()
	all := rooted.TokenFromProto(at(w.index))
	w.mu.Unlock()
	for end := time.Now().Add(proctest.Patience); w.router.State()[0].Position.Token.Compare(all) < 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("the router is at %s, not %s", w.router.State()[0].Position.Token, all)
		}
	}
}

// proxy makes one whose key is the header K. What it waits for others may take as long as on a busy machine, where
// nothing is said of it.
func (w *world) proxy(cfg proxy.Config) *proxy.Proxy {
	w.t.Helper()
	cfg.Router, cfg.Dial, cfg.Hold = w.router, cmp.Or(cfg.Dial, proctest.Patience), cmp.Or(cfg.Hold, proctest.Patience)
	if cfg.Key == nil {
		cfg.Key = proxy.Header("K")
	}
	if w.lan != nil {
		cfg.DialBy(w.lan.dial)
	}
	cfg.OnResult = func(r proxy.Result) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.results = append(w.results, r)
	}
	p, err := proxy.New(cfg)
	must(w.t, err)
	w.t.Cleanup(func() { must(w.t, p.Close()) })
	return p
}

// last is the result of the last request, when there are so many.
func (w *world) last(n int) proxy.Result {
	w.t.Helper()
	for end := time.Now().Add(proctest.Patience); ; {
		w.mu.Lock()
		got := len(w.results)
		if got >= n {
			defer w.mu.Unlock()
			return w.results[got-1]
		}
		w.mu.Unlock()
		if time.Now().After(end) {
			w.t.Fatalf("%d requests are over, want %d", got, n)
		}
		time.Sleep(time.Millisecond)
	}
}

func serve(t testing.TB, h http.Handler) *httptest.Server { return serveAt(t, nil, h) }

func serveAt(t testing.TB, lan *lan, h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	lan.instead(s)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lan is a network in memory.
type lan struct {
	mu sync.Mutex
	at map[string]*place // guarded by mu
}

// place is where one listens. It is its own address.
type place struct {
	*bufconn.Listener
	address string
}

// Accept implements net.Listener.
func (p *place) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return accepted{c}, nil
}

// accepted is a connection whose deadlines pass as those of sockets do.
type accepted struct{ net.Conn }

func (a accepted) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

func (p *place) Addr() net.Addr { return p }
func (*place) Network() string  { return "memory" }
func (p *place) String() string { return p.address }

// instead has a server listen here, and not at a port; nil: it listens where it does.
func (l *lan) instead(s *httptest.Server) {
	if l == nil {
		return
	}
	_ = s.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &place{bufconn.Listen(64 << 10), fmt.Sprintf("lan:%d", len(l.at)+1)}
	l.at[p.address], s.Listener = p, p
}

func (l *lan) dial(ctx context.Context, _, address string) (net.Conn, error) {
	l.mu.Lock()
	p := l.at[address]
	l.mu.Unlock()
	c, err := p.DialContext(ctx)
	if err != nil && ctx.Err() == nil { // closed
		err = &net.OpError{Op: "dial", Net: "memory", Addr: p, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	return c, err
}

// client calls what listens in memory, until the test ends.
func (l *lan) client(t testing.TB) *http.Client {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DialContext: l.dial}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// connect is a connection to what listens in memory, until the test ends.
func (l *lan) connect(t testing.TB, s *httptest.Server) net.Conn {
	t.Helper()
	c, err := l.dial(t.Context(), "", s.Listener.Addr().String())
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
