package server_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/flow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// opaque passes bytes on as they are.
type opaque struct{}

func (opaque) Name() string                           { return "opaque" }
func (opaque) Marshal(v any) (mem.BufferSlice, error) { return v.(mem.BufferSlice), nil }
func (opaque) Unmarshal(data mem.BufferSlice, v any) error {
	if n, ok := v.(*int); ok {
		*n = data.Len()
	}
	return nil
}

// BenchmarkFloor is what gRPC itself takes of processor time for a message to one of
// 10,000 streams on 20 connections, both ends together, whoever sends: those of a
// connection one after another, or each time to another one.
func BenchmarkFloor(b *testing.B) {
	for _, size := range []int{100, 4 << 10} {
		for _, together := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d bytes/together %v", size, together), func(b *testing.B) { floor(b, size, together) })
		}
	}
}

func floor(b *testing.B, size int, together bool) {
	const connections, each = 20, 500
	var mu sync.Mutex
	var streams []grpc.ServerStream
	srv := grpc.NewServer(append(flow.Server(), grpc.ForceServerCodecV2(opaque{}), grpc.WriteBufferSize(64<<10), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		mu.Lock()
		streams = append(streams, stream)
		mu.Unlock()
		<-stream.Context().Done()
		return nil
	}))...)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = srv.Serve(lis) }()
	defer srv.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	var came atomic.Int64
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	opened := func(n int) {
		for open := 0; open < n; time.Sleep(time.Millisecond) {
			mu.Lock()
			open = len(streams)
			mu.Unlock()
		}
	}
	for c := range connections {
		conn, err := grpc.NewClient(lis.Addr().String(), append(flow.Client(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(opaque{})))...)
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		for range each {
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/any/any")
			if err != nil {
				b.Fatal(err)
			}
			_ = stream.CloseSend()
			readers.Go(func() {
				for n := 0; stream.RecvMsg(&n) == nil; {
					came.Add(1)
				}
			})
		}
		opened((c + 1) * each)
	}
	message := mem.BufferSlice{mem.SliceBuffer(make([]byte, size))}
	b.ReportAllocs()
	cpu, sent := processorTime(), int64(0)
	for b.Loop() {
		i := int(sent) % (connections * each)
		if !together {
			i = i%connections*each + i/connections
		}
		if err := streams[i].SendMsg(message); err != nil {
			b.Fatal(err)
		}
		if sent++; sent%64 == 0 {
			for came.Load() < sent-64 {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	for came.Load() < sent {
		time.Sleep(100 * time.Microsecond)
	}
	b.ReportMetric(float64((processorTime()-cpu).Microseconds())/float64(sent), "us-processor/message")
}
