package assigner

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Assigner is the detector and the planner of one coordinator. Its methods may be
// called at any time from any goroutine.
type Assigner struct {
	cfg        Config
	log        hclog.Logger
	identities *identity.Source
	// wake is a level: Run is to look.
	wake  chan struct{}
	calls sync.WaitGroup
	count counters
	// shows is what Run shows of what it owns.
	shows struct {
		era             atomic.Uint64
		starving, moves atomic.Int64
	}

	mu sync.Mutex
	// Guarded by mu. now is the newest moment that core was told, armed the one that Run
	// sleeps until.
	core       *liveness.Core
	now, armed clock.Instant
	streams    Streams
	heard      heard
	// done is what calls have brought, for Run.
	done []func(now clock.Instant)

	// Owned by Run. fed: core has been told of st, which is the state at token at.
	fed bool
	at  state.Token
	st  *state.State
	// era is the one that is held, 0: none; eraCtx ends with it. work and outbox are
	// of this era, and so are the rest.
	era     state.Era
	eraCtx  context.Context
	eraOver context.CancelFunc
	work    *placement.Work
	outbox  outbox
	probing int
	probes  []liveness.Probe
	asking  bool
	asked   []liveness.Question
	landed  []landing
	// leaving are members that are about to be drained because they said goodbye.
	leaving map[state.MemberID]uint64
	starved clock.Instant
}

// never is later than every moment.
const never = clock.Instant(math.MaxInt64)

// New makes an Assigner; Run starts it.
func New(cfg Config) (*Assigner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	return &Assigner{
		cfg: cfg, log: cfg.Logger, identities: identity.NewSource(), wake: make(chan struct{}, 1),
		core: liveness.New(cfg.Settings), heard: newHeard(), armed: never,
	}, nil
}

// UseStreams says who knows the streams of members. It is called before Run.
func (a *Assigner) UseStreams(s Streams) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams = s
}

// Run works until ctx ends. It is called once.
func (a *Assigner) Run(ctx context.Context) error {
	defer a.calls.Wait()
	defer func() {
		if a.eraOver != nil {
			a.eraOver()
		}
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		changed := a.cfg.Views.Changed()
		timer.Reset(a.look(ctx))
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-a.wake:
		case <-timer.C:
		}
	}
}

// signal has Run look.
func (a *Assigner) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// tickLocked is the moment for core: it never decreases.
func (a *Assigner) tickLocked() clock.Instant {
	a.now = max(a.now, a.cfg.Clock.Now())
	return a.now
}

func (a *Assigner) tick() clock.Instant {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tickLocked()
}

// look does what there is to do, and says how long Run may sleep.
func (a *Assigner) look(ctx context.Context) time.Duration {
	a.settle()
	a.follow(ctx)
	now := a.tick()
	a.holdEra(ctx, now)
	due, open := a.detect(now)
	if a.era != 0 {
		a.land(now)
		a.attend()
		due = min(due, a.plan(now))
		a.send()
		a.startProbes()
		a.startAsking()
	}
	a.show()
	a.mu.Lock()
	defer a.mu.Unlock()
	if open {
		due = min(due, a.core.Due()) // somebody may have been heard meanwhile
	}
	if a.armed = due; len(a.done) > 0 || a.heard.any() && a.era != 0 {
		return 0
	}
	if due == never {
		return time.Hour
	}
	return max(due.Sub(a.tickLocked()), 0)
}

// settle takes what calls have brought.
func (a *Assigner) settle() {
	a.mu.Lock()
	done, now := a.done, a.tickLocked()
	a.done = nil
	a.mu.Unlock()
	for _, fn := range done {
		fn(now)
	}
}

// deliver has Run do something behind a call.
func (a *Assigner) deliver(fn func(now clock.Instant)) {
	a.mu.Lock()
	a.done = append(a.done, fn)
	a.mu.Unlock()
	a.signal()
}

