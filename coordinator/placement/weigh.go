package placement

import (
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Sums are the loads that members have by regions of each assigned keyspace, at a moment, and what
// those by load weigh, once asked for. They are added up by looking at every region there is, and so
// they are kept for a while: the longer, the more regions there are. The zero Sums are of no moment.
type Sums struct {
	until   clock.Instant
	all     map[state.MemberID]load.Pair
	of      map[state.KeyspaceID]map[state.MemberID]load.Pair
	weighed map[state.KeyspaceID]*weighed
}

// sumsFor is how long sums are kept, for each region in them.
const sumsFor = 20 * time.Microsecond

// sums are those of now, or of a while ago.
func (p *planner) sums() *Sums {
	if p.Sums == nil {
		p.Sums = &Sums{}
	}
	if p.Sums.of == nil || p.Now > p.Sums.until {
		p.sumUp(p.Sums)
	}
	return p.Sums
}

// elsewhere is the load that a member has of regions of assigned keyspaces, but for one's.
func (s *Sums) elsewhere(id state.MemberID, but state.KeyspaceID) load.Pair {
	return s.all[id].Minus(s.of[but][id])
}

func (p *planner) sumUp(s *Sums) {
	regions := 0
	s.all, s.of, s.weighed = map[state.MemberID]load.Pair{}, map[state.KeyspaceID]map[state.MemberID]load.Pair{}, map[state.KeyspaceID]*weighed{}
	p.State.Keyspaces("", func(record *rootv1.Keyspace) bool {
		if !assigned(record) { // what is reported of others is no region's here
			return true
		}
		id, own := state.KeyspaceID(record.GetId()), map[state.MemberID]load.Pair{}
		p.addUp(id, own)
		for member, w := range own {
			s.all[member] = s.all[member].Plus(w)
		}
		s.of[id] = own
		regions += p.State.KeyspaceRegionCount(id)
		return true
	})
	s.until = p.Now.Add(sumsFor * time.Duration(regions))
}

// addUp adds what members have of a keyspace.
func (p *planner) addUp(id state.KeyspaceID, sums map[state.MemberID]load.Pair) {
	p.State.RegionsFrom(id, "", func(r *state.Region) bool {
		w, _ := p.Loads.Region(r.ID, p.Now)
		for _, o := range r.Owners {
			sums[o.Member] = sums[o.Member].Plus(w.Share(1, uint64(len(r.Owners))))
		}
		return true
	})
}

// loadOf is the load of a region: of one on a member above what it can take, the fast
// average alone. everyone has been asked for.
func (p *planner) loadOf(r *state.Region) (w load.Pair, known bool) {
	w, known = p.Loads.Region(r.ID, p.Now)
	if known && len(r.Owners) == 1 && len(p.hot) > 0 && p.hot[r.Owners[0].Incarnation] {
		w = load.Same(p.Loads.Fast(r.ID, p.Now))
	}
	return w, known
}

// weighed is what the regions of a keyspace weigh, what members have of it by that, and how much of
// that does not count in what all have.
type weighed struct {
	balance.Scale
	has    map[state.MemberID]load.Pair
	beyond map[state.MemberID]load.Amount
}

// count adds a region to what its owners have; by is 1, and -1 to take it off.
func (s *weighed) count(owners []state.Owner, l load.Pair, known bool, by load.Amount) {
	w := s.Weight(l, known, 1)
	beyond := s.Beyond(w)
	if n := uint64(len(owners)); n > 1 {
		w, beyond = w.Share(1, n), beyond.Share(1, n)
	}
	for _, o := range owners {
		s.has[o.Member] = s.has[o.Member].Plus(load.Pair{Low: by * w.Low, High: by * w.High})
		if beyond > 0 {
			s.beyond[o.Member] = s.beyond[o.Member].Plus(by * beyond)
		}
	}
}

// Follow goes on by what changed, as a book knows the loads before that: what a region weighs is of its next
// owners then. A keyspace of which the settings changed is weighed anew.
func (s *Sums) Follow(book *load.Book, changes []state.Change, now clock.Instant) {
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.ChangeKeyspace:
			delete(s.weighed, state.KeyspaceID(c.Keyspace.GetId()))
		case state.ChangeRegion:
			w := s.weighed[c.Region.Keyspace]
			if w == nil || c.Acknowledges() {
				continue
			}
			l, known := book.Region(c.Region.ID, now)
			if c.OldRegion != nil {
				w.count(c.OldRegion.Owners, l, known, -1)
			}
			if !c.Removed {
				w.count(c.Region.Owners, l, known, 1)
			}
		}
	}
}

// weigh weighs a keyspace by load, as rounds do, by the owners that its regions have, now or a while ago.
func (p *planner) weigh(k *settings) *weighed {
	kept := p.sums().weighed
	s := kept[k.id]
	if s != nil {
		return s
	}
	s = &weighed{has: map[state.MemberID]load.Pair{}, beyond: map[state.MemberID]load.Amount{}}
	kept[k.id] = s
	members, _ := p.members(k)
	told, owners := make([]balance.Told, 0, p.State.KeyspaceRegionCount(k.id)), make([][]state.Owner, 0, p.State.KeyspaceRegionCount(k.id))
	p.State.RegionsFrom(k.id, "", func(r *state.Region) bool {
		l, known := p.loadOf(r)
		told, owners = append(told, balance.Told{Start: r.Start, Load: l, Known: known}), append(owners, r.Owners)
		return true
	})
	s.Scale = balance.ScaleOf(k.policy, members, len(told), slices.Values(told))
	for i := range told {
		s.count(owners[i], told[i].Load, told[i].Known, 1)
	}
	return s
}

// scale is a keyspace by load with what is under way, on its way, or begun: repairs and drains give by it, and
// the next round finds nothing to even out behind them.
func (p *planner) scale(k *settings) *weighed {
	s := p.scales[k.id]
	if s != nil {
		return s
	}
	kept := p.weigh(k)
	s = &weighed{kept.Scale, maps.Clone(kept.has), maps.Clone(kept.beyond)}
	p.scales[k.id] = s
	for id := range p.changing(k.id) {
		r := p.State.Region(id)
		owners, from, to := p.planned(r)
		owners = slices.DeleteFunc(slices.Clone(owners), func(o state.Owner) bool { return o.Member == from })
		if to != "" {
			owners = append(owners, state.Owner{Member: to})
		}
		l, known := p.loadOf(r)
		s.count(r.Owners, l, known, -1)
		s.count(owners, l, known, 1)
	}
	return s
}

// changing are the regions of a keyspace that are about to have other owners.
func (p *planner) changing(ks state.KeyspaceID) map[state.RegionID]bool {
	ids := map[state.RegionID]bool{}
	note := func(id state.RegionID, of state.KeyspaceID) {
		if of == ks && p.State.Region(id) != nil {
			ids[id] = true
		}
	}
	for id, m := range p.Moves.byRegion {
		note(id, m.keyspace)
	}
	for id, l := range p.Moves.leavers {
		note(id, l.keyspace)
	}
	if p.Busy != nil {
		for id, x := range p.Busy.byRegion {
			note(id, x.o.Keyspace)
		}
	}
	for _, n := range p.begun {
		if n > 0 {
			note(p.plan.Operations[n-1].Region, p.plan.Operations[n-1].Keyspace)
		}
	}
	return ids
}
