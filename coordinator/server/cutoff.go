package server

import (
	"maps"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// vainFor is how long it counts that a member asked in vain. One that finds no way tries
	// this one again after 5 s, and 2 s more that it waits for an answer; one that found
	// another way does not come back.
	vainFor = 12 * time.Second
	// vainLeast is how long a member must have found no way, and vainTimes how often.
	vainLeast = 10 * time.Second
	vainTimes = 3
	// vainAfter is how long a stream that is passed on is without an answer before its end
	// counts as silence of the holder, and not as the member's own change of mind.
	vainAfter = time.Second
)

// vain notes the members that asked here in vain to have their streams passed on to the
// holder of the Tenure: neither they nor this coordinator can reach it.
type vain struct {
	mu sync.Mutex
	// Guarded by mu. sweptAt is when what counts no more was taken away.
	asked   map[state.MemberID]vainly
	sweptAt clock.Instant
}

// vainly is when an incarnation asked so first and last, and how often, while an era lasts.
type vainly struct {
	incarnation uint64
	times       int
	era         state.Era
	since, at   clock.Instant
}

func (v *vain) note(id state.MemberID, incarnation uint64, era state.Era, now clock.Instant) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.asked == nil {
		v.asked = map[state.MemberID]vainly{}
	}
	if now.Sub(v.sweptAt) > vainFor {
		v.sweptAt = now
		maps.DeleteFunc(v.asked, func(_ state.MemberID, a vainly) bool { return now.Sub(a.at) > vainFor })
	}
	a := v.asked[id]
	if a.era != era || a.incarnation != incarnation || now.Sub(a.at) > vainFor {
		a = vainly{incarnation: incarnation, era: era, since: now}
	}
	a.at = now
	a.times++
	v.asked[id] = a
}

// forget is called when the holder has answered a member.
func (v *vain) forget(id state.MemberID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.asked, id)
}

// last takes what counts no more away and returns whose it is that does.
func (v *vain) last(era state.Era, now clock.Instant) map[state.MemberID]bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	count := make(map[state.MemberID]bool, len(v.asked))
	for id, a := range v.asked {
		if a.era != era || now.Sub(a.at) > vainFor {
			delete(v.asked, id)
			continue
		}
		if a.times >= vainTimes && a.at.Sub(a.since) >= vainLeast {
			count[id] = true
		}
	}
	return count
}

// CutOff says how many of the members that may serve have asked here in vain, for vainLeast and
// until now, to have their streams passed on to the holder of era, and how many such members
// there are. Those that have no streams, as replicated stores, ask nobody and count as reached.
func (s *Server) CutOff(era state.Era) (vain, of int) {
	st := s.view().State
	asked := s.vain.last(era, s.cfg.Clock.Now())
	if len(asked) == 0 {
		return 0, 0
	}
	st.Members(func(m *rootv1.Member) bool {
		id := state.MemberID(m.GetId())
		switch m.GetState() {
		case rootv1.MemberState_MEMBER_STATE_ACTIVE, rootv1.MemberState_MEMBER_STATE_DRAINING:
		default:
			return true
		}
		if asked[id] {
			vain++
		}
		of++
		return true
	})
	return vain, of
}
