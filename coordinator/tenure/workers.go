package tenure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/tso"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// clockWait is the pause after the root refused a window for its clock's sake.
	clockWait = 20 * time.Millisecond
	// reportEvery is the time between two reports of that.
	reportEvery = 10 * time.Second
)

func (h *Holder) claimLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case claim := <-h.claims:
			attempt, cancel := context.WithTimeout(ctx, claimTimeout)
			r, err := h.cfg.Root.Claim(attempt, claim, h.firstWindows()...)
			cancel()
			h.cfg.Logger.Debug("claim answered", "era", claim.ExpectedEra+1, "outcome", r.GetResult().GetOutcome(), "retry_after_millis", r.GetRetryAfterMillis(), "err", err)
			h.input(func(c *Core, now clock.Instant) { c.OnClaimed(r, err, now) })
		}
	}
}

// firstWindows are what an era needs before it can serve, in the order of
// term.takeFirst.
func (h *Holder) firstWindows() []*rootv1.FirstWindow {
	ids := &rootv1.FirstWindow{Mandate: rootv1.Mandate_MANDATE_ALLOC_ID}
	ids.Floor, ids.Size = idalloc.First(h.cfg.IDStart, h.cfg.IDWindow)
	stamps := &rootv1.FirstWindow{Mandate: rootv1.Mandate_MANDATE_TSO}
	stamps.Floor, stamps.Size = tso.First(h.cfg.TSOStart, h.cfg.TSOAhead, h.cfg.Clock.Wall())
	return []*rootv1.FirstWindow{ids, stamps}
}

func (h *Holder) confirmLoop(ctx context.Context, t *term) {
	request := &rootv1.ConfirmTenureRequest{
		Era: t.grant.era, HolderId: h.cfg.ID, HolderIncarnation: h.cfg.Incarnation,
	}
	for {
		select {
		case <-ctx.Done():
			return
		case seq := <-t.confirms:
			attempt, cancel := context.WithTimeout(ctx, confirmTimeout)
			r, err := h.cfg.Root.Confirm(attempt, request)
			cancel()
			h.input(func(c *Core, now clock.Instant) { c.OnConfirmed(t.grant.era, seq, r, err, now) })
		}
	}
}

func (h *Holder) advanceLoop(ctx context.Context, t *term) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-t.advances:
			stage, err := h.advance(ctx, a)
			h.input(func(c *Core, now clock.Instant) {
				c.OnAdvanced(a.Era, stage, err, now)
				if eraOver(reason.From(err), a.Era) {
					c.OnEraOver(a.Era, now)
				}
			})
		}
	}
}

// advance proposes the stages that are missing, in one command.
func (h *Holder) advance(ctx context.Context, a Action) (rootv1.HandoverStage, error) {
	command := &rootv1.Command{}
	for stage := a.From + 1; stage <= a.To; stage++ {
		command.Events = append(command.Events, &rootv1.Event{Kind: &rootv1.Event_HandoverAdvanced{
			HandoverAdvanced: &rootv1.HandoverAdvanced{Era: a.Era, Stage: stage},
		}})
	}
	result, err := h.propose(ctx, command)
	if err != nil {
		return 0, err
	}
	if result.Outcome == rootv1.Outcome_OUTCOME_REJECTED {
		return 0, &reason.Error{Detail: detailOf(result)}
	}
	return a.To, nil
}

// extendLoop roots the windows of one allocator ahead of use, one at a time. A
// window whose outcome is unknown is asked for again unchanged, so that it is
// found already applied.
func (h *Holder) extendLoop(ctx context.Context, t *term, a *allocator) {
	for {
		from, to, want, waiting := a.next(h.cfg.Clock.Now())
		if want {
			if !h.extend(ctx, t, a, from, to) {
				return
			}
			continue
		}
		if waiting {
			// Room came up only in part, or must not be asked for yet.
			if !sleep(ctx, retryLeast) {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-a.low:
		}
	}
}

// extend gets an answer about (from, to], however often it must ask. It
// reports false when the era is over or ctx ends.
func (h *Holder) extend(ctx context.Context, t *term, a *allocator, from, to uint64) bool {
	command := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_FenceExtended{
		FenceExtended: &rootv1.FenceExtended{Mandate: a.mandate, Era: t.grant.era, Floor: from, Size: to - from},
	}}}}
	for wait := retryLeast; ; wait = min(2*wait, retryMost) {
		result, err := h.propose(ctx, command)
		switch {
		case err == nil && result.Outcome != rootv1.Outcome_OUTCOME_REJECTED:
			return h.onExtended(t, a, from, to, result)
		case err == nil:
			decided, over := h.onExtendRefused(ctx, t, a, from, detailOf(result))
			if decided || over {
				return !over
			}
		}
		if !sleep(ctx, wait) {
			return false
		}
	}
}

