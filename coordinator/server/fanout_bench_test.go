package server_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// BenchmarkWatchers is one coordinator with many watches at 500 changes a
// second for two seconds: processor time (client side without decoding
// included) and memory a watch, and how long after the last change the last of
// them has it.
func BenchmarkWatchers(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for range b.N {
				watchFor(b, n, 2*time.Second)
			}
		})
	}
}

func watchFor(b *testing.B, n int, lasts time.Duration) {
	w := start(b, func(c *server.Config) { c.Limits.MaxWatchStreams = 1 << 15 })
	w.must(b, join("m1"), publish(1, 1, "", "", 1, "m1"))
	before := memory()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var readers sync.WaitGroup
	var messages, reached atomic.Int64
	var last atomic.Uint64
	last.Store(1 << 60)
	const each = 500
	for range n / each {
		conn := w.dial(b, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(tokenOnly{})))
		defer conn.Close()
		for range each {
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, coordinatorv1.Coordinator_WatchRegions_FullMethodName)
			if err != nil {
				b.Fatal(err)
			}
			if err := stream.SendMsg(&coordinatorv1.WatchRegionsRequest{}); err != nil {
				b.Fatal(err)
			}
			_ = stream.CloseSend()
			readers.Go(func() {
				var at uint64
				for stream.RecvMsg(&at) == nil {
					messages.Add(1)
					if at >= last.Load() {
						reached.Add(1)
						return
					}
				}
			})
		}
	}
	for messages.Load() < int64(n) {
		time.Sleep(10 * time.Millisecond)
	}
	held := memory() - before
	messages.Store(0)
	cpu, begun := processorTime(), time.Now()
	for i := 0; time.Since(begun) < lasts; i++ {
		w.root.must(b, publish(1, 1, "", "", uint64(i+2), "m1"))
		time.Sleep(time.Until(begun.Add(time.Duration(i+1) * 2 * time.Millisecond)))
	}
	last.Store(w.root.must(b, publish(1, 1, "", "", 1<<20, "m1")).GetToken().GetIndex())
	published := time.Now()
	for reached.Load() < int64(n) && time.Since(published) < time.Minute {
		time.Sleep(time.Millisecond)
	}
	took := time.Since(published)
	b.ReportMetric((processorTime()-cpu).Seconds()/time.Since(begun).Seconds(), "cores")
	b.ReportMetric(float64(held)/float64(n)/1024, "KiB/watch")
	b.ReportMetric(float64(took.Milliseconds()), "ms-behind")
	b.ReportMetric(float64(messages.Load())/float64(n), "messages/watch")
	b.ReportMetric(float64(reached.Load())/float64(n), "arrived")
	cancel()
	readers.Wait()
}

func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// tokenOnly reads of a message the index of its token, and nothing else.
type tokenOnly struct{}

func (tokenOnly) Name() string { return "proto" }

func (tokenOnly) Marshal(v any) (mem.BufferSlice, error) {
	data, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(data)}, err
}

func (tokenOnly) Unmarshal(data mem.BufferSlice, v any) error {
	if data.Len() == 0 {
		return nil
	}
	raw := data[0].ReadOnlyData()
	num, typ, n := protowire.ConsumeTag(raw)
	if num != 1 || typ != protowire.BytesType {
		return nil
	}
	token, _ := protowire.ConsumeBytes(raw[n:])
	for len(token) > 0 {
		num, _, n := protowire.ConsumeTag(token)
		value, m := protowire.ConsumeVarint(token[n:])
		if num == 3 {
			*v.(*uint64) = value
		}
		token = token[n+m:]
	}
	return nil
}
