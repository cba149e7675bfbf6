package placement

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// poisonDeaths of owners in a row, each so soon after it got a region, quarantine it.
	poisonDeaths = 3
	// PoisonTime is how soon that is.
	PoisonTime = 60 * time.Second
	// poisonRest is how long a region is in quarantine; one death more, and it is again.
	poisonRest = 10 * time.Minute
	// widely is what part of a member's regions is too much to be the reason of its death, and
	// severally how many: if so many have seen so many deaths, the members die of something else.
	widely, severally = 4, 4
	// maxSuspects bounds the regions whose owners died soon, maxGranted those that got theirs
	// lately: of more it is not noted.
	maxSuspects = 65_536
	maxGranted  = 262_144
)

// Poison finds regions that kill their owners, by the changes of views. It is for one
// goroutine.
type Poison struct {
	soon time.Duration
	// granted is when regions got their owners, if that was lately; queue has these in the
	// order of time, and some that are over.
	granted map[state.RegionID]clock.Instant
	queue   []alarm
	// lives are the incarnations of members, as far as something was said of them, or granted to
	// them.
	lives  map[state.MemberID]uint64
	deaths map[state.RegionID]int
	// until is when those in quarantine leave it.
	until map[state.RegionID]clock.Instant
	// fresh are those that have come there since Fresh.
	fresh []state.RegionID
}

// NewPoison suspects nothing. A death counts so soon after a grant.
func NewPoison(soon time.Duration) *Poison {
	return &Poison{
		soon: soon, granted: map[state.RegionID]clock.Instant{}, lives: map[state.MemberID]uint64{}, deaths: map[state.RegionID]int{},
		until: map[state.RegionID]clock.Instant{},
	}
}

// Follow goes on to a state, by what changed in between.
func (x *Poison) Follow(st *state.State, changes []state.Change, now clock.Instant) {
	for len(x.queue) > 0 && now.Sub(x.queue[0].at) > x.soon {
		x.outlive(x.queue[0])
		x.queue = x.queue[1:]
	}
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.ChangeMember:
			if x.member(st, c.Member, now); c.Removed {
				delete(x.lives, state.MemberID(c.Member.GetId()))
			}
		case state.ChangeRegion:
			if c.Removed {
				x.Release(c.Region.ID)
				delete(x.granted, c.Region.ID)
			} else if len(x.queue) < maxGranted && len(c.Region.Owners) > 0 && (c.OldRegion == nil || c.OldRegion.Epoch.ConfVersion != c.Region.Epoch.ConfVersion) {
				x.granted[c.Region.ID] = now
				x.queue = append(x.queue, alarm{now, c.Region.ID})
				for _, o := range c.Region.Owners { // or the end of one that nothing was said of is none
					x.lives[o.Member] = max(x.lives[o.Member], o.Incarnation)
				}
			}
		}
	}
}

// outlive takes that owners have had a region for long enough.
func (x *Poison) outlive(a alarm) {
	if x.granted[a.region] != a.at {
		return
	}
	delete(x.granted, a.region)
	if x.deaths[a.region] < poisonDeaths {
		delete(x.deaths, a.region)
	}
}

func (x *Poison) member(st *state.State, m *rootv1.Member, now clock.Instant) {
	id := state.MemberID(m.GetId())
	dead := x.lives[id]
	if x.lives[id] = m.GetIncarnation(); m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED {
		dead = m.GetIncarnation()
	} else if dead == m.GetIncarnation() {
		return
	}
	all, often := 0, []state.RegionID(nil)
	st.IncarnationRegions(dead, func(r *state.Region) bool {
		all++
		n, suspected := x.deaths[r.ID]
		if _, soon := x.granted[r.ID]; soon && (suspected || len(x.deaths) < maxSuspects) {
			delete(x.granted, r.ID) // this grant has had its death
			if n+1 < poisonDeaths {
				x.deaths[r.ID]++
			} else {
				often = append(often, r.ID)
			}
		}
		return true
	})
	if len(often) > severally || len(often) > 1 && widely*len(often) > all {
		return
	}
	for _, id := range often {
		x.deaths[id], x.until[id] = poisonDeaths, now.Add(poisonRest)
		x.fresh = append(x.fresh, id)
	}
}

// Fresh are the regions that were quarantined since it was called last.
func (x *Poison) Fresh() []state.RegionID {
	fresh := x.fresh
	x.fresh = nil
	return fresh
}

// All calls fn for each region in quarantine, and when it leaves.
func (x *Poison) All(fn func(id state.RegionID, until clock.Instant)) {
	for id, until := range x.until {
		if x.Quarantined(id) {
			fn(id, until)
		}
	}
}

// Until is when a region leaves quarantine; 0: it is in none.
func (x *Poison) Until(id state.RegionID) clock.Instant {
	if !x.Quarantined(id) {
		return 0
	}
	return x.until[id]
}

// Expire ends quarantines that are over.
func (x *Poison) Expire(now clock.Instant) {
	for id, until := range x.until {
		if until <= now {
			delete(x.until, id)
			x.deaths[id] = poisonDeaths - 1
		}
	}
}

// Quarantined reports whether a region is left alone.
func (x *Poison) Quarantined(id state.RegionID) bool { return x.deaths[id] >= poisonDeaths }

// Release gives a region another chance.
func (x *Poison) Release(id state.RegionID) {
	delete(x.deaths, id)
	delete(x.until, id)
}
