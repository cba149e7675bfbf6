package state

import (
	"encoding/binary"
	"fmt"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	pendingStatus = rootv1.TransitionStatus_TRANSITION_STATUS_PENDING
	kindAdd       = rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER
	kindRemove    = rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER
	kindSplit     = rootv1.TransitionKind_TRANSITION_KIND_SPLIT
	kindMerge     = rootv1.TransitionKind_TRANSITION_KIND_MERGE
	kindMove      = rootv1.TransitionKind_TRANSITION_KIND_MOVE
)

// transition is a record with its hash.
type transition struct {
	record *rootv1.Transition
	sum    uint64
}

// plan roots a planned change. Already applied: the same change is pending or
// completed. A cancelled or aborted one may be planned anew.
func (t *turn) plan(p *rootv1.Transition, expected *rootv1.RegionEpoch, check func(*keyspace, *Region) *rootv1.ErrorDetail, r *EventResult) verdict {
	p.Id = rooted.TransitionID(p.GetKind(), RegionID(p.GetRegionId()), EpochFromProto(expected))
	old := t.Transition(p.GetId())
	if old != nil && samePlan(old, p) && (old.GetStatus() == pendingStatus || old.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED) {
		t.planned(old, r)
		return already
	}
	region := t.Region(RegionID(p.GetRegionId()))
	if region == nil {
		return rejected(rootv1.Reason_REASON_NOT_FOUND, "there is no region %d", p.GetRegionId())
	}
	if region.Epoch != EpochFromProto(expected) {
		return verdict{reject: epochStale(region, EpochFromProto(expected))}
	}
	for _, id := range parts(p) {
		if pending := t.PendingTransition(id); pending != nil {
			return verdict{reject: changePending(pending)}
		}
	}
	k, _ := t.keyspaces.Get(region.Keyspace)
	if d := check(k, region); d != nil {
		return verdict{reject: d}
	}
	if p.GetKind() == kindSplit && p.GetRightRegionId() == 0 {
		if d := t.roomForIDs(1); d != nil {
			return verdict{reject: d}
		}
		p.RightRegionId = uint64(t.giveID())
		t.change(Change{Kind: ChangeAllocators})
	}
	p.KeyspaceId, p.BaseEpoch = uint32(region.Keyspace), region.Epoch.Proto()
	p.Status, p.PlannedAt = pendingStatus, t.token.Proto()
	t.setTransition(old, p)
	t.change(Change{Kind: ChangeTransition, Transition: p})
	t.planned(p, r)
	return applied
}

// planned fills the result of a plan.
func (t *turn) planned(p *rootv1.Transition, r *EventResult) {
	r.Transition, r.Region = p, t.Region(RegionID(p.GetRegionId()))
	r.Right = t.Region(RegionID(p.GetRightRegionId()))
}

// samePlan reports whether both mean the same change; the ids are equal. A
// plan that leaves numbers to the root is the same as one that has them.
func samePlan(rooted, asked *rootv1.Transition) bool {
	a, b := rooted.GetOwner(), asked.GetOwner()
	if x := asked.GetFrom(); x.GetMemberId() != rooted.GetFrom().GetMemberId() || x.GetIncarnation() != 0 && x.GetIncarnation() != rooted.GetFrom().GetIncarnation() {
		return false
	}
	return a.GetMemberId() == b.GetMemberId() && a.GetPeerId() == b.GetPeerId() && a.GetRole() == b.GetRole() &&
		(b.GetIncarnation() == 0 || a.GetIncarnation() == b.GetIncarnation()) &&
		string(rooted.GetSplitKey()) == string(asked.GetSplitKey()) &&
		(asked.GetRightRegionId() == 0 || rooted.GetRightRegionId() == asked.GetRightRegionId()) &&
		EpochFromProto(rooted.GetRightBaseEpoch()) == EpochFromProto(asked.GetRightBaseEpoch())
}

// parts are the regions that a transition binds while it is pending.
func parts(p *rootv1.Transition) []RegionID {
	if p.GetRightRegionId() == 0 {
		return []RegionID{RegionID(p.GetRegionId())}
	}
	return []RegionID{RegionID(p.GetRegionId()), RegionID(p.GetRightRegionId())}
}

// peerChangePlanned plans to add or remove one owner; see plan.
func (t *turn) peerChangePlanned(e *rootv1.PeerChangePlanned, r *EventResult) verdict {
	owner := rooted.OwnerFromProto(e.GetOwner())
	p := &rootv1.Transition{Kind: e.GetKind(), RegionId: e.GetRegionId(), Owner: owner.Proto(), Cause: e.GetReason()}
	return t.plan(p, e.GetExpectedEpoch(), func(k *keyspace, region *Region) *rootv1.ErrorDetail {
		_, d := t.withPeer(k, region, e.GetKind(), &owner)
		p.Owner = owner.Proto()
		return d
	}, r)
}

