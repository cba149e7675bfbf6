package balance

import "slices"

// ranking is the order of members that may get something: a heap of the members of each set,
// and one of the sets of each kind by the first member of each. So the first that may take a
// region is found among as many sets as it has owners, however many zones there are.
type ranking struct {
	before func(a, b int32) bool
	// in is where a seat is in the heap of its set; -1: nowhere.
	in    []int32
	sets  []*heap
	kinds []*heap
}

func newRanking(f *Field, before func(a, b int32) bool) *ranking {
	r := &ranking{before: before, in: nowhere(len(f.seats))}
	for range f.sets {
		r.sets = append(r.sets, newHeap(r.in, before))
	}
	at := nowhere(len(f.sets))
	for range f.kinds {
		r.kinds = append(r.kinds, newHeap(at, func(a, b int32) bool { return before(r.sets[a].top(), r.sets[b].top()) }))
	}
	return r
}

func nowhere(n int) []int32 { return slices.Repeat([]int32{-1}, n) }

// put finds the place of a member, which came, changed, or left.
func (r *ranking) put(i, set, kind int32, in bool) {
	h := r.sets[set]
	switch {
	case !in:
		h.remove(i)
	case h.at[i] < 0:
		h.push(i)
	default:
		h.fix(i)
	}
	switch of := r.kinds[kind]; {
	case h.top() < 0:
		of.remove(set)
	case of.at[set] < 0:
		of.push(set)
	default:
		of.fix(set)
	}
}

// first is the first member of some kinds that is in none of these zones, and is not skipped;
// -1: there is none.
func (r *ranking) first(sets []set, kinds []int32, zones []string, skip func(int32) bool) int32 {
	best := int32(-1)
	var buffer [8]int32
	for _, kind := range kinds {
		of, passed := r.kinds[kind], buffer[:0]
		for n := of.top(); n >= 0; n = of.top() {
			top := r.sets[n].top()
			if best >= 0 && r.before(best, top) {
				break
			}
			if zone := sets[n].zone; zone == "" || !slices.Contains(zones, zone) {
				x := r.sets[n].first(skip)
				if x >= 0 && (best < 0 || r.before(x, best)) {
					best = x
				}
				if x == top {
					break // the other sets have nobody before it
				}
			}
			passed = append(passed, n)
			of.remove(n)
		}
		for _, n := range passed {
			of.push(n)
		}
	}
	return best
}
