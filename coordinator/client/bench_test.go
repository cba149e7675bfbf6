package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// loopback is a fake coordinator on real TCP in this process.
func loopback(b *testing.B) *client.Client {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(encodedCodec{encoding.GetCodecV2("proto")}))
	coordinatorv1.RegisterCoordinatorServer(s, &bare{cluster: newCluster(7)})
	go func() { _ = s.Serve(l) }()
	b.Cleanup(s.Stop)
	c, err := client.New(client.Config{Endpoints: []string{l.Addr().String()}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// bare is fake without its bookkeeping.
type bare struct {
	coordinatorv1.UnimplementedCoordinatorServer
	*cluster
}

func (f *bare) Status(context.Context, *coordinatorv1.StatusRequest) (*coordinatorv1.StatusResponse, error) {
	return &coordinatorv1.StatusResponse{Disclosure: &coordinatorv1.Disclosure{ClusterId: f.id}}, nil
}

func (f *bare) AllocIDStream(s grpc.BidiStreamingServer[coordinatorv1.AllocIDRequest, coordinatorv1.AllocIDResponse]) error {
	var req coordinatorv1.AllocIDRequest
	var reply coordinatorv1.AllocIDResponse
	for {
		if err := s.RecvMsg(&req); err != nil {
			return nil
		}
		reply.First, reply.Count, reply.Era, reply.ClusterId = f.take(req.GetCount()), req.GetCount(), 1, f.id
		if err := s.Send(&reply); err != nil {
			return err
		}
	}
}

func (f *bare) TsoStream(s grpc.BidiStreamingServer[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse]) error {
	var req coordinatorv1.TsoRequest
	var reply coordinatorv1.TsoResponse
	for {
		if err := s.RecvMsg(&req); err != nil {
			return nil
		}
		reply.First, reply.Count, reply.Era, reply.ClusterId = f.take(req.GetCount()), req.GetCount(), 1, f.id
		if err := s.Send(&reply); err != nil {
			return err
		}
	}
}

func (f *bare) PublishStream(s grpc.BidiStreamingServer[coordinatorv1.PublishRootEventsRequest, coordinatorv1.PublishRootEventsResponse]) error {
	for {
		req, err := s.Recv()
		if err != nil {
			return nil
		}
		reply := &coordinatorv1.PublishRootEventsResponse{RequestId: req.GetRequestId()}
		for range req.GetCommands() {
			reply.Results = append(reply.Results, &rootv1.CommandResult{
				Outcome: rootv1.Outcome_OUTCOME_APPLIED, Token: &rootv1.RootToken{Incarnation: 1, Term: 1, Index: f.log.Add(1)},
			})
		}
		if err := s.Send(reply); err != nil {
			return err
		}
	}
}

func (f *bare) GetRegionByKey(context.Context, *coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
	return &coordinatorv1.GetRegionByKeyResponse{
		Region:     &rootv1.Region{Id: 1, KeyspaceId: 1, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}},
		Disclosure: &coordinatorv1.Disclosure{ClusterId: f.id, Era: 1},
	}, nil
}

// callers runs b.N calls on so many goroutines and reports the latency that
// each of them saw.
func callers(b *testing.B, n int, call func(context.Context) error) {
	ctx := context.Background()
	if err := call(ctx); err != nil {
		b.Fatal(err)
	}
	took := make([][]time.Duration, n)
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	for i := range n {
		share := b.N / n
		if i < b.N%n {
			share++
		}
		wg.Go(func() {
			took[i] = make([]time.Duration, 0, share)
			last := time.Now()
			for range share {
				if err := call(ctx); err != nil {
					b.Error(err)
					return
				}
				now := time.Now()
				took[i] = append(took[i], now.Sub(last))
				last = now
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	b.StopTimer()
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) > 0 {
		b.ReportMetric(float64(len(all))/elapsed.Seconds(), "calls/s")
		b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1000, "p50-us")
		b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1000, "p99-us")
	}
}

func BenchmarkTso(b *testing.B) {
	for _, n := range []int{1, 2, 8, 64, 256, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := loopback(b)
			callers(b, n, func(ctx context.Context) error {
				_, err := c.Tso(ctx, 1)
				return err
			})
			s := c.Stats()
			b.ReportMetric(float64(s.TsoCallers)/float64(s.TsoRequests), "callers/req")
		})
	}
}

// With a context that can end, a caller waits for two things.
func BenchmarkTsoWithDeadline(b *testing.B) {
	for _, n := range []int{1, 64, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := loopback(b)
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			callers(b, n, func(context.Context) error {
				_, err := c.Tso(ctx, 1)
				return err
			})
		})
	}
}

func BenchmarkAllocID(b *testing.B) {
	for _, n := range []int{1, 64, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := loopback(b)
			callers(b, n, func(ctx context.Context) error {
				_, err := c.AllocID(ctx, 1)
				return err
			})
		})
	}
}