// withPeer is the region with an owner more or less; it judges and completes
// the owner.
func (t *turn) withPeer(k *keyspace, region *Region, kind rootv1.TransitionKind, owner *Owner) (*Region, *rootv1.ErrorDetail) {
	size := len(region.Owners) + 1
	if kind == kindRemove {
		size = len(region.Owners) - 1
	}
	next := newRegion(max(size, 0))
	owners := next.Owners
	at := region.ownerAt(owner.Member)
	for i, o := range region.Owners {
		if kind == kindAdd || i != at {
			owners = append(owners, o)
		}
	}
	switch {
	case kind == kindAdd && at >= 0:
		return nil, withRegion(region, rootv1.Reason_REASON_ALREADY_EXISTS, "member %q owns region %d already", owner.Member, region.ID)
	case kind == kindRemove && at < 0:
		return nil, withRegion(region, rootv1.Reason_REASON_NOT_FOUND, "member %q does not own region %d", owner.Member, region.ID)
	case kind == kindAdd:
		owners = append(owners, *owner)
	}
	if d := t.owners(k, region.Owners, owners, false); d != nil {
		return nil, d
	}
	if kind == kindAdd {
		*owner = owners[len(owners)-1]
	}
	*next = *region
	next.Owners, next.Revision = owners, t.token.Index
	next.Former = t.takenFrom(k, region, next)
	next.Epoch = t.nextOwners(k, region.Epoch)
	if d := t.mayGive(k, region, nil, next); d != nil {
		return nil, d
	}
	return next, nil
}

// splitPlanned plans to cut a region in two; see plan.
func (t *turn) splitPlanned(e *rootv1.SplitPlanned, r *EventResult) verdict {
	p := &rootv1.Transition{
		Kind: kindSplit, RegionId: e.GetRegionId(), SplitKey: e.GetSplitKey(), RightRegionId: e.GetRightRegionId(), Cause: e.GetReason(),
	}
	return t.plan(p, e.GetExpectedEpoch(), func(k *keyspace, region *Region) *rootv1.ErrorDetail {
		return t.maySplit(k, region, p)
	}, r)
}

func (t *turn) maySplit(k *keyspace, region *Region, p *rootv1.Transition) *rootv1.ErrorDetail {
	if d := k.rangesOnly(); d != nil {
		return d
	}
	if at := string(p.GetSplitKey()); at <= region.Start || !region.Contains(at) {
		return withRegion(region, rootv1.Reason_REASON_INVALID_RANGE, "the split key %q does not lie inside [%q, %q)", at, region.Start, region.End)
	}
	if other := t.Region(RegionID(p.GetRightRegionId())); other != nil {
		return withRegion(other, rootv1.Reason_REASON_ALREADY_EXISTS, "region %d exists: choose another id for the right part", other.ID)
	}
	if r, ok := t.removedRegions.Get(idKey(RegionID(p.GetRightRegionId()))); ok && r.epoch.Version > t.raise(k, region.Epoch).Version {
		return t.epochUsed(r.id, r.epoch.Version)
	}
	return t.roomForRegion(k)
}

// mergePlanned plans to join a region and its right neighbour; see plan.
func (t *turn) mergePlanned(e *rootv1.MergePlanned, r *EventResult) verdict {
	p := &rootv1.Transition{
		Kind: kindMerge, RegionId: e.GetLeftRegionId(), RightRegionId: e.GetRightRegionId(),
		RightBaseEpoch: e.GetRightExpectedEpoch(), Cause: e.GetReason(),
	}
	return t.plan(p, e.GetLeftExpectedEpoch(), func(k *keyspace, left *Region) *rootv1.ErrorDetail {
		return t.mayMerge(k, left, p)
	}, r)
}

