package rootview_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

const benchRegions = 1_000_000

// bigState is a state of benchRegions regions with one owner each, made once.
var bigState = sync.OnceValue(func() *state.State {
	st := state.New()
	apply := func(events ...*rootv1.Event) {
		data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: events}}})
		if err != nil {
			panic(err)
		}
		var out state.Applied
		if err := st.ApplyEntry(1, st.Token().Index+1, data, &out); err != nil || out.Results[0].Reject != nil {
			panic(fmt.Sprint(err, out.Results))
		}
	}
	apply(bootstrap(clusterID, 1))
	for i := range 100 {
		id := fmt.Sprint("m", i)
		apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
			Member: &rootv1.Member{Id: id, Address: id + ":1", StartNonce: 1},
		}}})
	}
	for i := 0; i < benchRegions; i += 1000 {
		events := make([]*rootv1.Event, 1000)
		for j := range events {
			events[j] = benchRegion(i+j, 1)
		}
		apply(events...)
	}
	return st
})

func benchRegion(n, version int) *rootv1.Event {
	e := region(uint64(n)+1, fmt.Sprintf("tenant-%09d", n), fmt.Sprintf("tenant-%09d", n+1), uint64(version))
	e.GetRegionPublished().Region.Owners = []*rootv1.Owner{{MemberId: fmt.Sprint("m", n%100), PeerId: 1, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER}}
	return e
}

// bigCore is a Core with bigState as its view.
func bigCore(b *testing.B) *rootview.Core {
	c := rootview.NewCore(rootview.CoreConfig{})
	c.BeginSnapshot(1)
	for _, chunk := range chunks(b, bigState(), 4096) {
		if _, _, err := c.OnSnapshotChunk(chunk, 1); err != nil {
			b.Fatal(err)
		}
	}
	c.OnConnected(1)
	return c
}

// One message of the tail, applied and published, at 1,000,000 regions.
func BenchmarkOnTail(b *testing.B) {
	for _, entries := range []int{0, 1, 64, 1024} {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			core := bigCore(b)
			at := core.View().Token
			messages := make([]*rootv1.TailResponse, b.N)
			for i := range messages {
				messages[i] = &rootv1.TailResponse{ClusterId: clusterID, Incarnation: 1, CommitIndex: at.Index + uint64((i+1)*entries)}
				for j := range entries {
					n := i*entries + j
					e := benchRegion(n*7919%benchRegions, 2+n/benchRegions)
					data, _ := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
					messages[i].Entries = append(messages[i].Entries, &rootv1.TailEntry{Term: 1, Index: at.Index + uint64(n) + 1, Entry: data})
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for _, m := range messages {
				if _, err := core.OnTail(m, 1); err != nil {
					b.Fatal(err)
				}
			}
			if entries > 0 {
				b.ReportMetric(float64(b.N*entries)/b.Elapsed().Seconds(), "entries/s")
			}
		})
	}
}

// A view of 1,000,000 regions from a snapshot, off the wire, and what it holds.
func BenchmarkBootstrap(b *testing.B) {
	var wire [][]byte
	for _, c := range chunks(b, bigState(), 4096) {
		data, err := proto.Marshal(c)
		if err != nil {
			b.Fatal(err)
		}
		wire = append(wire, data)
	}
	before := heap()
	var core *rootview.Core
	b.ResetTimer()
	for range b.N {
		core = rootview.NewCore(rootview.CoreConfig{})
		core.BeginSnapshot(1)
		for _, data := range wire {
			chunk := &rootv1.SnapshotChunk{}
			if err := proto.Unmarshal(data, chunk); err != nil {
				b.Fatal(err)
			}
			if _, _, err := core.OnSnapshotChunk(chunk, 1); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	if n := core.View().State.RegionCount(); n != benchRegions {
		b.Fatalf("%d regions", n)
	}
	b.ReportMetric(float64(heap()-before)/benchRegions, "B/region")
	runtime.KeepAlive(core)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkServeBestEffort(b *testing.B) {
	r := newFakeRoot(b)
	f := followOnce(b, r)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, _, err := f.Serve(b.Context(), nil); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkDisclosure(b *testing.B) {
	v := followOnce(b, newFakeRoot(b)).View()
	b.ReportAllocs()
	for range b.N {
		v.Disclosure(2, coordinatorv1.ServingClass_SERVING_CLASS_BEST_EFFORT)
	}
}

// Strong reads of many callers; the root answers at once.
func BenchmarkStrong(b *testing.B) {
	f := followOnce(b, newFakeRoot(b))
	b.SetParallelism(128)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := f.Strong(b.Context()); err != nil {
				b.Error(err)
			}
		}
	})
}

// followOnce returns a follower that runs until the benchmark ends and has
// reached the root.
func followOnce(b *testing.B, r *fakeRoot) *rootview.Follower {
	f, err := rootview.New(rootview.Config{Root: r, ReadIndexer: r, Clock: clock.NewMonotonic()})
	if err != nil {
		b.Fatal(err)
	}
	var run sync.WaitGroup
	ctx := b.Context()
	run.Go(func() { _ = f.Run(ctx) })
	b.Cleanup(run.Wait) // runs after the context has ended
	if _, err := f.WaitFor(ctx, r.log.token()); err != nil {
		b.Fatal(err)
	}
	return f
}
