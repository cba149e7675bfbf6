package tenure

import (
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/why"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// RawConfig is what a RawHolder is made of.
type RawConfig struct {
	Settings
	// IDStart, TSOStart, IDWindow, TSOAhead, MaxWaiting and Logger are those of Config.
	IDStart, TSOStart, IDWindow uint64
	TSOAhead                    time.Duration
	MaxWaiting                  int
	Logger                      hclog.Logger
	// Wall is the wall clock, in Unix milliseconds.
	Wall func() uint64
	// RetireKey makes the secrets that retire eras. Empty: a random one.
	RetireKey []byte
	// Identities makes those of commands. Nil: one of a secret origin, unlike
	// Incarnation, which every Tenure shows.
	Identities *identity.Source
}

// RawHolder is a Holder without goroutines, locks and a clock: it is told what
// happened and when, and says what to send and by when to be called again. All
// of a Holder's decisions are here, so that simulations run what processes run.
// It is for one goroutine at a time; Run.Good and Confirmation may be used beside it.
//
// After every call Messages has what is to be sent. Each Message is answered once,
// by OnAnswer, also when no answer came.
type RawHolder struct {
	cfg   RawConfig
	count *Counters
	log   hclog.Logger
	core  *Core

	// era is the one held, nil for none; ended the one before, served the frontiers:
	// what a later era must not start below.
	era, ended *era
	served     rootv1.Frontiers
	// held are requests that wait for an era to begin, the longest first.
	held []*Reservation
	// refusal is the answer while no era is held, made from the Tenure shown.
	refusal *reason.Error
	shown   *rootv1.Tenure
	// suspected is the era whose holder is thought dead, as logged last; 0: none.
	suspected uint64
	// claimRefused is why the root would not have the form of a claim, as logged last.
	claimRefused string

	outbox     []*Message
	retirement *retirement
	// index is the position of the newest view, or one that the root told since.
	index uint64
	// first is what the last claim asked for.
	first []*rootv1.FirstWindow

	leaving bool
	// An orderly end: requests in flight may finish until drainBy, what follows
	// until stopBy; requests between eras are kept until keepUntil, once that is set.
	drainBy, stopBy, keepUntil clock.Instant
}

// NewRaw makes a RawHolder that knows nothing. It counts in counters.
func NewRaw(cfg RawConfig, counters *Counters) *RawHolder {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.MaxWaiting <= 0 {
		cfg.MaxWaiting = DefaultMaxWaiting
	}
	if len(cfg.RetireKey) == 0 {
		cfg.RetireKey = make([]byte, state.RetireSecretBytes)
		_, _ = rand.Read(cfg.RetireKey) // never fails: crypto/rand crashes the process instead
	}
	if cfg.Identities == nil {
		cfg.Identities = identity.NewSource()
	}
	return &RawHolder{
		cfg: cfg, count: counters, log: cfg.Logger, core: NewCore(cfg.Settings, counters),
		refusal: refusalFor(nil, cfg.ID, false),
	}
}

// Messages returns what is to be sent, in order, and forgets it.
func (r *RawHolder) Messages() []*Message {
	m := r.outbox
	r.outbox = nil
	return m
}

// Due reports that Tick should be called at once.
func (r *RawHolder) Due() bool {
	return r.era != nil && (r.era.ids.due() || r.era.tso.due() || r.era.broken != "")
}

// Deadline is the moment by which Tick must be called.
func (r *RawHolder) Deadline() clock.Instant {
	at := r.core.Deadline()
	if e := r.era; e != nil {
		at = min(at, e.ids.deadline(), e.tso.deadline())
	}
	if len(r.held) > 0 {
		at = min(at, r.held[0].until)
	}
	if r.retirement != nil {
		at = min(at, r.retirement.deadline())
	}
	if r.leaving {
		at = min(at, r.leavingDeadline())
	}
	return at
}

// Tick says that time has passed.
func (r *RawHolder) Tick(now clock.Instant) {
	r.core.Tick(now)
	r.settle(now)
}

// OnView tells what the newest view says.
func (r *RawHolder) OnView(a Authority, now clock.Instant) {
	r.index = a.Index
	r.core.OnView(a, now)
	r.settle(now)
}

// OnProbe tells what a probe of the holder at address found.
func (r *RawHolder) OnProbe(address string, h Health, now clock.Instant) {
	r.core.OnProbe(address, h, now)
	r.settle(now)
}

// OnHolderSuspect tells that the holder of era is thought dead.
func (r *RawHolder) OnHolderSuspect(era uint64, now clock.Instant) {
	r.core.OnHolderSuspect(era, now)
	r.settle(now)
}

// OnSuperseded tells that a newer process runs under this id.
func (r *RawHolder) OnSuperseded(now clock.Instant) {
	r.core.OnSuperseded(now)
	r.settle(now)
}

// ProbeTarget is the Tenure whose holder is to be watched; nil: none.
func (r *RawHolder) ProbeTarget() *rootv1.Tenure {
	t := r.core.Tenure()
	if r.core.Phase() != Standby || t == nil || t.Retired || t.HolderId == r.cfg.ID {
		return nil
	}
	return t
}

// Tenure is the newest Tenure known, nil for none. It must not be changed.
func (r *RawHolder) Tenure() *rootv1.Tenure { return r.core.Tenure() }

// Until is the moment before which the era held counts as confirmed.
func (r *RawHolder) Until() clock.Instant { return r.core.Until() }

// Status describes the RawHolder at now.
func (r *RawHolder) Status(now clock.Instant) Status {
	s := Status{
		Phase: r.core.Phase(), Era: r.core.Era(), Superseded: r.core.Superseded(),
		Stage: r.core.holding.stage, Tenure: r.core.Tenure(), TenureAt: r.core.tenureAt, HeardAt: r.core.standby.servingAt,
	}
	if e := r.era; e != nil {
		s.Confirmed, s.ConfirmedAt = now < e.confirmedUntil(), r.core.ConfirmedAt()
		s.IDsLeft, s.TimestampsLeft = e.ids.window.Left(), e.tso.window.Left()
		s.ClockBound = e.tso.clockBound != nil && s.TimestampsLeft == 0
		s.Consumed = e.frontiers()
	}
	return s
}

// hindrance is why a Reservation waits for a window that nobody will root, nil if
// one may come.
func (r *RawHolder) hindrance(w *Reservation) error {
	if r.era == nil || r.era.of(w.mandate).clockBound == nil {
		return nil
	}
	return &reason.Error{Detail: r.era.of(w.mandate).clockBound}
}

// Shutdown begins an orderly end (5): nothing new is taken, requests in flight may
// finish, the era is retired with exact frontiers. Finished says when it is over.
func (r *RawHolder) Shutdown(now clock.Instant) {
	if r.leaving {
		return
	}
	r.leaving, r.drainBy, r.stopBy, r.keepUntil = true, now.Add(drainFor), now.Add(stopWithin), never
	r.core.Shutdown(now)
	r.settle(now)
}

// Finished reports that nothing is left to do for an orderly end, or no time.
func (r *RawHolder) Finished(now clock.Instant) bool {
	return r.leaving && (now >= r.stopBy || r.retired() && (len(r.held) == 0 || now >= r.keepUntil))
}

// retired reports that this process has no era and will have none. A claim sent
// before may still make it a holder: that era is retired as well, rather than left
// to expire.
func (r *RawHolder) retired() bool {
	return r.core.Phase() == Stopped && !r.core.ClaimOpen() && r.retirement == nil && len(r.core.actions) == 0
}

func (r *RawHolder) leavingDeadline() clock.Instant {
	switch {
	case r.core.Phase() == Draining:
		return min(r.drainBy, r.stopBy)
	case r.retired():
		return min(r.keepUntil, r.stopBy)
	}
	return r.stopBy
}

// leave takes the steps of an orderly end that are due. Who waits for an era at
// its end is sent to the successor. A standby may not have heard of the retirement:
// it would send them back. This process may not hear of the successor in time
// either: then they look for it themselves.
func (r *RawHolder) leave(now clock.Instant) {
	if r.core.Phase() == Draining && (r.era == nil || r.era.open.Load() == 0 || now >= r.drainBy) {
		r.core.OnDrained(now)
	}
	if r.retired() && r.keepUntil == never {
		r.keepUntil = now.Add(keepFor)
	}
}

// settle does what the Core says, serves whom it can, and asks the root for what is
// due.
func (r *RawHolder) settle(now clock.Instant) {
	r.logSuspicion()
	for {
		for actions := r.core.Actions(); len(actions) > 0; actions = r.core.Actions() {
			for _, a := range actions {
				r.act(a, now)
			}
		}
		if tenure := r.core.Tenure(); tenure != r.shown {
			r.logEnd(r.shown, tenure)
			r.shown = tenure
			r.renewRefusal()
		}
		r.retire(now)
		if e := r.era; e != nil && e.broken != "" {
			r.inheritanceBroken(e.number, e.broken, now)
		} else if e != nil {
			r.confirm(e, now)
			r.extend(e, e.ids, now)
			r.extend(e, e.tso, now)
		}
		if r.leaving {
			r.leave(now)
		}
		if len(r.core.actions) == 0 {
			break
		}
	}
	r.settleHeld(now)
}

// logSuspicion logs when a holder becomes suspect.
func (r *RawHolder) logSuspicion() {
	era, suspect := r.core.Suspect()
	if suspect && era != r.suspected {
		r.log.Info("holder is suspect", "era", era, "holder", r.core.Tenure().GetHolderId())
	}
	if r.suspected = 0; suspect {
		r.suspected = era
	}
}

// logEnd logs how the era before ended, or that it was asked to.
func (r *RawHolder) logEnd(before, now *rootv1.Tenure) {
	if end := now.GetEnd(); end != nil && (before.GetEra() != now.GetEra() || before.GetEnd() == nil) {
		r.log.With(why.Logged(end.GetActor(), end.GetWhy())...).Info("era was asked to end", "era", now.GetEra(), "holder", now.GetHolderId())
	}
	if how := state.Ended(before, now); how != "" {
		r.log.With(why.Logged(before.GetEnd().GetActor(), before.GetEnd().GetWhy())...).Info("era ended", "era", before.GetEra(), "holder", before.GetHolderId(), "how", how)
	}
}

func (r *RawHolder) act(a Action, now clock.Instant) {
	switch a.Kind {
	case Claim:
		r.sendClaim(a.Claim)
	case Confirm:
		r.sendConfirm(a)
	case Advance:
		r.sendAdvance(a)
	case Begin:
		r.begin(a, now)
	case End:
		r.end()
	case Retire:
		r.beginRetirement(a, now)
	}
}

// begin makes the era's windows (2). What came with the claim's answer can be
// served as soon as the era is confirmed.
func (r *RawHolder) begin(a Action, now clock.Instant) {
	tenure := a.Tenure
	in := tenure.GetInherited()
	if in.GetAllocId() < r.served.AllocId || in.GetTso() < r.served.Tso {
		r.inheritanceBroken(tenure.Era, fmt.Sprintf("it inherits %v, served here was %v", in, &r.served), now)
		return
	}
	e := r.newEra(tenure)
	r.era = e
	r.count.Eras.Add(1)
	r.log.Info("era begins", "era", tenure.Era)
	if err := e.takeFirst(r.first, a.Windows); err != nil {
		r.windowForeign(e, err)
	}
	if e.fenced() {
		r.core.OnFenced(tenure.Era, now)
	}
	waiting := r.held
	r.held = nil
	for i, w := range waiting {
		if !r.enqueue(e, w) {
			r.held = append(r.held, waiting[i:]...)
			break
		}
	}
	e.ids.serve(e)
	e.tso.serve(e)
}

// end stops serving at once (rule 9). The order matters to whoever is in the middle
// of a request: first no run is good any more, then the windows close, and only
// then are the frontiers final and may be told to anybody (5).
func (r *RawHolder) end() {
	e := r.era
	if e == nil {
		return
	}
	r.era = nil
	r.renewRefusal()
	e.until.Store(0)
	over := eraStale(e.number, r.core.Tenure().GetEra())
	e.ids.close(e, over)
	e.tso.close(e, over)
	e.release(^uint64(0), over)
	r.served.AllocId = max(r.served.AllocId, e.ids.window.Consumed())
	r.served.Tso = max(r.served.Tso, e.tso.window.Consumed())
	r.ended = e
	r.log.Info("era ends", "era", e.number)
}

// inheritanceBroken counts a violation and gives the era up (2).
func (r *RawHolder) inheritanceBroken(era uint64, what string, now clock.Instant) {
	r.count.Violations.Inheritance.Add(1)
	r.log.Error("inheritance is broken; stepping down", "era", era, "err", what)
	r.core.StepDown(era, now)
}

// windowForeign counts a violation that costs nothing but a window (2).
func (r *RawHolder) windowForeign(e *era, err error) {
	r.count.Violations.Inheritance.Add(1)
	r.log.Error("the root told a window that was not asked for; it is not used", "era", e.number, "err", err)
}

// renewRefusal renews the answer that callers get while no era is held.
func (r *RawHolder) renewRefusal() {
	r.refusal = refusalFor(r.core.Tenure(), r.cfg.ID, r.core.Superseded())
}

// betweenEras reports that the last holder is known to have given the Tenure up,
// or that this process is the holder and does not serve. One that knows nothing
// yet has no reason to keep anybody.
func (r *RawHolder) betweenEras() bool {
	t := r.core.Tenure()
	return !r.core.Superseded() && (t.GetHolderId() == r.cfg.ID || t.GetRetired())
}

// hold keeps a request while an era is about to begin, here or elsewhere: sent away
// it would come back, and oversleep that.
func (r *RawHolder) hold(w *Reservation, now clock.Instant) error {
	if !r.betweenEras() || len(r.held) >= r.cfg.MaxWaiting || r.Finished(now) {
		return r.refusal
	}
	w.until = now.Add(holdFor)
	r.held = append(r.held, w)
	return nil
}

// settleHeld sends away whom nothing keeps any longer.
func (r *RawHolder) settleHeld(now clock.Instant) {
	keep := r.betweenEras() && !(r.leaving && now >= min(r.keepUntil, r.stopBy))
	n := 0
	for n < len(r.held) && (!keep || now >= r.held[n].until) {
		r.held[n].finish(Run{}, r.refusal)
		n++
	}
	r.held = slices.Delete(r.held, 0, n)
}
