package assigner

import (
	"cmp"
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
	// blindFor is how long a new holder evens nothing out before all members have said here
	// everything that they have.
	blindFor = 10 * time.Second
	// settledBy is how long after a change there are rounds: averages move for so long, and
	// members count as newcomers.
	settledBy = 10 * time.Minute
	// anyInterval is between rounds of keyspaces that say nothing of it.
	anyInterval = state.DefaultRebalanceIntervalMillis * time.Millisecond
	// roundGap, regionGap for each region, and memberGap for each member and keyspace that has
	// rounds, are between two rounds of a keyspace at least, whatever happens: a round looks at
	// all of its regions and at all members, and what happens to a member is for all keyspaces.
	roundGap, regionGap, memberGap = 200 * time.Millisecond, 20 * time.Microsecond, 4 * time.Microsecond
	// maxTogether bounds the keyspaces that one look evens out.
	maxTogether = 64
)

// trigger is what a round is for.
type trigger uint8

const (
	byInterval trigger = iota
	byMembers
	byMoves
	bySettings
	bySaturated
	byEra
	byOperator
)

func (t trigger) String() string {
	return [...]string{"interval", "members", "moves", "settings", "saturated", "era", "operator"}[t]
}

// rounds are when keyspaces are evened out. They belong to Look, in an era.
type rounds struct {
	of map[state.KeyspaceID]*pace
	// begun is how many operations that begin something are on their way to the root, by
	// keyspace: a round waits for them, because it would plan them again.
	begun map[state.KeyspaceID]int
	// crowded are keyspaces that wait for moves, maybe of others, to end.
	crowded map[state.KeyspaceID]struct{}
	// next is when the first one is due, of those that wait for nothing; 0: it is to be found.
	next clock.Instant
	// open: this holder knows enough to even out. from is when it does at the latest.
	open bool
	from clock.Instant
	// all keyspaces are to have a round, if pending; for what says why.
	pending bool
	why     trigger
	// leaving are keyspaces of which somebody owned regions that it does not take, or may not by the
	// grants, when that was looked at last; look: all members are to be looked at.
	leaving map[state.KeyspaceID]struct{}
	look    bool
}

// pace is when a keyspace has its rounds.
type pace struct {
	settings *rootv1.Keyspace
	policy   balance.Policy
	interval time.Duration
	// due is the next round, until how long there are rounds at each interval, and last when
	// the last one was.
	due, until, last clock.Instant
	why              trigger
	budget           balance.Budget
	// idle: there are rounds only while somebody leaves the keyspace.
	idle bool
	// cool is since when regions are, and cold below which load they may be.
	cool map[state.RegionID]clock.Instant
	cold load.Amount
}

func newRounds(now clock.Instant) rounds {
	return rounds{of: map[state.KeyspaceID]*pace{}, begun: map[state.KeyspaceID]int{}, crowded: map[state.KeyspaceID]struct{}{}, from: now.Add(blindFor), pending: true, why: byEra, leaving: map[state.KeyspaceID]struct{}{}, look: true}
}

// pace returns that of a keyspace by its settings as they are; nil: nothing of it may ever
// have to move to even out, or to put right what is where it may not be.
func (r *rounds) pace(a *Raw, k *rootv1.Keyspace, now clock.Instant) *pace {
	id, s := state.KeyspaceID(k.GetId()), k.GetSettings()
	x := r.of[id]
	if x != nil && x.settings == k {
		return x
	}
	p := placement.PolicyOf(s)
	idle := !p.Even && p.Spread == "" && len(p.Rules) == 0 && p.PerMember == 0 && p.OwnersMax == 1 && !p.CutKeys
	if _, leaves := r.leaving[id]; s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED || idle && !leaves {
		delete(r.of, id)
		return nil
	}
	if x == nil {
		x = &pace{due: never, last: now - clock.Instant(time.Hour), budget: a.past.budget(id, a.st.KeyspaceRegionCount(id), p, now)}
		r.of[id] = x
	}
	x.settings, x.policy, x.interval, x.idle = k, p, anyInterval, idle
	if b := state.RebalanceOf(s); b != nil {
		x.interval = max(time.Duration(b.GetIntervalMillis())*time.Millisecond, roundGap)
	}
	return x
}

// leaves notes the keyspaces of which a member owns regions that it does not take any more, or may not.
func (r *rounds) leaves(st *state.State, m *rootv1.Member) {
	st.MemberKeyspaces(state.MemberID(m.GetId()), func(ks state.KeyspaceID) bool {
		if misplaced(st, m, ks) {
			r.leaving[ks] = struct{}{}
		}
		return true
	})
}

