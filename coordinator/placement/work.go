package placement

import (
	"maps"
	"slices"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// MaxRegions bounds the regions of one plan.
const MaxRegions = 16_384

// Moves are the changes of owners that are under way in assigned keyspaces, and those of
// ranges, which their owner gives and gets back.
type Moves struct {
	byRegion     map[state.RegionID]move
	gives, takes map[state.MemberID]int
	takesByKey   map[share]int
	// leavers are owners of shared regions that go when others are there that were added for them.
	leavers map[state.RegionID]leaver
}

// leaver is an owner that goes when another one is there. Only who planned that knows: behind a change of
// holders the region has one owner more, until it is cool, or another round moves it.
type leaver struct {
	keyspace state.KeyspaceID
	from, to state.Owner
	reason   rootv1.OperationReason
}

type share struct {
	member   state.MemberID
	keyspace state.KeyspaceID
}

type move struct {
	id       string
	from, to state.MemberID
	keyspace state.KeyspaceID
	// planned is the entry that planned it: one that was given up and planned anew has the
	// same id.
	planned uint64
	seen    clock.Instant
}

func (x move) same(o move) bool { return x.id == o.id && x.planned == o.planned }

func newMoves() *Moves {
	return &Moves{
		byRegion: map[state.RegionID]move{}, gives: map[state.MemberID]int{}, takes: map[state.MemberID]int{}, takesByKey: map[share]int{},
		leavers: map[state.RegionID]leaver{},
	}
}

// MovesOf are those that are under way in a state.
func MovesOf(st *state.State, now clock.Instant) *Moves {
	m := newMoves()
	st.Transitions(func(t *rootv1.Transition) bool {
		if r := st.Region(state.RegionID(t.GetRegionId())); r != nil && assigned(st.Keyspace(r.Keyspace)) {
			m.follow(t, r, false, now)
		}
		return true
	})
	return m
}

// Seen is when the transition of a region was first seen here; now, if it is not known.
func (m *Moves) Seen(id state.RegionID, now clock.Instant) clock.Instant {
	if x, ok := m.byRegion[id]; ok {
		return x.seen
	}
	return now
}

// Gives is how many changes take a region off a member, Takes how many bring it one.
func (m *Moves) Gives(id state.MemberID) int { return m.gives[id] }

// Takes is how many changes bring a member a region.
func (m *Moves) Takes(id state.MemberID) int { return m.takes[id] }

func (m *Moves) takesIn(id state.MemberID, ks state.KeyspaceID) int {
	return m.takesByKey[share{id, ks}]
}

// Len is how many there are.
func (m *Moves) Len() int { return len(m.byRegion) }

// follow notes a transition as it is rooted now, of a region as it is. It reports whether
// it is, or was, one that is counted and was under way.
func (m *Moves) follow(t *rootv1.Transition, r *state.Region, gone bool, now clock.Instant) bool {
	id := state.RegionID(t.GetRegionId())
	old, known := m.byRegion[id]
	if t.GetStatus() != rootv1.TransitionStatus_TRANSITION_STATUS_PENDING || gone {
		ended := known && old.id == t.GetId()
		if ended {
			delete(m.byRegion, id)
			m.count(old, -1)
		}
		return ended
	}
	x := move{id: t.GetId(), keyspace: state.KeyspaceID(t.GetKeyspaceId()), planned: t.GetPlannedAt().GetIndex(), seen: now}
	owner := state.MemberID(t.GetOwner().GetMemberId())
	switch t.GetKind() {
	case rootv1.TransitionKind_TRANSITION_KIND_MOVE:
		x.from, x.to = state.MemberID(t.GetFrom().GetMemberId()), owner
	case rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER:
		x.to = owner
	case rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER:
		x.from = owner
	case rootv1.TransitionKind_TRANSITION_KIND_SPLIT, rootv1.TransitionKind_TRANSITION_KIND_MERGE:
		if r != nil && len(r.Owners) == 1 {
			x.from = r.Owners[0].Member
		}
	default:
		return false
	}
	if known && old.same(x) {
		x.seen = old.seen
	}
	if known {
		m.count(old, -1)
	}
	m.byRegion[id] = x
	m.count(x, 1)
	return true
}

func (m *Moves) count(x move, by int) {
	add(m.gives, x.from, by)
	add(m.takes, x.to, by)
	if x.to != "" {
		add(m.takesByKey, share{x.to, x.keyspace}, by)
	}
}

func add[K comparable](counts map[K]int, k K, by int) {
	var none K
	if k == none {
		return
	}
	if counts[k] += by; counts[k] == 0 {
		delete(counts, k)
	}
}

// Work is what is to be looked at: it follows views, so that no plan needs to look at
// everything. It is for one goroutine.
type Work struct {
	st    *state.State
	moves *Moves
	dirty map[state.RegionID]struct{}
	// busy regions have an operation on its way to the root.
	busy *Sent
	// lives are the incarnations of members that were current last.
	lives map[state.MemberID]uint64
	// taken are the regions without an owner that may have one who acts for them still.
	taken map[state.RegionID]*rooted.FormerOwner
	// draining members that own something.
	draining map[state.MemberID]struct{}
	// leaves are current incarnations that have not failed and said when they end.
	leaves map[state.MemberID]Leave
	// later is when regions are to be looked at again; alarms has all of these, and some
	// that are over.
	later  map[state.RegionID]clock.Instant
	alarms alarms
	// starving are regions that nobody can take, as far as is known; stalled says that
	// there are such of draining members. again: to plan although no region is dirty.
	starving       map[state.RegionID]struct{}
	stalled, again bool
}

// NewWork begins at a state: it looks at what is orphaned there, at members,
// transitions and regions that are shared.
func NewWork(st *state.State, now clock.Instant) *Work {
	w := &Work{
		st: st, moves: newMoves(), dirty: map[state.RegionID]struct{}{}, busy: newSent(),
		draining: map[state.MemberID]struct{}{}, lives: map[state.MemberID]uint64{}, leaves: map[state.MemberID]Leave{},
		taken: map[state.RegionID]*rooted.FormerOwner{},
		later: map[state.RegionID]clock.Instant{}, starving: map[state.RegionID]struct{}{},
	}
	st.Orphans(func(r *state.Region) bool {
		w.Mark(r.ID)
		w.follow(r)
		return true
	})
	st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if k.GetSettings().GetOwnership().GetMaxOwners() > 1 { // some of the owners may be gone
			w.keyspace(k)
		}
		return true
	})
	st.Members(func(m *rootv1.Member) bool {
		w.member(m)
		return true
	})
	st.Transitions(func(t *rootv1.Transition) bool {
		w.transition(t, false, now)
		return true
	})
	return w
}

