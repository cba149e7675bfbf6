package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
	"github.com/tidwall/btree"
)

const benchMembers = 100

func benchKey(n int) string { return fmt.Sprintf("tenant/user/%08d", n*10) }

// stream sends regions of benchMembers members to a router whose test is not in a bubble.
func (b *bench) stream(n int) {
	for i := 0; i < n; i += 1000 {
		m := &coordinatorv1.WatchRegionsResponse{Snapshot: true, Partial: i+1000 < n, Token: at(5), Disclosure: b.c.says()}
		m.Disclosure.ServedRootToken = at(5)
		if i == 0 {
			m.Keyspaces = []*coordinatorv1.KeyspaceChange{{Keyspace: keyspace(1, "default")}}
			for k := range benchMembers {
				m.Members = append(m.Members, &coordinatorv1.MemberChange{Member: member(k, active)})
			}
		}
		for j := i; j < min(i+1000, n); j++ {
			m.Changes = append(m.Changes, now(region(uint64(j+1), benchKey(j), benchKey(j+1), 2, j%benchMembers))...)
		}
		b.c.feed <- m
	}
	b.c.index = 5
	must(b.t, b.Wait(context.Background()))
}

// benchKeys are keys at random, of as many regions.
func benchKeys(n int) [][]byte {
	keys := make([][]byte, 1<<20)
	for i := range keys {
		keys[i] = []byte(benchKey(rand.IntN(n)) + "/x")
	}
	return keys
}

// processor reports what a benchmark took of the processor, by b.Loop or by the pieces of
// a parallel one, also where others use the machine.
func processor(b *testing.B) (done func()) {
	spent := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	runtime.GC()
	before := spent()
	return func() { b.ReportMetric(float64(spent()-before)/float64(b.N), "cpu-ns/op") }
}

// BenchmarkResolve measures a hit by a random key, beside a B-tree of pointers to regions
// and a sync.Map of keys, which finds no ranges.
func BenchmarkResolve(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		r, end := start(b, router.Config{})
		r.stream(n)
		keys := benchKeys(n)
		at := func(i int) []byte { return keys[i&(len(keys)-1)] }
		b.Run(fmt.Sprintf("%d/router", n), func(b *testing.B) {
			b.ReportAllocs()
			defer processor(b)()
			ctx := context.Background()
			for i := 0; b.Loop(); i++ {
				if t, err := r.Resolve(ctx, at(i), router.Options{}); err != nil || t.Address == "" {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("%d/router, all processors", n), func(b *testing.B) {
			b.ReportAllocs()
			defer processor(b)()
			ctx := context.Background()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(len(keys)); pb.Next(); i++ {
					if t, err := r.Resolve(ctx, at(i), router.Options{}); err != nil || t.Address == "" {
						b.Fatal(err)
					}
				}
			})
		})
		end()
		tree := btree.NewMap[string, *rootv1.Region](32)
		var flat sync.Map
		for i := range n {
			one := region(uint64(i+1), benchKey(i), benchKey(i+1), 2, i%benchMembers)
			tree.Set(benchKey(i), one)
			flat.Store(benchKey(i)+"/x", one)
		}
		b.Run(fmt.Sprintf("%d/btree", n), func(b *testing.B) {
			b.ReportAllocs()
			defer processor(b)()
			for i := 0; b.Loop(); i++ {
				var found *rootv1.Region
				tree.Descend(string(at(i)), func(_ string, r *rootv1.Region) bool { found = r; return false })
				if found.GetOwners()[0].GetMemberId() == "" {
					b.Fatal("missed")
				}
			}
		})
		b.Run(fmt.Sprintf("%d/sync.Map", n), func(b *testing.B) {
			b.ReportAllocs()
			defer processor(b)()
			for i := 0; b.Loop(); i++ {
				found, ok := flat.Load(string(at(i)))
				if !ok || found.(*rootv1.Region).GetOwners()[0].GetMemberId() == "" {
					b.Fatal("missed")
				}
			}
		})
	}
}

