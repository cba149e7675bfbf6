package grpcroute_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nokv/nokv/grpcroute"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// app is a member's application, and its gRPC service: it says who it is.
type app struct {
	testgrpc.UnimplementedTestServiceServer
	id    string
	calls atomic.Int64
	said  func(context.Context) error // nil: nothing
	left  atomic.Int64                // streams whose context had ended when their handler was done
	// stream answers streams instead; nil: they are echoed.
	stream func(grpc.ServerStream) error
}

func (*app) Acquire(context.Context, member.Region) error           { return nil }
func (*app) Release(context.Context, member.Region) ([]byte, error) { return nil, nil }

func (a *app) reply(text string) *testgrpc.SimpleResponse {
	return &testgrpc.SimpleResponse{Hostname: text}
}

// UnaryCall says who was asked, and of which region.
func (a *app) UnaryCall(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	a.calls.Add(1)
	if a.said != nil {
		if err := a.said(ctx); err != nil {
			return nil, err
		}
	}
	r, _ := grpcroute.RegionFrom(ctx)
	return a.reply(a.id + " " + r.Start), nil
}

// FullDuplexCall echoes, and goes on until the caller or the region ends it.
func (a *app) FullDuplexCall(s grpc.BidiStreamingServer[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]) error {
	if a.stream != nil {
		return a.stream(s)
	}
	defer func() {
		if s.Context().Err() != nil {
			a.left.Add(1)
		}
	}()
	for {
		req, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		a.calls.Add(1)
		if a.said != nil {
			if err := a.said(s.Context()); err != nil {
				return err
			}
		}
		if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: append([]byte(a.id+" "), req.GetPayload().GetBody()...)}}); err != nil {
			return err
		}
	}
}

// gate is a member that can be told to refuse, and to be far away.
type gate struct {
	grpcroute.Member
	says   atomic.Pointer[[]error]
	travel atomic.Int64 // how long requests are on their way
}

func (g *gate) Do(ctx context.Context, req member.Request, fn func(context.Context, member.Region) error) error {
	if far := g.travel.Load(); far > 0 {
		time.Sleep(time.Duration(far))
	}
	if says := g.says.Load(); says != nil && len(*says) > 0 {
		rest := (*says)[1:]
		g.says.Store(&rest)
		return (*says)[0]
	}
	return g.Member.Do(ctx, req, fn)
}

// world is a cluster with members that serve gRPC, and a router outside.
type world struct {
	t       testing.TB
	c       *nokvtest.Cluster
	router  *router.Router
	members map[string]*nokvtest.Member
	apps    map[string]*app
	servers map[string]*grpc.Server
	gates   map[string]*gate
}

var plain = grpc.WithTransportCredentials(insecure.NewCredentials())

// start makes one of these members; what it returns ends it, at the end of a bubble.
func start(t testing.TB, rc router.Config, ids ...string) *world {
	t.Helper()
	w := &world{
		t: t, c: nokvtest.Start(t, nokvtest.Keyspace("games", "games"), nokvtest.Keyspace("other", "games"), nokvtest.Keyspace("shared", "tenants")),
		members: map[string]*nokvtest.Member{}, apps: map[string]*app{}, servers: map[string]*grpc.Server{}, gates: map[string]*gate{},
	}
	for _, id := range ids {
		w.apps[id] = &app{id: id}
		w.members[id] = w.c.Member(t, id, w.apps[id])
		w.serve(id, id, "7000")
	}
	rc.Client, rc.Keyspaces = w.c.Client(), []string{"games", "other", "shared"}
	var err error
	w.router, err = router.New(rc)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.router.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
	wait, over := context.WithTimeout(context.Background(), time.Minute)
	defer over()
	must(t, w.router.Wait(wait))
	return w
}

// serve has a member's application answer at a host and port.
func (w *world) serve(id, host, port string) {
	w.t.Helper()
	lis, err := w.members[host].Listen(context.Background(), port)
	must(w.t, err)
	w.gates[id] = &gate{Member: w.members[id]}
	s := grpc.NewServer(grpcroute.Server{Member: w.gates[id]}.Options()...)
	testgrpc.RegisterTestServiceServer(s, w.apps[id])
	w.servers[host] = s
	var ended sync.WaitGroup
	ended.Go(func() { _ = s.Serve(lis) })
	w.t.Cleanup(func() { s.Stop(); ended.Wait() })
}

// assign gives a region of games to a member, and waits until the router knows: what is asked then
// goes to that one at once, and not by way of the owner before it.
func (w *world) assign(key string, to rooted.MemberID) {
	w.t.Helper()
	route := w.c.Assign(w.t, "games", []byte(key), to)
	w.c.Await(w.t, "the router knows the owner", func() bool {
		target, err := w.router.Resolve(w.t.Context(), []byte(key), router.Options{Keyspace: "games"})
		return err == nil && target.Member == to && !route.Region.Epoch.NewerThan(target.Epoch)
	})
}

// dial makes the caller.
func (w *world) dial(cfg grpcroute.Config, opts ...grpc.DialOption) testgrpc.TestServiceClient {
	w.t.Helper()
	return w.dialTo("games", cfg, opts...)
}

func (w *world) dialTo(keyspace string, cfg grpcroute.Config, opts ...grpc.DialOption) testgrpc.TestServiceClient {
	w.t.Helper()
	cfg.Router = w.router
	opts = append([]grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return w.c.Dial(ctx, a) })}, opts...)
	conn, err := grpcroute.NewClient("nokv:///"+keyspace, cfg, opts...)
	must(w.t, err)
	w.t.Cleanup(func() { must(w.t, conn.Close()) })
	return testgrpc.NewTestServiceClient(conn)
}

// ctx is a caller's, for a key.
func (w *world) ctx(key string, within time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(grpcroute.WithKey(context.Background(), []byte(key)), within)
	w.t.Cleanup(cancel)
	return ctx
}

// ask makes a call and says who answered.
func ask(ctx context.Context, c testgrpc.TestServiceClient, opts ...grpc.CallOption) (string, error) {
	r, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{}, opts...)
	return r.GetHostname(), err
}

// load is callers who ask all the time, until end says how it went.
func (w *world) load(c testgrpc.TestServiceClient, callers int, keys ...string) (end func() (n int64)) {
	ctx, cancel := context.WithCancel(context.Background())
	var n atomic.Int64
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				one, stop := context.WithTimeout(grpcroute.WithKey(context.Background(), []byte(keys[i%len(keys)])), 10*time.Second)
				if _, err := ask(one, c); err != nil {
					w.t.Errorf("a call failed: %v", err)
					cancel()
				}
				stop()
				n.Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	return func() int64 {
		cancel()
		all.Wait()
		return n.Load()
	}
}

func body(text string) *testgrpc.StreamingOutputCallRequest {
	return &testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: []byte(text)}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
