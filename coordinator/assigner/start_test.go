package assigner_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// kept is a keyspace of slots with an epoch fence whose regions wait for 30 s for the next
// process of their owner.
func kept(slots uint32) *rootv1.KeyspaceSettings {
	s := evened(slots, &rootv1.Rebalance{MeanPermille: 1200, IntervalMillis: 10_000})
	s.Start = &rootv1.Start{HoldMillis: 30_000}
	return s
}

// ends has a member's process end, in a way that proves it.
func (c *crowd) ends(id state.MemberID) {
	c.t.Helper()
	c.gone[id] = true
	c.close(id)
	c.run(time.Second)
	if c.now().Member(id).GetState() != failed {
		c.t.Fatalf("%s is %v", id, c.now().Member(id).GetState())
	}
}

// returns has the next process of a member begin.
func (c *crowd) returns(id state.MemberID) {
	c.gone[id] = false
	c.come(id)
}

// A member whose process is back within the hold has its own regions again, each at the
// next epoch, and nothing else has moved.
func TestP69C69RestartWithinHoldMovesNothing(t *testing.T) {
	gather(t, kept(12), 3, func(t *testing.T, c *crowd) {
		c.run(time.Minute)
		before := c.now()
		c.ends("m2")
		c.run(20 * time.Second)
		if n := c.now().Orphaned(); n != 4 {
			t.Fatalf("%d regions wait for m2, want its 4", n)
		}
		c.returns("m2")
		c.run(time.Second)
		c.now().RegionsFrom(2, "", func(r *state.Region) bool {
			old := before.Region(r.ID)
			epoch := old.Epoch
			if old.Owners[0].Member == "m2" {
				epoch.ConfVersion++
			}
			if len(r.Owners) != 1 || r.Owners[0].Member != old.Owners[0].Member || r.Epoch != epoch || !c.now().Acts(r.Owners[0]) {
				t.Errorf("region %d was %s of %v, and is %s of %v", r.ID, old.Epoch, old.Owners, r.Epoch, r.Owners)
			}
			return true
		})
		c.run(10 * time.Minute)
		if n := len(c.planned()); n != 0 {
			t.Errorf("%d moves behind the restart", n)
		}
	})
}

// One that stays away loses them when the hold is over, and gets its part again as a member
// that joins.
func TestHoldEnds(t *testing.T) {
	gather(t, kept(12), 3, func(t *testing.T, c *crowd) {
		c.run(time.Minute)
		c.ends("m2")
		c.run(28 * time.Second)
		if n := c.now().Orphaned(); n != 4 {
			t.Fatalf("%d regions have no owner a second before the end of the hold", n)
		}
		c.run(2 * time.Second)
		if n := c.now().Orphaned(); n != 0 {
			t.Errorf("%d regions have no owner behind the hold", n)
		}
		c.returns("m2")
		c.run(10 * time.Minute)
		if got := c.counts("m1", "m2", "m3"); got[1] == 0 {
			t.Errorf("the members have %v", got)
		}
	})
}

// What the ttl of a fence and the hold wait for counts from the same moment: a silent
// member's regions are nobody's for as long as the longer of them, not for both.
func TestHoldAndFenceCountTogether(t *testing.T) {
	for name, hold := range map[string]time.Duration{"shorter": 10 * time.Second, "as long": 30 * time.Second, "longer": 40 * time.Second} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				w.mu.Lock()
				w.probe = func(context.Context, liveness.Probe) liveness.ProbeResult { return liveness.NoAnswer }
				w.mu.Unlock()
				w.twelve("partitions")
				k := w.now().KeyspaceByName("partitions")
				k = &rootv1.Keyspace{Id: k.GetId(), Version: k.GetVersion(), Settings: state.MergeSettings(k.GetSettings(), &rootv1.KeyspaceSettings{Start: &rootv1.Start{HoldMillis: uint64(hold.Milliseconds())}})}
				w.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: k.GetId(), ExpectedVersion: k.GetVersion(), Settings: k.GetSettings()}}})
				w.claim(self, life)
				w.pass(time.Minute, "m1", "m2", "m3")
				w.pass(max(hold, 30*time.Second)-time.Second, "m1", "m2")
				if len(w.owned("m3")) != 4 {
					t.Fatalf("m3 has %d regions before its time is over", len(w.owned("m3")))
				}
				w.pass(3*time.Second, "m1", "m2")
				if n := w.now().Orphaned(); n != 0 {
					t.Errorf("%d regions have no owner behind both", n)
				}
			})
		})
	}
}

// A new holder that saw the member end keeps its regions for as long as the one before.
func TestHoldOutlivesTheHolder(t *testing.T) {
	gather(t, kept(12), 3, func(t *testing.T, c *crowd) {
		c.run(time.Minute)
		c.ends("m2")
		c.run(10 * time.Second)
		c.claim("other", 9)
		c.run(5 * time.Second)
		c.claim(self, life)
		c.run(5 * time.Second)
		if n := c.now().Orphaned(); n != 4 {
			t.Fatalf("%d regions have no owner", n)
		}
		c.run(15 * time.Second)
		if n := c.now().Orphaned(); n != 0 {
			t.Errorf("%d regions have no owner behind the hold", n)
		}
	})
}

// The first plan of a new keyspace waits for as many members as it says, or a second.
func TestFirstPlanWaitsForMembers(t *testing.T) {
	for what, come := range map[string]int{"they come": 3, "one does not": 2} {
		t.Run(what, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				c := newCrowd(w)
				c.join("m1")
				c.claim(self, life)
				c.open("m1")
				s := kept(12)
				s.Start.Members = 3
				c.create(s)
				c.run(400 * time.Millisecond)
				if n := len(c.owned("m1")); n != 0 {
					t.Fatalf("the first member has %d regions", n)
				}
				for i := 1; i < come; i++ {
					c.come(name(i))
				}
				c.run(400 * time.Millisecond)
				if got := c.counts("m1", "m2", "m3"); (got[0]+got[1]+got[2] == 12) != (come == 3) {
					t.Errorf("0.8 s after it was made the members have %v", got)
				}
				c.run(600 * time.Millisecond)
				synctest.Wait()
				if got := c.counts("m1", "m2", "m3"); got[0] != 12/come || got[1] != 12/come {
					t.Errorf("the members have %v", got)
				}
			})
		})
	}
}