// BenchmarkResolveAmong measures a hit in a region of so many owners.
func BenchmarkResolveAmong(b *testing.B) {
	for _, pick := range []router.Strategy{router.RoundRobin, router.Random, router.LeastLoaded, router.TwoChoices} {
		b.Run(fmt.Sprint([]string{"round-robin", "random", "least-loaded", "two choices"}[pick]), func(b *testing.B) {
			r, end := start(b, router.Config{Pick: pick})
			defer end()
			r.stream(1)
			r.c.feed <- &coordinatorv1.WatchRegionsResponse{Token: at(6), Disclosure: r.c.says(), Changes: now(region(1, "", "", 6, 1, 2, 3))}
			r.reaches(6)
			b.ReportAllocs()
			defer processor(b)()
			ctx, key := context.Background(), []byte("a")
			for b.Loop() {
				if _, err := r.Resolve(ctx, key, router.Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// reaches waits for a position.
func (b *bench) reaches(index uint64) {
	for b.State()[0].Position.Token.Index < index {
		time.Sleep(100 * time.Microsecond)
	}
}

// change sends a change of region i of a stream, at a position.
func (b *bench) change(index uint64, i int) {
	b.c.feed <- &coordinatorv1.WatchRegionsResponse{Token: at(index), Disclosure: b.c.says(), Changes: now(region(uint64(i+1), benchKey(i), benchKey(i+1), index, i%benchMembers))}
}

// BenchmarkChange measures what a change costs of so many regions, from the coordinator's
// message until it is shown; the coordinator is in the same process.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, end := start(b, router.Config{})
			defer end()
			r.stream(n)
			b.ReportAllocs()
			defer processor(b)()
			index := uint64(5)
			for b.Loop() {
				index++
				r.change(index, rand.IntN(n))
			}
			r.reaches(index)
		})
	}
}

// BenchmarkMembersJoin measures 10,000 members that join one by one, beside 100,000 regions.
func BenchmarkMembersJoin(b *testing.B) {
	r, end := start(b, router.Config{})
	defer end()
	r.stream(100_000)
	var index atomic.Uint64
	index.Store(5)
	b.ReportAllocs()
	defer processor(b)()
	for b.Loop() {
		m := &coordinatorv1.WatchRegionsResponse{Disclosure: r.c.says()}
		for i := range 10_000 {
			one := member(1000+i, active)
			one.Revision = index.Add(1)
			m.Members = append(m.Members, &coordinatorv1.MemberChange{Member: one})
			if len(m.Members) == 100 {
				m.Token = at(index.Load())
				r.c.feed <- m
				m = &coordinatorv1.WatchRegionsResponse{Disclosure: r.c.says()}
			}
		}
		r.reaches(index.Load())
	}
}

// BenchmarkDeath measures 500 callers whose owner cannot be reached, from its death until 150 ms later
// the watch names the next one, of 20 regions at a time.
func BenchmarkDeath(b *testing.B) {
	const callers = 500
	for _, keys := range []int{1, callers} {
		b.Run(fmt.Sprintf("%d keys", keys), func(b *testing.B) {
			r, end := start(b, router.Config{})
			defer end()
			r.stream(keys)
			index, dead, shown := uint64(5), 0, sync.Map{}
			r.c.answers(func(req *coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
				now, ok := shown.Load(string(req.GetKey()))
				if !ok {
					return nil, fmt.Errorf("no region of %q", req.GetKey())
				}
				return answer(now.(*rootv1.Region))
			})
			give := func(i, owner int) *rootv1.Region {
				index++
				one := region(uint64(i+1), benchKey(i), benchKey(i+1), index, owner)
				shown.Store(benchKey(i)+"/x", one)
				return one
			}
			move := func(owner int) {
				for i := 0; i < keys; i += 20 {
					m := &coordinatorv1.WatchRegionsResponse{}
					for j := i; j < min(i+20, keys); j++ {
						m.Changes = append(m.Changes, now(give(j, owner))...)
					}
					r.c.mu.Lock()
					r.c.index = index
					m.Token, m.Disclosure = at(index), r.c.says()
					r.c.mu.Unlock()
					r.c.feed <- m
				}
				r.reaches(index)
			}
			move(0)
			b.ReportAllocs()
			asked, requests, tries := r.c.questions(), r.c.requests(), atomic.Int64{}
			defer processor(b)()
			for b.Loop() {
				var all sync.WaitGroup
				dead = 1 - dead
				for i := range callers {
					all.Go(func() {
						err := r.Do(context.Background(), []byte(benchKey(i%keys)+"/x"), router.Options{}, func(_ context.Context, t router.Target) error {
							tries.Add(1)
							if t.Member == rooted.MemberID(fmt.Sprintf("m%d", 1-dead)) {
								return notReached(t)
							}
							return nil
						})
						if err != nil {
							b.Error(err)
						}
					})
				}
				time.Sleep(150 * time.Millisecond)
				move(dead)
				all.Wait()
			}
			b.ReportMetric(float64(r.c.requests()-requests)/float64(b.N), "requests/op")
			b.ReportMetric(float64(r.c.questions()-asked)/float64(b.N), "keys/op")
			b.ReportMetric(float64(tries.Load())/float64(b.N), "tries/op")
		})
	}
}
