package held_test

import (
	"testing"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A key belongs to the region that has it now, whatever becomes of one that had it before: a
// point was deleted and made again, and the application is slower to drop the old one than to
// acquire the new one.
func TestAKeyIsTheNewestRegions(t *testing.T) {
	for name, together := range map[string]bool{"in one set": true, "in two, and the first call fails": false} {
		t.Run(name, func(t *testing.T) {
			c := serving(t, 1, rootv1.Fence_FENCE_EPOCH)
			set := points(1)
			set.Complete, set.Token, set.Regions[0].Region.Id = false, at(11), 2
			if together {
				set.Ended = []uint64{1}
			} else if err := c.Answer(0, &coordinatorv1.MemberAnswer{Era: 1, Set: &coordinatorv1.ShownSet{Token: at(10), Ended: []uint64{1}}}, 4); err != nil {
				t.Fatal(err)
			}
			if err := c.Answer(0, &coordinatorv1.MemberAnswer{Era: 1, Set: set}, 4); err != nil {
				t.Fatal(err)
			}
			var evict uint64
			for _, call := range c.Calls(10, 5) {
				if call.Kind == held.Evict {
					evict = call.ID
					continue
				}
				c.Done(call.ID, held.Result{}, 5)
			}
			if !together {
				c.Done(evict, held.Result{Err: "not now"}, 6)
				c.Tick(1e9)
				evict = c.Calls(1, 1e9)[0].ID
			}
			key := func(when string) {
				t.Helper()
				g, no := c.Table().Admit(held.Request{Keyspace: "k", Key: []byte("player/00000000")}, clock.NewMonotonic())
				if no != nil {
					t.Errorf("%s the key of region 2 is refused: %+v", when, *no)
					return
				}
				c.Table().Leave(g)
			}
			if phase, _ := c.Phase(2); phase != coordinatorv1.RegionPhase_REGION_PHASE_SERVING {
				t.Fatal(phase)
			}
			key("before the old one is dropped")
			c.Done(evict, held.Result{}, 2e9)
			key("for ever")
		})
	}
}

// The name of a keyspace that was deleted leads to the one that was created under it.
func TestAKeyspaceCreatedAnew(t *testing.T) {
	for i := range 32 { // what is wrong is so for some orders only
		c := serving(t, 1, rootv1.Fence_FENCE_EPOCH)
		points2 := points(1)
		points2.Token = at(20)
		points2.Regions[0].Region.Id, points2.Regions[0].Region.KeyspaceId = 2, 2
		answer := func(a *coordinatorv1.MemberAnswer) {
			if a.Era = 1; c.Answer(0, a, 4) != nil {
				t.Fatal(a)
			}
		}
		answer(&coordinatorv1.MemberAnswer{Terms: &coordinatorv1.MemberTerms{Keyspaces: []*coordinatorv1.KeyspaceTerms{{
			KeyspaceId: 2, Name: "k", Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}},
		}}}, Set: points2})
		for range 2 {
			for _, call := range c.Calls(10, 5) {
				c.Done(call.ID, held.Result{}, 5)
			}
		}
		if phase, _ := c.Phase(2); phase != coordinatorv1.RegionPhase_REGION_PHASE_SERVING {
			t.Fatal(phase)
		}
		g, no := c.Table().Admit(held.Request{Keyspace: "k", Key: []byte("player/00000000")}, clock.NewMonotonic())
		if no != nil {
			t.Fatalf("the %d. time, its key is refused: %v", i+1, *no)
		}
		c.Table().Leave(g)
	}
}
