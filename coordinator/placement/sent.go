package placement

import (
	"maps"

	"github.com/nokv/nokv/meta/root/state"
)

// Sent are operations on their way to the root, and what they bring to members as long as
// the state has not got them. A nil one has none.
type Sent struct {
	byRegion map[state.RegionID]sending
	// given and taken are changes of owners that begin, from members and to them.
	given, taken map[state.MemberID]int
	total        map[state.MemberID]int
	coming       map[share]int
	// firsts are grants of regions that have no owner.
	firsts map[state.KeyspaceID]int
}

// sending is one of them; ahead: the state has not got it, to is who gets something.
type sending struct {
	o     Operation
	to    []state.MemberID
	first bool
	ahead bool
}

func newSent() *Sent {
	return &Sent{
		byRegion: map[state.RegionID]sending{}, given: map[state.MemberID]int{}, taken: map[state.MemberID]int{},
		total: map[state.MemberID]int{}, coming: map[share]int{}, firsts: map[state.KeyspaceID]int{},
	}
}

func (s *Sent) copy() *Sent {
	return &Sent{
		byRegion: maps.Clone(s.byRegion), given: maps.Clone(s.given), taken: maps.Clone(s.taken),
		total: maps.Clone(s.total), coming: maps.Clone(s.coming), firsts: maps.Clone(s.firsts),
	}
}

// send notes an operation that was planned at a state.
func (s *Sent) send(st *state.State, o *Operation) {
	s.judged(o.Region)
	x := sending{o: *o, ahead: true}
	switch r := st.Region(o.Region); o.Kind {
	case Assign:
		x.first = r != nil && len(r.Owners) == 0
		for _, owner := range o.Owners {
			if r == nil {
				break
			}
			if _, has := r.Owner(owner.Member); !has {
				x.to = append(x.to, owner.Member)
			}
		}
	case PlanMove, AddOwner:
		x.to = []state.MemberID{o.To.Member}
	}
	s.byRegion[o.Region] = x
	s.count(&x, 1)
}

func (s *Sent) count(x *sending, by int) {
	for _, id := range x.to {
		add(s.total, id, by)
		at := share{id, x.o.Keyspace}
		if s.coming[at] += by; s.coming[at] == 0 {
			delete(s.coming, at)
		}
	}
	switch x.o.Kind {
	case Assign:
		if x.first {
			add(s.firsts, x.o.Keyspace, by)
		}
	case PlanMove, AddOwner, RemoveOwner:
		add(s.given, x.o.From.Member, by)
		add(s.taken, x.o.To.Member, by)
	}
}

// land notes that the state has what an operation of a region began, or more.
func (s *Sent) land(id state.RegionID) {
	if x, ok := s.byRegion[id]; ok && x.ahead {
		s.count(&x, -1)
		x.ahead = false
		s.byRegion[id] = x
	}
}

// follow notes the epoch that a region has now.
func (s *Sent) follow(id state.RegionID, epoch state.Epoch) {
	if x, ok := s.byRegion[id]; ok && epoch != x.o.Epoch {
		s.land(id)
	}
}

func (s *Sent) judged(id state.RegionID) {
	s.land(id)
	delete(s.byRegion, id)
}

// Has reports whether an operation of a region is on its way.
func (s *Sent) Has(id state.RegionID) bool {
	if s == nil {
		return false
	}
	_, has := s.byRegion[id]
	return has
}

// of is the operation of a region that the state has not got; nil: there is none.
func (s *Sent) of(id state.RegionID) *Operation {
	if s == nil {
		return nil
	}
	if x, ok := s.byRegion[id]; ok && x.ahead {
		return &x.o
	}
	return nil
}

// gives and takes are how many changes of owners that begin are on their way, all how many
// regions a member gets.
func (s *Sent) gives(id state.MemberID) int {
	if s == nil {
		return 0
	}
	return s.given[id]
}

func (s *Sent) takes(id state.MemberID) int {
	if s == nil {
		return 0
	}
	return s.taken[id]
}

func (s *Sent) all(id state.MemberID) int {
	if s == nil {
		return 0
	}
	return s.total[id]
}

func (s *Sent) in(id state.MemberID, ks state.KeyspaceID) int {
	if s == nil {
		return 0
	}
	return s.coming[share{id, ks}]
}

func (s *Sent) first(ks state.KeyspaceID) int {
	if s == nil {
		return 0
	}
	return s.firsts[ks]
}
