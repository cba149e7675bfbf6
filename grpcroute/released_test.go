package grpcroute_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/grpcroute"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/router"
)

// Calls and streams come at any moment of the release of what nobody uses: none fails, and none waits for longer than a
// region takes to be made.
func TestNoCallOrStreamFailsAtAnIdleRelease(t *testing.T) {
	const (
		keys, rounds = 200, 10
		evict, scan  = 2 * time.Second, 100 * time.Millisecond
		travel       = 100 * time.Millisecond // of a request to its member
		longest      = 500 * time.Millisecond
	)
	synctest.Test(t, func(t *testing.T) {
		w := start(t, router.Config{}, "m1", "m2")
		s, _ := state.Preset("games")
		s.Cadence = &rootv1.Cadence{IdleEvictMillis: uint64(evict.Milliseconds()), IdleScanMillis: uint64(scan.Milliseconds())}
		games, err := w.c.Client().GetKeyspace(t.Context(), "games")
		must(t, err)
		_, err = w.c.Client().UpdateKeyspace(t.Context(), "games", games.GetKeyspace().GetVersion(), s)
		must(t, err)
		for _, g := range w.gates {
			g.travel.Store(int64(travel))
		}
		c := w.dial(grpcroute.Config{ClaimOnMiss: true})
		var all sync.WaitGroup
		var slow atomic.Int64
		for i := range keys {
			all.Go(func() {
				key := fmt.Sprint("g", i)
				for j := range rounds {
					begun, said, err := time.Now(), "", error(nil)
					ctx, end := context.WithTimeout(grpcroute.WithKey(context.Background(), []byte(key)), time.Minute)
					if i%2 == 0 {
						said, err = ask(ctx, c)
					} else if s, broke := c.FullDuplexCall(ctx); broke == nil {
						said, err = echo(s, "one")
					} else {
						err = broke
					}
					end()
					if err != nil || said == "" {
						t.Errorf("%s in round %d, after %v: %q, %v", key, j, time.Since(begun), said, err)
					}
					if time.Since(begun) > longest {
						slow.Add(1)
					}
					time.Sleep(evict + time.Duration((i*7+j*131)%1700)*time.Millisecond)
				}
			})
		}
		all.Wait()
		if slow.Load() > 0 {
			t.Errorf("%d of %d took longer than %v", slow.Load(), keys*rounds, longest)
		}
	})
}