// Jump goes on to a state without knowing what changed in between: what comes is as from
// NewWork, but that it knows since when transitions are under way.
func (w *Work) Jump(st *state.State, now clock.Instant) *Work {
	next := NewWork(st, now)
	for id, x := range next.moves.byRegion {
		if old, ok := w.moves.byRegion[id]; ok && old.same(x) {
			x.seen = old.seen
			next.moves.byRegion[id] = x
		}
	}
	for id, l := range w.leaves {
		next.Leave(id, w.lives[id], l)
	}
	for id, l := range w.moves.leavers {
		next.moves.leavers[id] = l
		next.leaver(id)
	}
	return next
}

// Follow goes on to a state, by what changed in between.
func (w *Work) Follow(st *state.State, changes []state.Change, now clock.Instant) {
	w.st = st
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.ChangeRegion:
			w.region(c)
		case state.ChangeMember:
			if c.Removed {
				delete(w.lives, state.MemberID(c.Member.GetId()))
				delete(w.leaves, state.MemberID(c.Member.GetId()))
				continue
			}
			w.member(c.Member)
		case state.ChangeKeyspace:
			if !c.Removed {
				w.keyspace(c.Keyspace)
			}
		case state.ChangeGrant: // who is to get a region may not own it any more
			for id := range w.moves.byRegion {
				w.Mark(id)
			}
		case state.ChangeTransition:
			w.transition(c.Transition, c.Removed, now)
		}
	}
}

// region looks at a region that changed, if it is in need or under way, or a member
// drains that has to do with it.
func (w *Work) region(c *state.Change) {
	id := c.Region.ID
	w.busy.follow(id, c.Region.Epoch)
	delete(w.starving, id)
	delete(w.taken, id)
	if c.Removed {
		delete(w.dirty, id)
		delete(w.later, id)
		delete(w.moves.leavers, id)
		return
	}
	if !assigned(w.st.Keyspace(c.Region.Keyspace)) {
		return
	}
	w.inNeed(c.Region)
	w.follow(c.Region)
	w.leaver(id)
	if _, under := w.moves.byRegion[id]; under {
		w.Mark(id)
	}
	drains := func(o state.Owner) bool {
		_, yes := w.draining[o.Member]
		return yes
	}
	w.again = w.again || slices.ContainsFunc(c.Region.Owners, drains) || c.OldRegion != nil && slices.ContainsFunc(c.OldRegion.Owners, drains)
}

