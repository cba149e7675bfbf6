package simulation

import (
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// serve takes a request for values; false when this process has no era.
func (h *holder) serve(a *ask) bool {
	if h.era == 0 || h.core.Phase() == tenure.Draining {
		return false
	}
	h.inFlight++
	if h.variant() == checkThenGenerate {
		h.batch = append(h.batch, a)
		if !h.checking {
			h.checking = true
			h.verify(a)
		}
		return true
	}
	h.generate(a)
	return true
}

// generate takes the value; verify follows after a while in which anything may
// happen.
func (h *holder) generate(a *ask) {
	var ok bool
	if a.mandate == timestamps {
		a.first, ok = h.tso.Take(a.count, h.n.clock.Wall())
	} else {
		a.first, ok = h.ids.Take(a.count)
	}
	h.extend(a.mandate)
	switch {
	case !ok:
		h.queue = append(h.queue, a)
		h.extend(a.mandate)
	case h.variant() == checkThenGenerate:
		h.reply(a, h.era)
	default:
		h.between(func() { h.verify(a) })
	}
}

// between is the moment between two steps: sometimes the process stands still
// in it.
func (h *holder) between(fn func()) {
	r, era := h.n.r, h.era
	if !r.calm && r.Chance(0.002) {
		r.Fault("paused between generate and check")
		h.n.pause(r.Between(0, 3*r.k.ttl+30*time.Millisecond))
	}
	h.n.after(r.Between(0, 60*time.Microsecond), func() {
		if h.era == era {
			fn()
		}
	})
}

// verify is the guard: at once while confirmed, else with a ticket.
func (h *holder) verify(a *ask) {
	until := h.core.Until()
	if h.variant() == countsFromReply && h.n.r.k.ttl > 0 {
		until = h.lastUntil
	}
	if h.n.now() < until {
		h.pass(a, h.era)
		return
	}
	ticket := h.core.Want(h.n.now())
	if h.variant() == earlierConfirmation {
		ticket = h.core.Confirmed()
	}
	h.checks = append(h.checks, &check{ask: a, era: h.era, ticket: ticket})
}

func (h *holder) finishChecks() {
	waiting := h.checks
	h.checks = nil
	for _, c := range waiting {
		if c.ticket <= h.core.Confirmed() || h.n.now() < h.core.Until() {
			h.pass(c.ask, c.era)
		} else {
			h.checks = append(h.checks, c)
		}
	}
}

func (h *holder) pass(a *ask, era uint64) {
	if h.variant() != checkThenGenerate {
		h.reply(a, era)
		return
	}
	h.between(func() {
		batch := h.batch
		h.batch, h.checking = nil, false
		for _, a := range batch {
			h.generate(a)
		}
	})
}

func (h *holder) reply(a *ask, era uint64) {
	h.inFlight--
	a.reply(a.first, era)
}

// extend asks for the next window, if one is due.
func (h *holder) extend(m rootv1.Mandate) {
	var from, to, sum uint64
	var want bool
	for _, a := range h.queue {
		if a.mandate == m {
			sum += a.count
		}
	}
	if m == timestamps {
		from, to, want = h.tso.NeedExtend(sum, h.n.clock.Wall(), h.n.now())
	} else {
		from, to, want = h.ids.NeedExtend(sum, h.n.now())
	}
	if !want {
		return
	}
	if h.variant() == servesBeforeFence {
		h.extended(m, from, to)
	}
	h.root(m, h.era, from, to)
}

// root roots a window, however often it must ask.
func (h *holder) root(m rootv1.Mandate, era, from, to uint64) {
	h.propose(askLimit, func(r *rootv1.CommandResult) {
		switch {
		case h.era != era:
		case r == nil:
			h.root(m, era, from, to)
		case r.Outcome != rootv1.Outcome_OUTCOME_REJECTED:
			w := r.Events[0].Window
			h.extended(m, w.From, w.To)
		default:
			h.refused(m, era, from, to, r.Error)
		}
	}, &rootv1.Event{Kind: &rootv1.Event_FenceExtended{
		FenceExtended: &rootv1.FenceExtended{Mandate: m, Era: era, Floor: from, Size: to - from},
	}})
}

func (h *holder) extended(m rootv1.Mandate, from, to uint64) {
	var err error
	if m == timestamps {
		err = h.tso.Extended(from, to)
	} else {
		err = h.ids.Extended(from, to)
	}
	if err != nil && h.variant() == noVariant {
		h.n.r.fail("Inheritance: %s: %w", h.n.name, err)
	}
	if h.fences++; h.fences == 2 {
		h.core.OnFenced(h.era, h.n.now())
	}
	h.serveQueue(m)
}

func (h *holder) refused(m rootv1.Mandate, era, from, to uint64, d *rootv1.ErrorDetail) {
	switch d.GetReason() {
	case rootv1.Reason_REASON_ERA_STALE, rootv1.Reason_REASON_SILENCE:
		h.core.OnEraOver(era, h.n.now())
		return
	case rootv1.Reason_REASON_CLOCK_BOUND:
		h.n.r.Fault("clock refused")
		h.tso.ClockRefused(h.n.now())
		h.n.after(5*time.Millisecond, func() {
			if h.era == era {
				h.extend(m)
			}
		})
	case rootv1.Reason_REASON_INHERITANCE:
		if d.Fence <= from && h.variant() == noVariant {
			h.n.r.fail("Inheritance: %s: fence %d of %v is not above %d: %s", h.n.name, d.Fence, m, from, d.Message)
		}
		if m == timestamps {
			h.tso.Refused(d.Fence)
		} else {
			h.ids.Refused(d.Fence)
		}
	default:
		h.n.r.fail("window (%d, %d] of %v refused: %v", from, to, m, d)
		return
	}
	h.serveQueue(m)
	if d.GetReason() != rootv1.Reason_REASON_CLOCK_BOUND {
		h.extend(m)
	}
}

// serveQueue goes on with those that waited for a window, in order.
func (h *holder) serveQueue(m rootv1.Mandate) {
	queue := h.queue
	h.queue = nil
	for _, a := range queue {
		if a.mandate != m {
			h.queue = append(h.queue, a)
			continue
		}
		h.generate(a)
	}
}

// propose proposes one command on behalf of a caller or of the holder.
func (n *node) propose(c *rootv1.Command, limit time.Duration, done func(*rootv1.CommandResult)) {
	proposeOver(n.link, c, limit, done)
}

// hint is whom callers should ask for values.
func (n *node) hint() string {
	if t := n.holder.core.Tenure(); t != nil && !t.Retired {
		return t.HolderId
	}
	return ""
}

// refusedEarly makes a result of a refusal that came before the command was judged.
func refusedEarly(r replica.Request) *rootv1.CommandResult {
	return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: reason.From(r.(*replica.Proposal).Err)}
}
