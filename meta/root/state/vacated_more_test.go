package state_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func fencedByTTL() *rootv1.KeyspaceSettings {
	s := state.DefaultSettings()
	s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
	s.Placement = rootv1.Placement_PLACEMENT_ASSIGNED
	s.Ownership = &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_TTL, TtlMillis: 10_000}
	return s
}

func publishRange(id uint64, start, end string, version, conf uint64, owners ...string) *rootv1.Event {
	r := &rootv1.Region{Id: id, KeyspaceId: 2, StartKey: []byte(start), EndKey: []byte(end)}
	if version > 0 {
		r.Epoch = &rootv1.RegionEpoch{Version: version, ConfVersion: conf}
	}
	for _, o := range owners {
		r.Owners = append(r.Owners, &rootv1.Owner{MemberId: o})
	}
	return publish(r).Events[0]
}

func remove(id uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}}
}

func withTwoMembers(t *testing.T) *machine {
	m := bootstrapped(t)
	m.must(settingsEvent("ks", fencedByTTL()), memberEvent("a", 1), memberEvent("b", 2))
	return m
}

func (m *machine) try(e *rootv1.Event) state.Result {
	return m.apply(&rootv1.Command{Events: []*rootv1.Event{e}})[0]
}

// nobody but a may own keys that were a's: a has not let go.
func (m *machine) wantNotB(what string, key string) {
	m.t.Helper()
	if r := m.s.RegionAt(2, key); r != nil && len(r.Owners) > 0 && r.Owners[0].Member == "b" {
		m.t.Errorf("%s: b owns %q while a may act for it", what, key)
	}
}

func TestRule5NoOwnerInTwoSteps(t *testing.T) {
	m := withTwoMembers(t)
	m.must(publishRange(0, "a", "z", 0, 0, "a"))
	id := uint64(m.s.RegionAt(2, "a").ID)
	m.must(remove(id))
	if r := m.try(publishRange(0, "a", "z", 0, 0, "b")); r.Reject.GetReason() != rootv1.Reason_REASON_RANGE_CHANGE_PENDING {
		t.Fatalf("direct: %v", r)
	}
	m.must(publishRange(0, "a", "z", 0, 0))
	n := m.s.RegionAt(2, "a")
	m.try(publishRange(uint64(n.ID), "a", "z", n.Epoch.Version, n.Epoch.ConfVersion+1, "b"))
	m.wantNotB("publish without an owner, then with one", "c")
}

func TestRule5NoOwnerAdded(t *testing.T) {
	m := withTwoMembers(t)
	m.must(publishRange(0, "a", "z", 0, 0, "a"))
	m.must(remove(uint64(m.s.RegionAt(2, "a").ID)))
	m.must(publishRange(0, "a", "z", 0, 0))
	n := m.s.RegionAt(2, "a")
	r := m.try(&rootv1.Event{Kind: &rootv1.Event_PeerChangePlanned{PeerChangePlanned: &rootv1.PeerChangePlanned{
		RegionId: uint64(n.ID), ExpectedEpoch: n.Epoch.Proto(), Kind: rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER, Owner: &rootv1.Owner{MemberId: "b"},
	}}})
	if r.Reject == nil {
		r = m.try(&rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: r.Events[0].Transition.GetId()}}})
	}
	m.wantNotB("add peer", "c")
}

// a's region is taken from it (former owner), then shrinks and gets an owner in one step.
func TestRule5NoOwnerOfWhatWasTaken(t *testing.T) {
	m := withTwoMembers(t)
	m.must(publishRange(0, "a", "z", 0, 0, "a"))
	id := uint64(m.s.RegionAt(2, "a").ID)
	m.must(assignTo(id))
	n := m.s.RegionAt(2, "a")
	if n.Former == nil {
		t.Fatal("no former")
	}
	m.try(publishRange(id, "a", "m", n.Epoch.Version+1, n.Epoch.ConfVersion+1, "b"))
	m.wantNotB("shrinks with an owner", "c")
}

// the same of an owner that has failed, whose fence runs.
func TestRule5NoOwnerBehindOneThatFailed(t *testing.T) {
	m := withTwoMembers(t)
	m.must(publishRange(0, "a", "z", 0, 0, "a"))
	id := uint64(m.s.RegionAt(2, "a").ID)
	m.must(memberIs("a", rootv1.MemberState_MEMBER_STATE_FAILED))
	n := m.s.RegionAt(2, "a")
	m.try(publishRange(id, "a", "m", n.Epoch.Version+1, n.Epoch.ConfVersion+1, "b"))
	m.wantNotB("shrinks with an owner", "c")
}

