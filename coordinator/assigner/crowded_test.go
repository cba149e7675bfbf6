package assigner_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A keyspace that waits for moves of another one says so, and goes on when these end, not at
// its next interval.
func TestP53C24MovesOfAnotherKeyspaceAreWaitedFor(t *testing.T) {
	seldom := &rootv1.Rebalance{MeanPermille: 1200, IntervalMillis: 600_000}
	gather(t, evened(96, seldom), 3, func(t *testing.T, c *crowd) {
		c.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "other", Settings: evened(96, seldom)}}})
		synctest.Wait()
		c.run(15 * time.Second)
		if got := c.counts("m1", "m2", "m3"); !slices.Equal(got, []int{64, 64, 64}) {
			t.Fatalf("they begin with %v", got)
		}
		for _, id := range []string{"m1", "m2", "m3"} {
			c.clinging[state.MemberID(id)] = true
		}
		c.come("m4")
		c.run(15 * time.Second)
		why := map[string]string{}
		for _, r := range c.a.Rounds() {
			for _, f := range r.GetRefused() {
				why[r.GetKeyspace()] = f.GetWhy()
			}
		}
		if why["other"] != "too_many_moves" {
			t.Errorf("while moves of ks are under way: %v", why)
		}
		clear(c.clinging)
		c.run(30 * time.Second)
		if got := c.counts("m1", "m2", "m3", "m4"); !slices.Equal(got, []int{48, 48, 48, 48}) {
			t.Errorf("they have %v when moves have ended", got)
		}
	})
}

// What a member that joins would get goes in waves: a plan is the first one, and says how many
// there are.
func TestC47PlanTellsItsWaves(t *testing.T) {
	gather(t, evened(192, nil), 2, func(t *testing.T, c *crowd) {
		c.run(time.Second)
		for _, x := range []struct {
			req                   *coordinatorv1.PlanRequest
			waves, first, changes uint64
		}{
			{&coordinatorv1.PlanRequest{WithMembers: []*coordinatorv1.PlannedMember{{Id: "x"}}}, 4, 16, 64},
			{&coordinatorv1.PlanRequest{WithMembers: []*coordinatorv1.PlannedMember{{Id: "x"}, {Id: "y"}}}, 3, 32, 96},
			{&coordinatorv1.PlanRequest{WithMembers: []*coordinatorv1.PlannedMember{{Id: "x"}}, MaxMoves: 10}, 7, 10, 64},
			{&coordinatorv1.PlanRequest{}, 0, 0, 0},
		} {
			p := c.ask(x.req)
			k, n := p.GetKeyspaces()[0], uint64(0)
			for _, b := range k.GetBegun() {
				n += b.GetCount()
			}
			if k.GetWaves() != x.waves || n != x.first || k.GetAllChanges() != x.changes || x.waves > 0 && k.GetImbalanceSettledPermille() != 1000 {
				t.Errorf("%v: %d waves of %d changes, first %d, in the end %d; want %d of %d, first %d", x.req, k.GetWaves(), k.GetAllChanges(), n, k.GetImbalanceSettledPermille(), x.waves, x.changes, x.first)
			}
			for _, f := range p.GetRefusals() {
				if f.GetWhy() != "too_many_moves" && x.req.GetMaxMoves() == 0 {
					t.Errorf("%v: refused is %v", x.req, f)
				}
			}
		}
	})
}
