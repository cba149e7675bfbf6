package placement

import (
	"maps"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// maxPause bounds the pause behind changes of a region that were given up, which doubles,
	// and mostDoublings how often.
	maxPause = time.Hour
	// shortPause is that behind a change that was given up before its deadline, at first.
	shortPause    = time.Second
	mostDoublings = 10
	// maxGivenUp bounds the regions that rest because of that.
	maxGivenUp = 65_536
)

// Attempts are the changes of owners and ranges that are under way, and since when; and the
// regions whose last change was given up, which rest before the next one. They are followed by
// every coordinator, with the Tenure or without: the time that a change has, which is rooted
// with it, counts from when this coordinator saw that it was planned, so that the next holder
// does not count it anew. It is elapsed time, as every other bound here: the wall clocks of two
// coordinators may be hours apart, and would end changes that have just begun. A coordinator
// that has started since counts from when it started. They are for one goroutine.
type Attempts struct {
	pending map[string]attempt
	givenUp map[state.RegionID]givenUp
}

// attempt is a change that is under way: planned is the entry that planned it.
type attempt struct {
	planned uint64
	seen    clock.Instant
}

// givenUp is a region that no change of was completed at its epoch.
type givenUp struct {
	epoch state.Epoch
	times int
	until clock.Instant
}

// NewAttempts begins at a state: what is under way there began now, as far as it is known, and
// when something was given up is not.
func NewAttempts(st *state.State, now clock.Instant) *Attempts {
	x := &Attempts{pending: map[string]attempt{}, givenUp: map[state.RegionID]givenUp{}}
	x.Jump(st, now)
	return x
}

// Jump goes on to a state without knowing what changed in between.
func (x *Attempts) Jump(st *state.State, now clock.Instant) {
	before := x.pending
	x.pending = map[string]attempt{}
	st.Transitions(func(t *rootv1.Transition) bool {
		old, known := before[t.GetId()]
		if known = known && old.planned == t.GetPlannedAt().GetIndex(); known {
			x.pending[t.GetId()] = old
		}
		if known || t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
			x.transition(st, t, false, now)
		}
		return true
	})
	maps.DeleteFunc(x.givenUp, func(id state.RegionID, g givenUp) bool {
		r := st.Region(id)
		return r == nil || r.Epoch != g.epoch
	})
}

// Follow goes on to a state by what changed in between.
func (x *Attempts) Follow(st *state.State, changes []state.Change, now clock.Instant) {
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.ChangeTransition:
			x.transition(st, c.Transition, c.Removed, now)
		case state.ChangeRegion:
			if g, ok := x.givenUp[c.Region.ID]; ok && (c.Removed || c.Region.Epoch != g.epoch) {
				delete(x.givenUp, c.Region.ID)
			}
		}
	}
}

func (x *Attempts) transition(st *state.State, t *rootv1.Transition, gone bool, now clock.Instant) {
	old, known := x.pending[t.GetId()]
	if t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING && !gone {
		if at := t.GetPlannedAt().GetIndex(); !known || old.planned != at {
			x.pending[t.GetId()] = attempt{at, now}
		}
		return
	}
	delete(x.pending, t.GetId())
	if s := t.GetStatus(); gone || s != rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED && s != rootv1.TransitionStatus_TRANSITION_STATUS_ABORTED {
		return
	}
	r := st.Region(state.RegionID(t.GetRegionId()))
	if r == nil || r.Epoch != state.EpochFromProto(t.GetBaseEpoch()) || !assigned(st.Keyspace(r.Keyspace)) || nextOwnerLeft(st, t) {
		return
	}
	g := x.givenUp[r.ID]
	if g.times == 0 && len(x.givenUp) >= maxGivenUp {
		return
	}
	pause := deadlineOf(settingsOf(st.Keyspace(r.Keyspace)), t)
	if known && now.Sub(old.seen) < pause { // it was given up before, because of something else
		pause = min(now.Sub(old.seen), shortPause)
	}
	pause = min(pause<<min(g.times, mostDoublings), maxPause)
	x.givenUp[r.ID] = givenUp{epoch: r.Epoch, times: g.times + 1, until: now.Add(pause)}
}

// nextOwnerLeft reports whether a change was given up because of who would have got the
// region: that says nothing about the region, and another one may take it at once.
func nextOwnerLeft(st *state.State, t *rootv1.Transition) bool {
	m := st.Member(state.MemberID(t.GetOwner().GetMemberId()))
	switch t.GetKind() {
	case rootv1.TransitionKind_TRANSITION_KIND_MOVE, rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER:
		return m.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE || m.GetIncarnation() != t.GetOwner().GetIncarnation() ||
			!Accepts(st, m, st.Keyspace(state.KeyspaceID(t.GetKeyspaceId())).GetName())
	}
	return false
}

// Copy is what a plan that is not for now is made of.
func (x *Attempts) Copy() *Attempts {
	return &Attempts{pending: maps.Clone(x.pending), givenUp: maps.Clone(x.givenUp)}
}

// seen is when a change that is under way was seen first.
func (x *Attempts) seen(t *rootv1.Transition) (clock.Instant, bool) {
	if x == nil {
		return 0, false
	}
	a, ok := x.pending[t.GetId()]
	return a.seen, ok && a.planned == t.GetPlannedAt().GetIndex()
}

// RestsUntil is when the next change of a region may begin, to even out or to drain; a
// moment that is over: at once.
func (x *Attempts) RestsUntil(r *state.Region) clock.Instant {
	if x == nil {
		return 0
	}
	if g, ok := x.givenUp[r.ID]; ok && g.epoch == r.Epoch {
		return g.until
	}
	return 0
}

// deadlineOf is the time that a change has: its own, or that of the keyspace where it has no
// room for one; 0: no bound.
func deadlineOf(k *settings, t *rootv1.Transition) time.Duration {
	if t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MOVE {
		return millis(t.GetDeadlineMillis())
	}
	return k.deadline
}
