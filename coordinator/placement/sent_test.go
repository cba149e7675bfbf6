package placement_test

import (
	"testing"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What a plan gives counts in the next one before the root has it: nobody gets more regions
// than a member may have because the root is slow.
func TestGrantsOnTheirWayCountForTheLimit(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	s := epochFence()
	s.Limits = &rootv1.Limits{MaxRegionsPerMember: 4}
	c.keyspace("ks", slots(8), s)
	first := c.plan()
	if len(first.Operations) != 4 {
		t.Fatalf("the first plan has %d grants, want 4", len(first.Operations))
	}
	for range 3 {
		c.work.Wake()
		if n := len(c.plan().Operations); n != 0 {
			t.Fatalf("%d more are granted while 4 are on their way, which is all that may be", n)
		}
	}
	c.root(first)
	c.settle()
	c.wantCounts([]int{4}, "m1")
	for range 4 { // what was refused counts no more, nor does what the state has
		c.join("m2")
		late := c.plan()
		if len(late.Operations) != 4 {
			t.Fatalf("the plan has %d grants, want 4", len(late.Operations))
		}
		for i := range late.Operations {
			c.work.Judged(late.Operations[i].Region)
		}
	}
}

// Those that wait for the root go to the one that has least, with what is on its way to it.
func TestGrantsOnTheirWayCountForTheColdest(t *testing.T) {
	for _, byLoad := range []bool{false, true} {
		c := newCluster(t)
		for _, id := range []string{"m1", "m2", "m3", "m4"} {
			c.join(id)
		}
		s := epochFence()
		if byLoad {
			s.Policy = &rootv1.Policy{Rebalance: &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD, MeanPermille: 1200}}
		}
		ks := c.keyspace("ks", slots(40), s)
		c.settle()
		book := load.NewBook(100)
		c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
			book.Follow(r.ID, r.Epoch, r.Owners, c.now)
			book.Report(r.ID, r.Owners[0].Incarnation, r.Epoch, 1, c.now)
			return true
		})
		got := map[state.MemberID]int{}
		for _, dead := range []string{"m1", "m2"} {
			c.set(dead, failed)
			in := c.work.Take(c, c.now)
			if byLoad {
				in.Loads = book
			}
			plan := placement.Make(in)
			c.work.Planned(&plan)
			for i := range plan.Operations {
				for _, o := range plan.Operations[i].Owners {
					got[o.Member]++
				}
			}
		}
		// Of m1's ten, three or four may have gone to m2, which died before it had them: they
		// are still on their way to it.
		if d := got["m3"] - got["m4"]; d < -1 || d > 1 {
			t.Errorf("by load %v: the dead ones' regions go to %v", byLoad, got)
		}
	}
}

// A newcomer gets its part once: what a plan grants it counts in the round that comes while
// the root is slow.
func TestNewcomerGetsItsPartOnce(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.join("m2")
	s := epochFence()
	s.Policy = &rootv1.Policy{Rebalance: &rootv1.Rebalance{MeanPermille: 1200, InFlight: 100}}
	ks := c.keyspace("ks", slots(60), s)
	c.settle()
	c.join("m3")
	c.set("m2", failed)
	grants := c.plan() // m2's 30, all to m3
	in := c.work.Take(c, c.now)
	in.Rebalance = []state.KeyspaceID{ks}
	moves := placement.Make(in)
	for _, o := range moves.Operations {
		t.Errorf("%v of region %d to %s is planned beside %d grants", o.Kind, o.Region, o.To.Member, len(grants.Operations))
	}
	c.root(grants)
	c.wantCounts([]int{0, 30, 30}, "m1", "m2", "m3")

	// Nor does it get the moves of a round twice, or more at a time than may be under way.
	c.join("m4")
	in = c.work.Take(c, c.now)
	in.Rebalance = []state.KeyspaceID{ks}
	round := placement.Make(in)
	c.work.Planned(&round)
	if n := len(round.Operations); n != 20 {
		t.Fatalf("a newcomer gets %d moves, want 20", n)
	}
	for range 2 { // before the root has them, and behind it
		in = c.work.Take(c, c.now)
		in.Rebalance = []state.KeyspaceID{ks}
		if again := placement.Make(in); len(again.Operations) != 0 {
			t.Fatalf("the next round begins %d more", len(again.Operations))
		}
		for i := range round.Operations {
			if c.st.PendingTransition(round.Operations[i].Region) == nil {
				c.apply(round.Operations[i].Event())
			}
		}
	}
}
