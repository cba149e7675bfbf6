package tenure

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/tso"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Holder runs a RawHolder: it claims and keeps the Tenure when it may, and serves
// ids and timestamps while it does. Its methods may be called at any time from
// any goroutine.
type Holder struct {
	cfg      Config
	counters Counters
	// wake tells Run to look.
	wake chan struct{}

	// mu guards what follows. It is never held across a call to the root.
	mu  sync.Mutex
	raw *RawHolder
	// outbox is what is to be sent; sending tells the callers of the root, until
	// ended. open are the calls to it that have not returned.
	outbox  []*Message
	sending sync.Cond
	ended   bool
	open    map[*Message]context.CancelFunc
	// era is the one that calls were made in, 0 for none.
	era uint64
	// armed is the moment that Run sleeps until.
	armed clock.Instant
}

// New makes a Holder; Run starts it.
func New(cfg Config) (*Holder, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	h := &Holder{cfg: cfg, wake: make(chan struct{}, 1), open: make(map[*Message]context.CancelFunc)}
	h.sending.L = &h.mu
	h.raw = NewRaw(cfg.raw(), &h.counters)
	return h, nil
}

// AllocID hands out count contiguous ids, 1 to idalloc.MaxCount, and returns
// the first and the era. It waits, within ctx, for a window and for a
// confirmation where that is needed. Refusals are *reason.Error:
// REASON_TENURE_NOT_HELD with the holder's address, REASON_COORDINATOR_SUPERSEDED,
// REASON_ROOT_UNAVAILABLE when no confirmation or window came in time,
// REASON_OVERLOADED when too many wait; or ctx's error when it was cancelled.
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

// ReserveTso is the first half of Tso: it generates. The run may be served when check, which waits for a confirmation, has
// returned nil; meanwhile the caller may reserve the next one. It calls check once.
// A nil check: that was done.
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

// generate takes values, and then checks (3), or says how to. A value that fails
// the check is lost: it counts as consumed and nobody gets it.
func (h *Holder) generate(ctx context.Context, m rootv1.Mandate, count uint64) (first, era uint64, check func(context.Context) error, err error) {
	run, err := h.take(ctx, m, count)
	if err != nil {
		return 0, 0, nil, err
	}
	if run.Good(h.cfg.Clock.Now()) {
		h.close(run)
		h.served(m).Add(count)
		return run.First, run.Era(), nil, nil
	}
	return run.First, run.Era(), func(ctx context.Context) error {
		err := h.confirm(ctx, run)
		h.close(run)
		if err != nil {
			h.counters.GateRejections.Add(1)
			return err
		}
		h.served(m).Add(count)
		return nil
	}, nil
}

// take takes values from the window, or waits for them.
func (h *Holder) take(ctx context.Context, m rootv1.Mandate, count uint64) (Run, error) {
	h.mu.Lock()
	run, ok := h.raw.Take(m, count)
	if ok {
		due := h.raw.Due()
		h.mu.Unlock()
		if due {
			h.notify()
		}
		return run, nil
	}
	w, err := h.raw.Reserve(m, count, h.cfg.Clock.Now())
	h.flushLocked()
	h.mu.Unlock()
	if err != nil {
		return Run{}, err
	}
	select {
	case <-w.Done():
	case <-ctx.Done():
		if cancelled, why := h.cancel(w); cancelled {
			if why != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return Run{}, why
			}
			return Run{}, gaveUp(ctx, "no window was rooted in time")
		}
	}
	run, err = w.Result()
	return run, h.explain(err)
}

func (h *Holder) cancel(w *Reservation) (cancelled bool, why error) {
	h.step(func(r *RawHolder, now clock.Instant) { cancelled, why = r.Cancel(w, now), r.hindrance(w) })
	return cancelled, why
}

// confirm waits for a confirmation of the run's era.
func (h *Holder) confirm(ctx context.Context, run Run) error {
	h.mu.Lock()
	c, err := h.raw.Confirm(run, h.cfg.Clock.Now())
	h.flushLocked()
	h.mu.Unlock()
	if err != nil {
		return h.explain(err)
	}
	select {
	case <-c.Done():
		return h.explain(c.Err())
	case <-ctx.Done():
		return gaveUp(ctx, "the root did not confirm the era in time")
	}
}

