package client

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// maxRedirects is how often in a round a refusal may send a call on at once.
const maxRedirects = 3

// walk leads one call from coordinator to coordinator until one helps.
type walk struct {
	c  *Client
	op operation

	goTo      *endpoint   // where a refusal sent us
	tried     []*endpoint // in this round
	buf       [4]*endpoint
	redirects int // in this round
	rounds    int // ended
	// vacant: in this round a coordinator said that nobody who can be reached
	// holds the Tenure. vacancies are the rounds that ended so.
	vacant    bool
	vacancies int
	// named: the call named its cluster to who was asked last.
	named bool
	trail trail
}

// reset makes a walk begin. In place, so that a call without trouble allocates nothing for it.
func (w *walk) reset(c *Client, op operation) {
	*w = walk{c: c, op: op}
}

// begin is reset, but keeps the pace of the last walk if that failed just now.
func (w *walk) begin(c *Client, op operation, failed time.Time) {
	rounds, vacancies := w.rounds, w.vacancies
	w.reset(c, op)
	if time.Since(failed) < 2*c.cfg.BackoffMax {
		w.rounds, w.vacancies = rounds, vacancies
	}
}

// next is the coordinator to ask now.
func (w *walk) next() *endpoint {
	if w.trail.last != nil {
		w.c.count.retries.Add(1)
	}
	w.named = w.c.cluster.Load() != 0
	if e := w.goTo; e != nil {
		w.goTo = nil
		return e
	}
	if e := w.c.ends.pick(w.first(), w.tried); e != nil {
		return e
	}
	w.tried, w.redirects = w.buf[:0], 0
	return w.c.ends.pick(w.first(), nil)
}

func (w *walk) first() *endpoint {
	if w.op.authority || w.op.towardsHolder {
		return w.c.ends.holder.Load()
	}
	return w.c.ends.near.Load()
}

// succeeded notes that e helped.
func (w *walk) succeeded(e *endpoint) {
	w.c.ends.answered(e)
	if w.op.seen != nil && w.op.seen.Load() != nil {
		w.op.seen.Store(nil)
	}
	favourite := &w.c.ends.near
	switch {
	case w.op.authority:
		favourite = &w.c.ends.holder
	case w.op.towardsHolder:
		return
	}
	if old := favourite.Load(); old != e {
		favourite.Store(e)
		w.c.log.Info("coordinator changed", "op", w.op.name, "from", old.address, "to", e.address)
	}
}

// failed notes what e said and waits as long as that asks for. An error means
// that the call is over.
func (w *walk) failed(ctx context.Context, e *endpoint, err error) error {
	if cause := w.over(ctx); cause != nil {
		w.trail.noteEnd(e.address, err)
		return w.trail.fail(w.op.name, cause)
	}
	w.trail.note(e.address, err)
	if w.op.seen != nil {
		w.op.seen.Store(w.trail.fail(w.op.name, context.DeadlineExceeded))
	}
	if w.c.log.IsDebug() {
		w.c.log.Debug("try failed", "op", w.op.name, "endpoint", e.address, "err", err)
	}
	class, detail := classify(err)
	if w.named { // of another cluster it would mean nothing here
		w.c.sawEra(detail.GetEra())
		w.c.sawIndex(detail.GetCurrentToken())
	}
	if detail.GetReason() == rootv1.Reason_REASON_CLUSTER_MISMATCH {
		w.c.count.otherClusters.Add(1)
	}
	if unreached(class, detail) {
		w.c.ends.shun(e)
	} else {
		w.c.ends.answered(e)
	}
	w.tried = append(w.tried, e)
	pause := time.Duration(-1)
	switch class {
	case final:
		return w.trail.fail(w.op.name, nil)
	case redirect:
		if w.redirected(rooted.CoordinatorID(detail.GetHolderId()), detail.GetHolderAddress()) {
			return nil
		}
		w.vacant = w.vacant || w.redirects < maxRedirects
	case elsewhere:
		w.vacant = w.vacant || detail.GetReason() == rootv1.Reason_REASON_TENURE_NOT_HELD
	case later:
		pause = retryAfter(detail)
	case round:
		if w.c.ends.pick(nil, w.tried) == nil {
			return w.trail.fail(w.op.name, nil)
		}
	case barred:
		if w.c.cfg.TLS.Usable() != nil || w.c.ends.pick(nil, w.tried) == nil && w.trail.barred(w.tried) {
			return w.trail.fail(w.op.name, nil)
		}
	}
	if pause < 0 && w.c.ends.pick(nil, w.tried) != nil {
		return nil
	}
	return w.wait(ctx, max(pause, w.backoff()))
}

// unreached says that a try did not get to a coordinator, or had no answer from it.
func unreached(class class, detail *rootv1.ErrorDetail) bool {
	return class == barred || class == elsewhere && detail == nil
}

// redirected follows a refusal to the holder it names, unless the holder could
// not be reached a moment ago, or has refused in this round itself: then who
// names it has not heard yet that it holds nothing any more.
func (w *walk) redirected(id rooted.CoordinatorID, address string) bool {
	to := w.c.ends.learn(id, address)
	if to == nil || slices.Contains(w.tried, to) || w.redirects >= maxRedirects || to.shunUntil.Load() > time.Now().UnixNano() {
		return false
	}
	w.redirects++
	w.c.count.redirects.Add(1)
	w.goTo = to
	return true
}

// maxVacancies is how many rounds a takeover may last before the pauses grow as
// they do in any outage: about a second by default.
const maxVacancies = 64

// backoff is the pause after another round: doubling, half of it random. While
// coordinators answer that the Tenure is vacant, somebody is about to take it:
// an orderly handover is over in milliseconds, and what a doubled pause
// oversleeps would be most of the time that callers miss. The pauses begin short
// and do not grow beyond BackoffMin.
func (w *walk) backoff() time.Duration {
	var d time.Duration
	if w.vacant && w.vacancies < maxVacancies {
		d = min(w.c.cfg.BackoffMin, w.c.cfg.BackoffMin/8<<min(w.vacancies, 16))
		w.vacancies++
	} else {
		d = min(w.c.cfg.BackoffMax, w.c.cfg.BackoffMin<<min(w.rounds, 16))
		w.rounds++
	}
	w.vacant = false
	return d/2 + rand.N(d/2+1)
}

func (w *walk) wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
	case <-w.c.ctx.Done():
	}
	return w.trail.fail(w.op.name, w.over(ctx))
}

// over is why nothing more may be tried; nil while it may.
func (w *walk) over(ctx context.Context) error {
	if w.c.ctx.Err() != nil {
		return ErrClosed
	}
	if ctx.Err() != nil && gaveUp(context.Cause(ctx)) {
		return errGaveUp
	}
	return ctx.Err()
}
