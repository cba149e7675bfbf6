package state

import (
	"cmp"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// fit makes the range of a region complete for the layout, or refuses it.
func (k *keyspace) fit(r *Region) *rootv1.ErrorDetail {
	switch k.layout().GetKind().(type) {
	case *rootv1.Layout_Slots_:
		return refuse(rootv1.Reason_REASON_LAYOUT_MISMATCH, "keyspace %q has slots: its regions exist from creation on", k.record.GetName())
	case *rootv1.Layout_Points_:
		if r.End == "" {
			r.End = r.Start + "\x00"
		}
		if r.Start == "" || r.End != r.Start+"\x00" {
			return refuse(rootv1.Reason_REASON_INVALID_RANGE, "keyspace %q has points: a region is one key that is not empty", k.record.GetName())
		}
		r.Start = r.End[:len(r.Start)] // in one piece of memory
	default:
		if r.End != "" && r.End <= r.Start {
			return refuse(rootv1.Reason_REASON_INVALID_RANGE, "the range is empty or inverted: [%q, %q)", r.Start, r.End)
		}
	}
	return nil
}

// rangesOnly refuses layouts whose regions are not cut by hand.
func (k *keyspace) rangesOnly() *rootv1.ErrorDetail {
	if _, ok := k.layout().GetKind().(*rootv1.Layout_Ranges_); ok {
		return nil
	}
	return refuse(rootv1.Reason_REASON_LAYOUT_MISMATCH, "keyspace %q has no ranges: its regions do not split or merge", k.record.GetName())
}

// place is where a range lies among its keyspace's regions.
type place struct {
	// inTheWay is a region that overlaps, or nil.
	inTheWay *Region
	// start is shared with the region that begins there, or ends there.
	start string
	// end is shared with the neighbour that begins there.
	end string
}

// locate finds the place of r; regions in except do not count as in the way.
func (s *State) locate(r *Region, except ...*Region) place {
	p := place{start: r.Start, end: r.End}
	s.regions.Descend(r.startKey(), func(o *Region) bool {
		if o.Keyspace != r.Keyspace {
			return false
		}
		switch r.Start {
		case o.Start:
			p.start = o.Start
		case o.End:
			p.start = o.End
		}
		if excepted(o, except) {
			return true
		}
		if o.End == "" || o.End > r.Start {
			p.inTheWay = o
		}
		return false
	})
	if p.inTheWay != nil {
		return p
	}
	s.regions.Ascend(r.startKey(), func(o *Region) bool {
		if o.Keyspace != r.Keyspace {
			return false
		}
		if excepted(o, except) {
			return true
		}
		if r.End != "" && o.Start == r.End {
			p.end = o.Start
		} else if r.End == "" || o.Start < r.End {
			p.inTheWay = o
		}
		return false
	})
	return p
}

func excepted(o *Region, except []*Region) bool {
	for _, e := range except {
		if e != nil && e.ID == o.ID {
			return true
		}
	}
	return false
}

// putRegion adds a region, or replaces old, which is nil for a new one. The
// region is immutable from here on.
func (t *turn) putRegion(old, next *Region) {
	next.sum = hashRegion(next)
	t.sum += next.sum
	if old != nil {
		t.sum -= old.sum
		if old.Start != next.Start {
			t.regions.Delete(old.startKey())
		}
	} else {
		t.forgetRemovedRegion(next.ID)
	}
	t.regions.Set(next)
	t.regionIDs.Set(next)
	t.count(old, next)
	t.change(Change{Kind: ChangeRegion, Region: next, OldRegion: old})
}

// removeRegion removes a region, and remembers that it was there.
func (t *turn) removeRegion(old *Region) {
	t.rememberRemovedRegion(old)
	t.dropRegion(old)
}

// dropRegion removes a region.
func (t *turn) dropRegion(old *Region) {
	t.sum -= old.sum
	t.regions.Delete(old.startKey())
	t.regionIDs.Delete(old.idKey())
	t.count(old, nil)
	t.change(Change{Kind: ChangeRegion, Removed: true, Region: old, OldRegion: old})
}

// count keeps the counts of keyspaces and members when next replaces old;
// either may be nil.
func (s *State) count(old, next *Region) {
	regions, owned := tally(next)
	oldRegions, oldOwned := tally(old)
	if regions != oldRegions || owned != oldOwned {
		k, _ := s.keyspaces.Get(cmp.Or(next, old).Keyspace)
		counted := *k
		counted.regions, counted.owned = k.regions+regions-oldRegions, k.owned+owned-oldOwned
		s.keyspaces.Set(k.id(), &counted)
	}
	if old != nil && next != nil && slices.Equal(old.Owners, next.Owners) {
		return
	}
	old.ownersWithout(next, func(id MemberID) { lose(s, s.owned, id, old) })
	next.ownersWithout(old, func(id MemberID) { gain(s, s.owned, id, next) })
	if k, _ := s.keyspaces.Get(cmp.Or(next, old).Keyspace); k.assigned() {
		if old != nil {
			s.displace(old)
		}
		if next != nil {
			s.place(next)
		}
	}
}

func tally(r *Region) (regions, owned int) {
	if r == nil {
		return 0, 0
	}
	return 1, min(len(r.Owners), 1)
}

// ownersWithout calls fn for the owners of r that other does not have.
func (r *Region) ownersWithout(other *Region, fn func(MemberID)) {
	if r == nil {
		return
	}
	for _, o := range r.Owners {
		if other == nil || other.ownerAt(o.Member) < 0 {
			fn(o.Member)
		}
	}
}
