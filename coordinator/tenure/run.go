package tenure

import (
	"context"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Run claims, keeps and serves until ctx ends. Then it takes nothing new, lets
// requests in flight finish, retires its era with exact frontiers, and returns
// nil; all of that within two seconds. It is called once.
func (h *Holder) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var workers sync.WaitGroup
	workers.Go(func() { h.claimLoop(work) })
	if h.cfg.Probe != nil {
		workers.Go(func() { h.probeLoop(work) })
	}
	l := &loop{h: h, work: work, limit: work, workers: &workers}
	l.watch(ctx, func() bool { return false })
	l.shutdown()
	stop()
	workers.Wait()
	return nil
}

// loop is the part of a Holder that belongs to Run's goroutine.
type loop struct {
	h *Holder
	// work ends after Run's own context; limit is what retiring must keep to.
	work, limit context.Context
	workers     *sync.WaitGroup
	started     *term
}

// watch follows the view and the Core's deadlines until ctx ends or done says so.
func (l *loop) watch(ctx context.Context, done func() bool) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		changed := l.h.cfg.Views.Changed()
		timer.Reset(l.observe())
		l.startTerm()
		l.retirePending()
		if done() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-l.h.wake:
		case <-timer.C:
		}
	}
}

// observe tells the Core the view and the time, and returns how long to sleep.
func (l *loop) observe() time.Duration {
	h := l.h
	authority, ok := h.cfg.Views.Authority()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.cfg.Clock.Now()
	if ok {
		h.core.OnView(authority, now)
	} else {
		h.core.Tick(now)
	}
	h.settleLocked(now)
	h.armed = h.core.Deadline()
	if h.armed == never {
		return time.Hour
	}
	return max(h.armed.Sub(now), 0)
}

// startTerm starts the workers of an era that has begun.
func (l *loop) startTerm() {
	l.h.mu.Lock()
	t := l.h.term
	l.h.mu.Unlock()
	if t == nil || t == l.started {
		return
	}
	l.started = t
	l.workers.Go(func() { l.h.runTerm(l.work, t) })
}

// runTerm runs the workers of one era until it is over.
func (h *Holder) runTerm(ctx context.Context, t *term) {
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	for range MaxConfirmations {
		workers.Go(func() { h.confirmLoop(ctx, t) })
	}
	workers.Go(func() { h.extendLoop(ctx, t, t.ids) })
	workers.Go(func() { h.extendLoop(ctx, t, t.tso) })
	workers.Go(func() { h.advanceLoop(ctx, t) })
	select {
	case <-t.over:
	case <-ctx.Done():
	}
	cancel()
	workers.Wait()
}

// shutdown is the orderly end (5).
func (l *loop) shutdown() {
	h := l.h
	bound, cancel := context.WithTimeout(l.work, stopWithin)
	defer cancel()
	l.limit = bound
	h.closing.Store(true)
	h.input(func(c *Core, now clock.Instant) { c.Shutdown(now) })
	drain, cancelDrain := context.WithTimeout(bound, drainFor)
	defer cancelDrain()
	l.watch(drain, h.drained)
	h.input(func(c *Core, now clock.Instant) { c.OnDrained(now) })
	// A claim sent before may still make this process a holder: wait for it, and
	// retire that era as well, rather than leave it to expire.
	l.watch(bound, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !h.core.ClaimOpen()
	})
	l.retirePending()
	// Who waits here is sent to the successor. A standby may not have heard of the
	// retirement: it would send them back. This process may not hear of the
	// successor in time either: then they look for it themselves.
	handover, cancelHandover := context.WithTimeout(bound, keepFor)
	defer cancelHandover()
	l.watch(handover, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.held.Load() == 0 || !h.betweenErasLocked()
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = true
	h.tellLocked()
}

// drained reports that no request is in flight.
func (h *Holder) drained() bool {
	t := h.current.Load()
	return t == nil || t.open.Load() == 0
}

// retirePending retires the era that the Core said to retire, if any. It gives
// up after two seconds: the successor then waits for the ttl.
func (l *loop) retirePending() {
	h := l.h
	h.mu.Lock()
	retire := h.retire
	h.retire = nil
	h.mu.Unlock()
	if retire == nil {
		return
	}
	ctx, cancel := context.WithTimeout(l.limit, stopWithin)
	defer cancel()
	command := &rootv1.Command{Events: []*rootv1.Event{
		{Kind: &rootv1.Event_TenureRetired{TenureRetired: retire}},
	}}
	for wait := retryLeast; ; wait = min(2*wait, retryMost) {
		result, err := h.propose(ctx, command)
		if err == nil {
			h.cfg.Logger.Info("era retired", "era", retire.Era, "consumed", retire.Consumed, "outcome", result.Outcome)
			h.input(func(c *Core, now clock.Instant) { c.OnRetired(result, now) })
			return
		}
		if !sleep(ctx, wait) {
			h.cfg.Logger.Warn("era not retired in time; it will expire", "era", retire.Era, "err", err)
			return
		}
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
