package propose

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
)

// Strategy names a member for a region. An application may bring one of its own.
type Strategy interface {
	// Propose returns an index of the question's candidates, or -1 for somebody who is none
	// of them; false: it has no opinion. It keeps and changes nothing of the question, and
	// waits for nobody: nothing is planned, and nothing claimed, for any keyspace meanwhile.
	Propose(q *Question) (int, bool)
}

// Question is what a strategy is asked.
type Question struct {
	Keyspace state.KeyspaceID
	Region   state.RegionID
	// Key is the first of the region.
	Key string
	// Load is what the region brings with it.
	Load load.Amount
	// Nth is how many regions of the keyspace have owners.
	Nth int
	// Candidates by id. The question belongs to who asks.
	Candidates []Candidate
	// Allowed reports whether a candidate may take the region.
	Allowed func(i int) bool
	// Room is how much a candidate may have at most, at a share of 1,000 of its fair part.
	Room func(i int, permille uint64) load.Amount
}

// Candidate is a member that takes regions of the keyspace.
type Candidate struct {
	ID       state.MemberID
	Labels   map[string]string
	Capacity uint64
	// Load is what it has, or is about to have.
	Load load.Amount
}

// Hash orders members, for a region or for a keyspace as such, in a way that nothing
// else depends on.
func Hash(ks state.KeyspaceID, region state.RegionID, id state.MemberID) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	return mix(mix(h^uint64(ks)) ^ uint64(region))
}

// mix makes every bit depend on every other.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// from returns the first candidate that is allowed, from i on, around.
func (q *Question) from(i uint64) (int, bool) {
	n := uint64(len(q.Candidates))
	for k := range n {
		if at := int((i + k) % n); q.Allowed(at) {
			return at, true
		}
	}
	return 0, false
}

// RoundRobin names one after the other: as many regions as have owners, so many along.
type RoundRobin struct{}

// Propose implements Strategy.
func (RoundRobin) Propose(q *Question) (int, bool) { return q.from(uint64(q.Nth)) }

// Random names one by a hash of the region.
type Random struct{}

// Propose implements Strategy.
func (Random) Propose(q *Question) (int, bool) { return q.from(Hash(q.Keyspace, q.Region, "")) }

// TwoChoices names the colder one of two by hashes of the region.
type TwoChoices struct{}

// Propose implements Strategy.
func (TwoChoices) Propose(q *Question) (int, bool) {
	a, ok := q.from(Hash(q.Keyspace, q.Region, "1"))
	b, _ := q.from(Hash(q.Keyspace, q.Region, "2"))
	if ok && q.Candidates[b].colder(&q.Candidates[a]) {
		return b, true
	}
	return a, ok
}

// colder compares what candidates have of what they can take.
func (c *Candidate) colder(o *Candidate) bool {
	return load.Less(c.Load, c.Capacity, o.Load, o.Capacity)
}

// LeastLoaded names the coldest.
type LeastLoaded struct{}

// Propose implements Strategy.
func (LeastLoaded) Propose(q *Question) (int, bool) {
	best, found := 0, false
	for i := range q.Candidates {
		if q.Allowed(i) && (!found || q.Candidates[i].colder(&q.Candidates[best])) {
			best, found = i, true
		}
	}
	return best, found
}

// Index is that of a candidate by its id; -1: it is none of them.
func (q *Question) Index(id state.MemberID) int {
	i, found := slices.BinarySearchFunc(q.Candidates, id, func(c Candidate, id state.MemberID) int { return cmp.Compare(c.ID, id) })
	if !found {
		return -1
	}
	return i
}

// Fixed names who was named before, such as by a hook.
type Fixed map[state.RegionID]state.MemberID

// Propose implements Strategy.
func (f Fixed) Propose(q *Question) (int, bool) {
	id, ok := f[q.Region]
	if !ok {
		return 0, false
	}
	return q.Index(id), true
}
