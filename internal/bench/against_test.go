package bench

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// other is a server that answers as PD and etcd do, and counts.
type other struct {
	addr     string
	cluster  uint64
	requests atomic.Uint64 // of timestamps
	values   atomic.Uint64 // timestamps and ids given out
	mu       sync.Mutex
	keys     map[string]int // etcd's, by method and key
}

func number(field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), n)
}

func text(field protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), b)
}

// give answers a request for a count of values, of the cluster that it names.
func (o *other) give(request *emptypb.Empty) *emptypb.Empty {
	header, _ := field(request.ProtoReflect().GetUnknown(), 1)
	_, count := field(request.ProtoReflect().GetUnknown(), 2)
	if _, cluster := field(header, 1); cluster != o.cluster {
		return raw(text(1, text(2, text(2, []byte("mismatch cluster id")))))
	}
	o.values.Add(count)
	return raw(text(1, number(1, o.cluster)))
}

func startOther(t *testing.T) *other {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &other{addr: lis.Addr().String(), cluster: 7, keys: make(map[string]int)}
	s := grpc.NewServer()
	handle := func(name string, answer func(*emptypb.Empty) *emptypb.Empty) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			request := &emptypb.Empty{}
			if err := dec(request); err != nil {
				return nil, err
			}
			return answer(request), nil
		}}
	}
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "pdpb.PD", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			handle("GetMembers", func(*emptypb.Empty) *emptypb.Empty {
				return raw(append(text(1, number(1, o.cluster)), text(3, append(text(1, []byte("pd1")), text(4, []byte("http://"+o.addr))...))...))
			}),
			handle("AllocID", o.give),
		},
		Streams: []grpc.StreamDesc{{StreamName: "Tso", ServerStreams: true, ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			for {
				request := &emptypb.Empty{}
				if err := stream.RecvMsg(request); err != nil {
					return nil
				}
				o.requests.Add(1)
				if err := stream.SendMsg(o.give(request)); err != nil {
					return err
				}
			}
		}}},
	}, nil)
	count := func(method string) func(*emptypb.Empty) *emptypb.Empty {
		return func(request *emptypb.Empty) *emptypb.Empty {
			key, _ := field(request.ProtoReflect().GetUnknown(), 1)
			o.mu.Lock()
			defer o.mu.Unlock()
			o.keys[fmt.Sprintf("%s %s", method, key)]++
			return &emptypb.Empty{}
		}
	}
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "etcdserverpb.KV", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{handle("Put", count("Put")), handle("Range", count("Range"))},
	}, nil)
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(lis) }()
	t.Cleanup(func() { s.Stop(); <-served })
	return o
}

// What is asked of others is what they are counted for.
func TestAgainst(t *testing.T) {
	o := startOther(t)
	const calls = 50
	run := func(c Config) uint64 {
		t.Helper()
		c.Concurrency, c.Duration = 8, time.Second
		op, end, err := c.prepare(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		var ops atomic.Uint64
		var workers sync.WaitGroup
		for worker := range c.Concurrency {
			workers.Go(func() {
				for range calls {
					n, err := op(t.Context(), worker)
					if err != nil {
						t.Error(err)
					}
					ops.Add(n)
				}
			})
		}
		workers.Wait()
		return ops.Load()
	}
	if got := run(Config{Workload: "tso", Batch: 3, Against: "pd=" + o.addr}); got != 8*calls*3 || o.values.Load() != got || o.requests.Load() > 8*calls {
		t.Errorf("%d timestamps counted, %d given out in %d requests", got, o.values.Load(), o.requests.Load())
	}
	o.values.Store(0)
	if got := run(Config{Workload: "id", Batch: 2, Against: "pd=" + o.addr}); got != 8*calls*2 || o.values.Load() != got {
		t.Errorf("%d ids counted, %d given out", got, o.values.Load())
	}
	if got := run(Config{Workload: "publish", Against: "etcd=" + o.addr}); got != 8*calls || o.keys["Put bench/000007"] != calls {
		t.Errorf("%d puts counted, %v", got, o.keys)
	}
	clear(o.keys)
	if got := run(Config{Workload: "route", Against: "etcd=" + o.addr}); got != 8*calls || o.keys["Range bench/000007"] != calls || o.keys["Put bench/000007"] != 1 {
		t.Errorf("%d gets counted, %v", got, o.keys)
	}
}

// What PD refuses is an error with its words.
func TestAgainstPDThatRefuses(t *testing.T) {
	o := startOther(t)
	for _, workload := range []string{"tso", "id"} {
		c := Config{Workload: workload, Batch: 1, Concurrency: 1, Against: "pd=" + o.addr}
		op, end, err := c.prepare(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		o.cluster = 8
		if _, err := op(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "mismatch cluster id") {
			t.Errorf("%s: %v", workload, err)
		}
		end()
		o.cluster = 7
	}
}