// misplaced reports whether a region of a keyspace is to leave a member that does not take it, or may not.
// Of a member that is not active all regions go elsewhere.
func misplaced(st *state.State, m *rootv1.Member, ks state.KeyspaceID) bool {
	return m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE && !placement.Accepts(st, m, st.Keyspace(ks).GetName())
}

// left notes again of which keyspaces somebody owns regions that it may not, and ends the rounds of those
// that had them for that alone.
func (r *rounds) left(st *state.State) {
	clear(r.leaving)
	r.look = false
	st.Members(func(m *rootv1.Member) bool {
		r.leaves(st, m)
		return true
	})
	for id, x := range r.of {
		if _, leaves := r.leaving[id]; x.idle && !leaves {
			delete(r.of, id)
		}
	}
}

// stays is for how long there are rounds at each interval after a change.
func (x *pace) stays() time.Duration {
	p := &x.policy
	d := settledBy + p.Settle + p.Cooldown + time.Duration(state.GuardsOf(x.settings.GetSettings()).GetNoMoveBackMillis())*time.Millisecond
	if p.Ranges || p.OwnersMax > 1 {
		d += p.Quiet + p.Cut
	}
	return d
}

// stay has rounds go on at each interval: something of a keyspace is not as it was.
func (r *rounds) stay(a *Raw, id state.KeyspaceID, now clock.Instant) {
	if x := r.find(a, id, now); x != nil {
		x.until = now.Add(x.stays())
		x.due = min(x.due, max(x.last.Add(x.interval), now))
		r.next = min(r.next, x.due)
	}
}

// soon has a round come soon.
func (r *rounds) soon(a *Raw, id state.KeyspaceID, why trigger, now clock.Instant) {
	if x := r.find(a, id, now); x != nil {
		x.until = now.Add(x.stays())
		gap := roundGap + regionGap*time.Duration(a.st.KeyspaceRegionCount(id)) + memberGap*time.Duration(a.st.MemberCount()*len(r.of))
		x.due, x.why = min(x.due, max(x.last.Add(gap), now)), max(x.why, why)
		r.next = min(r.next, x.due)
	}
}

func (r *rounds) find(a *Raw, id state.KeyspaceID, now clock.Instant) *pace {
	k := a.st.Keyspace(id)
	if k == nil {
		delete(r.of, id)
		return nil
	}
	return r.pace(a, k, now)
}

// everywhere has all keyspaces have a round soon.
func (r *rounds) everywhere(why trigger) {
	if r.pending {
		why = max(r.why, why)
	}
	r.pending, r.why = true, why
}

// take returns the keyspaces that are to be evened out now, and when the next one is.
func (r *rounds) take(a *Raw, now clock.Instant) (ids []state.KeyspaceID, next clock.Instant) {
	if !r.open {
		if now < r.from && !a.knowsAll() {
			return nil, r.from
		}
		r.open = true
	}
	if r.look {
		r.left(a.st)
	}
	if r.pending {
		why := r.why
		r.pending, r.why = false, 0
		a.st.Keyspaces("", func(k *rootv1.Keyspace) bool {
			r.soon(a, state.KeyspaceID(k.GetId()), why, now)
			return true
		})
	}
	if now < r.next {
		return nil, r.next
	}
	next = never
	for id, x := range r.of {
		switch {
		case r.begun[id] > 0: // what comes of these has it looked at again
		case x.due <= now:
			r.look = r.look || x.idle // until nobody leaves
			ids = append(ids, id)
		default:
			next = min(next, x.due)
		}
	}
	slices.SortFunc(ids, func(a, b state.KeyspaceID) int {
		return cmp.Or(cmp.Compare(r.of[a].due, r.of[b].due), cmp.Compare(a, b))
	})
	if r.next = next; len(ids) > 0 {
		r.next = 0
	}
	return ids[:min(len(ids), maxTogether)], next
}

// knowsAll reports whether every member that may own something has said everything here.
func (a *Raw) knowsAll() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := true
	a.st.Members(func(m *rootv1.Member) bool {
		if s := a.speakers[state.MemberID(m.GetId())]; m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE {
			all = s != nil && s.complete && s.incarnation == m.GetIncarnation()
		}
		return all
	})
	return all
}

// enrich tells a plan what it needs to even keyspaces out.
func (a *Raw) enrich(in *placement.Input, ids []state.KeyspaceID, now clock.Instant) {
	in.Insight, in.Drained, in.Created, in.Attempts, in.Unserved = insight{a}, a.past.drained, a.past.created, a.past.attempts, a.unserved
	if len(a.loads.keyspaces) > 0 {
		in.Loads, in.Sums = a.loads.book, a.loads.sums
	}
	if len(ids) == 0 {
		return
	}
	in.Rebalance, in.Budgets = ids, make(map[state.KeyspaceID]balance.Budget, len(ids))
	for _, id := range ids {
		x := a.rounds.of[id]
		in.Budgets[id] = x.budget
		a.cools(id, x, now)
	}
}