// follow brings the detector and the work to the newest view.
func (a *Assigner) follow(ctx context.Context) {
	v := a.cfg.Views.View()
	if a.fed && v.Token == a.at {
		return
	}
	if !a.fed {
		a.jump(v)
		return
	}
	reader := a.cfg.Views.Subscribe(a.at)
	for reader.At().Compare(v.Token) < 0 {
		// What led to a view can be read with it: nobody waits here.
		batch, err := reader.Next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil || batch.Snapshot || reader.At().Compare(v.Token) > 0 {
			a.jump(v)
			return
		}
		a.feed(v.State, batch.Changes)
		if a.work != nil {
			a.work.Follow(v.State, batch.Changes, a.tick())
		}
	}
	a.st, a.at = v.State, v.Token
}

// feed tells the detector what changed, as it is in st.
func (a *Assigner) feed(st *state.State, changes []state.Change) {
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

// jump goes to a view without knowing what changed.
func (a *Assigner) jump(v *rootview.View) {
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
		return true
	})
	a.mu.Unlock()
	a.fed, a.st, a.at = true, v.State, v.Token
	if a.work != nil {
		a.work = placement.NewWork(a.st, now) // what is on its way is refused by its epoch
	}
}

// holdEra begins and ends with the Tenure, as the view has it: what is made in an era
// that is over, as far as the root knows, it refuses.
func (a *Assigner) holdEra(ctx context.Context, now clock.Instant) {
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
	a.mu.Unlock()
	if a.era != 0 {
		a.eraOver()
		a.log.Info("assigns no more", "era", uint64(a.era))
	}
	a.era, a.work, a.eraOver = era, nil, nil
	a.outbox, a.probes, a.asked, a.landed, a.leaving = outbox{}, nil, nil, nil, map[state.MemberID]uint64{}
	if era != 0 {
		a.eraCtx, a.eraOver = context.WithCancel(ctx)
		a.work = placement.NewWork(a.st, now)
		a.log.Info("assigns", "era", uint64(era), "members", a.st.MemberCount(), "orphaned", a.st.Orphaned())
	}
}

// show lets others see what Run owns.
func (a *Assigner) show() {
	a.shows.era.Store(uint64(a.era))
	starving, moves := 0, 0
	if a.work != nil {
		starving, moves = a.work.Waiting(), a.work.Moves().Len()
	}
	a.shows.starving.Store(int64(starving))
	a.shows.moves.Store(int64(moves))
}

// detect lets the detector look, and takes what it wants done. It is not open while
// too much waits: then what comes back has Run look again.
func (a *Assigner) detect(now clock.Instant) (due clock.Instant, open bool) {
	for {
		if a.outbox.len() > maxWaiting || len(a.probes) > maxWaiting || len(a.asked) > maxWaiting {
			return never, false
		}
		a.mu.Lock()
		if due = a.core.Due(); due > now {
			a.mu.Unlock()
			return due, true
		}
		b := a.core.Turn(now)
		a.mu.Unlock()
		a.probes = append(a.probes, b.Probes...)
		if len(b.Question.Members) > 0 {
			a.asked = append(a.asked, b.Question)
		}
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
}

// plan plans what is to be looked at.
func (a *Assigner) plan(now clock.Instant) clock.Instant {
	if a.work.Starving() && now >= a.starved {
		a.work.Wake()
		a.starved = now.Add(starvePause)
	}
	for a.work.Due(now) <= now && a.outbox.len() <= maxWaiting {
		plan := placement.Make(a.work.Take(observed{a}, now))
		a.work.Planned(&plan)
		a.order(plan.Operations)
	}
	due := a.work.Due(now)
	if due <= now {
		return never // what comes back has Run look again
	}
	if a.work.Starving() {
		due = min(due, a.starved)
	}
	for i := range a.landed {
		due = min(due, a.landed[i].due(a.at.Index))
	}
	return due
}
