package grpcroute_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nokv/nokv/grpcroute"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/router"
)

// BenchmarkCall measures a call by loopback: a plain ClientConn to a plain server, and ours to
// ours, in the same run.
func BenchmarkCall(b *testing.B) {
	w := start(b, router.Config{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	a := &app{id: "m1"}
	m := w.c.MemberOf(b, member.Config{ID: "m1", Address: lis.Addr().String()}, a)
	for l, opts := range map[net.Listener][]grpc.ServerOption{lis: grpcroute.Server{Member: m}.Options(), bare: nil} {
		s := grpc.NewServer(opts...)
		testgrpc.RegisterTestServiceServer(s, a)
		go func() { _ = s.Serve(l) }()
		b.Cleanup(s.Stop)
	}
	w.c.Assign(b, "games", []byte("a"), "m1")
	direct, err := grpc.NewClient(bare.Addr().String(), plain)
	must(b, err)
	b.Cleanup(func() { _ = direct.Close() })
	ours, err := grpcroute.NewClient("nokv:///games", grpcroute.Config{Router: w.router})
	must(b, err)
	b.Cleanup(func() { _ = ours.Close() })
	ctx, cancel := context.WithTimeout(grpcroute.WithKey(context.Background(), []byte("a")), time.Hour)
	defer cancel()
	for _, row := range []struct {
		name string
		conn *grpc.ClientConn
	}{{"plain", direct}, {"nokv", ours}} {
		c := testgrpc.NewTestServiceClient(row.conn)
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(row.name+", 64 callers", func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
