package state_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// The frontier that the owner of an exclusive region says changes nothing else; what is said
// of another epoch, by another incarnation, or behind the end of the member changes nothing.
func TestR20AcknowledgedFrontier(t *testing.T) {
	m := bootstrapped(t)
	settings := state.DefaultSettings()
	settings.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1}}}
	m.must(settingsEvent("ks", settings), memberEvent("a", 1), memberEvent("b", 2))
	var r *state.Region
	m.s.RegionsFrom(2, "", func(x *state.Region) bool {
		r = x
		return false
	})
	id := r.ID
	m.must(assignTo(uint64(id), "a"))
	r = m.s.Region(id)
	ack := func(member string, incarnation uint64, epoch state.Epoch, frontier string) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
			RegionId: uint64(id), ExpectedEpoch: epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: member, Incarnation: incarnation}},
			Frontier: []byte(frontier), SetFrontier: true, Acknowledged: true,
		}}}}}
	}
	m.must(ack("a", r.Owners[0].Incarnation, r.Epoch, "f1"))
	if x := m.s.Region(id); x.Frontier != "f1" || x.Epoch != r.Epoch || x.Owners[0] != r.Owners[0] || x.Revision <= r.Revision {
		t.Errorf("the region is %+v, was %+v", x, r)
	}
	if restored(t, m.s).Hash() != m.s.Hash() {
		t.Error("a restored state is another one")
	}
	older := state.Epoch{Version: r.Epoch.Version, ConfVersion: r.Epoch.ConfVersion - 1}
	so := func(e *rootv1.Event) {
		t.Helper()
		if got := m.apply(&rootv1.Command{Events: []*rootv1.Event{e}}); got[0].Outcome != rootv1.Outcome_OUTCOME_ALREADY_APPLIED {
			t.Errorf("%v: %v", e, got[0])
		}
	}
	so(ack("a", r.Owners[0].Incarnation, older, "old"))
	so(ack("a", r.Owners[0].Incarnation+7, r.Epoch, "stranger"))
	so(ack("b", m.s.Member("b").GetIncarnation(), r.Epoch, "not its own"))
	m.must(memberIs("a", rootv1.MemberState_MEMBER_STATE_FAILED))
	so(ack("a", r.Owners[0].Incarnation, r.Epoch, "behind its end"))
	if x := m.s.Region(id); x.Frontier != "f1" {
		t.Errorf("the frontier is %q", x.Frontier)
	}
	for what, a := range map[string]*rootv1.Assignment{
		"no epoch":       {RegionId: 1, Owners: []*rootv1.Owner{{MemberId: "a", Incarnation: 1}}, SetFrontier: true, Acknowledged: true},
		"no owner":       {RegionId: 1, ExpectedEpoch: &rootv1.RegionEpoch{}, SetFrontier: true, Acknowledged: true},
		"no incarnation": {RegionId: 1, ExpectedEpoch: &rootv1.RegionEpoch{}, Owners: []*rootv1.Owner{{MemberId: "a"}}, SetFrontier: true, Acknowledged: true},
		"no frontier":    {RegionId: 1, ExpectedEpoch: &rootv1.RegionEpoch{}, Owners: []*rootv1.Owner{{MemberId: "a", Incarnation: 1}}, Acknowledged: true},
	} {
		cmd := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{a}}}}}}
		if d := state.CheckCommand(cmd); d.GetReason() != rootv1.Reason_REASON_INVALID_REQUEST {
			t.Errorf("%s: %v", what, d)
		}
	}
}
