package assigner

import (
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

// unsaid finds regions of which their owners say nothing at all, though their streams have said here
// everything that they have: such a region looks like one that is served.
type unsaid struct {
	// due are the regions of members that are looked at later. Guarded by mu of Raw.
	due map[state.MemberID]*expected
	// since is when nothing was found of a region. Owned by Look.
	since map[unsaidOf]clock.Instant
}

// expected are regions of which something is to be said by a moment: those that a member was given, or says
// nothing of any more; all: every one that it owns.
type expected struct {
	at      clock.Instant
	all     bool
	regions []state.RegionID
}

type unsaidOf struct {
	region      state.RegionID
	member      state.MemberID
	incarnation uint64
}

const (
	// maxUnsaid bounds the regions that are remembered of which nothing is said, maxUnsaidLooks
	// about those that are looked at in one go. Of a member that is to say something of more than maxExpected
	// all are.
	maxUnsaid, maxUnsaidLooks = 1 << 16, 1 << 14
	maxExpected               = 1 << 10
)

func newUnsaid() unsaid {
	return unsaid{due: map[state.MemberID]*expected{}, since: map[unsaidOf]clock.Instant{}}
}

// expectLocked has regions of a member be looked at a little later, when it has had time to say something of
// them; none: all that it owns.
func (a *Raw) expectLocked(id state.MemberID, incarnation uint64, now clock.Instant, regions ...state.RegionID) {
	if !a.completeLocked(id, incarnation) {
		return
	}
	due := a.unsaid.due[id]
	if due == nil {
		due = &expected{at: now.Add(placement.UnservedLook)}
		a.unsaid.due[id] = due
		a.lookAt = min(a.lookAt, due.at)
	}
	due.all = due.all || len(regions) == 0 || len(due.regions)+len(regions) > maxExpected
	if due.regions = append(due.regions, regions...); due.all {
		due.regions = nil
	}
}

// expectGivenLocked does so for members that were given regions.
func (a *Raw) expectGivenLocked(changes []state.Change, now clock.Instant) {
	for i := range changes {
		c := &changes[i]
		if c.Kind != state.ChangeRegion || c.Removed {
			continue
		}
		for _, o := range c.Region.Owners {
			if c.OldRegion != nil {
				if old, had := c.OldRegion.Owner(o.Member); had && old.Incarnation == o.Incarnation {
					continue
				}
			}
			a.expectLocked(o.Member, o.Incarnation, now, c.Region.ID)
		}
	}
}

// completeLocked reports whether an incarnation has said here everything that it has, and there was room for
// all of it: of what was not kept nobody knows.
func (a *Raw) completeLocked(id state.MemberID, incarnation uint64) bool {
	s := a.speakers[id]
	return s != nil && s.complete && !s.lost && s.incarnation == incarnation
}

// nextUnsaid is an incarnation whose regions are to be looked at now; 0: there is none.
func (a *Raw) nextUnsaid(now clock.Instant) (id state.MemberID, incarnation uint64, due *expected) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, due := range a.unsaid.due {
		if due.at > now {
			continue
		}
		delete(a.unsaid.due, id)
		if s := a.speakers[id]; s != nil && s.complete && !s.lost {
			return id, s.incarnation, due
		}
	}
	return "", 0, nil
}

// lookForUnsaid is of which regions their owners say nothing.
func (a *Raw) lookForUnsaid(now clock.Instant) (all []placement.Getting) {
	for looked := 0; looked < maxUnsaidLooks; {
		id, incarnation, due := a.nextUnsaid(now)
		if incarnation == 0 {
			break
		}
		look := func(region state.RegionID) {
			looked++
			at := unsaidOf{region, id, incarnation}
			if _, known := a.unsaid.since[at]; !known && len(a.unsaid.since) < maxUnsaid && !a.said(at) {
				a.unsaid.since[at] = now
			}
		}
		for _, region := range due.regions {
			look(region)
		}
		if due.all {
			a.st.IncarnationRegions(incarnation, func(r *state.Region) bool {
				look(r.ID)
				return true
			})
		}
	}
	for at, since := range a.unsaid.since {
		if !a.said(at) && a.owes(at) {
			all = append(all, placement.Getting{Region: at.region, Incarnation: at.incarnation, Since: since, Failed: true, Unsaid: true})
		} else {
			delete(a.unsaid.since, at)
		}
	}
	return all
}

func (a *Raw) said(at unsaidOf) bool {
	_, said := a.cfg.Soft.Own(at.region, at.incarnation)
	return said
}

// owes reports whether something is to be said of a region.
func (a *Raw) owes(at unsaidOf) bool {
	r := a.st.Region(at.region)
	if r == nil {
		return false
	}
	o, owns := r.Owner(at.member)
	a.mu.Lock()
	defer a.mu.Unlock()
	return owns && o.Incarnation == at.incarnation && a.completeLocked(at.member, at.incarnation)
}
