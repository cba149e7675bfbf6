package placement

import (
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	// poisonDeaths of owners in a row, each so soon after it got a region, are what it takes at
	// least to quarantine it.
	poisonDeaths = 3
	// PoisonTime is how soon that is, and how long an owner has to live with a region that is
	// suspected.
	PoisonTime = 60 * time.Second
	// byChance is how many regions may be expected to have seen the same deaths, if members
	// died of something else, for one that has to be quarantined.
	byChance = 0.01
	// deathsTime is how long a death of a member is remembered, maxDeaths how many are.
	deathsTime = 10 * time.Minute
	maxDeaths  = 4096
	// poisonRest is how long a region is in quarantine at first; twice as long each time that
	// it comes there again, and longestRest at most.
	poisonRest  = time.Minute
	longestRest = 10 * time.Minute
	// severally is how many regions are quarantined for the same deaths, a widely-th part of a
	// member's at most, once they have seen surelyDeaths.
	severally, widely, surelyDeaths = 4, 4, poisonDeaths + 2
	// maxSuspects bounds the regions whose owners died, maxGranted those that got theirs
	// lately: of more it is not noted.
	maxSuspects = 65_536
	maxGranted  = 262_144
)

// Poison finds regions that kill their owners, by the changes of views. It is for one
// goroutine.
//
// Some region always has seen the last few deaths, whatever members died of: each time that
// one dies, its regions go to others, and some of them to the one that dies next. So a region
// is suspected of what chance does not explain. Of the regions that a member had when it died,
// one in as many as there are members is expected to be with the next one that dies. What is
// left of them after all deaths in a row, times the ways to choose these among all deaths of
// late, is how many regions would have seen as much by chance.
//
// The deaths of a machine, of all its members, are explained by that. Deaths that somebody
// wanted do not count: of a member that drained or said goodbye, or that an operator said to
// have failed, without a signal.
type Poison struct {
	soon time.Duration
	// granted is when regions got their owners, if that was lately; queue has these in the
	// order of time, and some that are over.
	granted map[state.RegionID]clock.Instant
	queue   []alarm
	// lives are the incarnations of members, as far as something was said of them, or granted to
	// them.
	lives    map[state.MemberID]life
	suspects map[state.RegionID]suspect
	// deaths of late that nothing explains, by when they were.
	deaths []clock.Instant
	// until is when those in quarantine leave it.
	until map[state.RegionID]clock.Instant
	// fresh are those that have come there, or have left it, since Fresh.
	fresh []state.RegionID
}

// life is an incarnation of a member: whether it drains, and whether it is over.
type life struct {
	incarnation  uint64
	leaves, over bool
}

// suspect is a region whose owners died.
type suspect struct {
	// deaths in a row, of which so many were soon after a grant.
	deaths, soon int
	// chance is how many regions would have seen these deaths by chance, if there were no
	// others.
	chance float64
	// rests is how often it was in quarantine.
	rests int
}

// NewPoison suspects nothing. A death counts so soon after a grant.
func NewPoison(soon time.Duration) *Poison {
	return &Poison{
		soon: soon, granted: map[state.RegionID]clock.Instant{}, lives: map[state.MemberID]life{}, suspects: map[state.RegionID]suspect{},
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
					if x.lives[o.Member].incarnation < o.Incarnation {
						x.lives[o.Member] = life{incarnation: o.Incarnation}
					}
				}
			}
		}
	}
}

// outlive takes that owners have had a region for long enough: nothing is said against it, and
// if it was a trial, it is over.
func (x *Poison) outlive(a alarm) {
	if x.granted[a.region] == a.at {
		delete(x.granted, a.region)
		x.Release(a.region)
	}
}

// member takes what is said of a member, and finds the incarnation that has died by it.
func (x *Poison) member(st *state.State, m *rootv1.Member, now clock.Instant) {
	id := state.MemberID(m.GetId())
	was, failed := x.lives[id], m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED
	same := was.incarnation == m.GetIncarnation()
	x.lives[id] = life{
		incarnation: m.GetIncarnation(), over: failed,
		leaves: m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING || failed && same && was.leaves,
	}
	switch {
	case failed && !same:
		was = life{incarnation: m.GetIncarnation()}
	case !failed && same, was.incarnation == 0:
		return
	}
	if !was.over && !was.leaves && !(failed && explained(m)) {
		x.died(st, m, was.incarnation, now)
	}
}

