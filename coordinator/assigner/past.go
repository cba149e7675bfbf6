package assigner

import (
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// maxPast bounds the moves, and the regions that were cut, that are remembered, and
	// pastTime is for how long these are, and when members joined.
	maxPast  = 16_384
	pastTime = time.Hour
	// longestHold is how long regions are kept for the next process of a member, whatever
	// a keyspace says.
	longestHold = state.MaxHoldMillis * time.Millisecond
)

// past is what was rooted lately, of what a plan asks for and nobody can read in the root
// as it is now: when. It is followed without the Tenure as well, so that a new holder has it.
type past struct {
	joined map[state.MemberID]clock.Instant
	// ended are the processes of members that ended last, created keyspaces.
	ended   map[state.MemberID]ending
	created map[state.KeyspaceID]clock.Instant
	// acked is the key that the region of each keyspace ends at whose frontier was rooted
	// last, and marks are when entries came.
	acked map[state.KeyspaceID]string
	marks []mark
	cut   map[state.RegionID]clock.Instant
	// moves to even out, in the order in which they were seen, all of them since from; pending are
	// those under way, by transition.
	moves   []pastMove
	from    clock.Instant
	pending map[string]struct{}
	drained clock.Instant
	poison  *placement.Poison
	// attempts are the changes under way, and those that were given up; nil: no state came.
	attempts *placement.Attempts
	// clean is when it is looked for what is over.
	clean clock.Instant
}

// ending is when an incarnation that has ended was heard last.
type ending struct {
	incarnation uint64
	at          clock.Instant
}

type pastMove struct {
	keyspace state.KeyspaceID
	balance.Past
}

func newPast(soon time.Duration) past {
	return past{
		joined: map[state.MemberID]clock.Instant{}, cut: map[state.RegionID]clock.Instant{}, pending: map[string]struct{}{},
		poison: placement.NewPoison(soon), ended: map[state.MemberID]ending{}, created: map[state.KeyspaceID]clock.Instant{}, acked: map[state.KeyspaceID]string{},
	}
}

// evens reports whether a transition was planned to even out, and not because its owner
// is to go or somebody asked for it.
func evens(t *rootv1.Transition) bool {
	switch t.GetCause() {
	case rootv1.OperationReason_OPERATION_REASON_COUNT, rootv1.OperationReason_OPERATION_REASON_LOAD, rootv1.OperationReason_OPERATION_REASON_HOT,
		rootv1.OperationReason_OPERATION_REASON_COLD, rootv1.OperationReason_OPERATION_REASON_LIMIT, rootv1.OperationReason_OPERATION_REASON_LABEL_RULE,
		rootv1.OperationReason_OPERATION_REASON_SATURATED, rootv1.OperationReason_OPERATION_REASON_NOT_ACCEPTED:
		return true
	}
	return false
}

// roundOf is the round of a transition that the hour pays for; 0: it does not. One because of a
// limit may be of a constraint, too, which is free: nobody can tell later on. By a split, and by one owner
// more where one is saturated, nothing leaves anybody; a shared region moves by one owner more, and one less.
func roundOf(t *rootv1.Transition) balance.Round {
	moves := t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_MOVE || t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER
	switch t.GetCause() {
	case rootv1.OperationReason_OPERATION_REASON_COUNT, rootv1.OperationReason_OPERATION_REASON_LOAD, rootv1.OperationReason_OPERATION_REASON_HOT:
		if moves {
			return balance.Shed
		}
	case rootv1.OperationReason_OPERATION_REASON_LIMIT:
		if moves {
			return balance.Limit
		}
	case rootv1.OperationReason_OPERATION_REASON_COLD:
		return balance.Shape
	}
	return 0
}

func isPending(t *rootv1.Transition) bool {
	return t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING
}

// gaveUp reports whether a transition ended without a change.
func gaveUp(t *rootv1.Transition) bool {
	s := t.GetStatus()
	return s == rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED || s == rootv1.TransitionStatus_TRANSITION_STATUS_ABORTED
}

// begin takes what the first state says: which moves there were, not when.
func (p *past) begin(st *state.State, now clock.Instant) {
	p.attempts, p.from = placement.NewAttempts(st, now), now
	st.Transitions(func(t *rootv1.Transition) bool {
		if isPending(t) && evens(t) {
			p.pending[t.GetId()] = struct{}{}
		}
		p.note(t, 0, now, !isPending(t))
		return true
	})
}

// note keeps a transition in mind that is paid for, which moves so much load.
func (p *past) note(t *rootv1.Transition, w load.Amount, now clock.Instant, late bool) {
	round := roundOf(t)
	if round == 0 {
		return
	}
	if len(p.moves) == maxPast {
		p.from = max(p.from, p.moves[maxPast/4-1].At+1)
		p.moves = slices.Delete(p.moves, 0, maxPast/4)
	}
	p.moves = append(p.moves, pastMove{state.KeyspaceID(t.GetKeyspaceId()), balance.Past{
		Region: state.RegionID(t.GetRegionId()), At: now, Round: round, Load: w, Failed: gaveUp(t), Late: late,
	}})
}

// weigher says how much load a transition moves, by what owners say of regions.
type weigher func(*rootv1.Transition) load.Amount

