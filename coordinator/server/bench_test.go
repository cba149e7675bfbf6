package server_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/clusterid"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// benchRegions is the number of regions of most benchmarks' view.
const benchRegions = 100_000

func benchKey(n uint64) []byte { return binary.BigEndian.AppendUint64([]byte("user/"), n) }

// benchRoot is a root with benchRegions regions, made once.
var benchRoot = sync.OnceValue(func() *memoryRoot { return rootOf(benchRegions) })

// rootOf is a root with so many regions.
func rootOf(regions uint64) *memoryRoot {
	t := new(testing.B)
	r := newMemoryRoot(t)
	var members []*rootv1.Event
	for i := range 16 {
		members = append(members, join(fmt.Sprint("store-", i)))
	}
	r.must(t, members...)
	step := ^uint64(0) / regions
	for i := uint64(0); i < regions; i += 1000 {
		var events []*rootv1.Event
		for j := i; j < i+1000; j++ {
			end := string(benchKey((j + 1) * step))
			if j == regions-1 {
				end = ""
			}
			events = append(events, publish(j+1, 1, string(benchKey(j*step)), end, 1, fmt.Sprint("store-", j%16)))
		}
		r.must(t, events...)
	}
	return r
}

// onLoopback serves over a real connection.
func onLoopback(b *testing.B) coordinatorv1.CoordinatorClient {
	b.Helper()
	conn := dialLoopback(b, serveLoopback(b, benchRoot()))
	b.Cleanup(func() { conn.Close() })
	return coordinatorv1.NewCoordinatorClient(conn)
}

// serveLoopback serves what a root has until the benchmark ends.
func serveLoopback(b *testing.B, root *memoryRoot) net.Listener {
	b.Helper()
	monotonic := clock.NewMonotonic()
	follower, err := rootview.New(rootview.Config{Root: root, ReadIndexer: root, Clock: monotonic})
	if err != nil {
		b.Fatal(err)
	}
	srv, err := server.New(server.Config{
		ID: "c1", Address: "127.0.0.1:1", Incarnation: 9,
		Views: follower, Authority: &counter{}, Root: root, Clock: monotonic,
	})
	if err != nil {
		b.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = follower.Run(ctx) })
	running.Go(func() { _ = srv.Run(ctx, lis) })
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
	if _, err := follower.WaitFor(within(b), root.token()); err != nil {
		b.Fatal(err)
	}
	return lis
}

func dialLoopback(b *testing.B, lis net.Listener) *grpc.ClientConn {
	b.Helper()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	return conn
}

const callers = 64

// cpuTime is the processor time that this process, which is client and server,
// has used: unlike the wall clock it does not count what else the machine does.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// report adds the rate of things, and the processor time of each.
func report(b *testing.B, things int, unit string, cpu time.Duration) {
	b.Helper()
	b.ReportMetric(float64(things)/b.Elapsed().Seconds(), unit+"s/s")
	b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/float64(things), "cpu-ns/"+unit)
}

// parallel spreads b.N calls over callers.
func parallel(b *testing.B, call func(rng *rand.Rand) error) {
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime(b)
	var running sync.WaitGroup
	for c := range callers {
		running.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(c)))
			for i := c; i < b.N; i += callers {
				if err := call(rng); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	report(b, b.N, "call", cpu)
}

// BenchmarkEcho is what gRPC itself costs: a request and an answer of the sizes
// of GetRegionByKey, and a handler that does nothing. The view is in memory
// here too, so that the garbage collector has as much to look through.
func BenchmarkEcho(b *testing.B) {
	defer runtime.KeepAlive(onLoopback(b))
	answer := &wrapperspb.BytesValue{Value: make([]byte, 190)}
	srv := grpc.NewServer(grpc.NumStreamWorkers(64))
	srv.RegisterService(&grpc.ServiceDesc{ServiceName: "echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Echo", Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in wrapperspb.BytesValue
			return answer, dec(&in)
		},
	}}}, 0)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = srv.Serve(lis) })
	conn := dialLoopback(b, lis)
	defer running.Wait()
	defer srv.Stop()
	defer conn.Close()
	parallel(b, func(rng *rand.Rand) error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var out wrapperspb.BytesValue
		return conn.Invoke(ctx, "/echo/Echo", &wrapperspb.BytesValue{Value: benchKey(rng.Uint64())}, &out)
	})
}

func BenchmarkGetRegionByKey(b *testing.B) {
	client := onLoopback(b)
	for name, read := range map[string]*coordinatorv1.ReadOptions{
		"best-effort": nil,
		"bounded":     {Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED, MaxRootLagMillis: proto.Uint64(10_000)},
		"strong":      {Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG},
	} {
		b.Run(name, func(b *testing.B) {
			parallel(b, func(rng *rand.Rand) error {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				_, err := client.GetRegionByKey(ctx, &coordinatorv1.GetRegionByKeyRequest{Key: benchKey(rng.Uint64()), Read: read})
				return err
			})
		})
	}
}