// explained reports whether a verdict says what the member died of: nothing but somebody's
// word, or that it ended as it should.
func explained(m *rootv1.Member) bool {
	return len(m.GetSignals()) == 0 || slices.ContainsFunc(m.GetSignals(), func(s string) bool {
		return s == state.GoodbyeSignal || s == rooted.DrainedSignal || s == goneSignal
	})
}

// goneSignal is liveness.Gone: it said that it has stopped serving.
const goneSignal = "gone"

// died takes a death that counts.
func (x *Poison) died(st *state.State, m *rootv1.Member, dead uint64, now clock.Instant) {
	for len(x.deaths) > 0 && (now.Sub(x.deaths[0]) > deathsTime || len(x.deaths) >= maxDeaths) {
		x.deaths = x.deaths[1:]
	}
	var regions []state.RegionID
	st.IncarnationRegions(dead, func(r *state.Region) bool {
		regions = append(regions, r.ID)
		return true
	})
	x.deaths = append(x.deaths, now)
	owners := 1 // with this one
	st.Members(func(o *rootv1.Member) bool {
		if o.GetId() != m.GetId() && acts(o) && st.MemberRegionCount(state.MemberID(o.GetId())) > 0 {
			owners++
		}
		return true
	})
	x.suspect(regions, float64(owners), now)
}

func acts(m *rootv1.Member) bool {
	return m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE || m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING
}

// suspect has a death speak against the regions that the member had.
func (x *Poison) suspect(regions []state.RegionID, owners float64, now clock.Instant) {
	var often []state.RegionID
	for _, id := range regions {
		s, suspected := x.suspects[id]
		if !suspected && len(x.suspects) >= maxSuspects {
			continue
		}
		_, soon := x.granted[id]
		delete(x.granted, id) // this grant has had its death
		if soon && suspected {
			s.deaths, s.soon, s.chance = s.deaths+1, s.soon+1, s.chance/owners
		} else {
			s = suspect{deaths: 1, chance: float64(len(regions)), rests: s.rests}
			if soon {
				s.soon = 1
			}
		}
		x.suspects[id] = s
		if s.soon >= poisonDeaths && s.chance*ways(len(x.deaths), s.deaths) < byChance {
			often = append(often, id)
		}
	}
	if len(often) == 0 || !x.apart(regions, often) {
		return
	}
	for _, id := range often {
		s := x.suspects[id]
		x.until[id] = now.Add(min(poisonRest<<min(s.rests, 10), longestRest))
		s.rests++
		x.suspects[id] = s
		x.fresh = append(x.fresh, id)
	}
}

// apart reports whether regions have seen more deaths than what their owner had besides: not
// if too many have seen as much, but for one death.
func (x *Poison) apart(regions, often []state.RegionID) bool {
	most, like := 0, 0
	for _, id := range often {
		most = max(most, x.suspects[id].deaths)
	}
	for _, id := range regions {
		if x.suspects[id].deaths >= most-1 {
			like++
		}
	}
	switch {
	case like == 1:
		return true
	case like > severally || widely*like > len(regions):
		return false
	default:
		return len(often) == 1 || most >= surelyDeaths
	}
}

// ways is in how many ways some of all can be chosen.
func ways(all, some int) float64 {
	n := 1.0
	for i := range some {
		n = n * float64(max(all, some)-i) / float64(i+1)
	}
	return n
}

// Fresh are the regions that were quarantined, or are not any more, since it was called last.
func (x *Poison) Fresh() []state.RegionID {
	fresh := x.fresh
	x.fresh = nil
	slices.Sort(fresh)
	return slices.Compact(fresh)
}

// All calls fn for each region in quarantine, and when it leaves.
func (x *Poison) All(fn func(id state.RegionID, until clock.Instant)) {
	for id, until := range x.until {
		fn(id, until)
	}
}

// Until is when a region leaves quarantine; 0: it is in none.
func (x *Poison) Until(id state.RegionID) clock.Instant { return x.until[id] }

// Expire ends quarantines that are over: these regions are on trial with whoever gets them. One
// death more that speaks against them, and they are in quarantine for longer.
func (x *Poison) Expire(now clock.Instant) {
	for id, until := range x.until {
		if until <= now {
			delete(x.until, id)
			x.fresh = append(x.fresh, id)
		}
	}
}

// Quarantined reports whether a region is to be alone: whoever gets it has nothing else.
func (x *Poison) Quarantined(id state.RegionID) bool {
	_, in := x.until[id]
	return in
}

// Release gives a region another chance.
func (x *Poison) Release(id state.RegionID) {
	delete(x.suspects, id)
	if x.Quarantined(id) {
		delete(x.until, id)
		x.fresh = append(x.fresh, id)
	}
}
