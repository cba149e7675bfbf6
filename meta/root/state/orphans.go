package state

import (
	"slices"

	"github.com/nokv/nokv/internal/cow"
)

// An orphan is a region of an assigned keyspace that has no owner in its current
// incarnation which may still act: nobody serves it until it is granted anew.
//
// Who owns regions is kept by incarnation, which never comes back once it has ended. So
// the end of one makes orphans of all that it owned alone at once, whatever their
// number; only what it shared with others is looked at.

// life is a member's incarnation; the root gives no two members the same. 0 is that of
// owners from a time when their keyspace was reported: it has always ended.
type life uint64

// lives indexes the regions of assigned keyspaces by their owners' incarnations.
type lives struct {
	// alone has the regions with one owner, shared those with more.
	alone, shared cow.Map[life, *holding]
	// ended are those of alone that have ended.
	ended cow.Map[life, struct{}]
	// loose are the orphans without an owner, and those whose owners, two or more, have
	// all ended; by id.
	loose cow.Index[RegionID]
	// orphans counts all orphans.
	orphans int
}

func newLives() lives {
	return lives{
		alone: cow.New[life, *holding](), shared: cow.New[life, *holding](),
		ended: cow.New[life, struct{}](), loose: cow.NewIndex(idKey),
	}
}

func (l *lives) fork() lives {
	return lives{l.alone.Fork(), l.shared.Fork(), l.ended.Fork(), l.loose.Fork(), l.orphans}
}

func (l *lives) branch() lives {
	return lives{l.alone.Branch(), l.shared.Branch(), l.ended.Branch(), l.loose.Branch(), l.orphans}
}

// Orphaned is the number of regions of assigned keyspaces that nobody owns: no owner, or
// none that is current and may act.
func (s *State) Orphaned() int { return s.lives.orphans }

// KeyspaceOrphaned is Orphaned of one keyspace.
func (s *State) KeyspaceOrphaned(id KeyspaceID) int {
	if k, ok := s.keyspaces.Get(id); ok {
		return k.orphans
	}
	return 0
}

// Orphans calls fn for the regions that Orphaned counts until fn returns false: those
// without an owner and those that were shared by id, then the others by the
// incarnation that owned them, and by id.
func (s *State) Orphans(fn func(*Region) bool) {
	more := true
	visit := func(id RegionID) bool {
		more = fn(s.Region(id))
		return more
	}
	s.lives.loose.Scan(visit)
	s.lives.ended.Scan(func(l life, _ struct{}) bool {
		if h, ok := s.lives.alone.Get(l); ok && more {
			h.regions.Scan(visit)
		}
		return more
	})
}

// Acts reports whether the owner of a region of an assigned keyspace may act: it is the
// member's current incarnation, active or draining.
func (s *State) Acts(o Owner) bool {
	m := s.Member(o.Member)
	return o.Incarnation != 0 && m.GetIncarnation() == o.Incarnation && accepting(m)
}

// IncarnationRegions calls fn for the regions of assigned keyspaces that an incarnation
// owns, until fn returns false: those that are its own alone by id, then the shared ones.
func (s *State) IncarnationRegions(incarnation uint64, fn func(*Region) bool) {
	more := true
	visit := func(id RegionID) bool {
		more = fn(s.Region(id))
		return more
	}
	for _, all := range []cow.Map[life, *holding]{s.lives.alone, s.lives.shared} {
		if h, ok := all.Get(life(incarnation)); ok && more {
			h.regions.Scan(visit)
		}
	}
}

// IncarnationKeyspaces calls fn for the keyspaces of IncarnationRegions, with how many
// regions of each there are; of one with shared regions it may do so twice.
func (s *State) IncarnationKeyspaces(incarnation uint64, fn func(ks KeyspaceID, regions int)) {
	for _, all := range []cow.Map[life, *holding]{s.lives.alone, s.lives.shared} {
		if h, ok := all.Get(life(incarnation)); ok {
			h.counts.Scan(func(c keyspaceCount) bool {
				fn(c.keyspace, c.regions)
				return true
			})
		}
	}
}

// place indexes a region of an assigned keyspace by who owns it.
func (s *State) place(r *Region) {
	switch len(r.Owners) {
	case 0:
		s.loosen(r)
	case 1:
		l := life(r.Owners[0].Incarnation)
		gain(s, s.lives.alone, l, r)
		if !s.Acts(r.Owners[0]) {
			s.lives.ended.Set(l, struct{}{})
			s.countOrphans(r.Keyspace, 1)
		}
	default:
		for _, o := range r.Owners {
			if o.Incarnation != 0 {
				gain(s, s.lives.shared, life(o.Incarnation), r)
			}
		}
		if !slices.ContainsFunc(r.Owners, s.Acts) {
			s.loosen(r)
		}
	}
}

// displace undoes place.
func (s *State) displace(r *Region) {
	switch len(r.Owners) {
	case 0:
		s.fasten(r)
	case 1:
		l := life(r.Owners[0].Incarnation)
		lose(s, s.lives.alone, l, r)
		if !s.Acts(r.Owners[0]) {
			s.countOrphans(r.Keyspace, -1)
		}
		if _, ok := s.lives.alone.Get(l); !ok {
			s.lives.ended.Delete(l)
		}
	default:
		for _, o := range r.Owners {
			if o.Incarnation != 0 {
				lose(s, s.lives.shared, life(o.Incarnation), r)
			}
		}
		if !slices.ContainsFunc(r.Owners, s.Acts) {
			s.fasten(r)
		}
	}
}

func (s *State) loosen(r *Region) {
	s.lives.loose.Set(r.ID)
	s.countOrphans(r.Keyspace, 1)
}

func (s *State) fasten(r *Region) {
	s.lives.loose.Delete(r.idKey())
	s.countOrphans(r.Keyspace, -1)
}

// endLife makes orphans of what only an incarnation that ended owned.
func (s *State) endLife(l life) {
	if h, ok := s.lives.alone.Get(l); ok {
		s.lives.ended.Set(l, struct{}{})
		h.counts.Scan(func(c keyspaceCount) bool {
			s.countOrphans(c.keyspace, c.regions)
			return true
		})
	}
	if h, ok := s.lives.shared.Get(l); ok {
		h.regions.Scan(func(id RegionID) bool {
			if r := s.Region(id); !slices.ContainsFunc(r.Owners, s.Acts) {
				s.loosen(r)
			}
			return true
		})
	}
}

func (s *State) countOrphans(id KeyspaceID, more int) {
	k, _ := s.keyspaces.Get(id)
	next := *k
	next.orphans += more
	s.keyspaces.Set(id, &next)
	s.lives.orphans += more
}