func (t *turn) mayMerge(k *keyspace, left *Region, p *rootv1.Transition) *rootv1.ErrorDetail {
	if d := k.rangesOnly(); d != nil {
		return d
	}
	right := t.Region(RegionID(p.GetRightRegionId()))
	switch {
	case right == nil:
		return refuse(rootv1.Reason_REASON_NOT_FOUND, "there is no region %d", p.GetRightRegionId())
	case EpochFromProto(p.GetRightBaseEpoch()) != right.Epoch:
		return epochStale(right, EpochFromProto(p.GetRightBaseEpoch()))
	case left.Keyspace != right.Keyspace || left.End == "" || left.End != right.Start:
		return withRegion(right, rootv1.Reason_REASON_INVALID_RANGE, "region %d is not the right neighbour of region %d", right.ID, left.ID)
	case left.Former != nil && right.Former != nil && (left.Former.Member != right.Former.Member || left.Former.Incarnation != right.Former.Incarnation):
		return withRegion(right, rootv1.Reason_REASON_INVALID_RANGE, "regions %d and %d were taken from different owners: wait until they have new ones", left.ID, right.ID)
	case k.carried() && !sameOwners(left.Owners, right.Owners):
		return withRegion(right, rootv1.Reason_REASON_INVALID_RANGE, "regions %d and %d have different owners: move one of them first", left.ID, right.ID)
	default:
		return t.takersHost(k, left.Owners, right)
	}
}

// takersHost refuses to give the keys of a region to owners of another one that may own none any more.
func (t *turn) takersHost(k *keyspace, owners []Owner, taken *Region) *rootv1.ErrorDetail {
	for _, o := range owners {
		if taken.ownerAt(o.Member) < 0 && !t.Hosts(o.Member, k.record.GetName()) {
			return mayNotHost(string(o.Member), k.record.GetName())
		}
	}
	return nil
}

// planOf is the transition that a step is of. One of a plan that was given up, and made
// anew at the same epoch, is late.
func (t *turn) planOf(step interface {
	GetTransitionId() string
	GetPlannedAt() uint64
},
) (*rootv1.Transition, *rootv1.ErrorDetail) {
	p := t.Transition(step.GetTransitionId())
	if p == nil {
		return nil, refuse(rootv1.Reason_REASON_NOT_FOUND, "there is no transition %q, or it is forgotten", step.GetTransitionId())
	}
	if at := step.GetPlannedAt(); at != 0 && at != p.GetPlannedAt().GetIndex() {
		d := refuse(rootv1.Reason_REASON_TRANSITION_CLOSED, "transition %s of entry %d has ended: it was planned again in entry %d", p.GetId(), at, p.GetPlannedAt().GetIndex())
		d.TransitionId = p.GetId()
		return nil, d
	}
	return p, nil
}

// transitionCompleted makes a planned change true. Already applied: it is
// completed.
func (t *turn) transitionCompleted(e *rootv1.TransitionCompleted, r *EventResult) verdict {
	p, d := t.planOf(e)
	switch {
	case d != nil:
		return verdict{reject: d}
	case p.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED:
		t.planned(p, r)
		return already
	case p.GetStatus() != pendingStatus:
		return verdict{reject: transitionClosed(p)}
	}
	region := t.Region(RegionID(p.GetRegionId()))
	k, _ := t.keyspaces.Get(region.Keyspace)
	if d := t.letGo(k, region, p, e); d != nil {
		return verdict{reject: d}
	}
	if d := t.complete(k, region, p, e); d != nil {
		return verdict{reject: d}
	}
	t.planned(t.end(p, rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED, ""), r)
	return applied
}

// carried reports whether regions of a keyspace are split and merged with their owner's
// help, which keeps them: it lets go of them first, at a frontier.
func (k *keyspace) carried() bool {
	return k.assigned() && k.maxOwners() == 1
}

// letGo judges whether a transition may set a frontier, and whether it has to: an owner
// that acts for a region says how far it got before the region is another one.
func (t *turn) letGo(k *keyspace, region *Region, p *rootv1.Transition, e *rootv1.TransitionCompleted) *rootv1.ErrorDetail {
	carried := (p.GetKind() == kindSplit || p.GetKind() == kindMerge) && k.carried()
	switch {
	case e.GetSetFrontier() && !carried && p.GetKind() != kindMove:
		return invalid("transition %s is no move: it has no frontier to set", p.GetId())
	case carried && !e.GetSetFrontier() && slices.ContainsFunc(region.Owners, t.Acts):
		d := withRegion(region, rootv1.Reason_REASON_RANGE_CHANGE_PENDING, "the owner of region %d acts for it: plan the change alone, and it is completed once that has let go", region.ID)
		d.TransitionId = p.GetId()
		return d
	}
	return nil
}

