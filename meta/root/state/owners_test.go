package state_test

import (
	"slices"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// shared are points with up to two owners.
func shared() *rootv1.KeyspaceSettings { return drawSettings[1] }

func assignTo(region uint64, members ...string) *rootv1.Event {
	a := &rootv1.Assignment{RegionId: region}
	for _, id := range members {
		a.Owners = append(a.Owners, &rootv1.Owner{MemberId: id})
	}
	return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{a}}}}
}

func memberIs(id string, is rootv1.MemberState) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: id, State: is, Reason: "a test"}}}
}

func touch(keyspace uint32, key string, owners ...string) *rootv1.Event {
	r := &rootv1.Region{KeyspaceId: keyspace, StartKey: []byte(key)}
	for _, id := range owners {
		r.Owners = append(r.Owners, &rootv1.Owner{MemberId: id})
	}
	return publish(r).Events[0]
}

// One record has who there is, what each has, since which entry, and who leads until when:
// the processes by id, the owners of every region at its epoch, and the Tenure.
func TestA02A03A04P16P18P20WhatAClusterIs(t *testing.T) {
	m := bootstrapped(t)
	m.must(settingsEvent("tenants", shared()), memberEvent("a", 1), memberEvent("b", 2))
	m.must(touch(2, "t1", "a"))
	m.must(assignTo(1, "a", "b"))
	m.must(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c1", HolderIncarnation: 9, HolderAddress: "c1:1", TtlMillis: 10_000, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID},
	}}})
	for _, s := range []*state.State{m.s, restored(t, m.s)} {
		var ids []string
		s.Members(func(x *rootv1.Member) bool {
			if x.GetAddress() != x.GetId()+":1" || x.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE {
				t.Errorf("a member is %v", x)
			}
			ids = append(ids, x.GetId())
			return true
		})
		if !slices.Equal(ids, []string{"a", "b"}) {
			t.Errorf("the members are %v", ids)
		}
		r := s.RegionAt(2, "t1")
		if len(r.Owners) != 2 || r.Owners[0].Member != "a" || r.Owners[1].Member != "b" || r.Epoch != (state.Epoch{Version: 1, ConfVersion: 2}) || r.Revision != 4 {
			t.Errorf("the region is %+v", r)
		}
		if x := s.Tenure(); x.GetEra() != 1 || x.GetHolderId() != "c1" || x.GetTtlMillis() != 10_000 || x.GetIssuedAt().GetIndex() != 5 {
			t.Errorf("the tenure is %v", x)
		}
	}
}

// Keyspaces share nothing but their members: the same key is another region in each, with
// owners of its own, and what becomes of one changes nothing in the other.
func TestP21P86KeyspacesAreApart(t *testing.T) {
	m := bootstrapped(t)
	m.must(settingsEvent("one", shared()), settingsEvent("two", shared()), memberEvent("a", 1), memberEvent("b", 2))
	m.must(touch(2, "key", "a"))
	if r := m.s.RegionAt(3, "key"); r != nil {
		t.Fatalf("another keyspace has it as %+v", r)
	}
	m.must(touch(3, "key", "b"))
	before := m.s.RegionAt(2, "key")
	m.must(assignTo(uint64(m.s.RegionAt(3, "key").ID), "b", "a"))
	if r := m.s.RegionAt(2, "key"); r != before || len(r.Owners) != 1 || r.Owners[0].Member != "a" {
		t.Errorf("what was %+v is %+v", before, r)
	}
	m.must(removeRegion(uint64(m.s.RegionAt(3, "key").ID)).Events...)
	if m.s.RegionAt(2, "key") != before || m.s.KeyspaceRegionCount(2) != 1 || m.s.KeyspaceRegionCount(3) != 0 {
		t.Errorf("the keyspaces have %d and %d regions", m.s.KeyspaceRegionCount(2), m.s.KeyspaceRegionCount(3))
	}
}

// Who may be given a region: one that is active. Who drains keeps what it has; who has
// failed, or is not known, may have nothing; and no region has more owners than its
// keyspace allows. Each has a reason of its own.
func TestA07A27A28A29A30WhoMayBeGivenARegion(t *testing.T) {
	m := bootstrapped(t)
	m.must(settingsEvent("tenants", shared()))
	for i, id := range []string{"active", "second", "third", "drains", "failed"} {
		m.must(memberEvent(id, uint64(i)+1))
	}
	m.must(touch(2, "new"))
	m.must(touch(2, "kept", "drains"))
	m.must(memberIs("drains", rootv1.MemberState_MEMBER_STATE_DRAINING), memberIs("failed", rootv1.MemberState_MEMBER_STATE_FAILED))
	for _, c := range []struct {
		owners []string
		want   rootv1.Reason
	}{
		{[]string{"drains"}, rootv1.Reason_REASON_MEMBER_DRAINING},
		{[]string{"failed"}, rootv1.Reason_REASON_UNHEALTHY_MEMBER},
		{[]string{"active", "failed"}, rootv1.Reason_REASON_UNHEALTHY_MEMBER},
		{[]string{"active", "second", "third"}, rootv1.Reason_REASON_TOO_MANY_REPLICAS},
		{[]string{"stranger"}, rootv1.Reason_REASON_MEMBER_NOT_FOUND},
	} {
		if r := m.apply(&rootv1.Command{Events: []*rootv1.Event{assignTo(1, c.owners...)}})[0]; r.Reject.GetReason() != c.want {
			t.Errorf("to %v: %v, want %v", c.owners, r.Reject, c.want)
		}
	}
	if r := m.apply(&rootv1.Command{Events: []*rootv1.Event{memberIs("stranger", rootv1.MemberState_MEMBER_STATE_FAILED)}})[0]; r.Reject.GetReason() != rootv1.Reason_REASON_MEMBER_NOT_FOUND {
		t.Errorf("of a stranger's failure: %v", r.Reject)
	}
	if r := m.s.Region(2); len(r.Owners) != 1 || !m.s.Acts(r.Owners[0]) {
		t.Errorf("one that drains has %+v, and does not act for it", r)
	}
	m.must(assignTo(1, "active", "second"))
	m.must(assignTo(2, "drains", "active")) // it keeps what it has beside another one
	if m.s.Orphaned() != 0 {
		t.Errorf("%d regions are orphaned", m.s.Orphaned())
	}
}

// Of many that touch a key first, each with an owner of its own choice, the first makes the
// region; the others are told what it is.
func TestP57FirstTouchHasOneWinner(t *testing.T) {
	m := bootstrapped(t)
	m.must(settingsEvent("tenants", shared()), memberEvent("a", 1), memberEvent("b", 2))
	first := m.must(touch(2, "t1", "a")).Events[0].Region
	again := m.apply(&rootv1.Command{Events: []*rootv1.Event{touch(2, "t1", "a")}})[0]
	if again.Outcome != rootv1.Outcome_OUTCOME_ALREADY_APPLIED || again.Events[0].Region.ID != first.ID {
		t.Errorf("one that chose the same owner is told %+v", again)
	}
	late := m.apply(&rootv1.Command{Events: []*rootv1.Event{touch(2, "t1", "b")}})[0]
	if d := late.Reject; d.GetReason() != rootv1.Reason_REASON_RANGE_OVERLAP || d.GetRegion().GetId() != uint64(first.ID) || d.GetRegion().GetOwners()[0].GetMemberId() != "a" {
		t.Errorf("one that chose another owner is told %v", late.Reject)
	}
	if r := m.s.RegionAt(2, "t1"); r != first || m.s.KeyspaceRegionCount(2) != 1 {
		t.Errorf("the region is %+v", r)
	}
}
