package client

import (
	"context"
	"fmt"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
)

// MaxIDCount is the most ids of one call.
const MaxIDCount = 1_000_000

// IDs are a run of consecutive ids.
type IDs struct {
	First, Count uint64
	// Era that allocated them.
	Era rooted.Era
}

// Last is the highest of the run.
func (r IDs) Last() uint64 { return r.First + r.Count - 1 }

// AllocID returns count consecutive ids, 1 to MaxIDCount, never given to
// anybody else. Concurrent callers share requests. Ids asked for by a caller
// that stops waiting are lost.
func (c *Client) AllocID(ctx context.Context, count uint64) (IDs, error) {
	if count == 0 || count > MaxIDCount {
		return IDs{}, invalidCount("AllocID", count, MaxIDCount)
	}
	if c.ctx.Err() != nil {
		return IDs{}, &Error{Op: "AllocID", Cause: ErrClosed}
	}
	first, era, err := c.ids.take(ctx, count)
	if err != nil {
		return IDs{}, waited("AllocID", err, c.ids.seen.Load())
	}
	return IDs{First: first, Count: count, Era: rooted.Era(era)}, nil
}

// newIDs merges callers of AllocID into unary calls, one under way at a time.
func newIDs(c *Client) *merger {
	m := newMerger(MaxIDCount, 1, nil)
	m.launch = func(b *batch) {
		c.count.allocIDRequests.Add(1)
		c.count.allocIDCallers.Add(b.callers)
		if b.alone != nil {
			allocID(b.alone, c, m, b)
			return
		}
		shared := func() {
			ctx, cancel := context.WithDeadlineCause(c.ctx, b.expires(c.cfg.DefaultTimeout), errGaveUp)
			defer cancel()
			b.ifDeserted(cancel)
			allocID(ctx, c, m, b)
		}
		if !c.spawn(shared) {
			m.finish(b, 0, 0, &Error{Op: "AllocID", Cause: ErrClosed})
		}
	}
	return m
}

func allocID(ctx context.Context, c *Client, m *merger, b *batch) {
	op := operation{name: "AllocID", authority: true, seen: &m.seen}
	reply, err := do(ctx, c, op, &coordinatorv1.AllocIDRequest{Count: b.count}, coordinatorv1.CoordinatorClient.AllocID)
	if err == nil && (reply.GetCount() != b.count || reply.GetFirst() == 0 || reply.GetFirst()+b.count < reply.GetFirst()) {
		err = &Error{Op: op.name, Cause: fmt.Errorf("%w: %d ids from %d for a request of %d", errUnfit, reply.GetCount(), reply.GetFirst(), b.count)}
	}
	m.finish(b, reply.GetFirst(), reply.GetEra(), err)
}
