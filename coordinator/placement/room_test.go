package placement_test

import (
	"testing"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What a member had that failed, or has that drains, goes where there is room for it, and not to
// who has least and can take no more.
func TestRegionsOfOthersGoWhereThereIsRoom(t *testing.T) {
	for _, how := range []rootv1.MemberState{failed, draining} {
		c := newCluster(t)
		for _, id := range []string{"m1", "m2", "m3"} {
			c.join(id)
		}
		byLoad := epochFence()
		byLoad.Policy = &rootv1.Policy{Rebalance: &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD, MeanPermille: 1200}}
		ks := c.keyspace("ks", slots(12), byLoad)
		c.settle()
		book := load.NewBook(1 << 10)
		for _, r := range regionsOf(c.st, ks) {
			book.Follow(r.ID, r.Epoch, r.Owners, c.now)
			book.Report(r.ID, r.Owners[0].Incarnation, r.Epoch, map[state.MemberID]float64{"m1": 1, "m2": 0.1, "m3": 2}[r.Owners[0].Member], c.now)
		}
		for id, total := range map[state.MemberID][2]float64{"m1": {4, 10}, "m2": {0.4, 0.5}, "m3": {8, 100}} {
			book.Total(c.st.Member(id).GetIncarnation(), total[0], total[1], c.now)
		}
		c.set("m1", how)
		in := c.work.Take(c, c.now)
		in.Loads = book
		plan := placement.Make(in)
		if len(plan.Operations) != 4 {
			t.Fatalf("%v: the plan is %+v", how, plan)
		}
		for _, o := range plan.Operations {
			if to := append(o.Owners, o.To)[0]; to.Member != "m3" {
				t.Errorf("%v: region %d goes to %s", how, o.Region, to.Member)
			}
		}
	}
}