// A published merge takes in a right neighbour that was taken from a: nothing says so any more.
func TestRule5PublishedMergeKeepsWhoHadTheRightPart(t *testing.T) {
	m := withTwoMembers(t)
	m.must(publishRange(0, "a", "m", 0, 0))
	m.must(publishRange(0, "m", "z", 0, 0, "a"))
	left, right := m.s.RegionAt(2, "a"), m.s.RegionAt(2, "m")
	m.must(assignTo(uint64(right.ID)))
	right = m.s.RegionAt(2, "m")
	if right.Former == nil {
		t.Fatal("no former")
	}
	m.must(&rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: &rootv1.MergePlanned{
		LeftRegionId: uint64(left.ID), LeftExpectedEpoch: left.Epoch.Proto(), RightRegionId: uint64(right.ID), RightExpectedEpoch: right.Epoch.Proto(),
	}}})
	m.try(publishRange(uint64(left.ID), "a", "z", max(left.Epoch.Version, right.Epoch.Version)+1, left.Epoch.ConfVersion))
	w := m.s.RegionAt(2, "n")
	if w.ID == left.ID && w.Former == nil && len(m.s.Keyspace(2).GetVacated()) == 0 {
		t.Errorf("a may act for [m, z), and nothing says so: the planner gives %v away at once", w)
	}
}

// a's region shrinks, and moves to b: a has let go long ago. Its note stays for ever, and b's
// region is never another range.
func TestRule5WhatIsNotedBlocksNobodyElse(t *testing.T) {
	m := withTwoMembers(t)
	m.must(publishRange(0, "a", "z", 0, 0, "a"))
	id := uint64(m.s.RegionAt(2, "a").ID)
	n := m.s.RegionAt(2, "a")
	m.must(publishRange(id, "a", "m", n.Epoch.Version+1, n.Epoch.ConfVersion, "a"))
	n = m.s.RegionAt(2, "a")
	r := m.must(&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{RegionId: id, ExpectedEpoch: n.Epoch.Proto(), From: &rootv1.Owner{MemberId: "a"}, To: &rootv1.Owner{MemberId: "b"}}}})
	end := &rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: r.Events[0].Transition.GetId(), SetFrontier: true, Frontier: []byte("f")}}}
	m.must(claimed("c1", 9, 0))
	for _, c := range []struct {
		actor string
		era   uint64
		want  rootv1.Outcome
	}{
		{"", 0, rootv1.Outcome_OUTCOME_REJECTED},
		{"operator/o", 0, rootv1.Outcome_OUTCOME_REJECTED},
		{"member/b", 0, rootv1.Outcome_OUTCOME_REJECTED},
		{"member/a", 0, rootv1.Outcome_OUTCOME_REJECTED},
		{"coordinator/c1", 1, rootv1.Outcome_OUTCOME_APPLIED}, // which a told that it has let go
	} {
		if got := m.apply(&rootv1.Command{Actor: c.actor, RequireEra: c.era, Events: []*rootv1.Event{end}})[0]; got.Outcome != c.want {
			t.Fatalf("completed by %q: %v, %v", c.actor, got.Outcome, got.Reject)
		}
	}
	m.must(memberIs("a", rootv1.MemberState_MEMBER_STATE_REMOVED))
	n = m.s.RegionAt(2, "a")
	got := m.try(publishRange(id, "a", "g", n.Epoch.Version+1, n.Epoch.ConfVersion, "b"))
	if got.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		t.Errorf("b's own region cannot shrink because of a, which is removed and let go of it: %v", got.Reject)
	}
	got = m.try(publishRange(id, "a", "g", n.Epoch.Version+1, n.Epoch.ConfVersion+1))
	m.checkHash()
}

// max_owners goes to 2 and back: what was removed meanwhile is not noted.
func TestRule5SharedMeanwhile(t *testing.T) {
	m := withTwoMembers(t)
	m.must(publishRange(0, "a", "z", 0, 0, "a"))
	id := uint64(m.s.RegionAt(2, "a").ID)
	set := func(s *rootv1.KeyspaceSettings) {
		m.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: 2, ExpectedVersion: m.s.Keyspace(2).GetVersion(), Settings: s}}})
	}
	s := fencedByTTL()
	s.Ownership = &rootv1.Ownership{MaxOwners: 2}
	set(s)
	m.must(remove(id))
	set(fencedByTTL())
	m.wantNotB("shared meanwhile", "c")
}

// A region that only grew leaves no note.
func TestRule5GrowthTakesNothing(t *testing.T) {
	m := withTwoMembers(t)
	m.must(publishRange(0, "a", "g", 0, 0, "a"))
	id := uint64(m.s.RegionAt(2, "a").ID)
	n := m.s.RegionAt(2, "a")
	m.must(publishRange(id, "a", "m", n.Epoch.Version+1, n.Epoch.ConfVersion, "a"))
	if v := m.s.Keyspace(2).GetVacated(); len(v) > 0 {
		t.Errorf("a lost nothing: %v", v)
	}
}
