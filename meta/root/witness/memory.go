package witness

import (
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// memory is what the log last made of each region, and of those that are gone the epoch,
// of as many as the state machine remembers.
type memory struct {
	regions map[state.RegionID]*state.Region
	gone    map[state.RegionID]*state.Region
	order   []state.RegionID
}

// Remember has every region kept from here on: a change is judged by what the log said
// before, not by what it says itself, and the records at the end by all of it.
func (v *Invariants) Remember(s *state.State) {
	v.memory = &memory{regions: map[state.RegionID]*state.Region{}, gone: map[state.RegionID]*state.Region{}}
	s.Keyspaces("", func(k *rootv1.Keyspace) bool {
		s.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool {
			v.memory.regions[r.ID] = r
			return true
		})
		return true
	})
}

// recall is what the log last said of a region that changes; nil: it was not there.
func (v *Invariants) recall(c *state.Change, sp space) *state.Region {
	m, r := v.memory, c.Region
	old := m.regions[r.ID]
	if sp.assigned && !sameRecord(old, c.OldRegion) {
		v.broke(OwnerMismatch, r.ID, "by the log region %d is %s, by its change it was %s", r.ID, describe(old), describe(c.OldRegion))
	}
	if c.Removed {
		m.forget(r)
		return old
	}
	if was := m.gone[r.ID]; sp.assigned && was != nil && r.Epoch.Version <= was.Epoch.Version {
		v.broke(EpochReused, r.ID, "region %d was removed at epoch %s, and is there again at %s", r.ID, was.Epoch, r.Epoch)
	}
	delete(m.gone, r.ID)
	m.regions[r.ID] = r
	return old
}

func (m *memory) forget(r *state.Region) {
	delete(m.regions, r.ID)
	m.gone[r.ID], m.order = r, append(m.order, r.ID)
	if len(m.order) > state.MaxRemovedRegions {
		delete(m.gone, m.order[0])
		m.order = m.order[1:]
	}
}

// drop forgets the regions that a keyspace had: its slots are not remembered.
func (m *memory) drop(id state.KeyspaceID) {
	if m == nil {
		return
	}
	for _, r := range m.gone {
		if r.Keyspace == id {
			delete(m.gone, r.ID)
		}
	}
}