// BenchmarkClientLookup is GetRegionByKey of so many callers of one Client.
func BenchmarkClientLookup(b *testing.B) {
	lis := serveLoopback(b, benchRoot())
	for name, opts := range map[string][]client.ReadOption{"best-effort": nil, "strong": {client.Strong()}} {
		for _, n := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				c, err := client.New(client.Config{Endpoints: []string{lis.Addr().String()}})
				if err != nil {
					b.Fatal(err)
				}
				defer c.Close()
				b.ReportAllocs()
				cpu := cpuTime(b)
				var running sync.WaitGroup
				for i := range n {
					running.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
						defer cancel()
						rng := rand.New(rand.NewPCG(1, uint64(i)))
						for j := i; j < b.N; j += n {
							if _, err := c.GetRegionByKey(ctx, benchKey(rng.Uint64()), opts...); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				running.Wait()
				report(b, b.N, "call", cpu)
			})
		}
	}
}

// BenchmarkRouteStream looks up random keys in batches of 128, 16 of them under way.
func BenchmarkRouteStream(b *testing.B) {
	client := onLoopback(b)
	stream, err := client.RouteStream(within(b))
	if err != nil {
		b.Fatal(err)
	}
	const batch, window = 128, 16
	room := make(chan struct{}, window)
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime(b)
	go func() {
		rng := rand.New(rand.NewPCG(1, 2))
		req := &coordinatorv1.GetRegionsByKeysRequest{Keys: make([][]byte, batch)}
		for range b.N {
			room <- struct{}{}
			for i := range req.Keys {
				req.Keys[i] = append(req.Keys[i][:0], benchKey(rng.Uint64())...)
			}
			if stream.Send(req) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	for range b.N {
		resp, err := stream.Recv()
		if err != nil || len(resp.GetRegionOfKey()) != batch || resp.GetError() != nil {
			b.Fatal(resp, err)
		}
		<-room
	}
	report(b, b.N*batch, "key", cpu)
}

// BenchmarkGetRegionsByKeys is BenchmarkRouteStream by unary calls.
func BenchmarkGetRegionsByKeys(b *testing.B) {
	client := onLoopback(b)
	const batch = 128
	parallel(b, func(rng *rand.Rand) error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		req := &coordinatorv1.GetRegionsByKeysRequest{Keys: make([][]byte, batch)}
		for i := range req.Keys {
			req.Keys[i] = benchKey(rng.Uint64())
		}
		_, err := client.GetRegionsByKeys(ctx, req)
		return err
	})
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "keys/s")
}

// BenchmarkClientKeys is BenchmarkRouteStream by callers of the Go client: what
// a user of it gets, of batches of 128 random keys.
func BenchmarkClientKeys(b *testing.B) {
	for _, regions := range []uint64{benchRegions, 1_000_000} {
		b.Run(fmt.Sprintf("regions=%d", regions), func(b *testing.B) {
			root := benchRoot()
			if regions != benchRegions {
				root = millionRoot()
			}
			c, err := client.New(client.Config{Endpoints: []string{serveLoopback(b, root).Addr().String()}})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			benchClientKeys(b, c)
		})
	}
}

var millionRoot = sync.OnceValue(func() *memoryRoot { return rootOf(1_000_000) })

func benchClientKeys(b *testing.B, c *client.Client) {
	const batch, callers = 128, 16
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime(b)
	var running sync.WaitGroup
	for n := range callers {
		running.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			keys := make([][]byte, batch)
			for i := n; i < b.N; i += callers {
				for j := range keys {
					keys[j] = binary.BigEndian.AppendUint64(append(keys[j][:0], "user/"...), rng.Uint64())
				}
				routes, err := c.GetRegionsByKeys(context.Background(), keys)
				if err != nil || !routes[batch-1].Region.Contains(string(keys[batch-1])) {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	report(b, b.N*batch, "key", cpu)
}

// BenchmarkTsoStream has one request of one timestamp under way, and 64.
func BenchmarkTsoStream(b *testing.B) {
	client := onLoopback(b)
	for _, underWay := range []int{1, callers} {
		b.Run(fmt.Sprint(underWay), func(b *testing.B) {
			stream, err := client.TsoStream(metadata.AppendToOutgoingContext(within(b), clusterid.Key, clusterid.String(clusterID)))
			if err != nil {
				b.Fatal(err)
			}
			room := make(chan struct{}, underWay)
			b.ReportAllocs()
			b.ResetTimer()
			cpu := cpuTime(b)
			go func() {
				req := &coordinatorv1.TsoRequest{Count: 1}
				for range b.N {
					room <- struct{}{}
					if stream.Send(req) != nil {
						return
					}
				}
				_ = stream.CloseSend()
			}()
			for range b.N {
				if _, err := stream.Recv(); err != nil {
					b.Fatal(err)
				}
				<-room
			}
			report(b, b.N, "request", cpu)
		})
	}
}
