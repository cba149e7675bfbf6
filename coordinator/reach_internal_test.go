package coordinator

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/clock"
	rootclient "github.com/nokv/nokv/meta/root/client"
)

// Root peers are asked when somebody wants to know, once for all who do, and for a
// bounded time; nobody is told what is old.
func TestReachabilityIsAskedForOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, hangs := 0, false
		r := newReachability(func(ctx context.Context) []rootclient.PeerStatus {
			asked++
			if hangs {
				<-ctx.Done()
				return []rootclient.PeerStatus{{NodeID: 1, Err: ctx.Err()}}
			}
			time.Sleep(time.Millisecond)
			return []rootclient.PeerStatus{{NodeID: 1}}
		}, clock.NewMonotonic())
		look := func(reachable bool) {
			t.Helper()
			if got := r.endpoints(t.Context()); len(got) != 1 || got[0].GetReachable() != reachable {
				t.Errorf("told %v, want reachable %v", got, reachable)
			}
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { look(true) })
		}
		all.Wait()
		time.Sleep(reachFresh / 2)
		look(true)
		if asked != 1 {
			t.Errorf("asked %d times for one answer", asked)
		}
		hangs = true
		time.Sleep(reachFresh)
		begun := time.Now()
		look(false)
		if took := time.Since(begun); asked != 2 || took != reachTimeout {
			t.Errorf("asked %d times, a peer that hangs took %v", asked, took)
		}
		time.Sleep(reachFresh)
		ctx, cancel := context.WithTimeout(t.Context(), reachTimeout/2)
		defer cancel()
		all.Go(func() { look(false) }) // has the turn
		synctest.Wait()
		if got := r.endpoints(ctx); got != nil {
			t.Errorf("told %v", got)
		}
		all.Wait()
	})
}
