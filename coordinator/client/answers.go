package client

import (
	"slices"
	"sync/atomic"

	"github.com/nokv/nokv/rooted"
)

// answers are regions that a cache holds beyond its bounds because they were asked
// for, those used last: a ring, of which the oldest that was not used since it was
// looked at last makes room.
type answers struct {
	byID  map[rooted.RegionID]*answer
	ring  []*answer // oldest first, from head on; some of no region any more
	head  int
	bytes int
}

type answer struct {
	region rooted.RegionID
	bytes  int
	used   atomic.Bool // since it was looked at
}

// admit makes room for a region that was asked for; false: there is none.
func (k *Cache) admit(e *edit, r *rooted.Region) bool {
	a, size := &k.answers, sizeOf(r)
	if k.cfg.MaxAnswers < 0 || size > k.cfg.MaxBytes/8 {
		return false
	}
	for len(a.byID) > 0 && (len(a.byID) >= k.cfg.MaxAnswers || a.bytes+size > k.cfg.MaxBytes/8) {
		oldest := a.ring[a.head]
		a.ring[a.head] = nil
		if a.head++; a.head > len(a.ring)/2 {
			a.ring, a.head = slices.Delete(a.ring, 0, a.head), 0
		}
		switch {
		case a.byID[oldest.region] != oldest:
		case oldest.used.Swap(false):
			a.ring = append(a.ring, oldest)
		default:
			k.evict(e, k.byID[oldest.region])
		}
	}
	if len(a.ring) > 64+4*len(a.byID) {
		a.ring, a.head = slices.DeleteFunc(a.ring, func(o *answer) bool { return o == nil || a.byID[o.region] != o }), 0
	}
	made := &answer{region: r.ID, bytes: size}
	a.byID[r.ID], a.ring, a.bytes = made, append(a.ring, made), a.bytes+size
	return true
}

// forget is of a region that is not held any more.
func (a *answers) forget(id rooted.RegionID) {
	if was := a.byID[id]; was != nil {
		delete(a.byID, id)
		a.bytes -= was.bytes
	}
}
