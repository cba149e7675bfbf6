package placement

import (
	"maps"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

// Copy is an Input with what is under way and on its way, to make a plan of while the Work
// goes on. It has no regions to look at: see InNeed.
func (w *Work) Copy(observed Observed, now clock.Instant) Input {
	return Input{
		State: w.st, Observed: observed, Moves: w.moves.copy(), Now: now, Busy: w.busy.copy(), Leaves: maps.Clone(w.leaves),
	}
}

// OnItsWay reports whether an operation of a region is on its way to the root.
func (w *Work) OnItsWay(id state.RegionID) bool {
	return w.busy.Has(id)
}

func (m *Moves) copy() *Moves {
	return &Moves{
		byRegion: maps.Clone(m.byRegion), gives: maps.Clone(m.gives), takes: maps.Clone(m.takes), takesByKey: maps.Clone(m.takesByKey),
		leavers: maps.Clone(m.leavers),
	}
}

// InNeed are the regions of an assigned keyspace that Make has something to do about: they
// have no owner, one that may not act, or a change under way.
func InNeed(st *state.State, id state.KeyspaceID) (ids []state.RegionID) {
	if !assigned(st.Keyspace(id)) {
		return nil
	}
	st.RegionsFrom(id, "", func(r *state.Region) bool {
		in := len(r.Owners) == 0 || st.PendingTransition(r.ID) != nil
		for _, o := range r.Owners {
			in = in || !st.Acts(o)
		}
		if in {
			ids = append(ids, r.ID)
		}
		return true
	})
	return ids
}

// InQuarantine are the regions that are.
func (x *Poison) InQuarantine() map[state.RegionID]struct{} {
	ids := make(map[state.RegionID]struct{}, len(x.until))
	for id := range x.until {
		ids[id] = struct{}{}
	}
	return ids
}
