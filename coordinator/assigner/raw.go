package assigner

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Raw decides what an Assigner does. It has no goroutine and waits for nobody: whoever runs
// it tells it of views and of what became of its Orders, and calls Look when it is due. Opened,
// Closed, Frame, Answered, Standing and Vars may be called at any time from any goroutine;
// one goroutine at a time does everything else.
type Raw struct {
	cfg   RawConfig
	count counters
	// shows is what Look shows of what it owns.
	shows struct {
		era                     atomic.Uint64
		starving, moves, evened atomic.Int64
		rounds                  lastRounds
		scaling                 shownScaling
		resting                 restingHooks
		notes                   notes
	}

	mu sync.Mutex
	// Guarded by mu. now is the newest moment that core was told, armed the one that Look
	// is called at.
	core       *liveness.Core
	now, armed clock.Instant
	// detects is when Detect is called next.
	detects clock.Instant
	heard   heard
	// lookAt is when unserved is looked at next.
	lookAt   clock.Instant
	unsaid   unsaid
	speakers map[state.MemberID]*speaker
	// probes and asked wait to be begun; found is what core wants done that Look has to do.
	probing int
	probes  []liveness.Probe
	asking  bool
	asked   []liveness.Question
	found   []liveness.Batch
	// st is the state at token at, era the one that is held, 0: none. They are changed by Look, Follow
	// and Jump, which read them without mu.
	st  *state.State
	at  state.Token
	era state.Era

	// seen guards unserved: what members get ready for, or fail to, as of when it was looked at last. It is
	// changed by Look and Follow, which read it without seen.
	seen     sync.Mutex
	unserved *placement.Unserved

	// Owned by Look. fed: core has been told of st.
	fed  bool
	past past
	// work and outbox are of this era, and so are the rest.
	work   *placement.Work
	outbox outbox
	// gathered are steps that are not in outbox yet.
	gathered gathering
	landed   []landing
	// leaving are members that are about to be drained because they said goodbye.
	leaving map[state.MemberID]uint64
	// undrained are those whose drain was refused.
	undrained map[state.MemberID]undrained
	starved   clock.Instant
	loads     loads
	rounds    rounds
	// asks are plans that somebody has asked for, until they are judged.
	asks    []*ask
	hooks   *hooks
	scaling scales
	cadence cadence
}

// Orders are what is to be done now, each by a call of its own.
type Orders struct {
	// Era that they are made in; 0: none is held. Calls that were made in another one are
	// of no use any more.
	Era state.Era
	// Probes are answered by Probed, Asking by Told, Calls by Judged, Hooks by Hooked, once
	// each. Asking is nil for nothing.
	Probes []liveness.Probe
	Asking *Asking
	Calls  []*Call
	Hooks  []*HookCall
}

// never is later than every moment.
const never = clock.Instant(math.MaxInt64)

var errNoStreams = errors.New("members have no streams here")

// NewRaw makes a Raw that knows nothing.
func NewRaw(cfg RawConfig) *Raw {
	if cfg.Settings.AskTime == 0 {
		cfg.Settings.AskTime = askTime
	}
	if cfg.Command == nil {
		cfg.Command = func(state.MemberID, uint64, *coordinatorv1.MemberCommand) error { return errNoStreams }
	}
	if cfg.RefuseDrain == nil {
		cfg.RefuseDrain = func(state.MemberID, uint64, *rootv1.ErrorDetail) {}
	}
	if cfg.WakeDetector == nil {
		cfg.WakeDetector = func() {}
	}
	if cfg.PoisonTime == 0 {
		cfg.PoisonTime = placement.PoisonTime
	}
	return &Raw{
		cfg: cfg, core: liveness.New(cfg.Settings), heard: newHeard(), armed: never, speakers: map[state.MemberID]*speaker{}, past: newPast(cfg.PoisonTime),
		hooks: newHooks(), unserved: placement.NewUnserved(), lookAt: never, detects: never, unsaid: newUnsaid(),
	}
}

// tickLocked is the moment for core: it never decreases.
func (a *Raw) tickLocked() clock.Instant {
	a.now = max(a.now, a.cfg.Clock.Now())
	a.core.Noticed(a.now)
	return a.now
}

func (a *Raw) tick() clock.Instant {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tickLocked()
}

