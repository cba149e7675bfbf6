package placement_test

import (
	"testing"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What one plan gives to members because others failed, or drain, counts as theirs when the
// same plan evens out: a newcomer does not get its part twice.
func TestOnePlanCountsWhatItGives(t *testing.T) {
	for what, gone := range map[string]rootv1.MemberState{
		"failed": rootv1.MemberState_MEMBER_STATE_FAILED, "drains": rootv1.MemberState_MEMBER_STATE_DRAINING,
	} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t)
			for _, id := range []string{"m1", "m2", "m3"} {
				c.join(id)
			}
			s := epochFence()
			s.Policy = &rootv1.Policy{Rebalance: &rootv1.Rebalance{MeanPermille: 1200}}
			ks := c.keyspace("ks", slots(30), s)
			c.settle()
			c.join("m4")
			c.set("m1", gone)
			in := c.work.Take(c, c.now)
			in.Rebalance = []state.KeyspaceID{ks}
			has := map[state.MemberID]int{"m2": 10, "m3": 10}
			for _, o := range placement.Make(in).Operations {
				for _, to := range o.Owners {
					has[to.Member]++
				}
				if o.To.Member != "" {
					has[o.To.Member]++
					has[o.From.Member]--
				}
			}
			for _, id := range []state.MemberID{"m2", "m3", "m4"} {
				if has[id] != 10 {
					t.Errorf("%s is to have %d of 30", id, has[id])
				}
			}
		})
	}
}
