package witness_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What somebody asks for in an era is not what the planner does; what gives a reason of the
// planner's is.
func TestWhatIsAskedForInAnEraIsNotThePlanners(t *testing.T) {
	reasoned := func(r rootv1.OperationReason) *rootv1.Event {
		e := assigned(1, "", "b")
		e.GetRegionsAssigned().GetAssignments()[0].Reason = r
		return e
	}
	for name, c := range map[string]struct {
		command *rootv1.Command
		want    uint64
	}{
		"by a person":           {&rootv1.Command{Events: []*rootv1.Event{assigned(1, "", "b")}, Actor: "operator/ann", Why: "now"}, 0},
		"by nobody known":       {&rootv1.Command{Events: []*rootv1.Event{assigned(1, "", "b")}}, 0},
		"as asked for":          {&rootv1.Command{Events: []*rootv1.Event{reasoned(rootv1.OperationReason_OPERATION_REASON_OPERATOR)}}, 0},
		"in the planner's word": {&rootv1.Command{Events: []*rootv1.Event{reasoned(orphaned)}, Actor: "operator/ann"}, 0},
		"through a coordinator": {&rootv1.Command{Events: []*rootv1.Event{reasoned(orphaned)}, Actor: "coordinator/c2", Via: "coordinator/c1"}, 0},
		"by its removal":        {&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 1}}}}}, 0},
		"by the planner":        {&rootv1.Command{Events: []*rootv1.Event{reasoned(orphaned)}}, 1},
		"by a known planner":    {&rootv1.Command{Events: []*rootv1.Event{reasoned(orphaned)}, Actor: "coordinator/c1"}, 1},
	} {
		l := newLedger(t)
		l.join("a", 1)
		l.join("b", 2)
		l.put(false, ranges("x", 1))
		l.put(false, made(l.state.KeyspaceByName("x").GetId(), 1, "a", "b", "a"))
		c.command.RequireEra = 1
		entry, out := l.applyAll(c.command)
		if out.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
			t.Fatal(name, out.Results[0])
		}
		l.turns = append(l.turns, turn{entry, out})
		if p := l.followed(l.turns).Placed(l.state); p.Violations[witness.OwnersStable-1] != c.want || p.Violations.Total() != c.want || p.Judged.Asked != 1-c.want {
			t.Errorf("%s: %v, %+v", name, p.Found, p.Judged)
		}
	}
}

// What walks find is counted once, however often they find it and however much was found
// before: an operator who polls the witness does not make violations.
func TestWalksCountWhatIsBrokenOnce(t *testing.T) {
	l := newLedger(t)
	l.join("a", 1)
	l.put(false, slotted("x", 64, rootv1.Placement_PLACEMENT_ASSIGNED))
	var ids []uint64
	id := l.state.KeyspaceByName("x").GetId()
	l.state.RegionsFrom(state.KeyspaceID(id), "", func(r *state.Region) bool { ids = append(ids, uint64(r.ID)); return true })
	for _, n := range ids {
		l.put(false, assigned(n, "", "a"))
	}
	v := witness.NewInvariants(l.state)
	// 16 regions are shown with a wrong leader, later 16 others, which stay.
	wrong := func(from, to uint64) func(*state.Region) state.MemberID {
		return func(r *state.Region) state.MemberID {
			if n := uint64(r.ID) - ids[0]; n >= from && n < to {
				return "nobody"
			}
			return "a"
		}
	}
	_, found := witness.Walk(l.state, wrong(0, 16))
	v.Keep(found)
	for range 10 {
		_, found = witness.Walk(l.state, wrong(16, 32))
		v.Keep(found)
	}
	if n := v.Violations()[witness.LeadersOwn-1]; n != 32 {
		t.Errorf("%d violations of 32 regions", n)
	}
	// All that are broken count.
	v = witness.NewInvariants(l.state)
	_, found = witness.Walk(l.state, wrong(0, 64))
	v.Keep(found)
	if n := v.Violations()[witness.LeadersOwn-1]; n != 64 {
		t.Errorf("%d violations of 64 regions", n)
	}
}