// Look says what there is to do at the newest state that it was told of, and for how long
// nothing else is, unless Wake is called or a call comes back.
func (a *Raw) Look() (Orders, time.Duration) {
	now := a.tick()
	a.holdEra(now)
	due, open := a.detect(now)
	due = min(due, a.lookForUnserved(now))
	orders := Orders{Era: a.era}
	if a.era != 0 {
		a.land(now)
		a.attend()
		a.expireHooks(now)
		due = min(due, a.plan(now))
		hooks, hooksDue := a.startHooks(now)
		wishes, wishesDue := a.scale(now)
		orders.Hooks, due = append(hooks, wishes...), min(due, hooksDue, wishesDue)
		due = min(due, a.release(now))
		due = min(due, a.cadence.beat(a, now))
		orders.Calls = a.send()
	}
	a.show()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.startLocked(&orders)
	if open {
		due = min(due, a.core.Due()) // somebody may have been heard meanwhile
	}
	if a.armed = due; a.heard.any() && a.era != 0 {
		return orders, 0
	}
	if due == never {
		return orders, time.Hour
	}
	return orders, max(due.Sub(a.tickLocked()), 0)
}

// At is the position of the newest state that it was told of; the zero Token: of none.
func (a *Raw) At() state.Token { return a.at }

// Follow goes on to a state by what changed in between.
func (a *Raw) Follow(st *state.State, at state.Token, changes []state.Change) {
	a.feed(st, changes)
	now := a.tick()
	var ended []*rootv1.Transition
	a.past.follow(a.st, st, changes, now, a.heardLast, a.moved, func(t *rootv1.Transition) { ended = append(ended, t) })
	if a.work != nil {
		a.work.Follow(st, changes, now)
		a.followLoads(st, changes, now)
	}
	a.past.date(at.Index, now)
	a.seen.Lock()
	a.unserved.Follow(changes)
	a.seen.Unlock()
	a.mu.Lock()
	a.st, a.at = st, at
	if a.unserved.Open() {
		a.lookAt = min(a.lookAt, now.Add(placement.UnservedLook))
	}
	a.expectGivenLocked(changes, now)
	a.mu.Unlock()
	a.quarantine(now)
	if a.work == nil {
		return
	}
	for _, t := range ended {
		a.ended(t, now)
	}
	a.followRounds(changes, now)
}

// heardLast is when an incarnation that is a member's current one was heard last; 0: never.
func (a *Raw) heardLast(id state.MemberID, incarnation uint64) clock.Instant {
	if s := a.Standing(id); s.Incarnation == incarnation {
		return s.Heard
	}
	return 0
}

// feed tells the detector what changed, as it is in st.
func (a *Raw) feed(st *state.State, changes []state.Change) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.tickLocked()
	a.core.SetHoldings(st)
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.ChangeMember:
			id := state.MemberID(c.Member.GetId())
			if m := st.Member(id); m != nil {
				a.core.SetMember(m, now)
			} else {
				a.core.DropMember(id)
			}
		case state.ChangeKeyspace:
			id := state.KeyspaceID(c.Keyspace.GetId())
			if k := st.Keyspace(id); k != nil {
				a.core.SetKeyspace(k)
			} else {
				a.core.DropKeyspace(id)
			}
		}
	}
}

// Jump goes to a view without knowing what changed.
func (a *Raw) Jump(v *rootview.View) {
	a.mu.Lock()
	now := a.tickLocked()
	a.core.SetHoldings(v.State)
	if a.fed {
		a.st.Members(func(m *rootv1.Member) bool {
			if id := state.MemberID(m.GetId()); v.State.Member(id) == nil {
				a.core.DropMember(id)
			}
			return true
		})
		a.st.Keyspaces("", func(k *rootv1.Keyspace) bool {
			if id := state.KeyspaceID(k.GetId()); v.State.Keyspace(id) == nil {
				a.core.DropKeyspace(id)
			}
			return true
		})
	}
	v.State.Keyspaces("", func(k *rootv1.Keyspace) bool {
		a.core.SetKeyspace(k)
		return true
	})
	v.State.Members(func(m *rootv1.Member) bool {
		a.core.SetMember(m, now)
		a.expectLocked(state.MemberID(m.GetId()), m.GetIncarnation(), now)
		return true
	})
	a.mu.Unlock()
	if !a.fed {
		a.past.begin(v.State, now)
	} else {
		a.past.jump(v.State, now)
	}
	a.fed = true
	a.mu.Lock()
	a.st, a.at = v.State, v.Token
	a.mu.Unlock()
	if a.work != nil {
		a.work = a.work.Jump(a.st, now) // what is on its way is refused by its epoch
		a.weighAll(now)
		a.bringAll()
		a.cadence.learnAll(a, now)
		a.shows.notes.begin()
		a.noteAll()
		a.rounds.look = true
		a.rounds.everywhere(byMembers)
	}
}

