package state

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/internal/cow"
)

// holding is what one member owns, or one incarnation of it. The States that share one do not write to
// it: the first change makes it a State's own, see ownership.
type holding struct {
	// regions are ordered by id. What a region is says State.Region: it may be
	// replaced without a change here.
	regions cow.Index[RegionID]
	// counts says how many of them lie in each keyspace, and leaves out none.
	counts cow.Index[keyspaceCount]
	by     *ownership
}

// ownership marks the holdings that a State made since its last fork, and may
// change in place. It has a size so that each has its own address.
type ownership struct{ _ byte }

type keyspaceCount struct {
	keyspace KeyspaceID
	regions  int
}

func (c keyspaceCount) key() cow.Key { return cow.Key{Group: uint64(c.keyspace)} }

func newHolding(by *ownership) *holding {
	return &holding{regions: cow.NewIndex(idKey), counts: cow.NewIndex(keyspaceCount.key), by: by}
}

// holder is whoever has a holding.
type holder interface {
	~uint64 | ~string
	cmp.Ordered
}

// holdingOf is a holder's holding, to be changed.
func holdingOf[H holder](s *State, all cow.Map[H, *holding], id H) *holding {
	if s.owner == nil {
		s.owner = new(ownership)
	}
	h, ok := all.Get(id)
	switch {
	case !ok:
		h = newHolding(s.owner)
	case h.by != s.owner:
		// Others may read it, and branch from it, at the same time.
		h = &holding{regions: h.regions.Branch(), counts: h.counts.Branch(), by: s.owner}
	default:
		return h
	}
	all.Set(id, h)
	return h
}

// gain notes that the holder owns the region.
func gain[H holder](s *State, all cow.Map[H, *holding], id H, r *Region) {
	h := holdingOf(s, all, id)
	h.regions.Set(r.ID)
	h.counts.Set(keyspaceCount{keyspace: r.Keyspace, regions: h.in(r.Keyspace) + 1})
}

// lose notes that the holder owns the region no longer.
func lose[H holder](s *State, all cow.Map[H, *holding], id H, r *Region) {
	h := holdingOf(s, all, id)
	h.regions.Delete(r.idKey())
	if h.regions.Len() == 0 {
		all.Delete(id)
		return
	}
	c := keyspaceCount{keyspace: r.Keyspace, regions: h.in(r.Keyspace) - 1}
	if c.regions == 0 {
		h.counts.Delete(c.key())
		return
	}
	h.counts.Set(c)
}

// in is how many regions of the keyspace are held.
func (h *holding) in(ks KeyspaceID) int {
	c, _ := h.counts.Get(keyspaceCount{keyspace: ks}.key())
	return c.regions
}

// load makes a holding of regions in any order and of counts by keyspace.
func (h *holding) load(ids []RegionID, counts []keyspaceCount) {
	slices.Sort(ids)
	h.regions = cow.LoadIndex(idKey, ids)
	h.counts = cow.LoadIndex(keyspaceCount.key, counts)
}

// MemberRegionCount is the number of regions that the member owns.
func (s *State) MemberRegionCount(id MemberID) int {
	if h, ok := s.owned.Get(id); ok {
		return h.regions.Len()
	}
	return 0
}

// MemberKeyspaceRegionCount is the number of regions of the keyspace that the
// member owns.
func (s *State) MemberKeyspaceRegionCount(id MemberID, ks KeyspaceID) int {
	if h, ok := s.owned.Get(id); ok {
		return h.in(ks)
	}
	return 0
}

// MemberKeyspaces calls fn for the keyspaces of which the member owns regions, by id, until fn returns
// false.
func (s *State) MemberKeyspaces(id MemberID, fn func(KeyspaceID) bool) {
	if h, ok := s.owned.Get(id); ok {
		h.counts.Scan(func(c keyspaceCount) bool { return fn(c.keyspace) })
	}
}

// MemberRegionsAfter calls fn for the regions that the member owns, by id, those
// behind an id, until fn returns false.
func (s *State) MemberRegionsAfter(id MemberID, after RegionID, fn func(*Region) bool) {
	if h, ok := s.owned.Get(id); ok {
		h.regions.Ascend(idKey(after), func(at RegionID) bool { return at == after || fn(s.Region(at)) })
	}
}
