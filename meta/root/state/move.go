package state

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// movePlanned plans to give one owner's share to another member; see plan.
func (t *turn) movePlanned(e *rootv1.MovePlanned, r *EventResult) verdict {
	from, to := rooted.OwnerFromProto(e.GetFrom()), rooted.OwnerFromProto(e.GetTo())
	p := &rootv1.Transition{
		Kind: kindMove, RegionId: e.GetRegionId(), Owner: to.Proto(), From: from.Proto(),
		PrepareMaxMillis: e.GetPrepareMaxMillis(), DeadlineMillis: e.GetDeadlineMillis(), Cause: e.GetReason(),
	}
	return t.plan(p, e.GetExpectedEpoch(), func(k *keyspace, region *Region) *rootv1.ErrorDetail {
		_, d := t.moved(k, region, &from, &to)
		p.Owner, p.From = to.Proto(), from.Proto()
		return d
	}, r)
}

// moved is the region with one owner in the place of another; it judges and
// completes both.
func (t *turn) moved(k *keyspace, region *Region, from, to *Owner) (*Region, *rootv1.ErrorDetail) {
	at := region.ownerAt(from.Member)
	switch {
	case !k.assigned():
		return nil, withRegion(region, rootv1.Reason_REASON_LAYOUT_MISMATCH, "keyspace %q is reported: its members publish their own regions", k.record.GetName())
	case at < 0 || from.Incarnation != 0 && from.Incarnation != region.Owners[at].Incarnation:
		return nil, withRegion(region, rootv1.Reason_REASON_NOT_FOUND, "member %q, incarnation %d, does not own region %d", from.Member, from.Incarnation, region.ID)
	case region.ownerAt(to.Member) >= 0:
		return nil, withRegion(region, rootv1.Reason_REASON_ALREADY_EXISTS, "member %q owns region %d already", to.Member, region.ID)
	}
	*from = region.Owners[at]
	next := region.Clone()
	next.Owners[at] = *to
	if d := t.owners(k, region.Owners, next.Owners, false); d != nil {
		return nil, d
	}
	*to = next.Owners[at]
	next.Revision = t.token.Index
	next.Epoch = t.nextOwners(k, region.Epoch)
	return next, nil
}

// move ends the old ownership and grants the new one in one step.
func (t *turn) move(k *keyspace, region *Region, p *rootv1.Transition, e *rootv1.TransitionCompleted) *rootv1.ErrorDetail {
	from, to := rooted.OwnerFromProto(p.GetFrom()), rooted.OwnerFromProto(p.GetOwner())
	next, d := t.moved(k, region, &from, &to)
	if d != nil {
		return d
	}
	if d := t.mayGive(k, region, nil, next); d != nil {
		return d
	}
	if e.GetSetFrontier() {
		next.Frontier = string(e.GetFrontier())
	}
	t.putRegion(region, next)
	return nil
}

// moveReady notes that the next owner can take the region. Already applied: it
// said so.
func (t *turn) moveReady(e *rootv1.MoveReady, r *EventResult) verdict {
	old, d := t.planOf(e)
	switch {
	case d != nil:
		return verdict{reject: d}
	case old.GetKind() != kindMove:
		return verdict{reject: invalid("transition %s is no move", old.GetId())}
	case old.GetOwner().GetIncarnation() != e.GetIncarnation():
		d := refuse(rootv1.Reason_REASON_MEMBER_RETIRED, "transition %s gives to incarnation %d of member %q, not %d",
			old.GetId(), old.GetOwner().GetIncarnation(), old.GetOwner().GetMemberId(), e.GetIncarnation())
		d.Incarnation = old.GetOwner().GetIncarnation()
		return verdict{reject: d}
	case old.GetReadyAt() != nil:
		t.planned(old, r)
		return already
	case old.GetStatus() != pendingStatus:
		return verdict{reject: transitionClosed(old)}
	}
	p := copyTransition(old)
	p.ReadyAt = t.token.Proto()
	t.setTransition(old, p)
	t.change(Change{Kind: ChangeTransition, Transition: p})
	t.planned(p, r)
	return applied
}

func checkMove(e *rootv1.MovePlanned) *rootv1.ErrorDetail {
	if e.GetFrom().GetMemberId() == e.GetTo().GetMemberId() {
		return invalid("a region moves from one member to another, not from %q to %q", e.GetFrom().GetMemberId(), e.GetTo().GetMemberId())
	}
	return first(checkPlan(e.GetRegionId(), e.GetExpectedEpoch()), checkID("member id", e.GetFrom().GetMemberId()),
		checkID("member id", e.GetTo().GetMemberId()), checkMillis("move", e.GetPrepareMaxMillis(), e.GetDeadlineMillis()))
}

func checkCompleted(e *rootv1.TransitionCompleted) *rootv1.ErrorDetail {
	if len(e.GetFrontier()) > 0 && !e.GetSetFrontier() {
		return invalid("there is a frontier, but set_frontier is not set")
	}
	return first(checkID("transition id", e.GetTransitionId()), checkBytes("frontier", e.GetFrontier(), MaxFrontierBytes))
}
