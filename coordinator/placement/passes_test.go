package placement_test

import (
	"testing"

	"github.com/nokv/nokv/coordinator/placement"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A member that drains keeps the regions that nobody else may have, with one refusal for all of them, and gives
// the others away.
func TestDrainPassesWhatNobodyCanTake(t *testing.T) {
	c := newCluster(t)
	c.labels = map[string]map[string]string{"m1": {"tier": "x"}}
	c.join("m1")
	s := epochFence()
	s.Policy = &rootv1.Policy{LabelRules: []*rootv1.LabelRule{{KeyPrefix: []byte{0}, Labels: map[string]string{"tier": "x"}}}}
	ks := c.keyspace("ks", points(), s)
	for _, key := range []string{"\x00", "\x00b", "b", "c", "d", "e", "f", "g"} {
		c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{KeyspaceId: uint32(ks), StartKey: []byte(key)}}}})
	}
	c.settle()
	c.join("m2")
	c.set("m1", draining)
	plan := c.round()
	if len(plan.Refusals) != 1 || plan.Refusals[0].Why != placement.NoneMatches || plan.Refusals[0].Member != "m1" {
		t.Errorf("the refusals are %+v, want one of m1 because of labels", plan.Refusals)
	}
	moves := 0
	for _, o := range plan.Operations {
		if o.Kind == placement.PlanMove && o.To.Member == "m2" {
			moves++
		}
	}
	if moves != 6 {
		t.Errorf("%d regions leave, want 6: %+v", moves, plan.Operations)
	}
}
