package tenure

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/tso"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// reportEvery is the time between two reports that the root refuses this clock.
const reportEvery = 10 * time.Second

// Message is a request to the root.
type Message struct {
	// One of these is set.
	Claim   *rootv1.TenureClaimed
	Confirm *rootv1.ConfirmTenureRequest
	Command *rootv1.Command
	// Windows go with a Claim.
	Windows []*rootv1.FirstWindow
	// Era is the one without which nobody waits for the answer; 0: none.
	Era uint64

	answer func(a Answer, now clock.Instant)
}

// Answer is the root's answer to a Message, or why none came.
type Answer struct {
	Claim   *rootv1.ClaimTenureResponse
	Confirm *rootv1.ConfirmTenureResponse
	Result  *rootv1.CommandResult
	Err     error
}

// OnAnswer tells the answer to a Message. An error means that the outcome is
// unknown.
func (r *RawHolder) OnAnswer(m *Message, a Answer, now clock.Instant) {
	m.answer(a, now)
	r.settle(now)
}

func (r *RawHolder) send(m *Message) { r.outbox = append(r.outbox, m) }

func (r *RawHolder) sendClaim(claim *rootv1.TenureClaimed) {
	r.log.Debug("claiming", "era", claim.ExpectedEra+1)
	r.first = r.firstWindows()
	digest := sha256.Sum256(r.retireSecret(claim.ExpectedEra + 1))
	claim.RetireDigest = digest[:]
	r.send(&Message{Claim: claim, Windows: r.first, answer: func(a Answer, now clock.Instant) {
		r.log.Debug("claim answered", "era", claim.ExpectedEra+1, "outcome", a.Claim.GetResult().GetOutcome(),
			"retry_after_millis", a.Claim.GetRetryAfterMillis(), "err", a.Err)
		if d := a.Claim.GetResult().GetError(); d.GetReason() == rootv1.Reason_REASON_INVALID_TENURE && d.GetMessage() != r.claimRefused {
			r.claimRefused = d.GetMessage()
			r.log.Error("the root refuses to give this coordinator the Tenure", "err", r.claimRefused)
		}
		r.core.OnClaimed(a.Claim, a.Err, now)
	}})
}

// retireSecret is what retires an era that this process claimed: each its own,
// since the log shows it afterwards.
func (r *RawHolder) retireSecret(era uint64) []byte {
	secret := sha256.Sum256(binary.BigEndian.AppendUint64(slices.Clone(r.cfg.RetireKey), era))
	return secret[:]
}

// firstWindows are what an era needs before it can serve, in the order of
// era.takeFirst.
func (r *RawHolder) firstWindows() []*rootv1.FirstWindow {
	ids := &rootv1.FirstWindow{Mandate: rootv1.Mandate_MANDATE_ALLOC_ID}
	ids.Floor, ids.Size = idalloc.First(r.cfg.IDStart, r.cfg.IDWindow)
	stamps := &rootv1.FirstWindow{Mandate: rootv1.Mandate_MANDATE_TSO}
	stamps.Floor, stamps.Size = tso.First(r.cfg.TSOStart, r.cfg.TSOAhead, r.cfg.Wall())
	return []*rootv1.FirstWindow{ids, stamps}
}

func (r *RawHolder) sendConfirm(a Action) {
	request := &rootv1.ConfirmTenureRequest{Era: a.Era, HolderId: r.cfg.ID, HolderIncarnation: r.cfg.Incarnation}
	r.send(&Message{Confirm: request, Era: a.Era, answer: func(answer Answer, now clock.Instant) {
		r.core.OnConfirmed(a.Era, a.Seq, answer.Confirm, answer.Err, now)
	}})
}

// sendAdvance proposes the stages that are missing, in one command.
func (r *RawHolder) sendAdvance(a Action) {
	command := &rootv1.Command{}
	for stage := a.From + 1; stage <= a.To; stage++ {
		advance := &rootv1.HandoverAdvanced{Era: a.Era, Stage: stage, HolderId: r.cfg.ID, HolderIncarnation: r.cfg.Incarnation}
		command.Events = append(command.Events, &rootv1.Event{Kind: &rootv1.Event_HandoverAdvanced{HandoverAdvanced: advance}})
	}
	r.send(&Message{Command: command, Era: a.Era, answer: func(answer Answer, now clock.Instant) {
		err := answer.Err
		if err == nil && answer.Result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
			err = fmt.Errorf("refused: %s", answer.Result.GetError().GetMessage())
		}
		r.core.OnAdvanced(a.Era, a.To, err, now)
		if eraOver(answer.Result.GetError(), a.Era) {
			r.core.OnEraOver(a.Era, now)
		}
	}})
}

