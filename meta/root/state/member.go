package state

import (
	"encoding/binary"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// GoodbyeSignal is that of a drain which the process asked for, because it ends: the next
// process under its name is not drained. One that an operator asked for outlives processes.
const GoodbyeSignal = "goodbye"

// memberJoined registers a process. Already applied: the member's current
// incarnation began with this start nonce and says the same of itself. The
// same process may change what it says; one that was failed or removed must
// start anew, under another nonce. A draining member stays draining, unless the
// process before drained itself. A process that does not follow the rooted
// incarnation was overtaken by another.
func (t *turn) memberJoined(e *rootv1.MemberJoined, r *EventResult) verdict {
	m := e.GetMember()
	id := MemberID(m.GetId())
	old := t.Member(id)
	next := &rootv1.Member{
		Id: m.GetId(), Address: m.GetAddress(), Labels: m.GetLabels(), Capacity: m.GetCapacity(), Kind: m.GetKind(),
		Keyspaces: m.GetKeyspaces(), ProbeAddress: m.GetProbeAddress(),
		StartNonce: m.GetStartNonce(), State: rootv1.MemberState_MEMBER_STATE_ACTIVE,
		Incarnation: t.counters.memberIncarnation + 1, Revision: t.token.Index,
	}
	for _, keyspace := range m.GetKeyspaces() {
		if !t.Hosts(id, keyspace) {
			return verdict{reject: mayNotHost(m.GetId(), keyspace)}
		}
	}
	gone := old == nil || old.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED
	sameStart := old != nil && old.GetStartNonce() == m.GetStartNonce()
	switch {
	case sameStart && !accepting(old):
		return verdict{reject: memberRetired(old, "incarnation %d is %s: register with a new start nonce",
			old.GetIncarnation(), memberStateName(old.GetState()))}
	case !sameStart && e.GetFollows() != old.GetIncarnation():
		return verdict{reject: overtaken(old, e)}
	case gone && t.members.Len()-t.removed.Len() >= MaxMembers:
		d := refuse(rootv1.Reason_REASON_CAPACITY_EXCEEDED, "the cluster has %d members, no more fit", MaxMembers)
		d.Limit = MaxMembers
		return verdict{reject: d}
	case sameStart:
		next.Incarnation = old.GetIncarnation()
	}
	drainsItself := slices.Contains(old.GetSignals(), GoodbyeSignal)
	if old.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING && (sameStart || !drainsItself) {
		next.State, next.Reason, next.Signals = old.GetState(), old.GetReason(), old.GetSignals()
	}
	if sameStart && sameMember(old, next) {
		r.Member = old
		return already
	}
	t.counters.memberIncarnation = max(t.counters.memberIncarnation, next.Incarnation)
	t.setMember(old, next)
	r.Member = next
	t.change(Change{Kind: ChangeMember, Member: next})
	return applied
}

// overtaken refuses a process that started before the one that is rooted.
func overtaken(old *rootv1.Member, e *rootv1.MemberJoined) *rootv1.ErrorDetail {
	d := refuse(rootv1.Reason_REASON_MEMBER_RETIRED, "member %q: incarnation %d is rooted, this process follows %d: a newer one has registered",
		e.GetMember().GetId(), old.GetIncarnation(), e.GetFollows())
	d.Incarnation = old.GetIncarnation()
	return d
}

// accepting reports whether the incarnation may still act.
func accepting(m *rootv1.Member) bool {
	return m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE || m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING
}

// sameMember compares all but the revision.
func sameMember(a, b *rootv1.Member) bool {
	c := proto.CloneOf(b)
	c.Revision = a.GetRevision()
	return proto.Equal(a, c)
}

// memberStateChanged passes a verdict on one incarnation. Already applied: the
// record says exactly this. What has failed only comes back by registering,
// and what is removed owns nothing.
func (t *turn) memberStateChanged(e *rootv1.MemberStateChanged, r *EventResult) verdict {
	id := MemberID(e.GetMemberId())
	old := t.Member(id)
	if old == nil {
		return rejected(rootv1.Reason_REASON_MEMBER_NOT_FOUND, "no member %q was ever registered", id)
	}
	if i := e.GetIncarnation(); i != 0 && i != old.GetIncarnation() {
		return verdict{reject: memberRetired(old, "its incarnation is %d, not %d", old.GetIncarnation(), i)}
	}
	if old.GetState() == e.GetState() && old.GetReason() == e.GetReason() && slices.Equal(old.GetSignals(), e.GetSignals()) {
		r.Member = old
		return already
	}
	if x := e.GetExpectedRevision(); x != 0 && x != old.GetRevision() {
		d := refuse(rootv1.Reason_REASON_VERSION_STALE, "member %q is at revision %d, not %d", id, old.GetRevision(), x)
		d.Incarnation = old.GetIncarnation()
		return verdict{reject: d}
	}
	removed := rootv1.MemberState_MEMBER_STATE_REMOVED
	backwards := !accepting(old) && e.GetState() != removed && e.GetState() != old.GetState()
	if backwards || old.GetState() == removed {
		return verdict{reject: memberRetired(old, "it is %s: it must register again", memberStateName(old.GetState()))}
	}
	if n := t.MemberRegionCount(id); e.GetState() == removed && n > 0 {
		d := refuse(rootv1.Reason_REASON_NOT_EMPTY, "member %q still owns %d regions: move them first", id, n)
		return verdict{reject: d}
	}
	next := proto.CloneOf(old)
	next.State, next.Reason, next.Signals, next.Revision = e.GetState(), e.GetReason(), e.GetSignals(), t.token.Index
	t.setMember(old, next)
	r.Member = next
	t.change(Change{Kind: ChangeMember, Member: next})
	t.forgetRemoved()
	return applied
}

func memberRetired(m *rootv1.Member, format string, args ...any) *rootv1.ErrorDetail {
	d := refuse(rootv1.Reason_REASON_MEMBER_RETIRED, format, args...)
	d.Message = "member \"" + m.GetId() + "\": " + d.Message
	d.Incarnation = m.GetIncarnation()
	return d
}

func memberStateName(s rootv1.MemberState) string {
	switch s {
	case rootv1.MemberState_MEMBER_STATE_ACTIVE:
		return "active"
	case rootv1.MemberState_MEMBER_STATE_DRAINING:
		return "draining"
	case rootv1.MemberState_MEMBER_STATE_FAILED:
		return "failed"
	default:
		return "removed"
	}
}

// setMember replaces a member, or removes it when next is nil.
func (s *State) setMember(old, next *rootv1.Member) {
	if old != nil {
		s.sum -= hashRecord(tagMember, old)
		if old.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED {
			s.removed.Delete(removedKey(old))
		}
	}
	if next == nil {
		s.members.Delete(MemberID(old.GetId()))
		return
	}
	s.sum += hashRecord(tagMember, next)
	s.members.Set(MemberID(next.GetId()), next)
	if next.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED {
		s.removed.Set(removedKey(next), MemberID(next.GetId()))
	}
	if old != nil && accepting(old) && (!accepting(next) || next.GetIncarnation() != old.GetIncarnation()) {
		s.endLife(life(old.GetIncarnation()))
	}
}

// forgetRemoved drops the member that was removed longest ago when there are
// more than MaxRemovedMembers.
func (t *turn) forgetRemoved() {
	if t.removed.Len() <= MaxRemovedMembers {
		return
	}
	_, id, _ := t.removed.Min()
	old := t.Member(id)
	t.setMember(old, nil)
	t.change(Change{Kind: ChangeMember, Removed: true, Member: old})
}

// removedKey orders removed members by when they were removed.
func removedKey(m *rootv1.Member) string {
	return string(binary.BigEndian.AppendUint64(nil, m.GetRevision())) + m.GetId()
}

// coordinatorJoined registers a coordinator process. Already applied: the
// record says exactly this. Another process of the same id supersedes it; one
// that does not follow the rooted process was overtaken by it. The
// process itself follows itself when it says something else of itself.
func (t *turn) coordinatorJoined(e *rootv1.CoordinatorJoined, r *EventResult) verdict {
	id := CoordinatorID(e.GetId())
	old := t.Coordinator(id)
	same := old != nil && old.GetIncarnation() == e.GetIncarnation()
	if same && old.GetAddress() == e.GetAddress() && old.GetFeatureLevel() == e.GetFeatureLevel() {
		r.Coordinator = old
		return already
	}
	if level := LevelOf(e.GetFeatureLevel()); level < t.FeatureLevel() {
		d := refuse(rootv1.Reason_REASON_TOO_OLD, "coordinator %q understands feature level %d, the cluster is at %d: start it with a newer version", id, level, t.FeatureLevel())
		d.FeatureLevel = t.FeatureLevel()
		return verdict{reject: d}
	}
	if old.GetIncarnation() != e.GetFollows() {
		d := refuse(rootv1.Reason_REASON_COORDINATOR_SUPERSEDED, "coordinator %q: process %016x is rooted, this one follows %016x: a newer one has joined",
			id, old.GetIncarnation(), e.GetFollows())
		d.Incarnation = old.GetIncarnation()
		return verdict{reject: d}
	}
	if old == nil && t.coordinators.Len() >= MaxCoordinators {
		d := refuse(rootv1.Reason_REASON_CAPACITY_EXCEEDED, "the cluster has %d coordinators, no more fit: take those that are gone off the list, nokv coordinator remove ID", MaxCoordinators)
		d.Limit = MaxCoordinators
		return verdict{reject: d}
	}
	next := &rootv1.Coordinator{Id: e.GetId(), Address: e.GetAddress(), Incarnation: e.GetIncarnation(), Revision: t.token.Index, FeatureLevel: e.GetFeatureLevel()}
	if old != nil {
		t.sum -= hashRecord(tagCoordinator, old)
	}
	t.addCoordinator(next)
	r.Coordinator = next
	t.change(Change{Kind: ChangeCoordinator, Coordinator: next})
	return applied
}

func (s *State) addCoordinator(c *rootv1.Coordinator) {
	s.sum += hashRecord(tagCoordinator, c)
	s.coordinators.Set(CoordinatorID(c.GetId()), c)
}

// coordinatorLeft takes a process off the list. Already applied: it is not on
// it, or a newer process of that id is.
func (t *turn) coordinatorLeft(e *rootv1.CoordinatorLeft) verdict {
	old := t.Coordinator(CoordinatorID(e.GetId()))
	if old == nil || old.GetIncarnation() != e.GetIncarnation() {
		return already
	}
	t.sum -= hashRecord(tagCoordinator, old)
	t.coordinators.Delete(CoordinatorID(e.GetId()))
	t.change(Change{Kind: ChangeCoordinator, Removed: true, Coordinator: old})
	return applied
}