// Single ids of blocks that are fetched ahead.
func BenchmarkIDSource(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ids := loopback(b).IDs(client.MaxIDCount)
			ctx := context.Background()
			var running sync.WaitGroup
			for i := range n {
				running.Go(func() {
					for j := i; j < b.N; j += n {
						if _, err := ids.Next(ctx); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			running.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ids/s")
		})
	}
}

func BenchmarkPublish(b *testing.B) {
	cmd := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{
		Region: &rootv1.Region{Id: 7, KeyspaceId: 1, StartKey: []byte("a"), EndKey: []byte("b")},
	}}}}}
	for _, n := range []int{1, 64, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := loopback(b)
			callers(b, n, func(ctx context.Context) error {
				_, err := c.Publish(ctx, cmd)
				return err
			})
		})
	}
}

// A hit in a cache of so many regions, keys at random.
func BenchmarkCacheHit(b *testing.B) {
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			k, keys := filled(b, n)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if _, ok := k.Lookup(keys[i&(len(keys)-1)]); !ok {
					b.Fatal("missed")
				}
			}
		})
	}
}

// filled is a cache of n regions with keys of 20 bytes, and keys to look up.
func filled(b *testing.B, n int) (*client.Cache, [][]byte) {
	w := newWorld(b)
	f := &fake{cluster: newCluster(7)}
	f.watch = func(_ *coordinatorv1.WatchRegionsRequest, s watchStream) error {
		for i := 0; i < n; i += 1000 {
			m := &coordinatorv1.WatchRegionsResponse{
				Token: at(5), Snapshot: true, Partial: i+1000 < n, Disclosure: says(5),
				Keyspaces: []*coordinatorv1.KeyspaceChange{{Keyspace: &rootv1.Keyspace{Id: 1, Name: "default"}}},
			}
			for j := i; j < min(i+1000, n); j++ {
				m.Changes = append(m.Changes, now(region(uint64(j+1), fmt.Sprintf("tenant/user/%08d", j*10), fmt.Sprintf("tenant/user/%08d", j*10+10), 1))...)
			}
			if err := s.Send(m); err != nil {
				return err
			}
		}
		<-s.Context().Done()
		return nil
	}
	w.start("a", f)
	c, end := w.client(client.Config{}, "a")
	b.Cleanup(end)
	k := c.NewCache(client.CacheConfig{})
	go func() { _ = k.Run(context.Background()) }()
	<-k.Ready()
	keys := make([][]byte, 1<<16)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "tenant/user/%08d", rand.IntN(n*10))
	}
	return k, keys
}

// RouteStream answers any keys with as many regions, 128 at most.
func (f *bare) RouteStream(s grpc.BidiStreamingServer[coordinatorv1.GetRegionsByKeysRequest, coordinatorv1.GetRegionsByKeysResponse]) error {
	canned := func(keys int) encoded {
		reply := &coordinatorv1.GetRegionsByKeysResponse{
			Owners:     []*coordinatorv1.OwnerAddress{{MemberId: "m1", Address: "10.0.0.1:7000"}},
			Disclosure: &coordinatorv1.Disclosure{ClusterId: f.id, Era: 1, ServedRootToken: at(7), CurrentRootToken: at(7)},
		}
		for i := range keys {
			reply.RegionOfKey = append(reply.RegionOfKey, uint32(i%128+1))
		}
		for i := range min(keys, 128) {
			reply.Regions = append(reply.Regions, region(uint64(i+1), fmt.Sprintf("user/%08d", i), fmt.Sprintf("user/%08d", i+1), 1))
		}
		data, err := proto.Marshal(reply)
		if err != nil {
			panic(err)
		}
		return data
	}
	byKeys := map[int]encoded{}
	for {
		req, err := s.Recv()
		if err != nil {
			return nil
		}
		n := len(req.GetKeys())
		if byKeys[n] == nil {
			byKeys[n] = canned(n)
		}
		reply := protowire.AppendVarint(protowire.AppendTag(append(make([]byte, 0, len(byKeys[n])+16), byKeys[n]...), 6, protowire.VarintType), req.GetRequestId())
		if err := s.SendMsg(encoded(reply)); err != nil {
			return err
		}
	}
}

// encoded is a reply that is encoded already.
type encoded []byte

type encodedCodec struct{ encoding.CodecV2 }

func (c encodedCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(encoded); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Batches of 128 keys in 128 regions; the metric counts batches.
func BenchmarkGetRegionsByKeys(b *testing.B) {
	keys := make([][]byte, 128)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "user/%08d", i)
	}
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := loopback(b)
			callers(b, n, func(ctx context.Context) error {
				_, err := c.GetRegionsByKeys(ctx, keys)
				return err
			})
		})
	}
}

func BenchmarkGetRegionByKey(b *testing.B) {
	for _, n := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := loopback(b)
			key := []byte("user/1")
			callers(b, n, func(ctx context.Context) error {
				_, err := c.GetRegionByKey(ctx, key)
				return err
			})
		})
	}
}
