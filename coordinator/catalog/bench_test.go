package catalog_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

type must struct{}

func (must) Helper()                      {}
func (must) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

// sized is a state with so many regions, made once each.
var sized = func() func(n int) *state.State {
	var mu sync.Mutex
	made := map[int]*state.State{}
	return func(n int) *state.State {
		mu.Lock()
		defer mu.Unlock()
		if made[n] == nil {
			w := newWorld(must{})
			w.apply(joined("m1", 1))
			for i := 0; i < n; i += 1000 {
				events := make([]*rootv1.Event, 1000)
				for j := range events {
					events[j] = published(1, uint64(i+j)+1, benchKey(i+j), benchKey(i+j+1), "m1")
				}
				w.apply(events...)
			}
			made[n] = w.st
		}
		return made[n]
	}
}()

func benchKey(n int) string { return fmt.Sprintf("tenant-%09d", n) }

func randomKeys(n, regions int) [][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = []byte(benchKey(r.IntN(regions)) + "/row")
	}
	return keys
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			st, keys := sized(n), randomKeys(1<<16, n)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if _, _, err := catalog.Lookup(st, "", keys[i&(1<<16-1)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLookupBatch128(b *testing.B) {
	for _, n := range []int{1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			st, keys := sized(n), randomKeys(1<<16, n)
			var batch catalog.Batch
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				at := i * 128 & (1<<16 - 1)
				if err := catalog.LookupBatch(st, "", keys[at:at+128], &batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*128)/b.Elapsed().Seconds(), "keys/s")
		})
	}
}

func BenchmarkScan256(b *testing.B) {
	st, keys := sized(1_000_000), randomKeys(1<<12, 900_000)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, err := catalog.Scan(st, "", keys[i&(1<<12-1)], nil, 256); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRegionHeartbeat(b *testing.B) {
	st := sized(100_000)
	inc := st.Member("m1").GetIncarnation()
	s := catalog.NewSoft(catalog.SoftConfig{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		hb := &coordinatorv1.RegionHeartbeatRequest{MemberId: "m1", Incarnation: inc, Leader: true, Region: &rootv1.Region{}}
		for i := rand.Uint64N(100_000); pb.Next(); i++ {
			hb.Region.Id = i%100_000 + 1
			if _, _, err := s.RegionHeartbeat(st, hb, clock.Instant(i)); err != nil {
				b.Error(err)
			}
		}
	})
}
