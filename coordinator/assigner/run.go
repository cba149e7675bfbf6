package assigner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/turns"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Assigner is the detector and the planner of one coordinator. Its methods may be
// called at any time from any goroutine.
type Assigner struct {
	cfg Config
	log hclog.Logger
	raw *Raw
	// wake is a level: Run is to look; detects is one for its detector.
	wake, detects chan struct{}
	calls         sync.WaitGroup
	// asking has an entry for each hook that AskHook asks.
	asking chan struct{}

	mu sync.Mutex
	// done is what calls have brought, for Run; guarded by mu.
	done []func()

	plans plans

	// Owned by Run: eraCtx ends with era; loaded and levelAt are the last view's.
	era     state.Era
	loaded  bool
	levelAt clock.Instant
	eraCtx  context.Context
	eraOver context.CancelFunc
}

// New makes an Assigner; Run starts it.
func New(cfg Config) (*Assigner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	a := &Assigner{cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1), detects: make(chan struct{}, 1), asking: make(chan struct{}, maxHookCalls), eraOver: func() {}, plans: plans{turns: turns.New(1)}}
	a.raw = NewRaw(RawConfig{
		ID: cfg.ID, Incarnation: cfg.Incarnation, View: cfg.Views.View, Soft: cfg.Soft, Settings: cfg.Settings,
		Identities: identity.NewSource(), Clock: cfg.Clock, Logger: cfg.Logger, Wake: a.signal,
		WakeDetector: func() { signal(a.detects) },
		Strategies:   cfg.Strategies, Frozen: cfg.Frozen,
	})
	return a, nil
}

// UseStreams says who knows the streams of members. It is called before Run.
func (a *Assigner) UseStreams(s Streams) {
	a.raw.cfg.Streams = s
	if c, ok := s.(interface {
		Command(id state.MemberID, incarnation uint64, c *coordinatorv1.MemberCommand) error
	}); ok {
		a.raw.cfg.Command = c.Command
	}
	if c, ok := s.(interface {
		RefuseDrain(id state.MemberID, incarnation uint64, because *rootv1.ErrorDetail)
	}); ok {
		a.raw.cfg.RefuseDrain = c.RefuseDrain
	}
}

var _ server.MemberEvents = (*Assigner)(nil)

// Opened implements server.MemberEvents.
func (a *Assigner) Opened(id state.MemberID, incarnation, stream uint64, now clock.Instant) {
	a.raw.Opened(id, incarnation, stream, now)
}

// Closed implements server.MemberEvents.
func (a *Assigner) Closed(id state.MemberID, incarnation, stream uint64, now clock.Instant) {
	a.raw.Closed(id, incarnation, stream, now)
}

// Frame implements server.MemberEvents.
func (a *Assigner) Frame(f server.HeardFrame) { a.raw.Frame(f) }

// Answered implements server.MemberEvents.
func (a *Assigner) Answered(id state.MemberID, incarnation uint64, now clock.Instant) bool {
	return a.raw.Answered(id, incarnation, now)
}

// Standing says what is thought of a member.
func (a *Assigner) Standing(id state.MemberID) liveness.Standing {
	s := a.raw.Standing(id)
	a.raw.seen.Lock()
	defer a.raw.seen.Unlock()
	s.RestsUntil = a.raw.unserved.RestsUntil(s.Incarnation)
	return s
}

// Observed is what is known of members beside the root.
func (a *Assigner) Observed() placement.Observed { return observed{a.raw} }

// Rounds are how keyspaces were evened out last, newest first, while the Tenure is held.
func (a *Assigner) Rounds() []*coordinatorv1.BalanceRound { return a.raw.Rounds() }

// Scaling is how many members keyspaces want, by name, while the Tenure is held.
func (a *Assigner) Scaling() []*coordinatorv1.ScalingSignal { return a.raw.Scaling() }

// Vars returns the Assigner's numbers. It looks at every member.
func (a *Assigner) Vars() Vars { return a.raw.Vars() }

// Run works until ctx ends. It is called once.
func (a *Assigner) Run(ctx context.Context) error {
	defer a.calls.Wait()
	defer func() { a.eraOver() }()
	a.calls.Go(func() { a.detect(ctx) })
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		changed := a.cfg.Views.Changed()
		a.settle()
		a.follow(ctx)
		orders, pause := a.raw.Look()
		a.carryOut(ctx, &orders)
		timer.Reset(min(pause, lateAfter/2)) // to see that the view is level: see follow
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-a.wake:
		case <-timer.C:
		}
	}
}

// detect has the detector look, whatever Run is at: frames are answered, and members are probed and
// asked about, while a plan is made that takes long.
func (a *Assigner) detect(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		orders, pause := a.raw.Detect()
		a.inquire(ctx, &orders)
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-a.detects:
		case <-timer.C:
		}
	}
}

// signal has Run look.
func (a *Assigner) signal() { signal(a.wake) }

func signal(level chan<- struct{}) {
	select {
	case level <- struct{}{}:
	default:
	}
}

// settle takes what calls have brought.
func (a *Assigner) settle() {
	a.mu.Lock()
	done := a.done
	a.done = nil
	a.mu.Unlock()
	for _, fn := range done {
		fn()
	}
}

// deliver has Run do something behind a call.
func (a *Assigner) deliver(fn func()) {
	a.mu.Lock()
	a.done = append(a.done, fn)
	a.mu.Unlock()
	a.signal()
}