// Check is the second half of Tso for what is no number: nil says that the era is still
// held at a moment behind the call, so that what was made before may be served. It waits
// for a confirmation where that is needed, within ctx, and refuses as AllocID does.
func (h *Holder) Check(ctx context.Context, era uint64) error {
	h.mu.Lock()
	run, ok := h.raw.Enter(era)
	var why error = h.raw.refusal
	if holds := h.raw.core.Era(); !ok && holds != 0 && holds != era {
		why = eraStale(era, holds)
	}
	h.mu.Unlock()
	if !ok {
		return why
	}
	defer h.close(run)
	if run.Good(h.cfg.Clock.Now()) {
		return nil
	}
	err := h.confirm(ctx, run)
	if err != nil {
		h.counters.GateRejections.Add(1)
	}
	return err
}

// close ends a request. An orderly end waits for the last one.
func (h *Holder) close(run Run) {
	if run.Close() {
		h.mu.Lock()
		leaving := h.raw.leaving
		h.mu.Unlock()
		if leaving {
			h.notify()
		}
	}
}

// served is the counter of values served.
func (h *Holder) served(m rootv1.Mandate) *atomic.Uint64 {
	if m == rootv1.Mandate_MANDATE_TSO {
		return &h.counters.Timestamps
	}
	return &h.counters.IDs
}

// explain turns "this era is over" into "ask that one".
func (h *Holder) explain(err error) error {
	if err == nil || reason.Of(err) != rootv1.Reason_REASON_ERA_STALE {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.raw.refusal
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
	// ConfirmedAt is when the newest confirmation was sent: later than that the
	// root's leader answered, and a quorum stood behind it; 0: with a ttl of 0.
	ConfirmedAt clock.Instant
	// Superseded: a newer process runs under this id.
	Superseded bool
	// Stage is how far the handover to the era held is.
	Stage rootv1.HandoverStage
	// ClockBound: no timestamps are left, and the root refuses more because they
	// are too far ahead of its clock.
	ClockBound bool
	// Values left in the windows, and served so far.
	IDsLeft, TimestampsLeft uint64
	Consumed                *rootv1.Frontiers
	// Tenure is the newest known, nil for none; TenureAt is when its era was first
	// seen here.
	Tenure   *rootv1.Tenure
	TenureAt clock.Instant
	// HeardAt is when a standby's probe of its holder was answered last, or when it was first
	// seen here.
	HeardAt clock.Instant
}

// Status describes the Holder at this moment.
func (h *Holder) Status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.raw.Status(h.cfg.Clock.Now())
}

// OnSuperseded tells that a newer process runs under this id: the Holder stops
// serving for good.
func (h *Holder) OnSuperseded() {
	h.step(func(r *RawHolder, now clock.Instant) { r.OnSuperseded(now) })
}

// OnLonely tells whether no member reaches this coordinator.
func (h *Holder) OnLonely(lonely bool) {
	h.step(func(r *RawHolder, now clock.Instant) { r.core.OnLonely(lonely, now) })
}

// step gives the RawHolder something, and wakes Run if it would sleep too long. fn
// must not block.
func (h *Holder) step(fn func(r *RawHolder, now clock.Instant)) {
	h.mu.Lock()
	fn(h.raw, h.cfg.Clock.Now())
	h.flushLocked()
	early := h.raw.Deadline() < h.armed || h.raw.leaving
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

// flushLocked has what is to be sent sent, and calls ended that nobody waits for.
func (h *Holder) flushLocked() {
	for _, m := range h.raw.Messages() {
		h.outbox = append(h.outbox, m)
		h.sending.Signal()
	}
	if era := h.raw.core.Era(); era != h.era {
		h.era = era
		for m, cancel := range h.open {
			if m.Era != 0 && m.Era != era {
				cancel()
			}
		}
	}
}

// callers is how many calls to the root may be under way: a claim, a retirement,
// an advance of the handover, a window of each mandate, and confirmations.
const callers = 5 + MaxConfirmations

// Run claims, keeps and serves until ctx ends. Then it takes nothing new, lets
// requests in flight finish, retires its era with exact frontiers, and returns
// nil; all of that within two seconds. It is called once.
func (h *Holder) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var workers sync.WaitGroup
	for range callers {
		workers.Go(func() { h.call(work) })
	}
	if h.cfg.Probe != nil {
		workers.Go(func() { h.probe(work) })
	}
	h.watch(ctx)
	h.step(func(r *RawHolder, now clock.Instant) { r.Shutdown(now) })
	h.watch(work)
	stop()
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	h.sending.Broadcast()
	workers.Wait()
	return nil
}

