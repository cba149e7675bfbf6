package grpcroute_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nokv/nokv/grpcroute"
	"github.com/nokv/nokv/router"
)

// example runs what needs a cluster, of members m1, which owns game g1, and m2.
func example(run func(w *world)) {
	t := &quiet{}
	defer t.end()
	w := start(t, router.Config{}, "m1", "m2")
	w.c.Assign(t, "games", []byte("g1"), "m1")
	run(w)
}

// quiet is a test that does not fail, and prints nothing where the output is compared.
type quiet struct {
	testing.TB
	cleanups []func()
}

func (*quiet) Helper()                           {}
func (q *quiet) Cleanup(fn func())               { q.cleanups = append(q.cleanups, fn) }
func (*quiet) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (*quiet) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (q *quiet) end() {
	for _, fn := range slices.Backward(q.cleanups) {
		fn()
	}
}

// A caller's ClientConn: each call goes to the owner of its key, also when that has just died.
// Real programs need no dialer.
func ExampleNewClient() {
	example(func(w *world) {
		conn, err := grpcroute.NewClient("nokv:///games", grpcroute.Config{
			Router:     w.router,
			Idempotent: func(method string) bool { return method == testgrpc.TestService_UnaryCall_FullMethodName },
		}, grpc.WithContextDialer(w.c.Dial))
		if err != nil {
			fmt.Println(err)
			return
		}
		defer conn.Close()
		games := testgrpc.NewTestServiceClient(conn)
		ctx, cancel := context.WithTimeout(grpcroute.WithKey(context.Background(), []byte("g1")), 10*time.Second)
		defer cancel()
		for range 2 {
			reply, err := games.UnaryCall(ctx, &testgrpc.SimpleRequest{})
			fmt.Println(reply.GetHostname(), err)
			w.members["m1"].Kill(w.t)
		}
	})
	// Output:
	// m1 g1 <nil>
	// m2 g1 <nil>
}

// A member's server: its handlers run only for keys that are the member's own.
func ExampleServer() {
	example(func(w *world) {
		m := w.members["m2"] // a *member.Member
		server := grpc.NewServer(grpcroute.Server{Member: m}.Options()...)
		defer server.Stop()
		testgrpc.RegisterTestServiceServer(server, w.apps["m2"])
		lis, err := m.Listen(context.Background(), "9000")
		if err != nil {
			fmt.Println(err)
			return
		}
		go server.Serve(lis)

		conn, err := grpc.NewClient("passthrough:///m2:9000", grpc.WithContextDialer(w.c.Dial), plain)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer conn.Close()
		_, err = testgrpc.NewTestServiceClient(conn).UnaryCall(context.Background(), &testgrpc.SimpleRequest{})
		fmt.Println(err)
	})
	// Output:
	// rpc error: code = InvalidArgument desc = want the key of the call in nokv-key or nokv-key-bin, once; there are 0
}