// extension is what an allocator asks the root for, one window at a time. It is
// relative: others may raise the fence meanwhile.
type extension struct {
	// wanted: it may be time to ask.
	wanted bool
	// command asks for size values above floor, until it is decided; under way it
	// is sent and not answered. A repetition is the same command, so that it is
	// found already applied.
	command     *rootv1.Command
	floor, size uint64
	underWay    bool
	retryAt     clock.Instant
	fails       int
	reportedAt  clock.Instant
}

func (a *allocator) due() bool {
	x := &a.extension
	return x.wanted && !x.underWay && x.retryAt == 0
}

func (a *allocator) deadline() clock.Instant {
	if x := &a.extension; !x.wanted || x.underWay {
		return never
	}
	return a.extension.retryAt
}

// extend asks for the next window of a, if one is due.
func (r *RawHolder) extend(e *era, a *allocator, now clock.Instant) {
	x := &a.extension
	if !x.wanted || x.underWay || now < x.retryAt {
		return
	}
	if x.command == nil && !r.nextExtension(e, a, now) {
		return
	}
	x.underWay, x.retryAt = true, 0
	r.send(&Message{Command: x.command, Era: e.number, answer: func(answer Answer, now clock.Instant) {
		if e == r.era {
			r.onExtension(e, a, answer, now)
		}
	}})
}

// nextExtension makes the command for the next window; false: none is wanted now.
func (r *RawHolder) nextExtension(e *era, a *allocator, now clock.Instant) bool {
	x := &a.extension
	a.serve(e)
	var waiting uint64
	for _, w := range a.queue {
		waiting += w.count
	}
	floor, size, want := a.need(waiting, now)
	switch {
	case want:
		x.floor, x.size = floor, size
		x.command = &rootv1.Command{
			Events: []*rootv1.Event{{Kind: &rootv1.Event_FenceExtended{
				FenceExtended: &rootv1.FenceExtended{Mandate: a.mandate, Era: e.number, Floor: floor, Size: size},
			}}},
			Identity: r.cfg.Identities.Next(r.index),
		}
	case waiting > 0 && a.window.Exhausted():
		a.fail(e, exhausted(a.mandate))
		x.wanted = false
	case waiting > 0:
		// Room came up only in part, or must not be asked for yet.
		x.retryAt = now.Add(retryLeast)
	default:
		x.wanted, x.retryAt = false, 0
	}
	return want
}

// onExtension takes the root's judgement. What is not decided is asked again.
func (r *RawHolder) onExtension(e *era, a *allocator, answer Answer, now clock.Instant) {
	x := &a.extension
	x.underWay = false
	if d := reason.From(answer.Err); d.GetReason() == rootv1.Reason_REASON_CLOCK_BOUND {
		// The leader refuses it before it is judged.
		answer = Answer{Result: &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: d}}
	}
	if answer.Err == nil && answer.Result.GetOutcome() != rootv1.Outcome_OUTCOME_REJECTED {
		x.command = nil
		if err := e.extended(a, windowOf(answer.Result), x.floor, x.size); err != nil {
			r.windowForeign(e, err)
			a.window.Refused(0) // It is asked for anew.
			x.backOff(r, now)
			return
		}
		x.fails, a.clockBound = 0, nil
		a.serve(e)
		if e.fenced() {
			r.core.OnFenced(e.number, now)
		}
		return
	}
	x.backOff(r, now)
	if answer.Err != nil {
		return
	}
	d := detailOf(answer.Result)
	if eraOver(d, e.number) {
		r.core.OnEraOver(e.number, now)
		return
	}
	x.command = nil // It is decided: the next one may be another.
	if d.GetReason() == rootv1.Reason_REASON_CLOCK_BOUND {
		r.count.ClockRefusals.Add(1)
		a.clockBound = d
		r.reportClock(e, a, d, now)
		x.retryAt, x.fails = now.Add(clockWait), 0
		a.clockRefused(now)
		a.serve(e)
		return
	}
	r.log.Warn("window refused", "era", e.number, "mandate", a.mandate, "err", d.GetMessage())
	a.window.Refused(d.GetFence())
	if at := d.GetCurrentToken().GetIndex(); d.GetReason() == rootv1.Reason_REASON_OUTCOME_UNKNOWN && at > r.index {
		// The view lags behind what the root remembers. The next command is asked from
		// where the root is; what an earlier try of this one may have rooted is a gap.
		r.index, x.retryAt = at, 0
	}
}