// lateAfter is how long ago a view may have been level, for what follows to be taken as
// happening now: failures and moves of a past that is read again happened at times that
// nobody knows.
const lateAfter = 5 * time.Second

// follow goes on to the newest view.
func (a *Assigner) follow(ctx context.Context) {
	v := a.cfg.Views.View()
	late := !a.loaded || a.cfg.Clock.Now().Sub(a.levelAt) > lateAfter
	switch at := a.raw.At(); {
	case a.raw.fed && !v.Loaded():
		return // it is read from the beginning
	case !a.raw.fed, late && v.Token != at:
		a.raw.Jump(v)
	case v.Token != at:
		a.goOn(ctx, v)
	}
	a.loaded, a.levelAt = v.Loaded(), max(a.levelAt, v.LevelAt)
}

// goOn tells of everything that led to a view.
func (a *Assigner) goOn(ctx context.Context, v *rootview.View) {
	var changes []state.Change
	reader := a.cfg.Views.Subscribe(a.raw.At())
	for reader.At().Compare(v.Token) < 0 {
		// What led to a view can be read with it: nobody waits here.
		batch, err := reader.Next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil || batch.Snapshot || reader.At().Compare(v.Token) > 0 {
			a.raw.Jump(v)
			return
		}
		changes = append(changes, batch.Changes...)
	}
	a.raw.Follow(v.State, v.Token, changes)
}

// carryOut begins what is to be done.
func (a *Assigner) carryOut(ctx context.Context, orders *Orders) {
	if orders.Era != a.era {
		a.eraOver()
		a.era = orders.Era
		a.eraCtx, a.eraOver = context.WithCancel(ctx)
	}
	ctx = a.eraCtx
	for _, c := range orders.Calls {
		a.calls.Go(func() {
			results := a.propose(ctx, c.Commands)
			a.deliver(func() { a.raw.Judged(c, results) })
		})
	}
	a.inquire(ctx, orders)
	for _, c := range orders.Hooks {
		a.calls.Go(func() {
			owners, err := a.askHook(ctx, c)
			a.deliver(func() { a.raw.Hooked(c, owners, err) })
		})
	}
}

// inquire begins probes, and questions to other coordinators. What comes of them waits for nobody.
func (a *Assigner) inquire(ctx context.Context, orders *Orders) {
	for _, p := range orders.Probes {
		a.calls.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, probeTime)
			defer cancel()
			a.raw.Probed(p, a.cfg.Probe(ctx, p))
		})
	}
	if q := orders.Asking; q != nil {
		a.calls.Go(func() {
			words, byAll := a.askAll(ctx, q.Others, q.Members)
			a.raw.Told(q, words, byAll)
		})
	}
}

// askAll asks all others at once. byAll: each has answered in time.
func (a *Assigner) askAll(ctx context.Context, others []*rootv1.Coordinator, members []state.MemberID) (all []liveness.Word, byAll bool) {
	ctx, cancel := context.WithTimeout(ctx, a.raw.cfg.Settings.AskTime/2)
	defer cancel()
	byAll = true
	var mu sync.Mutex
	var open sync.WaitGroup
	for _, other := range others {
		open.Go(func() {
			words, err := a.cfg.Ask(ctx, other, members)
			if err != nil {
				a.log.Debug("another coordinator does not say whom it hears", "coordinator", other.GetId(), "addr", other.GetAddress(), "err", err)
			}
			mu.Lock()
			defer mu.Unlock()
			all, byAll = append(all, words...), byAll && err == nil
		})
	}
	open.Wait()
	return all, byAll
}

// askHook makes a call of a hook.
func (a *Assigner) askHook(ctx context.Context, c *HookCall) (map[state.RegionID]state.MemberID, error) {
	if a.cfg.Hooks == nil {
		return nil, errors.New("nobody asks hooks here")
	}
	ctx, cancel := context.WithTimeout(ctx, c.Within)
	defer cancel()
	if c.Wish != nil {
		return nil, a.cfg.Hooks.Scale(ctx, c.URL, c.Wish)
	}
	return a.cfg.Hooks.Place(ctx, c.URL, c.Place)
}

// propose has commands judged, however long that takes. Nil: the era is over.
func (a *Assigner) propose(ctx context.Context, commands []*rootv1.Command) []*rootv1.CommandResult {
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		attempt, cancel := context.WithTimeout(ctx, proposeTime)
		results, err := a.cfg.Root.Propose(attempt, commands...)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && len(results) == len(commands):
			return results
		case err == nil:
			err = fmt.Errorf("%d commands had %d results", len(commands), len(results))
		}
		if d := final(err); d != nil {
			a.log.Warn("the root takes no such commands", "err", err)
			return slices.Repeat([]*rootv1.CommandResult{{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: d}}, len(commands))
		}
		a.log.Debug("not judged yet", "commands", len(commands), "err", err)
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// final is the reason of a call that was refused as such: sending it again would be
// of no use.
func final(err error) *rootv1.ErrorDetail {
	e, ok := errors.AsType[*reason.Error](err)
	if !ok {
		return nil
	}
	switch e.Detail.GetReason() {
	case rootv1.Reason_REASON_INVALID_REQUEST, rootv1.Reason_REASON_PERMISSION_DENIED:
		return e.Detail
	}
	return nil
}
