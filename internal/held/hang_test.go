package held_test

import (
	"testing"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// A region whose Acquire does not return is let go at the frontier that it was granted at. What is
// shown as its own again before that Acquire returns fails at once; when it returns, what it got
// ready is evicted first, and then acquired at the epoch that is shown.
func TestRule11AcquireThatReturnsBehindItsEnd(t *testing.T) {
	for _, fails := range []string{"", "the disk is full"} {
		now := clock.Instant(1)
		c, answer := served(t, &now, &coordinatorv1.KeyspaceTerms{KeyspaceId: 1, Name: "k", Fence: rootv1.Fence_FENCE_EPOCH})
		show := func(token, conf uint64, gives bool) {
			t.Helper()
			r := &coordinatorv1.ShownRegion{Region: &rootv1.Region{Id: 1, KeyspaceId: 1, Epoch: (rooted.Epoch{Version: 1, ConfVersion: conf}).Proto(), Frontier: []byte("granted")}}
			if gives {
				r.Move = &coordinatorv1.ShownMove{TransitionId: "t", Role: coordinatorv1.MoveRole_MOVE_ROLE_GIVES, ReleaseNow: true}
			}
			answer(&coordinatorv1.MemberAnswer{Set: &coordinatorv1.ShownSet{Token: at(token), Complete: true, Regions: []*coordinatorv1.ShownRegion{r}}})
		}
		said := func() *coordinatorv1.RegionReport {
			t.Helper()
			now = now.Add(1e9)
			all := c.Frame(0, now).GetRegions()
			if len(all) != 1 {
				t.Fatalf("it reports %v", all)
			}
			return all[0]
		}
		one := func(kind held.CallKind) held.Call {
			t.Helper()
			for _, call := range c.Calls(10, now) {
				if call.Kind == held.Cancel {
					continue
				}
				if call.Kind != kind {
					t.Fatalf("it is asked to %s, want %s", call.Kind, kind)
				}
				return call
			}
			t.Fatalf("it is not asked to %s", kind)
			return held.Call{}
		}
		show(1, 1, false)
		hung := one(held.Acquire)
		c.Overdue(hung.ID, "acquire has not returned")
		if r := said(); r.GetPhase() != coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING || r.GetError() == "" || r.GetCalling() {
			t.Errorf("of one that hangs it says %v", r)
		}
		show(2, 1, true)
		if r := said(); r.GetPhase() != coordinatorv1.RegionPhase_REGION_PHASE_RELEASED || string(r.GetFrontier()) != "granted" || r.GetTransitionId() != "t" {
			t.Errorf("of a move it says %v", r)
		}
		show(3, 3, false) // it was somebody else's in between
		if r := said(); r.GetPhase() != coordinatorv1.RegionPhase_REGION_PHASE_ACQUIRING || r.GetError() == "" || r.GetEpoch().GetConfVersion() != 3 {
			t.Errorf("of one that is its own again it says %v", r)
		}
		for _, call := range c.Calls(10, now) {
			if call.Kind != held.Cancel {
				t.Errorf("beside the one under way it is asked to %s", call.Kind)
			}
		}
		c.Done(hung.ID, held.Result{Err: fails}, now)
		if fails == "" {
			c.Done(one(held.Evict).ID, held.Result{}, now)
		}
		again := one(held.Acquire)
		if again.Region.Epoch.ConfVersion != 3 {
			t.Errorf("it acquires %v", again.Region)
		}
		c.Done(again.ID, held.Result{}, now)
		if phase, epoch := c.Phase(1); phase != coordinatorv1.RegionPhase_REGION_PHASE_SERVING || epoch.ConfVersion != 3 {
			t.Errorf("then it is %s at %v", phase, epoch)
		}
	}
}
