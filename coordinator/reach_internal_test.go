package coordinator

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/testing/written"
	rootclient "github.com/nokv/nokv/meta/root/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
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
		}, clock.NewMonotonic(), hclog.NewNullLogger())
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

// A peer of another cluster, or one that answers as another, is named at once in
// the log, once, and to who asks.
func TestAPeerThatIsNotWhatItShouldBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said written.Text
		r := newReachability(func(context.Context) []rootclient.PeerStatus {
			return []rootclient.PeerStatus{
				{NodeID: 1, Status: &rootv1.StatusResponse{LeaderId: 1, DiskLow: "1 MiB is free"}},
				{NodeID: 2, Err: errors.New("gone")},
				{NodeID: 3, Status: &rootv1.StatusResponse{LeaderId: 3}, Err: errors.New("root peer 3 belongs to cluster 7, this client to cluster 8")},
			}
		}, clock.NewMonotonic(), said.Logger(hclog.Info))
		for range 3 {
			got := r.endpoints(t.Context())
			if len(got) != 3 || got[0].GetProblem()+got[1].GetProblem() != "" || got[0].GetDiskLow() != "1 MiB is free" || got[1].GetDiskLow() != "" || !strings.Contains(got[2].GetProblem(), "cluster 7") || got[2].GetLeader() || got[2].GetReachable() {
				t.Errorf("told %v", got)
			}
			time.Sleep(2 * reachFresh)
		}
		if n := strings.Count(said.String(), "belongs to cluster 7"); n != 1 {
			t.Errorf("said %d times: %s", n, &said)
		}
	})
}
