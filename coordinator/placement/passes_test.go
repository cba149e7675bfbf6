package placement_test

import (
	"testing"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/meta/root/state"
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

// apart has one region in quarantine.
type apart state.RegionID

func (a apart) Region(id state.RegionID) placement.RegionInsight {
	return placement.RegionInsight{Quarantined: id == state.RegionID(a)}
}

func (a apart) Member(state.MemberID) placement.MemberInsight { return placement.MemberInsight{} }

// A region in quarantine waits for a member of its own, which is looked for in a while; the others of the member
// that drains leave.
func TestDrainPassesWhatIsInQuarantine(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	ks := c.keyspace("ks", slots(4), epochFence())
	c.settle()
	c.join("m2")
	id := c.first(ks).ID
	c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
		id = min(id, r.ID)
		return true
	})
	c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
		RegionId: uint64(id) + 3, Owners: []*rootv1.Owner{{MemberId: "m2"}}, // m2 has something else
	}}}}})
	c.set("m1", draining)
	in := c.work.Take(c, c.now)
	in.Attempts, in.Insight = c.attempts, apart(id)
	plan := placement.Make(in)
	c.work.Planned(&plan)
	if len(plan.Operations) != 2 {
		t.Errorf("%d regions leave, want 2: %+v", len(plan.Operations), plan.Operations)
	}
	if len(plan.Refusals) != 1 || plan.Refusals[0].Why != placement.PoisonSuspected || plan.Refusals[0].Region != id {
		t.Errorf("the refusals are %+v, want one of region %d, which is in quarantine", plan.Refusals, id)
	}
	if c.work.Due(c.now) <= c.now {
		t.Error("it is looked at again at once")
	}
}
