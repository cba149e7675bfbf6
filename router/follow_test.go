package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/router"
)

// Who follows a key hears of each change at once, not of others', and looks now and then besides.
func TestP37P84FollowHearsOfAKeyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.snapshot(region(1, "a", "b", 2, 1), region(2, "b", "", 2, 4))
		begun, heard := time.Now(), []string{}
		done := make(chan error, 1)
		go func() {
			done <- b.Follow(context.Background(), []byte("a"), router.Options{}, func(at router.Target, err error) bool {
				if at.Region == nil || at.Region.ID != 1 {
					t.Errorf("told %+v: %v", at, err)
				}
				said := string(at.Member)
				if errors.Is(err, client.ErrUnhealthyMember) {
					said = "nobody"
				}
				heard = append(heard, fmt.Sprintf("%s@%d", said, at.Epoch.ConfVersion))
				return said != "m3"
			})
		}()
		synctest.Wait()
		b.regions(region(2, "b", "", 3, 1)) // another key's
		b.members(member(4, failed))
		b.regions(region(1, "a", "b", 4, 2))
		b.members(member(2, failed))
		b.regions(region(1, "a", "b", 6))
		want := "[m1@2 m2@4 nobody@4 nobody@6]"
		if fmt.Sprint(heard) != want || time.Since(begun) != 0 {
			t.Errorf("heard %v after %v, want %v at once", heard, time.Since(begun), want)
		}
		time.Sleep(time.Minute) // it looks again, also where nothing is heard
		if n := len(heard); n < 8 || n > 70 || heard[n-1] != "nobody@6" || b.c.questions() != 0 {
			t.Errorf("heard %v, with %d questions", heard, b.c.questions())
		}
		b.regions(region(1, "a", "b", 7, 3))
		if err := <-done; err != nil || heard[len(heard)-1] != "m3@7" {
			t.Errorf("it ended with %v behind %v", err, heard)
		}
		// A key that is well is looked at seldom, until the caller ends it.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		looks := 0
		err := b.Follow(ctx, []byte("a"), router.Options{}, func(router.Target, error) bool { looks++; return true })
		if !errors.Is(err, context.DeadlineExceeded) || looks < 4 || looks > 14 {
			t.Errorf("%d looks in a minute: %v", looks, err)
		}
		if err := b.Follow(t.Context(), []byte("a"), router.Options{Keyspace: "other"}, nil); !errors.Is(err, client.ErrInvalidRequest) {
			t.Errorf("of a keyspace that is not followed: %v", err)
		}
	})
}

// BenchmarkChangeBesideFollowers measures a change from the coordinator's message until it is shown, beside so
// many who follow keys of their own, each in a region of its own that does not change.
func BenchmarkChangeBesideFollowers(b *testing.B) {
	for _, followers := range []int{0, 10_000} {
		b.Run(fmt.Sprint(followers), func(b *testing.B) {
			const n = 20_000
			r, end := start(b, router.Config{})
			defer end()
			r.stream(n)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var looked, ended atomic.Int64
			for i := range followers {
				go func() {
					defer ended.Add(1)
					_ = r.Follow(ctx, []byte(benchKey(i)+"/x"), router.Options{}, func(router.Target, error) bool { looked.Add(1); return true })
				}()
			}
			until(b, "each follower has looked", func() bool { return looked.Load() >= int64(followers) })
			b.ReportAllocs()
			done := processor(b)
			index, before := uint64(5), looked.Load()
			for b.Loop() {
				index++
				r.change(index, n/2+int(index)%(n/2))
			}
			r.reaches(index)
			done()
			b.ReportMetric(float64(looked.Load()-before)/float64(b.N), "looks/op")
			cancel()
			until(b, "the followers end", func() bool { return ended.Load() == int64(followers) })
		})
	}
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not: " + what)
		}
	}
}
