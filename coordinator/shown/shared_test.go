package shown_test

import (
	"testing"

	"github.com/nokv/nokv/coordinator/shown"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func changed(id string, to rootv1.MemberState) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: id, State: to}}}
}

func (l *log) peerChange(kind rootv1.TransitionKind, id string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_PeerChangePlanned{PeerChangePlanned: &rootv1.PeerChangePlanned{
		RegionId: 1, ExpectedEpoch: l.st.Region(1).Epoch.Proto(), Kind: kind, Owner: &rootv1.Owner{MemberId: id},
	}}}
}

// TestAnAddedOwnerFetchesFromOneThatStays: it is shown an owner that does not drain, and another one when
// that one begins to; if all drain, the first that may act.
func TestAnAddedOwnerFetchesFromOneThatStays(t *testing.T) {
	l := newLog(t)
	l.must(keyspace("k", points(4, rootv1.Placement_PLACEMENT_ASSIGNED)))
	for _, id := range []string{"m1", "m2", "m3", "m4"} {
		l.must(joined(id, 1, 0))
	}
	l.must(published(2, "a", "m1", "m2", "m3"))
	c := shown.New(l.st)
	var m4 member
	s := c.Open("m4", l.st.Member("m4").GetIncarnation())
	l.take()
	l.must(changed("m1", rootv1.MemberState_MEMBER_STATE_DRAINING), l.peerChange(rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER, "m4"))
	for _, step := range []struct {
		happens *rootv1.Event
		from    string
	}{
		{nil, "m2"},
		{changed("m2", rootv1.MemberState_MEMBER_STATE_DRAINING), "m3"},
		{changed("m3", rootv1.MemberState_MEMBER_STATE_DRAINING), "m1"},
		{changed("m1", rootv1.MemberState_MEMBER_STATE_FAILED), "m2"},
	} {
		if step.happens != nil {
			l.must(step.happens)
		}
		c.Apply(l.st, l.take())
		for s.Pending() {
			m4.take(t, c.Next(s))
		}
		move := m4.has[1].GetMove()
		if move.GetRole() != coordinatorv1.MoveRole_MOVE_ROLE_TAKES || move.GetPeerId() != step.from || move.GetPeerAddress() != step.from+":1" {
			t.Fatalf("behind %v it is shown %v, want %s", step.happens, move, step.from)
		}
		if !c.Told(s, m4.says()) {
			t.Fatalf("behind %v it has another sum", step.happens)
		}
	}
}

// TestAnOwnerOfASharedRegionServesUntilItIsNone: it is not told to release the region before the others
// serve; of an exclusive one it is.
func TestAnOwnerOfASharedRegionServesUntilItIsNone(t *testing.T) {
	for owners, releases := range map[uint32]bool{1: true, 2: false} {
		l := newLog(t)
		l.must(keyspace("k", points(owners, rootv1.Placement_PLACEMENT_ASSIGNED)))
		l.must(joined("m1", 1, 0))
		l.must(published(2, "a", "m1"))
		l.must(l.peerChange(rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER, "m1"))
		c := shown.New(l.st)
		set := c.Next(c.Open("m1", l.st.Member("m1").GetIncarnation()))
		if len(set.GetRegions()) != 1 {
			t.Fatalf("it is shown %v", set)
		}
		if move := set.GetRegions()[0].GetMove(); move.GetRole() != coordinatorv1.MoveRole_MOVE_ROLE_GIVES || move.GetReleaseNow() != releases {
			t.Errorf("of at most %d owners: it is shown %v", owners, move)
		}
	}
}