// jump drops what may have ended unseen.
func (p *past) jump(st *state.State, now clock.Instant) {
	p.attempts.Jump(st, now)
	p.from = now
	maps.DeleteFunc(p.pending, func(id string, _ struct{}) bool { return !isPending(st.Transition(id)) })
}

// follow goes on from a state to the next one. It calls ended for each transition that was
// planned to even out, and ended; heard is when an incarnation was heard last here, 0: never, and
// weigh how much load a transition moves.
func (p *past) follow(from, st *state.State, changes []state.Change, now clock.Instant, heard func(state.MemberID, uint64) clock.Instant, weigh weigher, ended func(*rootv1.Transition)) {
	for i := range changes {
		switch c := &changes[i]; {
		case c.Kind == state.ChangeMember && !c.Removed:
			p.member(from.Member(state.MemberID(c.Member.GetId())), c.Member, now)
			p.silent(c.Member, heard)
		case c.Kind == state.ChangeMember:
			delete(p.ended, state.MemberID(c.Member.GetId()))
		case c.Kind == state.ChangeKeyspace && c.Removed:
			delete(p.created, state.KeyspaceID(c.Keyspace.GetId()))
			delete(p.acked, state.KeyspaceID(c.Keyspace.GetId()))
		case c.Kind == state.ChangeKeyspace && c.Keyspace.GetVersion() == 1:
			p.created[state.KeyspaceID(c.Keyspace.GetId())] = now
		case c.Kind == state.ChangeTransition:
			p.transition(c, now, weigh, ended)
		case c.Acknowledges():
			p.acked[c.Region.Keyspace] = c.Region.End
		case c.Kind == state.ChangeRegion && c.Removed:
			delete(p.cut, c.Region.ID)
		}
	}
	p.poison.Follow(st, changes, now)
	p.attempts.Follow(st, changes, now)
	p.forget(now)
}

func (p *past) member(old, m *rootv1.Member, now clock.Instant) {
	id := state.MemberID(m.GetId())
	switch was := old.GetIncarnation(); {
	case m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED && p.ended[id].incarnation != m.GetIncarnation():
		p.ended[id] = ending{m.GetIncarnation(), now}
	case was != 0 && was != m.GetIncarnation() && p.ended[id].incarnation != was:
		p.ended[id] = ending{was, now}
	}
	if m.GetIncarnation() != old.GetIncarnation() {
		p.joined[state.MemberID(m.GetId())] = now
	}
	if draining := rootv1.MemberState_MEMBER_STATE_DRAINING; m.GetState() == draining || old.GetState() == draining {
		p.drained = now
	}
}

// silent has the time that regions are kept for a member that has failed count from when it
// was heard last, as the ttl of its fence does.
func (p *past) silent(m *rootv1.Member, heard func(state.MemberID, uint64) clock.Instant) {
	id := state.MemberID(m.GetId())
	if e := p.ended[id]; m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED && e.incarnation == m.GetIncarnation() {
		if at := heard(id, e.incarnation); at != 0 {
			p.ended[id] = ending{e.incarnation, min(e.at, at)}
		}
	}
}

func (p *past) transition(c *state.Change, now clock.Instant, weigh weigher, ended func(*rootv1.Transition)) {
	t := c.Transition
	_, known := p.pending[t.GetId()]
	switch open := isPending(t) && !c.Removed; {
	case open && !known && evens(t):
		p.pending[t.GetId()] = struct{}{}
		p.note(t, weigh(t), now, false)
	case !open && known:
		delete(p.pending, t.GetId())
		if gaveUp(t) {
			p.note(t, 0, now, false)
		}
		ended(t)
	}
	if t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_SPLIT && t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED && len(p.cut) < maxPast {
		p.cut[state.RegionID(t.GetRegionId())], p.cut[state.RegionID(t.GetRightRegionId())] = now, now
	}
}

// forget drops what is over. It looks at everything once in a while.
func (p *past) forget(now clock.Instant) {
	if now < p.clean {
		return
	}
	p.clean = now.Add(time.Minute)
	over := func(at clock.Instant) bool { return now.Sub(at) > pastTime }
	maps.DeleteFunc(p.ended, func(_ state.MemberID, e ending) bool { return now.Sub(e.at) > longestHold })
	maps.DeleteFunc(p.created, func(_ state.KeyspaceID, at clock.Instant) bool { return over(at) })
	maps.DeleteFunc(p.joined, func(_ state.MemberID, at clock.Instant) bool { return over(at) })
	maps.DeleteFunc(p.cut, func(_ state.RegionID, at clock.Instant) bool { return over(at) })
	p.moves = slices.DeleteFunc(p.moves, func(m pastMove) bool { return over(m.At) })
}

// budget is that of a keyspace for who begins to even it out.
func (p *past) budget(id state.KeyspaceID, regions int, k balance.Policy, now clock.Instant) balance.Budget {
	var moves []balance.Past
	for _, m := range p.moves {
		if m.keyspace == id {
			moves = append(moves, m.Past)
		}
	}
	from := p.from
	if at, young := p.created[id]; young && at >= from {
		from = 0 // all that there was was seen
	}
	return balance.Recall(moves, from, regions, k, now)
}
