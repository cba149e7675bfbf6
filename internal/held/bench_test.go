package held_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// serving is a Core that serves regions 1 to n, of a keyspace of points.
func serving(t testing.TB, n int, fence rootv1.Fence) *held.Core {
	c := held.New(held.Config{Member: "m1", Incarnation: 1})
	c.Open(0)
	c.Frame(0, 1)
	answer := func(a *coordinatorv1.MemberAnswer) {
		t.Helper()
		a.Era = 1
		if err := c.Answer(0, a, 2); err != nil {
			t.Fatal(err)
		}
	}
	answer(&coordinatorv1.MemberAnswer{Terms: &coordinatorv1.MemberTerms{IntervalMillis: 200, Keyspaces: []*coordinatorv1.KeyspaceTerms{{
		KeyspaceId: 1, Name: "k", Fence: fence, TtlMillis: 3_600_000, Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}},
	}}}})
	answer(&coordinatorv1.MemberAnswer{Set: points(n), Confirmed: true, Sequence: 1})
	for _, call := range c.Calls(n, 3) {
		c.Done(call.ID, held.Result{}, 3)
	}
	if c.Holding() != n {
		t.Fatalf("%d of %d regions are held", c.Holding(), n)
	}
	return c
}

// points is a complete set of regions 1 to n.
func points(n int) *coordinatorv1.ShownSet {
	set := &coordinatorv1.ShownSet{Token: at(9), Complete: true}
	for i := range n {
		key := fmt.Sprintf("player/%08d", i)
		set.Regions = append(set.Regions, &coordinatorv1.ShownRegion{Region: &rootv1.Region{
			Id: uint64(i + 1), KeyspaceId: 1, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 3}, StartKey: []byte(key), EndKey: []byte(key + "\x00"),
		}})
	}
	return set
}

// A request costs tens of nanoseconds and no memory, whatever the member holds.
func TestAdmitAllocatesNothing(t *testing.T) {
	table := serving(t, 1000, rootv1.Fence_FENCE_TTL).Table()
	now, epoch := clock.NewMonotonic(), rooted.Epoch{Version: 1, ConfVersion: 3}
	key := []byte("player/00000016")
	for name, q := range map[string]held.Request{
		"region": {Region: 17, Epoch: epoch, Key: key},
		"key":    {Keyspace: "k", Key: key, Epoch: epoch},
	} {
		if n := testing.AllocsPerRun(100, func() {
			g, no := table.Admit(q, now)
			if no != nil || table.Check(g, now) != nil {
				t.Fatalf("by %s: %v", name, no)
			}
			table.Leave(g)
		}); n != 0 {
			t.Errorf("by %s: %v allocations a request", name, n)
		}
	}
}

// A frame is never longer than what a coordinator takes, and however many regions
// there are each is reported once.
func TestFramesAreBounded(t *testing.T) {
	const n = 30_000
	c := serving(t, n, rootv1.Fence_FENCE_EPOCH)
	c.Open(1)
	now, frames, told := clock.Instant(10), 0, map[uint64]int{}
	for {
		f := c.Frame(1, now)
		if f == nil {
			break
		}
		if size := proto.Size(f); size > held.MaxFrameBytes {
			t.Fatalf("frame %d has %d bytes", f.GetSequence(), size)
		}
		if !f.GetComplete() || (f.GetHello() != nil) != (frames == 0) {
			t.Fatalf("frame %d: %v", f.GetSequence(), f.GetHello())
		}
		for _, r := range f.GetRegions() {
			told[r.GetRegionId()]++
		}
		frames++
	}
	if len(told) != n || frames < 3 {
		t.Fatalf("%d regions in %d frames", len(told), frames)
	}
	for id, times := range told {
		if times != 1 {
			t.Fatalf("region %d was reported %d times", id, times)
		}
	}
	if f := c.Frame(1, now.Add(time.Second)); len(f.GetRegions()) != 0 || f.GetComplete() {
		t.Fatalf("nothing changed, and %d regions are reported", len(f.GetRegions()))
	}
}

// What a member keeps of a region is bounded, with three streams that show it.
func TestMemoryOfARegion(t *testing.T) {
	const n, most = 10_000, 1600
	before := heap()
	c := serving(t, n, rootv1.Fence_FENCE_EPOCH)
	for i := 1; i < 3; i++ {
		c.Open(i)
		if err := c.Answer(i, &coordinatorv1.MemberAnswer{Era: 1, Set: points(n)}, 4); err != nil {
			t.Fatal(err)
		}
	}
	bytes := (heap() - before) / n
	t.Logf("%d bytes a region, %d KiB for %d", bytes, bytes*n>>10, n)
	if bytes > most {
		t.Errorf("%d bytes a region, %d at most", bytes, most)
	}
	runtime.KeepAlive(c)
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkAdmit(b *testing.B) {
	const n = 100_000
	for _, fence := range []rootv1.Fence{rootv1.Fence_FENCE_EPOCH, rootv1.Fence_FENCE_TTL} {
		table := serving(b, n, fence).Table()
		now := clock.NewSystem()
		epoch := rooted.Epoch{Version: 1, ConfVersion: 3}
		keys := make([][]byte, n)
		for i := range keys {
			keys[i] = fmt.Appendf(nil, "player/%08d", i)
		}
		ask := func(b *testing.B, q held.Request) {
			g, no := table.Admit(q, now)
			if no != nil {
				b.Fatal(no)
			}
			table.Leave(g)
		}
		b.Run(fence.String()+"/region", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				ask(b, held.Request{Region: rooted.RegionID(i*7919%n + 1), Epoch: epoch})
			}
		})
		b.Run(fence.String()+"/key", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				ask(b, held.Request{Keyspace: "k", Key: keys[i*7919%n], Epoch: epoch})
			}
		})
		b.Run(fence.String()+"/parallel", func(b *testing.B) {
			var from atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				for i := int(from.Add(1)) * 1000; pb.Next(); i++ {
					ask(b, held.Request{Region: rooted.RegionID(i*7919%n + 1), Epoch: epoch})
				}
			})
		})
	}
}

// BenchmarkSet is what it costs that 1,000 regions are granted to a member that has
// 100,000, until all of them are served and reported.
func BenchmarkSet(b *testing.B) {
	c := serving(b, 100_000, rootv1.Fence_FENCE_EPOCH)
	now, index, id := clock.Instant(10), uint64(10), uint64(1_000_000)
	for b.Loop() {
		index++
		set := &coordinatorv1.ShownSet{Token: at(index)}
		for range 1000 {
			id++
			set.Regions = append(set.Regions, &coordinatorv1.ShownRegion{Region: &rootv1.Region{
				Id: id, KeyspaceId: 1, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 3}, StartKey: fmt.Appendf(nil, "x%d", id),
			}})
			if id > 1_001_000 {
				set.Ended = append(set.Ended, id-1000)
			}
		}
		if err := c.Answer(0, &coordinatorv1.MemberAnswer{Era: 1, Set: set}, now); err != nil {
			b.Fatal(err)
		}
		for _, call := range c.Calls(2000, now) {
			c.Done(call.ID, held.Result{}, now)
		}
		now = now.Add(time.Second)
		for c.Frame(0, now) != nil {
			now = now.Add(time.Millisecond)
			if c.Due(0) > now.Add(10*time.Millisecond) {
				break
			}
		}
	}
}
