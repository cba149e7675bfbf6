package state

import (
	"unsafe"

	"github.com/nokv/nokv/internal/cow"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Allocators are the fences, in a message of the caller's own.
func (s *State) Allocators() *rootv1.Allocators { return s.alloc.proto() }

// Coordinator returns a coordinator, or nil.
func (s *State) Coordinator(id CoordinatorID) *rootv1.Coordinator {
	c, _ := s.coordinators.Get(id)
	return c
}

// Coordinators calls fn for each coordinator by id until fn returns false.
func (s *State) Coordinators(fn func(*rootv1.Coordinator) bool) {
	s.coordinators.Scan(func(_ CoordinatorID, c *rootv1.Coordinator) bool { return fn(c) })
}

// CoordinatorsAfter is Coordinators behind an id.
func (s *State) CoordinatorsAfter(id CoordinatorID, fn func(*rootv1.Coordinator) bool) {
	s.coordinators.Ascend(id, func(at CoordinatorID, c *rootv1.Coordinator) bool { return at == id || fn(c) })
}

// CoordinatorCount is the number of coordinators.
func (s *State) CoordinatorCount() int { return s.coordinators.Len() }

// Member returns a member in any administrative state, or nil.
func (s *State) Member(id MemberID) *rootv1.Member {
	m, _ := s.members.Get(id)
	return m
}

// Members calls fn for each member by id, removed ones included, until fn
// returns false.
func (s *State) Members(fn func(*rootv1.Member) bool) {
	s.members.Scan(func(_ MemberID, m *rootv1.Member) bool { return fn(m) })
}

// MembersAfter is Members behind an id.
func (s *State) MembersAfter(id MemberID, fn func(*rootv1.Member) bool) {
	s.members.Ascend(id, func(at MemberID, m *rootv1.Member) bool { return at == id || fn(m) })
}

// MemberCount is the number of members, removed ones included.
func (s *State) MemberCount() int { return s.members.Len() }

// Keyspace returns a keyspace, or nil.
func (s *State) Keyspace(id KeyspaceID) *rootv1.Keyspace {
	if k, ok := s.keyspaces.Get(id); ok {
		return k.record
	}
	return nil
}

// KeyspaceByName returns the keyspace of that name, or nil.
func (s *State) KeyspaceByName(name string) *rootv1.Keyspace {
	id, ok := s.keyspaceNames.Get(name)
	if !ok {
		return nil
	}
	return s.Keyspace(id)
}

// Keyspaces calls fn for each keyspace whose name is above after, by name,
// until fn returns false. An empty after begins at the first.
func (s *State) Keyspaces(after string, fn func(*rootv1.Keyspace) bool) {
	s.keyspaceNames.Ascend(after, func(name string, id KeyspaceID) bool {
		return name == after || fn(s.Keyspace(id))
	})
}

// KeyspaceCount is the number of keyspaces.
func (s *State) KeyspaceCount() int { return s.keyspaces.Len() }

// KeyspaceRegionCount is the number of regions in the keyspace.
func (s *State) KeyspaceRegionCount(id KeyspaceID) int {
	if k, ok := s.keyspaces.Get(id); ok {
		return k.regions
	}
	return 0
}

// Region returns a region, or nil.
func (s *State) Region(id RegionID) *Region {
	r, _ := s.regionIDs.Get(idKey(id))
	return r
}

// RegionCount is the number of regions in the cluster.
func (s *State) RegionCount() int { return s.regions.Len() }

// RegionAt returns the region whose interval holds the route key, or nil.
func (s *State) RegionAt(ks KeyspaceID, routeKey string) *Region {
	r, _ := s.regions.Floor(startKey(ks, routeKey))
	if !r.reaches(ks, routeKey) {
		return nil
	}
	return r
}

// reaches reports whether the last region at or before a route key holds it.
func (r *Region) reaches(ks KeyspaceID, routeKey string) bool {
	return r != nil && r.Keyspace == ks && (r.End == "" || routeKey < r.End)
}

// RegionAtBytes is RegionAt without the need for a string.
func (s *State) RegionAtBytes(ks KeyspaceID, routeKey []byte) *Region {
	// The string lives only for the lookup; nothing keeps it.
	return s.RegionAt(ks, unsafe.String(unsafe.SliceData(routeKey), len(routeKey)))
}

// RegionsAt is RegionAtBytes for many route keys, in a fraction of the time:
// out[i], which the caller makes room for, is the region that holds
// routeKeys[i], or nil.
func (s *State) RegionsAt(ks KeyspaceID, routeKeys [][]byte, out []*Region) {
	var room [32]cow.Key
	for len(routeKeys) > 0 {
		keys := room[:min(len(room), len(routeKeys))]
		for i, k := range routeKeys[:len(keys)] {
			keys[i] = startKey(ks, unsafe.String(unsafe.SliceData(k), len(k))) // lives only for the lookup
		}
		s.regions.Floors(keys, out)
		for i, r := range out[:len(keys)] {
			if !r.reaches(ks, keys[i].Text) {
				out[i] = nil
			}
		}
		routeKeys, out = routeKeys[len(keys):], out[len(keys):]
	}
}

// RegionsFrom calls fn for the keyspace's regions in order, from the one that
// holds the route key, or else the next one, until fn returns false.
func (s *State) RegionsFrom(ks KeyspaceID, routeKey string, fn func(*Region) bool) {
	start := routeKey
	if r := s.RegionAt(ks, routeKey); r != nil {
		start = r.Start
	}
	s.regions.Ascend(startKey(ks, start), func(r *Region) bool {
		return r.Keyspace == ks && fn(r)
	})
}

// Transition returns a transition, pending or remembered, or nil.
func (s *State) Transition(id string) *rootv1.Transition {
	t, _ := s.transitions.Get(id)
	return t.record
}

// Transitions calls fn for each transition, pending and remembered, by id,
// until fn returns false.
func (s *State) Transitions(fn func(*rootv1.Transition) bool) {
	s.transitions.Scan(func(_ string, t transition) bool { return fn(t.record) })
}

// TransitionsAfter is Transitions behind an id.
func (s *State) TransitionsAfter(id string, fn func(*rootv1.Transition) bool) {
	s.transitions.Ascend(id, func(at string, t transition) bool { return at == id || fn(t.record) })
}

// PendingTransition returns the pending transition that the region takes part
// in, or nil.
func (s *State) PendingTransition(id RegionID) *rootv1.Transition {
	t, ok := s.pending.Get(id)
	if !ok {
		return nil
	}
	return s.Transition(t)
}

// startKey orders regions: keyspaces one after the other, regions in the order
// of their start.
func startKey(ks KeyspaceID, start string) cow.Key {
	return cow.Key{Group: uint64(ks), Text: start}
}

func (r *Region) startKey() cow.Key { return startKey(r.Keyspace, r.Start) }

func idKey(id RegionID) cow.Key { return cow.Key{Group: uint64(id)} }

func (r *Region) idKey() cow.Key { return idKey(r.ID) }
