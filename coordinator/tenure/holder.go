package tenure

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/tso"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Holder runs a Core: it claims and keeps the Tenure when it may, and serves
// ids and timestamps while it does. Its methods may be called at any time from
// any goroutine.
type Holder struct {
	cfg      Config
	counters Counters
	guard    Guard

	// current is the era that is served now, nil for none; refusal what to
	// answer then.
	current atomic.Pointer[term]
	refusal atomic.Pointer[reason.Error]
	closing atomic.Bool
	// wake tells Run to look.
	wake chan struct{}
	// claims is for the claiming worker; the Core has at most one open.
	claims chan *rootv1.TenureClaimed

	// held counts requests that wait for an era to begin.
	held atomic.Int64

	// mu guards what follows. It is never held across a call to the root.
	mu sync.Mutex
	// news is closed at the next change of what an answer depends on.
	news chan struct{}
	// gone is set when an orderly end keeps nobody any longer.
	gone bool
	core *Core
	term *term
	// ended is the term of the last era, served its frontiers: what a later
	// era must not start below.
	ended  *term
	served rootv1.Frontiers
	retire *rootv1.TenureRetired
	// shown is the Tenure that refusal was made from.
	shown *rootv1.Tenure
	// suspected is the era whose holder is thought dead, as logged last; 0: none.
	suspected uint64
	// armed is the moment that Run sleeps until.
	armed clock.Instant
}

// New makes a Holder; Run starts it.
func New(cfg Config) (*Holder, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	h := &Holder{cfg: cfg, wake: make(chan struct{}, 1), claims: make(chan *rootv1.TenureClaimed, 1), news: make(chan struct{})}
	h.core = NewCore(cfg.settings(), &h.counters)
	h.guard = Guard{clock: cfg.Clock, wait: h.waitConfirmed, refuse: h.refuse}
	h.refusal.Store(refusalFor(nil, cfg.ID, false))
	return h, nil
}

// AllocID hands out count contiguous ids, 1 to idalloc.MaxCount, and returns
// the first and the era. It waits, within ctx, for a window and for a
// confirmation where that is needed. Refusals are *reason.Error:
// REASON_TENURE_NOT_HELD with the holder's address, and those of Guard.Check.
func (h *Holder) AllocID(ctx context.Context, count uint64) (first, era uint64, err error) {
	first, era, check, err := h.ReserveAllocID(ctx, count)
	if err == nil && check != nil {
		err = check(ctx)
	}
	return first, era, err
}

// ReserveAllocID is the first half of AllocID; see ReserveTso.
func (h *Holder) ReserveAllocID(ctx context.Context, count uint64) (first, era uint64, check func(context.Context) error, err error) {
	if count == 0 || count > idalloc.MaxCount {
		return 0, 0, nil, badCount(count, idalloc.MaxCount)
	}
	return h.generate(ctx, rootv1.Mandate_MANDATE_ALLOC_ID, count)
}

// Tso hands out count contiguous timestamps, 1 to tso.MaxCount; otherwise as AllocID.
func (h *Holder) Tso(ctx context.Context, count uint64) (first, era uint64, err error) {
	first, era, check, err := h.ReserveTso(ctx, count)
	if err == nil && check != nil {
		err = check(ctx)
	}
	return first, era, err
}

// ReserveTso is the first half of Tso: it generates. The run may be served when
// check, which waits for a confirmation, has returned nil; meanwhile the caller
// may reserve the next one. It calls check once. A nil check: that was done.
func (h *Holder) ReserveTso(ctx context.Context, count uint64) (first, era uint64, check func(context.Context) error, err error) {
	if count == 0 || count > tso.MaxCount {
		return 0, 0, nil, badCount(count, tso.MaxCount)
	}
	return h.generate(ctx, rootv1.Mandate_MANDATE_TSO, count)
}

func badCount(count, limit uint64) error {
	e := reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "count %d is not between 1 and %d", count, limit)
	e.Detail.Limit = limit
	return e
}

// enter counts a request in. An orderly end raises closing first and counts
// after, so it misses nobody.
func (h *Holder) enter() (*term, error) {
	t := h.current.Load()
	if t == nil {
		return nil, h.refusal.Load()
	}
	t.open.Add(1)
	if h.closing.Load() {
		h.leave(t)
		return nil, h.refusal.Load()
	}
	return t, nil
}