// holdEra begins and ends with the Tenure, as the view has it: what is made in an era
// that is over, as far as the root knows, it refuses.
func (a *Raw) holdEra(now clock.Instant) {
	t, era := a.st.Tenure(), state.Era(0)
	if t.GetHolderId() == string(a.cfg.ID) && t.GetHolderIncarnation() == a.cfg.Incarnation && !t.GetRetired() {
		era = state.Era(t.GetEra())
	}
	if era == a.era {
		return
	}
	a.mu.Lock()
	if a.era != 0 {
		a.core.End()
	}
	if era != 0 {
		a.core.Begin(era, now)
	}
	a.heard = newHeard()
	a.heard.wanted = era != 0
	a.probes, a.asked, a.found = nil, nil, nil
	ended := a.era
	a.era = era
	a.mu.Unlock()
	if ended != 0 {
		a.cfg.Logger.Info("assigns no more", "era", uint64(ended))
	}
	a.work = nil
	a.outbox, a.gathered, a.landed, a.leaving = outbox{}, gathering{}, nil, map[state.MemberID]uint64{}
	a.undrained = map[state.MemberID]undrained{}
	a.loads, a.rounds, a.cadence = newLoads(), newRounds(now), newCadence()
	a.dropAsks()
	a.hooks, a.scaling = newHooks(), scales{of: map[state.KeyspaceID]*scaled{}}
	a.shows.rounds.forget()
	a.shows.scaling.set(nil)
	a.shows.resting.clear()
	a.shows.notes.begin()
	if era != 0 {
		a.work = placement.NewWork(a.st, now)
		a.weighAll(now)
		a.bringAll()
		a.cadence.began = a.at.Index
		a.cadence.learnAll(a, now)
		a.noteAll()
		a.cfg.Logger.Info("assigns", "era", uint64(era), "members", a.st.MemberCount(), "orphaned", a.st.Orphaned())
	}
}

// show lets others see what Look owns.
func (a *Raw) show() {
	a.shows.era.Store(uint64(a.era))
	starving, moves := 0, 0
	if a.work != nil {
		starving, moves = a.work.Waiting(), a.work.Moves().Len()
	}
	a.shows.starving.Store(int64(starving))
	a.shows.moves.Store(int64(moves))
	a.shows.evened.Store(int64(len(a.past.pending)))
}

// detect lets the detector look, and takes what it wants done. It is not open while
// too much waits: then what comes back has it look again.
func (a *Raw) detect(now clock.Instant) (due clock.Instant, open bool) {
	for {
		if a.outbox.len() > maxWaiting {
			return never, false
		}
		a.mu.Lock()
		a.core.Resume(now)
		turned := a.turnLocked(now, a.core.Turn)
		found := a.found
		a.found = nil
		due, open = a.core.Due(), a.roomLocked()
		a.mu.Unlock()
		for i := range found {
			a.take(&found[i])
		}
		switch {
		case turned || len(found) > 0:
		case !open:
			return never, false
		default:
			return due, true
		}
	}
}

// take does what the detector wants done.
func (a *Raw) take(b *liveness.Batch) {
	for _, v := range b.Verdicts {
		a.pass(v)
	}
	a.note(b.Withheld)
	for _, incarnation := range b.Ended {
		if a.work != nil {
			a.work.MarkIncarnation(incarnation)
		}
	}
}

// plan makes one plan of what is to be looked at.
func (a *Raw) plan(now clock.Instant) clock.Instant {
	if a.cfg.Frozen != nil && a.cfg.Frozen() {
		return now.Add(frozenPause)
	}
	if len(a.outbox.urgent) > 0 && a.outbox.calls < maxCalls+urgentCalls {
		return now // a plan may take long, and a verdict is of now
	}
	if a.work.Starving() && now >= a.starved {
		a.work.Wake()
		a.starved = now.Add(starvePause)
	}
	a.past.forget(now)
	uneven, next := a.rounds.take(a, now)
	if (a.work.Due(now) <= now || len(uneven) > 0) && a.outbox.len() <= maxWaiting {
		in := a.work.Take(observed{a}, now)
		a.enrich(&in, uneven, now)
		in.Strategies = a.hooks.strategies
		a.hooks.begin()
		plan := placement.Make(in)
		a.work.Planned(&plan)
		a.heed(&plan, in.Regions, now)
		a.shows.notes.planned(a.st, in.Regions, &plan)
		a.rounded(&plan, uneven, now)
		a.rounds.sent(plan.Operations)
		a.order(plan.Operations, now)
		uneven, next = a.rounds.take(a, now)
		if (a.work.Due(now) <= now || len(uneven) > 0) && a.outbox.len() <= maxWaiting {
			return now // behind what cannot wait, such as a verdict
		}
	}
	due := min(a.work.Due(now), next)
	if due <= now || len(uneven) > 0 {
		return never // what comes back has it look again
	}
	if a.work.Starving() {
		due = min(due, a.starved)
	}
	for i := range a.landed {
		due = min(due, a.landed[i].due(a.at.Index))
	}
	return due
}