// rounded goes on from the rounds of a plan.
func (a *Raw) rounded(plan *placement.Plan, ids []state.KeyspaceID, now clock.Instant) {
	if len(ids) == 0 {
		return
	}
	shown := newShown(plan, ids)
	for _, id := range ids {
		x := a.rounds.of[id]
		out, made := plan.Balanced[id]
		if made {
			x.budget, x.cold = out.Budget, a.coldOf(out.Total, a.st.Keyspace(id).GetName())
		}
		if len(out.Steps) > 0 || shown[id].waits() {
			x.until = now.Add(x.stays())
		}
		delete(a.rounds.crowded, id)
		if shown[id].refused[placement.TooManyMoves] != nil {
			a.rounds.crowded[id] = struct{}{}
		}
		shown[id].at, shown[id].why = now, x.why
		x.last, x.why, x.due = now, byInterval, never
		if next := now.Add(x.interval); next <= x.until {
			x.due = next
		}
	}
	for i := range plan.Refusals {
		if f := &plan.Refusals[i]; f.Even && f.At > now {
			if x := a.rounds.of[f.Keyspace]; x != nil {
				x.due = min(x.due, max(f.At, now.Add(roundGap)))
			}
		}
	}
	a.showRounds(shown)
}

// begins reports whether an operation begins something that a round counts on.
func begins(o *placement.Operation) bool { return o.Kind >= placement.PlanMove }

// sent and landed count what is on its way.
func (r *rounds) sent(operations []placement.Operation) {
	for i := range operations {
		if begins(&operations[i]) {
			r.begun[operations[i].Keyspace]++
		}
	}
}

func (r *rounds) landed(o *placement.Operation) {
	if !begins(o) {
		return
	}
	if r.begun[o.Keyspace]--; r.begun[o.Keyspace] <= 0 {
		delete(r.begun, o.Keyspace)
		r.next = 0
	}
}

// gaveUp has a region rest that was to move, and did not.
func (r *rounds) gaveUp(id state.KeyspaceID, region state.RegionID, now clock.Instant) {
	if x := r.of[id]; x != nil {
		x.budget = x.budget.Failed(region, x.policy, now)
	}
}

// ended goes on from a transition that was planned to even out.
func (a *Raw) ended(t *rootv1.Transition, now clock.Instant) {
	id := state.KeyspaceID(t.GetKeyspaceId())
	a.count.add(func() {
		if t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED {
			a.count.evened++
		} else {
			a.count.unevened++
			a.count.failedFor[word(t.GetCause().String(), "OPERATION_REASON_")]++
		}
	})
	if gaveUp(t) {
		a.rounds.gaveUp(id, state.RegionID(t.GetRegionId()), now)
	}
	a.rounds.soon(a, id, byMoves, now)
}

// followRounds looks at what changed for what has to be evened out.
func (a *Raw) followRounds(changes []state.Change, now clock.Instant) {
	changed, ended := map[state.KeyspaceID]struct{}{}, false
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.ChangeMember:
			if id := state.MemberID(c.Member.GetId()); a.undrained[id].incarnation != a.st.Member(id).GetIncarnation() {
				delete(a.undrained, id)
			}
			a.rounds.leaves(a.st, c.Member)
			a.rounds.everywhere(byMembers)
		case state.ChangeGrant:
			a.rounds.look = true
			a.rounds.everywhere(bySettings)
		case state.ChangeKeyspace:
			id := state.KeyspaceID(c.Keyspace.GetId())
			a.weigh(id, a.st, now)
			a.bring(id)
			a.cadence.learn(a, id, now)
			a.recount(id)
			a.rounds.soon(a, id, bySettings, now)
		case state.ChangeTransition:
			ended = ended || c.Removed || !isPending(c.Transition)
		case state.ChangeRegion:
			if c.Acknowledges() {
				continue
			}
			if c.Removed {
				a.shows.notes.drop(c.Region.ID)
			}
			ks := c.Region.Keyspace
			changed[ks] = struct{}{}
			came := func(o state.Owner) bool { return misplaced(a.st, a.st.Member(o.Member), ks) }
			if !c.Removed && slices.ContainsFunc(c.Region.Owners, came) { // it was on its way when that changed
				a.rounds.leaving[ks] = struct{}{}
				a.rounds.soon(a, ks, byMembers, now)
			}
		}
	}
	if ended { // whatever it moved has room for something else
		for id := range a.rounds.crowded {
			a.rounds.soon(a, id, byMoves, now)
		}
		clear(a.rounds.crowded)
	}
	for id := range changed {
		if x := a.rounds.find(a, id, now); x != nil && x.policy.Even {
			a.rounds.stay(a, id, now)
		}
	}
}