// follow notes whom a region was taken from. A point waits for a caller as well.
func (w *Work) follow(r *state.Region) {
	if r.Former != nil && w.st.Keyspace(r.Keyspace).GetSettings().GetLayout().GetPoints() == nil {
		w.taken[r.ID] = r.Former
	}
}

// member looks at what incarnations owned that are over now.
func (w *Work) member(m *rootv1.Member) {
	id := state.MemberID(m.GetId())
	delete(w.draining, id)
	switch m.GetState() {
	case rootv1.MemberState_MEMBER_STATE_ACTIVE:
		w.Wake()
	case rootv1.MemberState_MEMBER_STATE_DRAINING:
		w.draining[id] = struct{}{}
		w.again = true
	}
	if m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED {
		w.MarkIncarnation(m.GetIncarnation())
		delete(w.leaves, id)
	}
	if old := w.lives[id]; old != 0 && old != m.GetIncarnation() {
		w.MarkIncarnation(old)
		delete(w.leaves, id)
	}
	w.lives[id] = m.GetIncarnation()
	w.MarkMember(id)
}

// Leave notes that a member's incarnation said when its process ends. It says so again and
// again: of its words the one counts that leaves it the least time, from when it said the
// first. What it says behind that time is of another drain.
func (w *Work) Leave(id state.MemberID, incarnation uint64, l Leave) {
	m := w.st.Member(id)
	if m.GetIncarnation() != incarnation || m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED {
		return
	}
	old, known := w.leaves[id]
	if known && l.Said <= old.Ends {
		l.Said, l.Ends = old.Said, min(old.Ends, l.Ends)
	}
	w.leaves[id] = l
	if !known {
		w.MarkMember(id)
		w.again = true
	}
}

// MarkMember looks at the changes of owners under way that a member has to do with, and
// at what was taken from it: it has taken what it was shown since.
func (w *Work) MarkMember(id state.MemberID) {
	for region, f := range w.taken {
		if f.Member == id {
			w.Mark(region)
		}
	}
	if w.moves.Gives(id)+w.moves.Takes(id) == 0 {
		return
	}
	for region, x := range w.moves.byRegion {
		if x.to == id || x.from == id {
			w.Mark(region)
		}
	}
}

// MarkIncarnation looks at the regions of an incarnation that is over: it failed, or is
// proven dead since, so that its fence has not to be waited for.
func (w *Work) MarkIncarnation(incarnation uint64) {
	w.st.IncarnationRegions(incarnation, func(r *state.Region) bool {
		w.Mark(r.ID)
		return true
	})
	for region, f := range w.taken {
		if f.Incarnation == incarnation {
			w.Mark(region)
		}
	}
}

// keyspace looks at the regions of a keyspace whose settings changed that are in need.
func (w *Work) keyspace(k *rootv1.Keyspace) {
	if !assigned(k) {
		return
	}
	w.st.RegionsFrom(state.KeyspaceID(k.GetId()), "", func(r *state.Region) bool {
		w.inNeed(r)
		return true
	})
}

// inNeed looks at a region that has no owner, or one that may not act.
func (w *Work) inNeed(r *state.Region) {
	if len(r.Owners) == 0 || slices.ContainsFunc(r.Owners, func(o state.Owner) bool { return !w.st.Acts(o) }) {
		w.Mark(r.ID)
	}
}

func (w *Work) transition(t *rootv1.Transition, gone bool, now clock.Instant) {
	id := state.RegionID(t.GetRegionId())
	ends := gone || t.GetStatus() != rootv1.TransitionStatus_TRANSITION_STATUS_PENDING
	if !ends && !assigned(w.st.Keyspace(state.KeyspaceID(t.GetKeyspaceId()))) {
		return
	}
	if !ends {
		w.busy.land(id)
	}
	w.leaver(id)
	if w.moves.follow(t, w.st.Region(id), gone, now) {
		w.Mark(id)
		w.again = w.again || ends && len(w.draining) > 0 // it has room for another one
	}
}