// watch follows the view and the deadlines until ctx ends, or an orderly end is over.
func (h *Holder) watch(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		changed := h.cfg.Views.Changed()
		wait, finished := h.observe()
		if finished {
			return
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-h.wake:
		case <-timer.C:
		}
	}
}

// observe tells the view and the time, and returns how long to sleep.
func (h *Holder) observe() (wait time.Duration, finished bool) {
	authority, ok := h.cfg.Views.Authority()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.cfg.Clock.Now()
	if ok {
		h.raw.OnView(authority, now)
	} else {
		h.raw.Tick(now)
	}
	h.flushLocked()
	h.armed = h.raw.Deadline()
	if h.armed == never {
		wait = time.Hour
	} else {
		wait = max(h.armed.Sub(now), 0)
	}
	return wait, h.raw.Finished(now)
}

// call sends messages to the root, one at a time, until Run has ended.
func (h *Holder) call(ctx context.Context) {
	for {
		h.mu.Lock()
		for len(h.outbox) == 0 && !h.ended {
			h.sending.Wait()
		}
		if h.ended {
			h.mu.Unlock()
			return
		}
		m := h.outbox[0]
		h.outbox = h.outbox[1:]
		attempt, cancel := context.WithTimeout(ctx, callTimeout)
		h.open[m] = cancel
		if m.Era != 0 && m.Era != h.era {
			cancel()
		}
		h.mu.Unlock()
		answer := h.ask(attempt, m)
		cancel()
		h.step(func(r *RawHolder, now clock.Instant) {
			delete(h.open, m)
			r.OnAnswer(m, answer, now)
		})
	}
}

func (h *Holder) ask(ctx context.Context, m *Message) (a Answer) {
	switch {
	case m.Claim != nil:
		a.Claim, a.Err = h.cfg.Root.Claim(ctx, m.Claim, m.Windows...)
	case m.Confirm != nil:
		a.Confirm, a.Err = h.cfg.Root.Confirm(ctx, m.Confirm)
	default:
		var results []*rootv1.CommandResult
		results, a.Err = h.cfg.Root.Propose(ctx, m.Command)
		if a.Err == nil && (len(results) != 1 || results[0] == nil) {
			a.Err = errors.New("root answered one command with no result")
		}
		if a.Err == nil {
			a.Result = results[0]
		}
	}
	return a
}

func (h *Holder) probe(ctx context.Context) {
	for pause := h.cfg.ProbeEvery; h.probeDue(ctx, pause); {
		h.mu.Lock()
		t := h.raw.ProbeTarget()
		h.mu.Unlock()
		if t == nil {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, 2*h.cfg.ProbeEvery/3)
		health := h.cfg.Probe(attempt, t)
		cancel()
		if pause = h.cfg.ProbeEvery; health == HealthUnknown {
			pause /= 8 // One that was lost is no reason to suspect anybody.
		}
		h.step(func(r *RawHolder, now clock.Instant) { r.OnProbe(t.GetHolderAddress(), health, now) })
	}
}

// probeDue waits for the time of the next probe, or for an alarm and alarmPause since
// the last one; it reports false when ctx ended first.
func (h *Holder) probeDue(ctx context.Context, pause time.Duration) bool {
	last, timer := h.cfg.Clock.Now(), time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-h.cfg.Alarm:
		return sleep(ctx, alarmPause-h.cfg.Clock.Now().Sub(last))
	}
}

// sleep waits for d; it reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
