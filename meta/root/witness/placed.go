package witness

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Placed is what is known of who owns the regions of assigned keyspaces.
type Placed struct {
	// Assigned is the number of these regions; Orphaned of them have no owner that may
	// act, as the state counts.
	Assigned, Orphaned uint64
	// Walked: each of them was looked at. Led is how many of them are shown with a leader.
	Walked bool
	Led    uint64
	// Followed: the changes behind Since were judged, which Judged counts.
	Followed bool
	Since    state.Token
	Judged   Judged
	// Violations are all that were found, Found the first of each kind.
	Violations Violations
	Found      []Anomaly
}

// counted is what a State says of itself, at a cost that does not grow with regions.
func counted(s *state.State) *Placed {
	p := &Placed{Orphaned: uint64(s.Orphaned())}
	s.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if spaceOf(k).assigned {
			p.Assigned += uint64(s.KeyspaceRegionCount(state.KeyspaceID(k.GetId())))
		}
		return true
	})
	return p
}

// Placed is what was found of the changes up to a State, and what that counts.
func (v *Invariants) Placed(s *state.State) *Placed {
	p := counted(s)
	v.Found(p)
	return p
}

// Found adds what was found of the changes to what a State counts, at a cost that does not
// grow with it.
func (v *Invariants) Found(p *Placed) {
	p.Followed, p.Since, p.Judged = true, v.since, v.judged
	p.Violations, p.Found = v.violations, slices.Clone(v.found)
}

// Walk looks at each region of a State, which takes as long as there are regions: leader,
// if it is not nil, says who is shown to lead one. It returns how many are, and what it
// found: each kind of a region once, 65,536 of a kind at most, with numbers the first 16.
func Walk(s *state.State, leader func(*state.Region) state.MemberID) (led uint64, found []Anomaly) {
	v := NewInvariants(s)
	v.walks = true
	led = v.walk(s, leader)
	return led, v.found
}

// Keep takes what a walk found: what is known to be broken is not counted again. Behind
// 65,536 regions of a kind no walk counts.
func (v *Invariants) Keep(found []Anomaly) {
	for _, a := range found {
		if v.first(a) {
			v.at = a.At
			v.count(a)
		}
	}
}

// Violations are all that were found.
func (v *Invariants) Violations() Violations { return v.violations }

// walk judges each region of a State by the model's members, and by what the log said of
// it if that is remembered.
func (v *Invariants) walk(s *state.State, leader func(*state.Region) state.MemberID) (led uint64) {
	v.at = state.Token{}
	orphans, seen := 0, 0
	s.Keyspaces("", func(k *rootv1.Keyspace) bool {
		assigned := spaceOf(k).assigned
		s.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool {
			seen++
			if leader != nil {
				if id := leader(r); id != "" {
					led++
					v.Leads(state.Token{}, s, r, id)
				}
			}
			if assigned {
				if !slices.ContainsFunc(r.Owners, v.acts) {
					orphans++
				}
				v.record(r)
			}
			return true
		})
		return true
	})
	if orphans != s.Orphaned() {
		v.broke(OrphansMiscounted, 0, "%d regions have no owner that may act, %d are counted as orphaned", orphans, s.Orphaned())
	}
	if v.memory != nil && seen != len(v.memory.regions) {
		v.broke(OwnerMismatch, 0, "by the log there are %d regions, by the records %d", len(v.memory.regions), seen)
	}
	return led
}

// record judges the record of a region.
func (v *Invariants) record(r *state.Region) {
	if twice := double(r.Owners); twice != "" {
		v.broke(TwoOwners, r.ID, "region %d has member %s as an owner twice at epoch %s", r.ID, twice, r.Epoch)
	}
	for _, o := range r.Owners {
		m := v.members[o.Member]
		if m == nil || m.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED || o.Incarnation > m.GetIncarnation() {
			v.broke(GrantedToNobody, r.ID, "region %d is owned at epoch %s by incarnation %d of member %s, %s", r.ID, r.Epoch, o.Incarnation, o.Member, whoIs(m))
		}
	}
	if v.memory == nil {
		return
	}
	if said := v.memory.regions[r.ID]; !sameRecord(said, r) {
		v.broke(OwnerMismatch, r.ID, "by the log region %d is %s, by its record %s", r.ID, describe(said), describe(r))
	}
}

func sameRecord(a, b *state.Region) bool {
	if a == b || a == nil || b == nil {
		return a == b
	}
	return a.ID == b.ID && a.Keyspace == b.Keyspace && a.Epoch == b.Epoch && a.Start == b.Start && a.End == b.End && a.Frontier == b.Frontier && sameOwners(a.Owners, b.Owners)
}

func describe(r *state.Region) string {
	if r == nil {
		return "not there"
	}
	return fmt.Sprintf("[%q, %q), %s at epoch %s, frontier %q", r.Start, r.End, namesOf(r.Owners), r.Epoch, r.Frontier)
}

// Leads judges who callers are told to lead a region, by the members of a State.
func (v *Invariants) Leads(at state.Token, s *state.State, r *state.Region, leader state.MemberID) {
	v.at = at
	m := s.Member(leader)
	switch o, owns := r.Owner(leader); {
	case !owns:
		v.broke(LeaderNotOwner, r.ID, "member %s is shown to lead region %d at epoch %s, which is %s", leader, r.ID, r.Epoch, namesOf(r.Owners))
	case !accepts(m) || o.Incarnation != 0 && o.Incarnation != m.GetIncarnation():
		v.broke(LeaderNotOwner, r.ID, "incarnation %d of member %s is shown to lead region %d at epoch %s, %s", o.Incarnation, leader, r.ID, r.Epoch, whoIs(m))
	}
}

// numbers is the sentence that shows that Placement holds.
func (p *Placed) numbers() string {
	var b strings.Builder
	if p.Assigned == 0 {
		b.WriteString("no keyspace with regions is assigned")
	} else {
		fmt.Fprintf(&b, "%s that may act, %d orphaned", plural(int(p.Assigned-min(p.Orphaned, p.Assigned)), "region has an owner", "regions have owners"), p.Orphaned)
		if !p.Walked {
			b.WriteString(", as they are counted")
		}
	}
	if p.Led > 0 {
		fmt.Fprintf(&b, "; %s", plural(int(p.Led), "leader is an owner", "leaders are owners"))
	}
	if p.Followed {
		from := "from the first entry on:"
		if p.Since.Index > 0 {
			from = "behind " + p.Since.String() + ":"
		}
		fmt.Fprintf(&b, "; %s %s, none to a member that was not up; %d let go of", from, plural(int(p.Judged.Grants), "grant", "grants"), p.Judged.Moved)
		if p.Judged.Asked > 0 {
			fmt.Fprintf(&b, ", %d taken at once as somebody asked", p.Judged.Asked)
		}
	}
	return b.String()
}