// leaver looks at an owner that is to go, as long as it is one, and the other one is, or may come.
func (w *Work) leaver(id state.RegionID) {
	l, goes := w.moves.leavers[id]
	if !goes {
		return
	}
	r, t := w.st.Region(id), w.st.PendingTransition(id)
	comes := w.busy.Has(id) || t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER || r != nil && slices.Contains(r.Owners, l.to)
	if r == nil || !comes || !slices.Contains(r.Owners, l.from) {
		delete(w.moves.leavers, id)
		return
	}
	w.Mark(id)
}

// Mark looks at a region: something was reported of it, or an operation was refused.
func (w *Work) Mark(id state.RegionID) {
	w.dirty[id] = struct{}{}
	delete(w.starving, id)
}

// Wake looks again at what nobody could take: a member may now that could not before,
// such as one that is heard again.
func (w *Work) Wake() {
	for id := range w.starving {
		w.dirty[id] = struct{}{}
	}
	clear(w.starving)
	w.again = w.again || w.stalled
	w.stalled = false
}

// Due is when there is something to plan; a moment that never comes for nothing.
func (w *Work) Due(now clock.Instant) clock.Instant {
	if len(w.dirty) > 0 || w.again {
		return now
	}
	return w.alarms.next(w.later)
}

// Moves are the changes of owners that are under way.
func (w *Work) Moves() *Moves { return w.moves }

// Waiting is how many regions nobody can take, as far as is known.
func (w *Work) Waiting() int { return len(w.starving) }

// Starving says that there are such regions, or some that draining members cannot give
// away: Wake is worth a try now and then.
func (w *Work) Starving() bool { return len(w.starving) > 0 || w.stalled }

// Take hands out what to look at now, MaxRegions at most, by id: the Input of a plan.
func (w *Work) Take(observed Observed, now clock.Instant) Input {
	for w.alarms.next(w.later) <= now {
		id := w.alarms.pop().region
		delete(w.later, id)
		w.dirty[id] = struct{}{}
	}
	regions := slices.Sorted(maps.Keys(w.dirty))
	regions = regions[:min(len(regions), MaxRegions)]
	for _, id := range regions {
		delete(w.dirty, id)
	}
	w.again = false
	draining := slices.Sorted(maps.Keys(w.draining))
	for i := len(draining) - 1; i >= 0; i-- {
		if w.st.MemberRegionCount(draining[i]) == 0 {
			delete(w.draining, draining[i])
			draining = slices.Delete(draining, i, i+1)
		}
	}
	return Input{State: w.st, Observed: observed, Moves: w.moves, Now: now, Regions: regions, Draining: draining, Busy: w.busy, Leaves: w.leaves}
}

// Planned notes what a plan asks for, so that nothing else is planned for those regions
// before Judged, and what it refused, so that it is looked at again in time.
func (w *Work) Planned(plan *Plan) {
	for i := range plan.Operations {
		o := &plan.Operations[i]
		w.busy.send(w.st, o)
		if o.Kind == AddOwner && o.Even && o.From.Member != "" {
			w.moves.leavers[o.Region] = leaver{o.Keyspace, o.From, o.To, o.Reason}
		}
	}
	for _, f := range plan.Refusals {
		switch {
		case f.Even: // whoever asks for it asks again
		case f.Why == AwaitsMembers || f.Why == PoisonSuspected:
			w.starving[f.Region] = struct{}{}
			w.alarm(f.Region, f.At)
		case f.At != 0:
			w.alarm(f.Region, f.At)
		case f.Region == 0:
			w.stalled = w.stalled || f.Why.lacksMember()
		case f.Why.lacksMember():
			w.starving[f.Region] = struct{}{}
		}
	}
}

// lacksMember says that another member, or one that is heard again, would help.
func (w Why) lacksMember() bool {
	return w == NoEligibleMember || w == MembersFull || w == NoneMatches || w == NoOther
}

// Judged notes that the root has judged an operation, and that the state that Follow
// went on to has it; or that it was never sent. One whose outcome is unknown is on its
// way for as long as it may apply: a transition has the same id when it is planned
// again at the same epoch.
func (w *Work) Judged(id state.RegionID) {
	w.busy.judged(id)
	w.Mark(id)
	w.leaver(id)
	w.again = w.again || len(w.draining) > 0
}

func (w *Work) alarm(id state.RegionID, at clock.Instant) {
	if old, ok := w.later[id]; ok && old <= at {
		return
	}
	w.later[id] = at
	w.alarms.push(alarm{at, id})
}
