package tenure

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// holding is what a Core knows about the era it has. Its zero value is none.
type holding struct {
	era uint64
	ttl time.Duration

	// Confirmations are numbered from 1 in the order they are sent. An answer
	// to one also serves whoever waits for an earlier one.
	sent      uint64
	confirmed uint64
	// wanted is the lowest confirmation that serves everybody who waits.
	wanted  uint64
	flights []flight
	sentAt  clock.Instant
	retryAt clock.Instant
	fails   int
	// used: a value was asked for since sentAt; busy: in the time before that.
	used, busy bool
	// until: the newest confirmation is good before this moment.
	until  clock.Instant
	lapsed bool
	pace   pace

	stage     rootv1.HandoverStage
	fenced    bool
	advancing bool
	advanceAt clock.Instant
	advances  int
	// begunAt is when the era began here, or the process went on after it had stood
	// still while the handover was open.
	begunAt clock.Instant
}

// flight is a confirmation sent and not answered.
type flight struct {
	seq    uint64
	sentAt clock.Instant
}

// begin takes an era up (1). Before anything is served it must be confirmed once.
// One that is not wanted any more is retired.
func (c *Core) begin(t *rootv1.Tenure, now clock.Instant) {
	c.lastEra = t.Era
	if c.phase == Stopped || t.End != nil {
		c.emit(Action{Kind: Retire, Era: t.Era, Tenure: t})
		return
	}
	c.phase = Holding
	c.holding = holding{era: t.Era, ttl: ttlOf(t), wanted: 1, begunAt: now, pace: pace{since: now}, stage: rootv1.HandoverStage_HANDOVER_STAGE_OPEN}
	c.emit(Action{Kind: Begin, Era: t.Era, Tenure: t, Windows: c.standby.windows})
	c.pump(now)
}

// end stops acting for the era at once; rule 9 of the design.
func (c *Core) end(now clock.Instant) {
	era := c.holding.era
	c.holding, c.heardAt = holding{}, now
	c.emit(Action{Kind: End, Era: era})
	if c.phase == Draining {
		c.phase = Stopped
	} else if c.phase == Holding {
		c.phase = Standby
	}
	c.standby.reset(now)
}

// Want asks for a confirmation that is sent after this call, and returns its
// number. It has come once Confirmed has reached that.
func (c *Core) Want(now clock.Instant) (seq uint64) {
	h := &c.holding
	seq = h.sent + 1
	h.wanted = max(h.wanted, seq)
	c.pump(now)
	return seq
}

// Confirmed is the number of the newest confirmation that the root gave for
// the era held.
func (c *Core) Confirmed() uint64 { return c.holding.confirmed }

// Serves reports that the era held has been confirmed and has its first fences:
// from then on nothing of its beginning holds requests up.
func (c *Core) Serves() bool { return c.holding.confirmed > 0 && c.holding.fenced }

// ConfirmedAt is when the newest confirmation of the era held was sent; 0: with a
// ttl of 0, or there is none yet.
func (c *Core) ConfirmedAt() clock.Instant {
	if h := &c.holding; h.until != 0 {
		return h.until.Add(-h.ttl)
	}
	return 0
}

// Until is the moment before which the era held counts as confirmed. With a
// ttl of 0 there is none.
func (c *Core) Until() clock.Instant { return c.holding.until }

// Used notes that a value is asked for.
func (c *Core) Used() { c.holding.used = true }

// pump sends the confirmations that are due: one when somebody waits that none
// in flight will serve; with a ttl one each third of it, so that two may be lost, or
// each three quarters while nobody asks for anything. That is still often enough for
// the root not to give the era to somebody else, and for the first who asks.
func (c *Core) pump(now clock.Instant) {
	h := &c.holding
	if h.ttl > 0 && h.until > 0 && now >= h.until && !h.lapsed {
		h.lapsed = true
		c.count.Lapses.Add(1)
	}
	for h.era != 0 && now >= c.confirmAt() {
		h.sent++
		h.sentAt, h.busy, h.used = now, h.used, false
		h.flights = append(h.flights, flight{seq: h.sent, sentAt: now})
		c.count.Confirmations.Add(1)
		c.emit(Action{Kind: Confirm, Era: h.era, Seq: h.sent})
	}
}

// confirmAt is the moment to send the next confirmation at, as things stand.
func (c *Core) confirmAt() clock.Instant {
	h := &c.holding
	if h.era == 0 || len(h.flights) >= MaxConfirmations {
		return never
	}
	cover := h.confirmed
	for _, f := range h.flights {
		cover = max(cover, f.seq)
	}
	switch {
	case h.wanted > cover:
		return h.retryAt
	case h.ttl > 0 && (h.used || h.busy): // Who takes a value wakes nobody: it counts for the next pause too.
		return max(h.sentAt.Add(h.ttl/3), h.retryAt)
	case h.ttl > 0:
		return max(h.sentAt.Add(h.ttl/4*3), h.retryAt)
	}
	return never
}

