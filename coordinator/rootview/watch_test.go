package rootview_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/meta/root/state"
)

func TestWatchersSeeEveryChangeOnce(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		r.grow(25)
		synctest.Wait()
		// Resume at every position, those inside a batch included.
		for from := range 28 {
			reader := f.Subscribe(r.log.states[from].Token())
			seen := map[state.RegionID]int{}
			for reader.At().Index < 27 {
				b, err := reader.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range b.Changes {
					if c.Kind == state.ChangeRegion {
						seen[c.Region.ID]++
					}
				}
			}
			want := map[state.RegionID]int{}
			for id := max(from-1, 1); id <= 25; id++ {
				want[state.RegionID(id)] = 1
			}
			if !maps.Equal(seen, want) {
				t.Fatalf("from %d: saw %v", from, seen)
			}
		}
	})
}

func TestWatchersWaitAndWake(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		reader := f.Subscribe(state.Token{Incarnation: 1, Term: 1, Index: 3}) // ahead of this process
		var got rootview.Batch
		var wait sync.WaitGroup
		wait.Go(func() { got, _ = reader.Next(t.Context()) })
		r.grow(1)
		synctest.Wait()
		r.grow(1)
		wait.Wait()
		if got.Token.Index != 4 || len(got.Changes) != 1 || f.View().Token.Index < got.Token.Index {
			t.Fatalf("batch %+v", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := reader.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Next: %v", err)
		}
	})
}

func TestASlowWatcherIsTold(t *testing.T) {
	bubble(t, func(c *rootview.Config) { c.RetainedChanges = 20 }, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		slow, quick := f.Subscribe(f.View().Token), f.Subscribe(f.View().Token)
		for range 50 {
			r.grow(1)
			synctest.Wait()
			if b, err := quick.Next(t.Context()); err != nil || b.Token != f.View().Token {
				t.Fatalf("the quick one: %v", err)
			}
		}
		if _, err := slow.Next(t.Context()); !errors.Is(err, rootview.ErrSnapshotNeeded) {
			t.Fatalf("the slow one: %v", err)
		}
		v := f.View()
		again := f.Subscribe(v.Token)
		r.grow(1)
		if b, err := again.Next(t.Context()); err != nil || b.Token.Index != v.Token.Index+1 {
			t.Fatalf("after a snapshot: %v", err)
		}
	})
}

func TestWatchersAreToldOfAJump(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		r.grow(3)
		synctest.Wait()
		reader := f.Subscribe(f.View().Token)
		r.set(func(r *fakeRoot) { r.down = true })
		synctest.Wait()
		r.grow(9)
		r.set(func(r *fakeRoot) { r.down, r.first = false, 12 })
		if _, err := reader.Next(t.Context()); !errors.Is(err, rootview.ErrSnapshotNeeded) {
			t.Fatalf("Next: %v", err)
		}
		bogus := f.Subscribe(state.Token{Incarnation: 1, Index: f.View().Token.Index + 5})
		if bogus.At().Index != f.View().Token.Index+5 {
			t.Fatal("a position ahead is kept")
		}
	})
}

// Readers, waiters and watchers beside a view that moves: for the race detector.
func TestEverybodyAtOnce(t *testing.T) {
	bubble(t, func(c *rootview.Config) { c.RetainedChanges = 64 }, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					at, err := f.Strong(ctx)
					if err != nil {
						continue
					}
					v := f.View()
					if v.Token.Compare(at) < 0 || v.State.Token() != v.Token {
						t.Errorf("view %s after strong %s", v.Token, at)
					}
					v.State.Assess(region(9999, "x", "y", 1))
				}
			})
			all.Go(func() {
				reader := f.Subscribe(f.View().Token)
				for ctx.Err() == nil {
					if _, err := reader.Next(ctx); errors.Is(err, rootview.ErrSnapshotNeeded) {
						reader = f.Subscribe(f.View().Token)
					}
				}
			})
			all.Go(func() {
				for ctx.Err() == nil {
					v := f.View()
					v.State.RegionsFrom(1, "", func(*state.Region) bool { return true })
					_, _ = f.WaitFor(ctx, state.Token{Incarnation: 1, Index: v.Token.Index + 1})
				}
			})
		}
		for i := range 150 {
			r.grow(1)
			if i%50 == 49 {
				r.set(func(r *fakeRoot) { r.first = uint64(len(r.log.entries)); r.down = true })
				r.grow(2)
				r.set(func(r *fakeRoot) { r.down = false })
			}
		}
		cancel()
		all.Wait()
	})
}

// What watchers can go back to is bounded in bytes too.
func TestRetainedChangesAreBoundedInBytes(t *testing.T) {
	bubble(t, func(c *rootview.Config) { c.RetainedBytes = 64 << 10 }, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		begun := f.View().Token
		for i := range 30 {
			key := fmt.Sprintf("%02d%s", i, strings.Repeat("x", 3000))
			r.commitOne(region(uint64(1000+i), key, key+"~", 1))
			synctest.Wait()
		}
		if _, err := f.Subscribe(begun).Next(t.Context()); !errors.Is(err, rootview.ErrSnapshotNeeded) {
			t.Fatalf("180 KB behind, of 64 KiB retained: %v", err)
		}
		near := f.View().Token
		near.Index -= 5
		if b, err := f.Subscribe(near).NextAll(t.Context(), 1<<20); err != nil || len(b) != 5 {
			t.Fatalf("30 KB behind: %d batches, %v", len(b), err)
		}
	})
}