// complete changes the regions of a pending transition, whose epochs are the
// planned ones: whatever moves a region on ends its transition.
func (t *turn) complete(k *keyspace, region *Region, p *rootv1.Transition, e *rootv1.TransitionCompleted) *rootv1.ErrorDetail {
	switch p.GetKind() {
	case kindSplit:
		if d := t.maySplit(k, region, p); d != nil {
			return d
		}
		t.split(k, region, p, e)
	case kindMerge:
		if d := t.mayMerge(k, region, p); d != nil {
			return d
		}
		right := t.Region(RegionID(p.GetRightRegionId()))
		if !e.GetSetFrontier() {
			if d := oneFrontier(k, region, right); d != nil {
				return d
			}
		}
		t.merge(k, region, right, e)
	case kindMove:
		return t.move(k, region, p, e)
	default:
		owner := rooted.OwnerFromProto(p.GetOwner())
		next, d := t.withPeer(k, region, p.GetKind(), &owner)
		if d != nil {
			return d
		}
		t.putRegion(region, next)
	}
	return nil
}

// split cuts a region: both parts have the owners and the frontier of the
// whole, its conf version, and a version one above its own.
func (t *turn) split(k *keyspace, region *Region, p *rootv1.Transition, e *rootv1.TransitionCompleted) {
	whole := letGoAt(region, e)
	left, right := whole.Clone(), whole.Clone()
	left.Epoch.Version = t.raise(k, left.Epoch).Version + 1
	left.Revision = t.token.Index
	right.ID = RegionID(p.GetRightRegionId())
	right.Epoch, right.Revision = left.Epoch, left.Revision
	right.Epoch.Version = max(right.Epoch.Version, t.lastVersion(right.ID)+1)
	right.Start = string(p.GetSplitKey())
	left.End = right.Start
	t.putRegion(region, left)
	t.putRegion(nil, right)
}

// letGoAt is a region at the frontier that its owner let go of it at.
func letGoAt(region *Region, e *rootv1.TransitionCompleted) *Region {
	if !e.GetSetFrontier() {
		return region
	}
	at := region.Clone()
	at.Frontier = string(e.GetFrontier())
	return at
}

// merge joins a region and its right neighbour: the whole has the owners of the left one,
// the frontier that is set or else that of the left one, and a version above both.
func (t *turn) merge(k *keyspace, left, right *Region, e *rootv1.TransitionCompleted) {
	whole := letGoAt(left, e).Clone()
	whole.End, whole.Revision = right.End, t.token.Index
	whole.Epoch.Version = t.raise(k, join(left.Epoch, right.Epoch)).Version + 1
	if f := right.Former; f != nil && len(whole.Owners) == 0 && (whole.Former == nil || whole.Former.Revision < f.Revision) {
		whole.Former = f
	}
	t.removeRegion(right)
	t.putRegion(left, whole)
}

// transitionCancelled gives a planned change up. Already applied: it ended
// that way.
func (t *turn) transitionCancelled(e *rootv1.TransitionCancelled, r *EventResult) verdict {
	status := rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED
	if e.GetAborted() {
		status = rootv1.TransitionStatus_TRANSITION_STATUS_ABORTED
	}
	p, d := t.planOf(e)
	switch {
	case d != nil:
		return verdict{reject: d}
	case p.GetStatus() == status:
		r.Transition = p
		return already
	case p.GetStatus() != pendingStatus:
		return verdict{reject: transitionClosed(p)}
	}
	r.Transition = t.end(p, status, e.GetReason())
	return applied
}

// settle ends the pending transition of a region that moves on by itself:
// completed, when this is where it was going, superseded otherwise. It returns
// the ended transition, or nil.
func (t *turn) settle(old, next *Region) *rootv1.Transition {
	p := t.PendingTransition(old.ID)
	if p == nil {
		return nil
	}
	if t.reached(p, old, next) {
		return t.end(p, rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED, "")
	}
	return t.end(p, rootv1.TransitionStatus_TRANSITION_STATUS_SUPERSEDED, fmt.Sprintf("region %d moved on to epoch %s", old.ID, next.Epoch))
}

// reached reports whether next is what the transition was to make of old.
func (t *turn) reached(p *rootv1.Transition, old, next *Region) bool {
	switch {
	case RegionID(p.GetRegionId()) != old.ID:
		return false
	case p.GetKind() == kindSplit:
		return next.Start == old.Start && next.End == string(p.GetSplitKey())
	case p.GetKind() == kindMerge:
		return t.takenIn(old, next) != nil
	case p.GetKind() == kindMove:
		want := old.Clone()
		want.Owners[old.ownerAt(MemberID(p.GetFrom().GetMemberId()))] = rooted.OwnerFromProto(p.GetOwner())
		return next.Start == old.Start && next.End == old.End && sameOwners(next.Owners, want.Owners)
	}
	_, has := next.Owner(MemberID(p.GetOwner().GetMemberId()))
	more := 1
	if p.GetKind() == kindRemove {
		more = -1
	}
	if has != (more > 0) || len(next.Owners) != len(old.Owners)+more || next.Start != old.Start || next.End != old.End {
		return false
	}
	for _, o := range old.Owners {
		if next.ownerAt(o.Member) < 0 && string(o.Member) != p.GetOwner().GetMemberId() {
			return false
		}
	}
	return true
}

