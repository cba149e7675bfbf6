package client

import (
	"context"

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
	first, era, err := c.ids.merger.take(ctx, count)
	if err != nil {
		return IDs{}, waited("AllocID", err, c.ids.pipe.seen.Load())
	}
	return IDs{First: first, Count: count, Era: rooted.Era(era)}, nil
}

func newIDs(c *Client) *runs {
	return newRuns(c, "AllocID", MaxIDCount, false, coordinatorv1.CoordinatorClient.AllocIDStream,
		&c.count.allocIDRequests, &c.count.allocIDCallers)
}
