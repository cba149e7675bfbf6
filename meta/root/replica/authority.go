package replica

import (
	"math"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/why"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// authority is what a leader remembers for the rules 1 to 3 of authority.md.
// It lives in memory: a new leader counts from its own election.
type authority struct {
	// since is the moment the ttl of the current era counts from: the latest of
	// this leader's last confirmation, the moment it applied the claim that began
	// the era, and its election.
	since clock.Instant
	// fresh is set from the election until the next Turn begins. The election
	// counts from that Turn's Now, because the Now of the Turn in which the last
	// vote was counted may lie before the vote was cast.
	fresh bool
	// counting is set once the election has its moment.
	counting bool
	// fenced counts, for each era, the claims over it whose outcome is unknown:
	// while there is one, the era is confirmed to nobody.
	fenced map[state.Era]int
	// claims wait until they can be judged.
	claims []*Claim
}

// elected forgets what an earlier leadership knew.
func (a *authority) elected() {
	*a = authority{fresh: true, fenced: make(map[state.Era]int)}
}

func (a *authority) begin(now clock.Instant) {
	if a.fresh {
		a.fresh, a.counting = false, true
		a.since = max(a.since, now)
	}
}

// begun notes that a claim was applied: the holder counts its ttl from when it
// sent the claim, which was before now.
func (a *authority) begun(now clock.Instant) { a.since = max(a.since, now) }

// logEnd tells why an era ended, or that it was asked to.
func (c *Core) logEnd(before *rootv1.Tenure) {
	now := c.state.Tenure()
	if end := now.GetEnd(); end != nil && (before.GetEra() != now.GetEra() || before.GetEnd() == nil) {
		c.cfg.Logger.With(why.Logged(end.GetActor(), end.GetWhy())...).Info("era was asked to end", "era", now.GetEra(), "holder", now.GetHolderId())
	}
	if how := state.Ended(before, now); how != "" {
		c.cfg.Logger.With(why.Logged(before.GetEnd().GetActor(), before.GetEnd().GetWhy())...).Info("era ended", "era", before.GetEra(), "holder", before.GetHolderId(), "how", how)
	}
}

func (a *authority) unfence(era state.Era) {
	if a.fenced[era]--; a.fenced[era] <= 0 {
		delete(a.fenced, era)
	}
}

func (c *Core) acceptClaim(r *Claim, out *Output) {
	switch {
	case !c.leads():
		c.failRequest(r, errNotLeader(c.leader), out)
	case len(c.authority.claims) >= maxWaitingClaims:
		c.failRequest(r, errOverloaded("claims", maxWaitingClaims), out)
	default:
		c.authority.claims = append(c.authority.claims, r)
	}
}

// maxWaitingClaims bounds the claims that wait for a new leader to settle.
const maxWaitingClaims = 1024

// judgeClaims decides about waiting claims as soon as this leader has applied
// an entry of its own term and its election has its moment.
func (c *Core) judgeClaims(out *Output) {
	if len(c.authority.claims) == 0 || !c.settled() || !c.authority.counting || c.state.Cluster() == nil {
		return
	}
	claims := c.authority.claims
	c.authority.claims = nil
	for _, claim := range claims {
		c.judge(claim, out)
	}
}

// judge refuses a claim over an era that may still be confirmed to its holder,
// and proposes any other. The state machine decides about the rest. A process that
// claims over its own era has stopped serving it before it sent the claim, so that no
// confirmation of that era is believed by anybody: nothing is waited for.
func (c *Core) judge(claim *Claim, out *Output) {
	t := c.state.Tenure()
	over := t != nil && t.GetEra() != 0 && !t.GetRetired() && t.GetEra() == claim.Request.GetExpectedEra()
	if over && !isOf(t, claim.Request.GetHolderId(), claim.Request.GetHolderIncarnation()) {
		wait := c.untilExpired(t)
		if claim.Request.GetUnlessConfirmed() && t.GetEnd() == nil {
			wait = max(wait, c.authority.since.Add(confirmedLately).Sub(c.now))
		}
		if wait > 0 {
			claim.Response = stillActive(t, c.state.Token(), wait)
			out.Done = append(out.Done, claim)
			return
		}
	}
	p := &Proposal{call: newCall(), commands: 1, claim: claim}
	command := claimCommand(claim.Request, over)
	command.Actor = claim.Actor
	if c.windowsFit(claim) {
		command.Events = append(command.Events, firstWindows(claim)...)
	}
	for _, e := range command.Events {
		p.stamps.add(e)
	}
	err := p.encode(&rootv1.Entry{Commands: []*rootv1.Command{command}})
	if err == nil {
		err = c.refuse(p)
	}
	if err != nil {
		c.failRequest(claim, err, out)
		return
	}
	if over {
		// From here until finish, or until leadership is lost, era is confirmed
		// to nobody. A later leader confirms nothing before it has applied its
		// own entry, behind which this claim cannot commit any more.
		p.fencesEra = state.Era(t.GetEra())
		c.authority.fenced[p.fencesEra]++
	}
	c.enqueue(p)
}

// firstWindows are the windows of a claim, as events behind it in one command.
func firstWindows(claim *Claim) []*rootv1.Event {
	events := make([]*rootv1.Event, len(claim.Windows))
	for i, w := range claim.Windows {
		events[i] = &rootv1.Event{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
			Mandate: w.GetMandate(), Era: claim.Request.GetExpectedEra() + 1, Floor: w.GetFloor(), Size: w.GetSize(),
		}}}
	}
	return events
}

