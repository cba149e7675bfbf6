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

// vacate notes that a region is about to be gone, or to have fewer keys: above which version they
// go on, see versionFloor, and who may still act for them, see Vacated. next is what the region
// becomes, nil when it is removed, and taken a neighbour that it takes in: without an owner, next
// says only whom its own keys were taken from.
func (t *turn) vacate(k *keyspace, old, taken, next *Region) *rootv1.ErrorDetail {
	if !k.fencedByTime() && (!k.assigned() || taken == nil && old.Epoch.Version <= k.versionFloor()) {
		return nil // nothing can be new
	}
	record := proto.CloneOf(k.record)
	room := true
	note := func(r *Region, keys []place) {
		for _, at := range keys {
			if k.assigned() {
				raiseFloor(record, r)
			}
			for _, f := range mayActFor(r, t.token.Index) {
				room = room && (!k.fencedByTime() || addVacated(record, f, at, t.token.Index))
			}
		}
	}
	if next == nil {
		note(old, []place{{start: old.Start, end: old.End}})
	} else {
		note(old, without(old, next))
	}
	if taken != nil && len(next.Owners) == 0 {
		note(taken, []place{{start: taken.Start, end: taken.End}})
	}
	switch {
	case !room:
		return capacity(maxVacated, "%d owners may act for keys of keyspace %q that were taken from them, and no more can be noted: publish regions for these keys, which are given away when their owners have let go", maxVacated, k.record.GetName())
	case proto.Equal(record, k.record):
		return nil
	}
	changed := *k
	changed.record = record
	t.setKeyspace(&changed)
	return nil
}

// fencedByTime reports whether owners of the keyspace may act for a time in which nobody confirms
// them, or might when they were given something.
func (k *keyspace) fencedByTime() bool {
	return max(fenceTTL(k.record.GetSettings()), k.record.GetFormerTtlMillis()) > 0
}

// mayActFor are those who may act for a region: its owners, at what they are shown up to index, or,
// while it has none, the one that it was taken from.
func mayActFor(r *Region, index uint64) (all []rooted.FormerOwner) {
	for _, o := range r.Owners {
		if o.Incarnation != 0 {
			all = append(all, rooted.FormerOwner{Member: o.Member, Incarnation: o.Incarnation, Revision: index})
		}
	}
	if len(r.Owners) == 0 && r.Former != nil {
		all = append(all, *r.Former)
	}
	return all
}

// without are the keys of a region that another one does not have.
func without(r, other *Region) (all []place) {
	if !overlaps(r.Start, r.End, other.Start, other.End) {
		return []place{{start: r.Start, end: r.End}}
	}
	if r.Start < other.Start {
		all = append(all, place{start: r.Start, end: other.Start})
	}
	if other.End != "" && (r.End == "" || other.End < r.End) {
		all = append(all, place{start: other.End, end: r.End})
	}
	return all
}

// addVacated notes keys that an owner may act for; false: there is no room.
func addVacated(k *rootv1.Keyspace, f rooted.FormerOwner, at place, index uint64) bool {
	i, bytes := -1, 0
	for j, x := range k.Vacated {
		bytes += len(x.GetStartKey()) + len(x.GetEndKey())
		if x.GetOwner().GetIncarnation() == f.Incarnation {
			i = j
		}
	}
	start, end := at.start, at.end
	if i >= 0 {
		x := k.Vacated[i]
		bytes -= len(x.GetStartKey()) + len(x.GetEndKey())
		start = min(start, string(x.GetStartKey()))
		if len(x.GetEndKey()) == 0 || end != "" && end < string(x.GetEndKey()) {
			end = string(x.GetEndKey())
		}
		f.Revision = max(f.Revision, x.GetOwner().GetRevision())
	}
	if bytes+len(start)+len(end) > maxVacatedBytes {
		start, end = "", ""
	}
	next := &rootv1.FormerRange{Owner: f.Proto(), StartKey: []byte(start), EndKey: []byte(end), NotedAt: index}
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

// mayGive refuses a region of which somebody gets keys that somebody else may act for: old is what
// it was, nil for a new one, and taken the neighbour that it takes in. A planner knows when that is
// over, and an assignment at once does not ask.
func (t *turn) mayGive(k *keyspace, old, taken, next *Region) (d *rootv1.ErrorDetail) {
	if t.byPlanner || len(next.Owners) == 0 || !k.carried() || !k.fencedByTime() {
		return nil
	}
	refuses := func(f *rooted.FormerOwner) bool {
		if d == nil && !slices.ContainsFunc(next.Owners, func(o Owner) bool { return o.Incarnation == f.Incarnation }) {
			d = refuse(rootv1.Reason_REASON_RANGE_CHANGE_PENDING,
				"member %q may still act for keys of [%q, %q): move a region from an owner that is alive; one without an owner, or whose owner failed, is given another when that is over; region assign --now does not wait",
				f.Member, next.Start, next.End)
		}
		return d == nil
	}
	gets := []place{{start: next.Start, end: next.End}}
	if old != nil && !slices.ContainsFunc(next.Owners, func(o Owner) bool { return !slices.Contains(old.Owners, o) }) {
		gets = without(next, old) // its owners had the rest
	} else if old != nil {
		for _, f := range mayActFor(old, 0) {
			refuses(&f)
		}
	}
	if taken != nil {
		for _, f := range mayActFor(taken, 0) {
			refuses(&f)
		}
	}
	for _, at := range gets {
		t.Vacated(k.id(), at.start, at.end, refuses)
	}
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
		return x.GetNotedAt() <= old.Revision && overlaps(old.Start, old.End, string(x.GetStartKey()), string(x.GetEndKey()))
	}
	if !slices.ContainsFunc(k.record.Vacated, over) {
		return
	}
	updated := *k
	updated.record = proto.CloneOf(k.record)
	updated.record.Vacated = slices.DeleteFunc(updated.record.Vacated, over)
	t.setKeyspace(&updated)
}
