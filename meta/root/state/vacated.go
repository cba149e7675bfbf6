package state

import (
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

const (
	// maxVacated bounds the incarnations of one keyspace that may act for keys that were taken
	// from them, and maxVacatedBytes the keys that are noted of them: of who comes when there is no
	// room for its keys, all keys of the keyspace are noted.
	maxVacated      = 4096
	maxVacatedBytes = 64 << 10
)

// vacate notes that keys of a region are about to have none: above which version they go on, see
// versionFloor, and who may still act for them, see Vacated.
func (t *turn) vacate(k *keyspace, old *Region) *rootv1.ErrorDetail {
	if !k.assigned() {
		return nil
	}
	v := old.Epoch.Version
	rises := v > k.versionFloor() && v <= MaxEpoch/2 // one beyond stands for itself
	acts := t.actsBehind(k, old)
	if !rises && len(acts) == 0 {
		return nil
	}
	next := *k
	next.record = proto.CloneOf(k.record)
	if rises {
		next.record.VersionFloor = v
	}
	for _, f := range acts {
		if !addVacated(next.record, f, old) {
			return capacity(maxVacated, "%d owners may act for keys of keyspace %q that were taken from them, and no more can be noted: publish regions for these keys, which are given away when their owners have let go", maxVacated, k.record.GetName())
		}
	}
	t.setKeyspace(&next)
	return nil
}

// actsBehind are those who may act for a region's keys when it is gone, because their fence is a
// time.
func (t *turn) actsBehind(k *keyspace, old *Region) (all []rooted.FormerOwner) {
	if !k.carried() || max(fenceTTL(k.record.GetSettings()), k.record.GetFormerTtlMillis()) == 0 {
		return nil
	}
	for _, o := range old.Owners {
		if o.Incarnation != 0 {
			all = append(all, rooted.FormerOwner{Member: o.Member, Incarnation: o.Incarnation, Revision: t.token.Index})
		}
	}
	if len(old.Owners) == 0 && old.Former != nil {
		all = append(all, rooted.FormerOwner{Member: old.Former.Member, Incarnation: old.Former.Incarnation, Revision: t.token.Index})
	}
	return all
}

// addVacated notes the keys of a region that an owner may act for; false: there is no room.
func addVacated(k *rootv1.Keyspace, f rooted.FormerOwner, r *Region) bool {
	i, bytes := -1, 0
	for j, x := range k.Vacated {
		bytes += len(x.GetStartKey()) + len(x.GetEndKey())
		if x.GetOwner().GetIncarnation() == f.Incarnation {
			i = j
		}
	}
	start, end := r.Start, r.End
	if i >= 0 {
		x := k.Vacated[i]
		bytes -= len(x.GetStartKey()) + len(x.GetEndKey())
		start = min(start, string(x.GetStartKey()))
		if len(x.GetEndKey()) == 0 || end != "" && end < string(x.GetEndKey()) {
			end = string(x.GetEndKey())
		}
	}
	if bytes+len(start)+len(end) > maxVacatedBytes {
		start, end = "", ""
	}
	next := &rootv1.FormerRange{Owner: f.Proto(), StartKey: []byte(start), EndKey: []byte(end)}
	switch {
	case i >= 0:
		k.Vacated[i] = next
	case len(k.Vacated) >= maxVacated:
		return false
	default:
		k.Vacated = append(k.Vacated, next)
	}
	return true
}

func overlaps(start, end, otherStart, otherEnd string) bool {
	return (otherEnd == "" || start < otherEnd) && (end == "" || otherStart < end)
}

// Vacated calls fn for those who may act for keys of a range because a region was removed from
// under them, or keys of it, until fn returns false.
func (s *State) Vacated(id KeyspaceID, start, end string, fn func(*rooted.FormerOwner) bool) {
	for _, x := range s.Keyspace(id).GetVacated() {
		if overlaps(start, end, string(x.GetStartKey()), string(x.GetEndKey())) && !fn(rooted.FormerOwnerFromProto(x.GetOwner())) {
			return
		}
	}
}

// vacatedBy refuses owners of keys that somebody else may act for.
func (t *turn) vacatedBy(k *keyspace, at place, owners []Owner) (d *rootv1.ErrorDetail) {
	if len(owners) == 0 || !k.carried() {
		return nil
	}
	t.Vacated(k.id(), at.start, at.end, func(f *rooted.FormerOwner) bool {
		if !slices.ContainsFunc(owners, func(o Owner) bool { return o.Incarnation == f.Incarnation }) {
			d = refuse(rootv1.Reason_REASON_RANGE_CHANGE_PENDING, "member %q may still act for keys of [%q, %q), which were taken from it: publish the region without an owner, and it is given one when that is over",
				f.Member, at.start, at.end)
		}
		return d == nil
	})
	return d
}

// settleVacated forgets who might have acted for keys of a region when a planner gives it to
// somebody: it has let go, or its time is over. What was taken from it behind the region's own
// last change the planner may not have seen.
func (t *turn) settleVacated(k *keyspace, old, next *Region) {
	if !t.byPlanner || len(old.Owners) > 0 || len(next.Owners) == 0 || len(k.record.GetVacated()) == 0 {
		return
	}
	over := func(x *rootv1.FormerRange) bool {
		return x.GetOwner().GetRevision() <= old.Revision && overlaps(old.Start, old.End, string(x.GetStartKey()), string(x.GetEndKey()))
	}
	if !slices.ContainsFunc(k.record.Vacated, over) {
		return
	}
	updated := *k
	updated.record = proto.CloneOf(k.record)
	updated.record.Vacated = slices.DeleteFunc(updated.record.Vacated, over)
	t.setKeyspace(&updated)
}
