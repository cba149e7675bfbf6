package main

import (
	"strings"
	"testing"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What moves from a member and to it are regions of the process that is meant: one that ended
// under its name has moves of its own. Those of shared regions count as well.
func TestMovesOfAProcess(t *testing.T) {
	m1 := &rootv1.Member{Id: "m1", Incarnation: 7}
	now, before, other := &rootv1.Owner{MemberId: "m1", Incarnation: 7}, &rootv1.Owner{MemberId: "m1", Incarnation: 3}, &rootv1.Owner{MemberId: "m2", Incarnation: 8}
	const (
		move   = rootv1.TransitionKind_TRANSITION_KIND_MOVE
		add    = rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER
		remove = rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER
		split  = rootv1.TransitionKind_TRANSITION_KIND_SPLIT
	)
	for _, c := range []struct {
		kind        rootv1.TransitionKind
		owner, from *rootv1.Owner
		leave, come uint64
	}{
		{move, other, now, 1, 0},
		{move, other, before, 0, 0},
		{move, now, other, 0, 1},
		{move, before, other, 0, 0},
		{move, other, other, 0, 0},
		{add, now, nil, 0, 1},
		{add, before, nil, 0, 0},
		{remove, now, nil, 1, 0},
		{remove, before, nil, 0, 0},
		{split, nil, nil, 0, 0},
	} {
		leave, come := moves(&rootv1.Transition{Kind: c.kind, Owner: c.owner, From: c.from}, m1)
		if leave != c.leave || come != c.come {
			t.Errorf("%v to %v from %v: %d from it and %d to it, want %d and %d", c.kind, c.owner, c.from, leave, come, c.leave, c.come)
		}
	}
}

// A store of a reported keyspace has no stream, and nobody judges it by its silence: once it is
// heard it is not shown as one that never was. What a detector thinks is shown as it is.
func TestHealthOfWhoIsNotJudged(t *testing.T) {
	beat := &coordinatorv1.StoreHeartbeatRequest{MemberId: "store-1", Load: 2}
	const (
		discovered = coordinatorv1.MemberHealth_MEMBER_HEALTH_DISCOVERED
		live       = coordinatorv1.MemberHealth_MEMBER_HEALTH_LIVE
		suspected  = coordinatorv1.MemberHealth_MEMBER_HEALTH_SUSPECTED
	)
	for _, c := range []struct {
		health coordinatorv1.MemberHealth
		state  rootv1.MemberState
		beat   *coordinatorv1.StoreHeartbeatRequest
		want   string
	}{
		{discovered, rootv1.MemberState_MEMBER_STATE_ACTIVE, nil, "discovered"},
		{discovered, rootv1.MemberState_MEMBER_STATE_ACTIVE, beat, "reports"},
		{discovered, rootv1.MemberState_MEMBER_STATE_FAILED, beat, ""},
		{live, rootv1.MemberState_MEMBER_STATE_ACTIVE, beat, "live"},
		{suspected, rootv1.MemberState_MEMBER_STATE_DRAINING, beat, "suspected"},
	} {
		got := showObserved(&coordinatorv1.MemberStatus{Member: &rootv1.Member{Id: "store-1", State: c.state}, Health: c.health, LastHeartbeat: c.beat})
		if got.Health != c.want {
			t.Errorf("%v, %v, heard %v: %q, want %q", c.health, c.state, c.beat != nil, got.Health, c.want)
		}
	}
	damped := showObserved(&coordinatorv1.MemberStatus{Member: &rootv1.Member{State: rootv1.MemberState_MEMBER_STATE_ACTIVE}, Health: live, DampedMillis: 90_000})
	if why := damped.why(); !strings.Contains(why, "guards-flap-failures") || !strings.Contains(why, "1m30s") {
		t.Errorf("of one that is damped it says %q", why)
	}
}

// What left as it was to is shown apart from what failed.
func TestMembersThatLeftAreShownAsThat(t *testing.T) {
	for _, c := range []struct {
		state   rootv1.MemberState
		signals []string
		want    string
	}{
		{rootv1.MemberState_MEMBER_STATE_FAILED, []string{"goodbye", "gone", "drained"}, "left"},
		{rootv1.MemberState_MEMBER_STATE_FAILED, []string{"goodbye", "gone"}, "failed"},
		{rootv1.MemberState_MEMBER_STATE_DRAINING, []string{"goodbye"}, "draining"},
		{rootv1.MemberState_MEMBER_STATE_ACTIVE, nil, "active"},
	} {
		if got := showMember(&rootv1.Member{Id: "m1", State: c.state, Signals: c.signals}, nil); got.State != c.want {
			t.Errorf("%v by %v is shown as %s, want %s", c.state, c.signals, got.State, c.want)
		}
	}
}