// takenIn is the right region of a pending merge that next, the left one's new
// descriptor, takes in; nil when there is none.
func (s *State) takenIn(old, next *Region) *Region {
	p := s.PendingTransition(old.ID)
	if p.GetKind() != kindMerge || RegionID(p.GetRegionId()) != old.ID {
		return nil
	}
	right := s.Region(RegionID(p.GetRightRegionId()))
	if next.Start != old.Start || next.End != right.End {
		return nil
	}
	return right
}

// end ends a pending transition, and forgets the one that ended longest ago
// when there are more than MaxEndedTransitions.
func (t *turn) end(old *rootv1.Transition, status rootv1.TransitionStatus, reason string) *rootv1.Transition {
	p := copyTransition(old)
	p.Status, p.Reason, p.EndedAt = status, reason, t.token.Proto()
	t.setTransition(old, p)
	t.change(Change{Kind: ChangeTransition, Transition: p})
	if t.ended.Len() > MaxEndedTransitions {
		_, id, _ := t.ended.Min()
		oldest := t.Transition(id)
		t.setTransition(oldest, nil)
		t.change(Change{Kind: ChangeTransition, Removed: true, Transition: oldest})
	}
	return p
}

// setTransition replaces a transition, or removes it when next is nil, and
// keeps what is indexed by it.
func (s *State) setTransition(old, next *rootv1.Transition) {
	if old != nil {
		was, _ := s.transitions.Get(old.GetId())
		s.sum -= was.sum
		if old.GetStatus() == pendingStatus {
			for _, id := range parts(old) {
				s.pending.Delete(id)
			}
		} else {
			s.ended.Delete(endedKey(old))
		}
	}
	if next == nil {
		s.transitions.Delete(old.GetId())
		return
	}
	sum := hashTransition(next)
	s.sum += sum
	s.transitions.Set(next.GetId(), transition{next, sum})
	if next.GetStatus() != pendingStatus {
		s.ended.Set(endedKey(next), next.GetId())
		return
	}
	for _, id := range parts(next) {
		s.pending.Set(id, next.GetId())
	}
}

// copyTransition returns a copy whose fields may be set; what they point to is shared,
// since records are immutable.
func copyTransition(p *rootv1.Transition) *rootv1.Transition {
	return &rootv1.Transition{
		Id: p.GetId(), Kind: p.GetKind(), Status: p.GetStatus(), RegionId: p.GetRegionId(), KeyspaceId: p.GetKeyspaceId(), BaseEpoch: p.GetBaseEpoch(),
		Owner: p.GetOwner(), SplitKey: p.GetSplitKey(), RightRegionId: p.GetRightRegionId(), RightBaseEpoch: p.GetRightBaseEpoch(),
		PlannedAt: p.GetPlannedAt(), EndedAt: p.GetEndedAt(), Reason: p.GetReason(), From: p.GetFrom(), ReadyAt: p.GetReadyAt(),
		PrepareMaxMillis: p.GetPrepareMaxMillis(), DeadlineMillis: p.GetDeadlineMillis(), Cause: p.GetCause(),
	}
}

// endedKey orders ended transitions by where they ended, then by id.
func endedKey(p *rootv1.Transition) string {
	return string(binary.BigEndian.AppendUint64(nil, p.GetEndedAt().GetIndex())) + p.GetId()
}

func changePending(p *rootv1.Transition) *rootv1.ErrorDetail {
	d := refuse(rootv1.Reason_REASON_RANGE_CHANGE_PENDING, "transition %s is pending: it has to be completed or cancelled first, and in an assigned keyspace is so by its deadline", p.GetId())
	d.TransitionId = p.GetId()
	return d
}

func transitionClosed(p *rootv1.Transition) *rootv1.ErrorDetail {
	d := refuse(rootv1.Reason_REASON_TRANSITION_CLOSED, "transition %s has ended as %s", p.GetId(), statusName(p.GetStatus()))
	d.TransitionId = p.GetId()
	return d
}

func statusName(s rootv1.TransitionStatus) string {
	switch s {
	case rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED:
		return "completed"
	case rootv1.TransitionStatus_TRANSITION_STATUS_SUPERSEDED:
		return "superseded"
	case rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED:
		return "cancelled"
	case rootv1.TransitionStatus_TRANSITION_STATUS_ABORTED:
		return "aborted"
	default:
		return "pending"
	}
}
