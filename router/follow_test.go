package router_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
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
		synctest.Wait()
		want := "[m1@2 m2@4 nobody@4 nobody@6]"
		if fmt.Sprint(heard) != want || time.Since(begun) != 0 {
			t.Errorf("heard %v after %v, want %v at once", heard, time.Since(begun), want)
		}
		time.Sleep(time.Minute) // it looks again, also where nothing is heard
		synctest.Wait()
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
		for _, bad := range []struct{ key, keyspace string }{{"a", "other"}, {"", ""}, {strings.Repeat("k", rooted.MaxKeyBytes+1), ""}} {
			if err := b.Follow(t.Context(), []byte(bad.key), router.Options{Keyspace: bad.keyspace}, nil); !errors.Is(err, client.ErrInvalidRequest) {
				t.Errorf("%.9q of keyspace %q: %v", bad.key, bad.keyspace, err)
			}
		}
		// Who has heard enough is told of no end of the context.
		ctx, cancel = context.WithCancel(t.Context())
		if err := b.Follow(ctx, []byte("a"), router.Options{}, func(router.Target, error) bool { cancel(); return false }); err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}

// Where more is followed than is held, each asks now and then, and not because the others do.
func TestP84FollowersDoNotWakeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{MaxRegions: 1, MaxAnswers: 2})
		defer end()
		b.snapshot(region(1, "a", "b", 1, 1))
		b.c.answers(func(req *coordinatorv1.GetRegionByKeyRequest) (*coordinatorv1.GetRegionByKeyResponse, error) {
			key := string(req.GetKey())
			n, err := strconv.ParseUint(key[1:], 10, 64)
			if err != nil {
				return nil, err
			}
			return answer(region(n, key, key+"\x00", 1, 1))
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		const followers, most = 200, 13 // one each 5 s, and the first
		var looks atomic.Int64
		var all sync.WaitGroup
		for i := range followers {
			all.Go(func() {
				err := b.Follow(ctx, fmt.Appendf(nil, "k%d", 10+i), router.Options{}, func(_ router.Target, err error) bool {
					if err != nil {
						t.Error(err)
					}
					return looks.Add(1) < 100*followers
				})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it ended with %v", err)
				}
			})
		}
		all.Wait()
		if n := b.c.questions(); n < followers || n > most*followers {
			t.Errorf("%d followers asked %d times in a minute, and looked %d times", followers, n, looks.Load())
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