// windowsFit says that no window takes the claim with it: each is of a mandate
// that is claimed, and no limit is near.
func (c *Core) windowsFit(claim *Claim) bool {
	a := c.state.Allocators()
	ids := stamps{floor: a.GetIdFence()}
	asked, runs := stamps{}, 0
	for i, w := range claim.Windows {
		if w.GetSize() == 0 || !slices.Contains(claim.Request.GetMandates(), w.GetMandate()) {
			return false
		}
		switch e := firstWindows(claim)[i]; w.GetMandate() {
		case rootv1.Mandate_MANDATE_ALLOC_ID:
			ids.join(stamps{floor: w.GetFloor(), size: w.GetSize()})
			runs++
		case rootv1.Mandate_MANDATE_TSO:
			asked.add(e)
		default:
			return false
		}
	}
	if runs > 1 && ids.floor-a.GetIdFence() > state.MaxIDSkip {
		return false // behind the first one the second would be too far ahead
	}
	return c.state.CheckIDWindow(ids.floor, ids.size) == nil && ids.end(0) <= state.MaxID && c.clockAllows(asked) == nil
}

// untilExpired is how long the holder of t may still believe in a confirmation.
func (c *Core) untilExpired(t *rootv1.Tenure) time.Duration {
	ttl := t.GetTtlMillis()
	if ttl == 0 {
		return 0
	}
	if ttl > maxTTLMillis {
		return math.MaxInt64
	}
	nanos := ttl * uint64(time.Millisecond)
	return c.authority.since.Add(time.Duration(nanos + nanos/1000*c.cfg.DriftPermille)).Sub(c.now)
}

// confirmedLately is how long behind its last confirmation a holder is known to be
// at work: a standby that does not hear it in time may be what is slow, or the
// holder may have more to do than it can. It is less than what standbys wait for an
// answer, so that it delays nobody's takeover.
const confirmedLately = 150 * time.Millisecond

// maxTTLMillis keeps ttl times drift inside 63 bits of nanoseconds; a ttl above
// it (about 58 days at the default drift) never expires.
const maxTTLMillis = 5_000_000_000

func stillActive(t *rootv1.Tenure, token state.Token, wait time.Duration) *rootv1.ClaimTenureResponse {
	millis := uint64(wait/time.Millisecond) + 1
	detail := reason.New(rootv1.Reason_REASON_PRIMACY, "era %d of %s may still be active for %d ms", t.GetEra(), t.GetHolderId(), millis).Detail
	detail.Era, detail.HolderId, detail.HolderAddress, detail.RetryAfterMillis = t.GetEra(), t.GetHolderId(), t.GetHolderAddress(), millis
	return &rootv1.ClaimTenureResponse{
		Result:           &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Token: token.Proto(), Error: detail},
		RetryAfterMillis: millis,
	}
}

// finishClaim answers a claim with its proposal's result.
func finishClaim(p *Proposal) {
	if p.claim.Err = p.Err; p.Err == nil {
		p.claim.Response = &rootv1.ClaimTenureResponse{Result: p.Results[0].Proto()}
	}
}

func (c *Core) failClaims(err error, out *Output) {
	for _, claim := range c.authority.claims {
		c.failRequest(claim, err, out)
	}
	c.authority.claims = nil
}

// answerConfirm answers a confirm whose read index was applied: it is judged
// by the state as it is now, and held while a claim over the era is under way. An
// era that was asked to end is confirmed no more, so that it ends within its ttl
// whatever its holder does.
func (c *Core) answerConfirm(r *Confirm, out *Output) {
	if !c.leads() {
		c.failRequest(r, errNotLeader(c.leader), out)
		return
	}
	t := c.state.Tenure()
	active := t.GetEra() != 0 && !t.GetRetired() && t.GetEnd() == nil && isHeldBy(t, r.Request)
	if active && c.authority.fenced[state.Era(t.GetEra())] > 0 {
		c.reads.held = append(c.reads.held, r)
		return
	}
	if active {
		// The holder counts from when it sent the request, which was before now.
		c.authority.since = max(c.authority.since, c.now)
	}
	r.Token = c.state.Token()
	r.Response = &rootv1.ConfirmTenureResponse{Active: active, Tenure: t, Token: r.Token.Proto()}
	out.Done = append(out.Done, r)
}

// serveHeldConfirms judges held confirms again after something was applied.
func (c *Core) serveHeldConfirms(out *Output) {
	held := c.reads.held
	c.reads.held = nil
	for _, r := range held {
		c.answerConfirm(r, out)
	}
}

// isHeldBy says whether t is the era that r asks about, and of the process that asks.
func isHeldBy(t *rootv1.Tenure, r *rootv1.ConfirmTenureRequest) bool {
	return t.GetEra() == r.GetEra() && isOf(t, r.GetHolderId(), r.GetHolderIncarnation())
}

// isOf says whether t was given to that process of that name.
func isOf(t *rootv1.Tenure, id string, incarnation uint64) bool {
	return t.GetHolderId() == id && t.GetHolderIncarnation() == incarnation
}