// await holds a refused request while an era is about to begin, here or
// elsewhere: sent away it would come back, and oversleep that.
func (h *Holder) await(ctx context.Context, refusal error) (*term, error) {
	defer h.held.Add(-1)
	if h.held.Add(1) > int64(h.cfg.MaxWaiting) {
		return nil, refusal
	}
	patience := time.NewTimer(holdFor)
	defer patience.Stop()
	for {
		h.mu.Lock()
		between, news := h.betweenErasLocked(), h.news
		h.mu.Unlock()
		t, err := h.enter()
		if err == nil || !between {
			return t, err
		}
		select {
		case <-news:
		case <-patience.C:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// betweenErasLocked reports that the last holder is known to have given the Tenure
// up, or that this process is the holder and does not serve. One that knows
// nothing yet has no reason to keep anybody.
func (h *Holder) betweenErasLocked() bool {
	t := h.core.Tenure()
	own := t.GetHolderId() == h.cfg.ID
	return !h.gone && !h.core.Superseded() && (own || t.GetRetired())
}

func (h *Holder) leave(t *term) {
	if t.open.Add(-1) == 0 && h.closing.Load() {
		h.notify()
	}
}

// generate takes values, and then checks (3), or says how to. A value that fails
// the check is lost: it counts as consumed and nobody gets it.
func (h *Holder) generate(ctx context.Context, m rootv1.Mandate, count uint64) (first, era uint64, check func(context.Context) error, err error) {
	t, err := h.enter()
	if err != nil {
		if t, err = h.await(ctx, err); err != nil {
			return 0, 0, nil, err
		}
	}
	era = t.grant.era
	a, served := t.ids, &h.counters.IDs
	if m == rootv1.Mandate_MANDATE_TSO {
		a, served = t.tso, &h.counters.Timestamps
	}
	first, err = a.reserve(ctx, count)
	if err != nil {
		h.leave(t)
		return 0, era, nil, h.explain(t, err)
	}
	if h.guard.good(&t.grant) {
		h.leave(t)
		served.Add(count)
		return first, era, nil, nil
	}
	return first, era, func(ctx context.Context) error {
		defer h.leave(t)
		err := h.waitConfirmed(ctx, &t.grant)
		if err != nil {
			h.counters.GateRejections.Add(1)
			return h.explain(t, err)
		}
		served.Add(count)
		return nil
	}, nil
}

// explain turns "this era is over" into "ask that one", and steps down where a
// guarantee would have been broken.
func (h *Holder) explain(t *term, err error) error {
	switch reason.Of(err) {
	case rootv1.Reason_REASON_ERA_STALE:
		return h.refusal.Load()
	case rootv1.Reason_REASON_INHERITANCE:
		h.cfg.Logger.Error("inheritance would be broken; stepping down", "era", t.grant.era, "err", err)
		h.input(func(c *Core, now clock.Instant) { c.StepDown(t.grant.era, now) })
	}
	return err
}

// waitConfirmed is the guard's slow way: it joins the next confirmation.
func (h *Holder) waitConfirmed(ctx context.Context, g *grant) error {
	h.mu.Lock()
	t := h.term
	if t == nil || &t.grant != g {
		h.mu.Unlock()
		return h.refuse(g.era)
	}
	if t.waiting >= h.cfg.MaxWaiting {
		h.mu.Unlock()
		h.counters.Overloads.Add(1)
		return overloaded(h.cfg.MaxWaiting)
	}
	t.waiting++
	now := h.cfg.Clock.Now()
	r := t.roundLocked(h.core.Want(now))
	h.settleLocked(now)
	h.mu.Unlock()

	var err error
	select {
	case <-r.done:
		err = r.err
	case <-ctx.Done():
		err = gaveUp(ctx, "the root did not confirm the era in time")
	}
	h.mu.Lock()
	t.waiting--
	h.mu.Unlock()
	return err
}

// refuse says why era cannot be served here.
func (h *Holder) refuse(era uint64) error {
	refusal := h.refusal.Load()
	if current := refusal.Detail.GetEra(); era != 0 && era <= current {
		return eraStale(era, current)
	}
	return refusal
}

// Check is Guard.Check of this Holder: whether era, held here, is still active.
func (h *Holder) Check(ctx context.Context, era uint64) error { return h.guard.Check(ctx, era) }

// Era is the era held, and whether it may be served, as far as is known at
// this moment: Check says for sure.
func (h *Holder) Era() (era uint64, held bool) {
	if t := h.current.Load(); t != nil && !h.closing.Load() {
		return t.grant.era, true
	}
	return 0, false
}

// Counters are the Holder's counters.
func (h *Holder) Counters() *Counters { return &h.counters }

// Status is what a Holder is doing.
type Status struct {
	Phase Phase
	// Era is the era held, 0 for none.
	Era uint64
	// Confirmed: a confirmation is good now, so that requests do not wait.
	Confirmed bool
	// Superseded: a newer process runs under this id.
	Superseded bool
	// Stage is how far the handover to the era held is.
	Stage rootv1.HandoverStage
	// Values left in the windows, and served so far.
	IDsLeft, TimestampsLeft uint64
	Consumed                *rootv1.Frontiers
	// Tenure is the newest known, nil for none.
	Tenure *rootv1.Tenure
}

// Status describes the Holder at this moment.
func (h *Holder) Status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Status{
		Phase: h.core.Phase(), Era: h.core.Era(), Superseded: h.core.Superseded(),
		Stage: h.core.holding.stage, Tenure: h.core.Tenure(),
	}
	if t := h.term; t != nil {
		s.Confirmed = h.guard.good(&t.grant)
		s.IDsLeft, s.TimestampsLeft = t.ids.left(), t.tso.left()
		s.Consumed = t.frontiers()
	}
	return s
}

// OnHolderSuspect tells that the holder of era is thought dead.
func (h *Holder) OnHolderSuspect(era uint64) {
	h.input(func(c *Core, now clock.Instant) { c.OnHolderSuspect(era, now) })
}

// OnSuperseded tells that a newer process runs under this id: the Holder stops
// serving for good.
func (h *Holder) OnSuperseded() {
	h.input(func(c *Core, now clock.Instant) { c.OnSuperseded(now) })
}

// input gives the Core something, does what it says, and wakes Run if it would
// sleep too long. fn must not block.
func (h *Holder) input(fn func(c *Core, now clock.Instant)) {
	h.mu.Lock()
	now := h.cfg.Clock.Now()
	fn(h.core, now)
	h.settleLocked(now)
	early := h.core.Deadline() < h.armed
	h.mu.Unlock()
	if early {
		h.notify()
	}
}

func (h *Holder) notify() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}