// OnConfirmed tells the answer to confirmation seq of era. err means that none
// came.
func (c *Core) OnConfirmed(era, seq uint64, r *rootv1.ConfirmTenureResponse, err error, now clock.Instant) {
	h := &c.holding
	f, open := h.land(era, seq)
	if !open {
		return
	}
	t := r.GetTenure()
	switch {
	case err == nil && r.GetActive() && t != nil && (t.Era != era || t.Retired):
		c.count.Violations.Silence.Add(1)
		c.end(now)
		c.learn(t, now)
	case err == nil && r.GetActive():
		h.confirmed = max(h.confirmed, seq)
		h.fails, h.retryAt = 0, 0
		if h.ttl > 0 {
			// Rule 2: counted from the sending, never from the answer.
			h.until = max(h.until, f.sentAt.Add(h.ttl))
			late := h.lapsed
			h.lapsed = h.lapsed && now >= h.until
			c.paced(f, late, now)
		}
	case err == nil && !(t.GetEra() == era && c.mine(t) && !t.GetRetired()):
		c.end(now)
		c.learn(t, now)
		c.standby.waitForView(now)
	case err == nil && t.GetEnd() != nil:
		c.learn(t, now)
	default:
		// No answer; or the era is ours and a claim over it is being decided.
		h.retryAt = now.Add(c.backoff(h.fails))
		h.fails++
		h.wanted = max(h.wanted, h.confirmed+1)
	}
	c.Tick(now)
}

// land removes a flight; it reports whether it was open.
func (h *holding) land(era, seq uint64) (flight, bool) {
	if era != h.era {
		return flight{}, false
	}
	for i, f := range h.flights {
		if f.seq == seq {
			h.flights = append(h.flights[:i], h.flights[i+1:]...)
			return f, true
		}
	}
	return flight{}, false
}

// OnFenced tells that the first fences of era are rooted.
func (c *Core) OnFenced(era uint64, now clock.Instant) {
	if era == c.holding.era {
		c.holding.fenced = true
		c.Tick(now)
	}
}

// target is the stage that the handover has earned.
func (h *holding) target() rootv1.HandoverStage {
	switch {
	case h.confirmed == 0:
		return rootv1.HandoverStage_HANDOVER_STAGE_OPEN
	case !h.fenced:
		return rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED
	}
	return rootv1.HandoverStage_HANDOVER_STAGE_CLOSED
}

func (c *Core) advanceAt() clock.Instant {
	h := &c.holding
	if h.era == 0 || h.advancing || h.stage >= h.target() {
		return never
	}
	return h.advanceAt
}

func (c *Core) maybeAdvance(now clock.Instant) {
	if h := &c.holding; now >= c.advanceAt() {
		h.advancing = true
		c.emit(Action{Kind: Advance, Era: h.era, From: h.stage, To: h.target()})
	}
}

// OnAdvanced tells the outcome of the open Advance of era: the stage that is
// rooted now when err is nil; otherwise it is tried again, from the first stage.
func (c *Core) OnAdvanced(era uint64, stage rootv1.HandoverStage, err error, now clock.Instant) {
	h := &c.holding
	if era != h.era || !h.advancing {
		return
	}
	h.advancing = false
	if err == nil {
		if stage > h.stage {
			c.count.HandoverSteps.Add(uint64(stage - h.stage))
		}
		h.stage, h.advances, h.advanceAt = max(h.stage, stage), 0, 0
	} else {
		h.advanceAt = now.Add(c.backoff(h.advances))
		h.advances++
	}
	c.Tick(now)
}

// finalityAt is the moment from which an open handover is a violation (4).
func (c *Core) finalityAt() clock.Instant {
	h := &c.holding
	if h.era == 0 || c.reported == h.era || h.stage >= rootv1.HandoverStage_HANDOVER_STAGE_CLOSED {
		return never
	}
	return h.begunAt.Add(c.s.HandoverDeadline)
}

// lateFinality is how much later than due the look at an open handover may come.
// More says that the process or its machine stood still, which is no violation.
const lateFinality = time.Second

func (c *Core) checkFinality(now clock.Instant) {
	switch at := c.finalityAt(); {
	case now < at:
	case now.Sub(at) > lateFinality:
		c.holding.begunAt = now
	default:
		c.reported = c.holding.era
		c.count.Violations.Finality.Add(1)
	}
}