// backOff has the next window asked for a while later.
func (x *extension) backOff(r *RawHolder, now clock.Instant) {
	x.retryAt = now.Add(r.core.backoff(x.fails))
	x.fails++
}

// windowOf is the window that a result tells, nil when it tells none.
func windowOf(result *rootv1.CommandResult) *rootv1.Window {
	for _, event := range result.GetEvents() {
		if w := event.GetWindow(); w != nil {
			return w
		}
	}
	return nil
}

// reportClock says that timestamps reach beyond the root leader's clock, now
// and then for as long as they do.
func (r *RawHolder) reportClock(e *era, a *allocator, d *rootv1.ErrorDetail, now clock.Instant) {
	if x := &a.extension; x.reportedAt == 0 || now.Sub(x.reportedAt) >= reportEvery {
		x.reportedAt = now
		r.log.Warn("the root refuses timestamps so far ahead of its clock: check this machine's clock and the start flag",
			"era", e.number, "mandate", a.mandate, "err", d.GetMessage())
	}
}

// retirement is an era to be retired. It gives up after a while: the successor
// then waits for the ttl.
type retirement struct {
	command  *rootv1.Command
	underWay bool
	fails    int
	retryAt  clock.Instant
	until    clock.Instant
}

func (x *retirement) deadline() clock.Instant {
	if x.underWay {
		return x.until
	}
	return min(x.retryAt, x.until)
}

func (r *RawHolder) beginRetirement(a Action, now clock.Instant) {
	consumed, sealed := a.Tenure.GetInherited(), len(a.Tenure.GetRetireDigest()) > 0
	if r.ended != nil && r.ended.number == a.Era {
		consumed, sealed = r.ended.frontiers(), r.ended.sealed
	}
	if consumed == nil {
		consumed = &rootv1.Frontiers{}
	}
	retired := &rootv1.TenureRetired{Era: a.Era, HolderId: r.cfg.ID, HolderIncarnation: r.cfg.Incarnation, Consumed: consumed}
	if sealed {
		retired.RetireSecret = r.retireSecret(a.Era)
	}
	r.retirement = &retirement{until: now.Add(stopWithin), command: &rootv1.Command{Events: []*rootv1.Event{{
		Kind: &rootv1.Event_TenureRetired{TenureRetired: retired},
	}}}}
}

// retire proposes the end of the era until it is rooted.
func (r *RawHolder) retire(now clock.Instant) {
	x := r.retirement
	switch {
	case x == nil:
	case now >= x.until:
		r.log.Warn("era not retired in time; it will expire")
		r.retirement = nil
	case !x.underWay && now >= x.retryAt:
		x.underWay = true
		r.send(&Message{Command: x.command, answer: func(a Answer, now clock.Instant) {
			if x != r.retirement {
				return
			}
			x.underWay = false
			if a.Err != nil {
				x.retryAt = now.Add(r.core.backoff(x.fails))
				x.fails++
				return
			}
			r.log.Info("era retired", "consumed", x.command.Events[0].GetTenureRetired().Consumed, "outcome", a.Result.GetOutcome())
			r.retirement = nil
			r.core.OnRetired(a.Result, now)
		}})
	}
}

// detailOf is the detail of a rejection, never nil.
func detailOf(r *rootv1.CommandResult) *rootv1.ErrorDetail {
	if d := r.GetError(); d != nil {
		return d
	}
	return &rootv1.ErrorDetail{}
}