// onExtended makes the window available. The answer must be about this window,
// of this era: otherwise nothing of it may be served (2).
func (h *Holder) onExtended(t *term, a *allocator, from, to uint64, result *rootv1.CommandResult) bool {
	w, err := windowOf(result, t.grant.era, from, to-from)
	fenced := false
	if err == nil {
		fenced, err = t.extended(a, w.GetFrom(), w.GetTo())
	}
	if err != nil {
		h.broken(t, err)
		return false
	}
	if fenced {
		h.input(func(c *Core, now clock.Instant) { c.OnFenced(t.grant.era, now) })
	}
	return true
}

func windowOf(result *rootv1.CommandResult, era, floor, size uint64) (*rootv1.Window, error) {
	for _, e := range result.GetEvents() {
		w := e.GetWindow()
		if w == nil || w.Era != era || w.From < floor || w.To-w.From != size {
			return nil, fmt.Errorf("asked for %d values above %d in era %d, was told of %v", size, floor, era, w)
		}
		return w, nil
	}
	return nil, fmt.Errorf("asked for %d values above %d in era %d, was told of none", size, floor, era)
}

// onExtendRefused says whether the refusal decides the matter, so that the
// window is asked anew, and whether the era is over.
func (h *Holder) onExtendRefused(ctx context.Context, t *term, a *allocator, from uint64, d *rootv1.ErrorDetail) (decided, over bool) {
	switch {
	case eraOver(d, t.grant.era):
		h.input(func(c *Core, now clock.Instant) { c.OnEraOver(t.grant.era, now) })
		return true, true
	case d.GetReason() == rootv1.Reason_REASON_CLOCK_BOUND:
		h.counters.ClockRefusals.Add(1)
		h.reportClock(t, a, d)
		a.refusedByClock(h.cfg.Clock.Now())
		return true, !sleep(ctx, clockWait)
	case d.GetFence() > from:
		a.refused(d.GetFence())
		return true, false
	case d.GetReason() == rootv1.Reason_REASON_INHERITANCE:
		h.broken(t, fmt.Errorf("rooted fence %d of %s is below %d: %s", d.GetFence(), a.mandate, from, d.GetMessage()))
		return true, true
	}
	h.cfg.Logger.Warn("window refused", "era", t.grant.era, "mandate", a.mandate, "err", d.GetMessage())
	return false, false
}

// reportClock says that timestamps reach beyond the root leader's clock, now
// and then for as long as they do.
func (h *Holder) reportClock(t *term, a *allocator, d *rootv1.ErrorDetail) {
	if now := h.cfg.Clock.Now(); a.reportedAt == 0 || now.Sub(a.reportedAt) >= reportEvery {
		a.reportedAt = now
		h.cfg.Logger.Warn("the root refuses timestamps so far ahead of its clock: check this machine's clock and the start flag",
			"era", t.grant.era, "mandate", a.mandate, "err", d.GetMessage())
	}
}

// broken counts a violation of Inheritance and gives the era up.
func (h *Holder) broken(t *term, err error) {
	h.counters.Violations.Inheritance.Add(1)
	h.cfg.Logger.Error("inheritance is broken; stepping down", "era", t.grant.era, "err", err)
	h.input(func(c *Core, now clock.Instant) { c.StepDown(t.grant.era, now) })
}

// propose proposes one command. A refusal of the leader that is about the
// command itself, before it is judged, counts as a rejection.
func (h *Holder) propose(ctx context.Context, command *rootv1.Command) (*rootv1.CommandResult, error) {
	attempt, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	results, err := h.cfg.Root.Propose(attempt, command)
	if d := reason.From(err); d.GetReason() == rootv1.Reason_REASON_CLOCK_BOUND {
		return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: d}, nil
	}
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || results[0] == nil {
		return nil, errors.New("root answered one command with no result")
	}
	return results[0], nil
}

// detailOf is the detail of a rejection, never nil.
func detailOf(r *rootv1.CommandResult) *rootv1.ErrorDetail {
	if d := r.GetError(); d != nil {
		return d
	}
	return &rootv1.ErrorDetail{}
}

func (h *Holder) probeLoop(ctx context.Context) {
	for h.probeDue(ctx) {
		address := h.probeTarget()
		if address == "" {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, 2*h.cfg.ProbeEvery)
		health := h.cfg.Probe(attempt, address)
		cancel()
		h.input(func(c *Core, now clock.Instant) { c.OnProbe(address, health, now) })
	}
}

// probeDue waits for the time of the next probe, or for an alarm; it reports
// false when ctx ended first.
func (h *Holder) probeDue(ctx context.Context) bool {
	if !sleep(ctx, alarmPause) {
		return false
	}
	timer := time.NewTimer(max(h.cfg.ProbeEvery-alarmPause, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-h.cfg.Alarm:
	}
	return true
}

// probeTarget is the address of the holder to watch; empty: none.
func (h *Holder) probeTarget() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.core.Tenure()
	if h.core.Phase() != Standby || t == nil || t.Retired || t.HolderId == h.cfg.ID {
		return ""
	}
	return t.HolderAddress
}
