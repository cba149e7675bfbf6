package propose

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/meta/root/state"
)

// Ring names the member whose point on a circle follows the region's. It is made for
// the candidates of one plan.
type Ring struct {
	points []point
	// bounded: one that has no room, at so many of 1,000 of its fair part, is passed; 0:
	// nobody is.
	bounded uint64
}

type point struct {
	at        uint64
	candidate int32
}

// MostPoints bounds a ring: with more members each has fewer points.
const MostPoints = 1 << 20

// NewRing makes the ring of candidates, with so many points for each.
func NewRing(ks state.KeyspaceID, candidates []Candidate, points int) *Ring {
	points = max(min(points, MostPoints/max(len(candidates), 1)), 1)
	r := &Ring{points: make([]point, 0, points*len(candidates))}
	for i := range candidates {
		h := Hash(ks, 0, candidates[i].ID)
		for n := range points {
			r.points = append(r.points, point{mix(h + uint64(n)*0x9e3779b97f4a7c15), int32(i)})
		}
	}
	slices.SortFunc(r.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.candidate, b.candidate))
	})
	return r
}

// Bounded is the ring on which members are passed that have so many of 1,000 of their
// fair part, the region included.
func (r *Ring) Bounded(permille uint64) *Ring { return &Ring{r.points, permille} }

// Propose implements Strategy.
func (r *Ring) Propose(q *Question) (int, bool) {
	if len(r.points) == 0 {
		return 0, false
	}
	at := Hash(q.Keyspace, q.Region, "ring")
	first, _ := slices.BinarySearchFunc(r.points, at, func(p point, at uint64) int { return cmp.Compare(p.at, at) })
	for k := range r.points {
		i := int(r.points[(first+k)%len(r.points)].candidate)
		if q.Allowed(i) && (r.bounded == 0 || q.Candidates[i].Load+q.Load <= q.Room(i, r.bounded)) {
			return i, true
		}
	}
	return 0, false
}
