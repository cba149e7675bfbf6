package tenure

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Health is what a probe found.
type Health uint8

// What a probe can find.
const (
	// HealthUnknown: no answer, and no refusal either.
	HealthUnknown Health = iota
	// HealthServing: it answered.
	HealthServing
	// HealthRefused: nobody listens there. The holder is suspect at once.
	HealthRefused
)

// standby is what a Core without an era knows about the holder.
type standby struct {
	claiming bool
	// windows came with the answer at hand to a claim.
	windows  []*rootv1.Window
	failures int
	// suspect: the holder of the newest Tenure is thought dead.
	suspect bool
	// notBefore holds claims back, pollAt is when to try an unsuspected holder.
	notBefore clock.Instant
	pollAt    clock.Instant
	// servingAt is when the holder was last known to be well.
	servingAt clock.Instant
}

// reset starts the watch over a new Tenure.
func (s *standby) reset(now clock.Instant) {
	s.suspect, s.failures = false, 0
	s.notBefore, s.pollAt, s.servingAt = 0, 0, now
}

// waitForView holds claims back because the root knows more than the view.
func (s *standby) waitForView(now clock.Instant) {
	s.notBefore = max(s.notBefore, now.Add(20*time.Millisecond))
}

// OnProbe tells what a probe of the holder of the newest Tenure, at address,
// found.
func (c *Core) OnProbe(address string, h Health, now clock.Instant) {
	if c.tenure.GetHolderAddress() != address {
		return
	}
	switch h {
	case HealthServing:
		c.standby.suspect, c.standby.servingAt = false, now
		c.heardAt, c.alone = now, false
	case HealthRefused:
		c.suspectHolder()
	}
	c.Tick(now)
}

// OnHolderSuspect tells that somebody has a reason to think the holder of era
// dead. Safety is the root's: a wrong suspicion costs nothing with a ttl, and a
// handover without one.
func (c *Core) OnHolderSuspect(era uint64, now clock.Instant) {
	if era == c.tenure.GetEra() {
		c.suspectHolder()
		c.Tick(now)
	}
}

func (c *Core) suspectHolder() {
	if !c.standby.suspect {
		c.standby.suspect = true
		c.standby.failures = 0
	}
}

// Suspect reports whether the holder of the newest era is thought dead by this standby.
func (c *Core) Suspect() (era uint64, suspect bool) {
	return c.tenure.GetEra(), c.phase == Standby && c.standby.suspect && !c.tenure.GetRetired()
}

// claimAt is the moment to claim at, as things stand.
func (c *Core) claimAt() clock.Instant {
	s, t := &c.standby, c.tenure
	switch {
	case !c.seen || s.claiming:
		return never
	case t == nil || t.Retired, s.suspect, t.HolderId == c.s.ID:
		// An active Tenure of this id is of a process that is gone, or one
		// that this process has given up.
		return max(s.notBefore, c.yieldUntil())
	}
	at := never
	if c.s.Probed {
		at = s.servingAt.Add(c.s.UnknownAfter)
	}
	if t.TtlMillis > 0 {
		at = min(at, max(s.pollAt, c.tenureAt.Add(c.pollEvery())))
	}
	return max(at, s.notBefore)
}

func (c *Core) pollEvery() time.Duration {
	every := pollInterval
	if c.s.Probed {
		every = probedPollInterval
	}
	return max(every, 2*ttlOf(c.tenure))
}

func ttlOf(t *rootv1.Tenure) time.Duration {
	return time.Duration(t.GetTtlMillis()) * time.Millisecond
}

func (c *Core) maybeClaim(now clock.Instant) {
	if now < c.claimAt() {
		return
	}
	c.standby.claiming = true
	c.count.Claims.Add(1)
	c.emit(Action{Kind: Claim, Claim: c.claimMessage(now)})
}

// OnClaimed tells the answer to the open claim. err means that the outcome is
// unknown: the same claim may be sent again.
func (c *Core) OnClaimed(r *rootv1.ClaimTenureResponse, err error, now clock.Instant) {
	s := &c.standby
	if !s.claiming {
		return
	}
	s.claiming = false
	outcome := r.GetResult().GetOutcome()
	switch {
	case err != nil:
		s.notBefore = now.Add(c.backoff(s.failures))
		s.failures++
	case outcome == rootv1.Outcome_OUTCOME_APPLIED || outcome == rootv1.Outcome_OUTCOME_ALREADY_APPLIED:
		c.onGranted(r.Result, now)
	default:
		c.onClaimRefused(r, now)
	}
	c.beginMine(now)
	s.windows = nil
	c.Tick(now)
}

// onGranted takes the era in. An answer without its Tenure leaves that to the view.
func (c *Core) onGranted(r *rootv1.CommandResult, now clock.Instant) {
	for _, e := range r.GetEvents() {
		if w := e.GetWindow(); w != nil {
			c.standby.windows = append(c.standby.windows, w)
		}
	}
	for _, e := range r.GetEvents() {
		if e.GetTenure() != nil {
			c.learn(e.Tenure, now)
		}
		c.beginMine(now) // which the view may have shown before
		if h := e.GetHandover(); h != nil && h.Era == c.holding.era {
			c.holding.stage = max(c.holding.stage, h.Stage)
		}
	}
	if c.holding.era == 0 {
		c.standby.waitForView(now)
	}
}

// onClaimRefused waits as long as the root says, plus a little so that standbys
// that were told the same do not arrive together.
func (c *Core) onClaimRefused(r *rootv1.ClaimTenureResponse, now clock.Instant) {
	s := &c.standby
	s.pollAt = now.Add(jitter(c, c.pollEvery()))
	wait := r.GetRetryAfterMillis()
	detail := r.GetResult().GetError()
	if wait == 0 {
		wait = detail.GetRetryAfterMillis()
	}
	switch {
	case wait > 0:
		d := time.Duration(min(wait, 60_000)) * time.Millisecond
		if c.alone {
			d += lonelyFor
		}
		s.notBefore = now.Add(d + time.Duration(c.rng.Int64N(int64(2*time.Millisecond+d/32))))
	case detail.GetEra() > c.tenure.GetEra():
		s.waitForView(now)
	default:
		s.notBefore = now.Add(c.backoff(s.failures))
		s.failures++
	}
}

// jitter is between 3/4 and 5/4 of d.
func jitter(c *Core, d time.Duration) time.Duration {
	return d - d/4 + time.Duration(c.rng.Int64N(int64(d/2)))
}

// eraOver reports that a refusal of something that era asked for means that
// era has ended.
func eraOver(d *rootv1.ErrorDetail, era uint64) bool {
	switch d.GetReason() {
	case rootv1.Reason_REASON_ERA_STALE, rootv1.Reason_REASON_SILENCE, rootv1.Reason_REASON_PRIMACY,
		rootv1.Reason_REASON_TENURE_NOT_HELD:
		return true
	}
	return d.GetEra() > era
}
