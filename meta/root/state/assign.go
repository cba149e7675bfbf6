package state

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// regionTombstoned removes a region. Already applied: it is not there.
func (t *turn) regionTombstoned(e *rootv1.RegionTombstoned) verdict {
	old := t.Region(RegionID(e.GetRegionId()))
	if old == nil {
		return already
	}
	if x := e.GetExpectedEpoch(); x != nil && EpochFromProto(x) != old.Epoch {
		return verdict{reject: epochStale(old, EpochFromProto(x))}
	}
	k, _ := t.keyspaces.Get(old.Keyspace)
	if k.layout().GetSlots() != nil {
		return verdict{reject: withRegion(old, rootv1.Reason_REASON_LAYOUT_MISMATCH, "slots are not removed one by one")}
	}
	if p := t.PendingTransition(old.ID); p != nil {
		return verdict{reject: changePending(p)}
	}
	if d := t.vacate(k, old, nil, nil); d != nil {
		return verdict{reject: d}
	}
	t.removeRegion(old)
	return applied
}

// regionsAssigned gives regions to owners. The result names the region when
// there is one assignment.
func (t *turn) regionsAssigned(e *rootv1.RegionsAssigned, r *EventResult) verdict {
	all := already
	for _, a := range e.GetAssignments() {
		v := t.assign(a, r)
		if v.reject != nil {
			return v
		}
		all.applied = all.applied || v.applied
	}
	if len(e.GetAssignments()) > 1 {
		r.Region, r.Transition = nil, nil
	}
	return all
}

// assign gives one region to its owners. Already applied: it has these owners,
// in these incarnations, and the frontier if one is set, and its epoch is the
// expected one or the next.
func (t *turn) assign(a *rootv1.Assignment, r *EventResult) verdict {
	old := t.Region(RegionID(a.GetRegionId()))
	switch {
	case old == nil && a.GetAcknowledged(): // what is said of others beside it counts
		return already
	case old == nil:
		return rejected(rootv1.Reason_REASON_NOT_FOUND, "there is no region %d", a.GetRegionId())
	}
	k, _ := t.keyspaces.Get(old.Keyspace)
	if !k.assigned() {
		return verdict{reject: withRegion(old, rootv1.Reason_REASON_LAYOUT_MISMATCH, "keyspace %q is reported: its members publish their own regions", k.record.GetName())}
	}
	if a.GetAcknowledged() {
		return t.acknowledge(k, old, a, r)
	}
	next := newRegion(len(a.GetOwners()))
	owners := next.Owners
	for _, o := range a.GetOwners() {
		owners = append(owners, rooted.OwnerFromProto(o))
	}
	*next = *old
	next.Owners, next.Revision = owners, t.token.Index
	next.Epoch = t.nextOwners(k, old.Epoch)
	if a.GetSetFrontier() {
		next.Frontier = string(a.GetFrontier())
	}
	if t.assignedAlready(k, old, next, a.GetExpectedEpoch()) {
		r.Region = old
		return already
	}
	if x := a.GetExpectedEpoch(); x != nil && EpochFromProto(x) != old.Epoch {
		return verdict{reject: epochStale(old, EpochFromProto(x))}
	}
	if d := t.owners(k, old.Owners, next.Owners, true); d != nil {
		return verdict{reject: d}
	}
	if d := t.mayGive(k, old, nil, next); d != nil && !a.GetAtOnce() {
		return verdict{reject: d}
	}
	next.Former = t.takenFrom(k, old, next)
	if a.GetSetFrontier() && len(old.Owners) > 0 && (t.byPlanner || a.GetAtOnce() || !k.fencedByTime()) {
		next.Former = nil // the owner let go of it: under a fence of time, an operator's word is no evidence
	}
	t.settleVacated(k, old, next)
	r.Transition = t.settle(old, next)
	t.putRegion(old, next)
	r.Region = next
	return applied
}

// acknowledge takes how far the owner of an exclusive region got. What it says of an epoch
// that is over, of a region that is gone, or behind its end, changes nothing.
func (t *turn) acknowledge(k *keyspace, old *Region, a *rootv1.Assignment, r *EventResult) verdict {
	r.Region = old
	o := rooted.OwnerFromProto(a.GetOwners()[0])
	if has, ok := old.Owner(o.Member); !ok || len(old.Owners) > 1 || k.maxOwners() > 1 || has.Incarnation != o.Incarnation ||
		EpochFromProto(a.GetExpectedEpoch()) != old.Epoch || !t.Acts(has) || old.Frontier == string(a.GetFrontier()) {
		return already
	}
	next := newRegion(1)
	owners := append(next.Owners, old.Owners...)
	*next = *old
	next.Owners, next.Revision, next.Frontier = owners, t.token.Index, string(a.GetFrontier())
	t.putRegion(old, next)
	r.Region = next
	return applied
}

// takenFrom is whom a region is taken from that is next's: from its owner, if it has none
// any more, which says nothing of how far it got; and for as long as it has none.
func (t *turn) takenFrom(k *keyspace, old, next *Region) *rooted.FormerOwner {
	switch {
	case len(next.Owners) > 0:
		return nil
	case len(old.Owners) == 0:
		return old.Former
	case !k.carried() || old.Owners[0].Incarnation == 0:
		return nil
	}
	return &rooted.FormerOwner{Member: old.Owners[0].Member, Incarnation: old.Owners[0].Incarnation, Revision: t.token.Index}
}

func (t *turn) assignedAlready(k *keyspace, old, next *Region, expected *rootv1.RegionEpoch) bool {
	if len(old.Owners) != len(next.Owners) || old.Frontier != next.Frontier {
		return false
	}
	for _, w := range next.Owners {
		if w.Incarnation == 0 {
			w.Incarnation = t.Member(w.Member).GetIncarnation()
		}
		if o, ok := old.Owner(w.Member); !ok || o != w {
			return false
		}
	}
	if expected == nil {
		return true
	}
	x := EpochFromProto(expected)
	return x == old.Epoch || t.nextOwners(k, x) == old.Epoch
}
