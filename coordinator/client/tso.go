package client

import (
	"context"
	"fmt"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

const (
	// MaxTsoCount is the most timestamps of one call.
	MaxTsoCount = 1 << logicalBits
	logicalBits = 18
)

// Timestamp orders events in the cluster and tells the time: 46 bits of Unix
// milliseconds, 18 bits of counter.
type Timestamp uint64

// Time is the wall time in a timestamp, to the millisecond.
func (t Timestamp) Time() time.Time { return time.UnixMilli(t.UnixMillis()) }

// UnixMillis is the wall time in a timestamp in Unix milliseconds.
func (t Timestamp) UnixMillis() int64 { return int64(t >> logicalBits) }

// Counter orders the timestamps of one millisecond.
func (t Timestamp) Counter() uint32 { return uint32(t & (MaxTsoCount - 1)) }

// Timestamps are a run of consecutive timestamps.
type Timestamps struct {
	First Timestamp
	Count uint64
	// Era that made them.
	Era rooted.Era
}

// Last is the highest of the run.
func (t Timestamps) Last() Timestamp { return t.First + Timestamp(t.Count) - 1 }

// Tso returns count consecutive timestamps, 1 to MaxTsoCount, never given to
// anybody else and above every timestamp that any client had before the call.
// Concurrent callers share requests. Timestamps asked for by a caller that
// stops waiting are lost; it is let go within milliseconds of its context's end.
func (c *Client) Tso(ctx context.Context, count uint64) (Timestamps, error) {
	if count == 0 || count > MaxTsoCount {
		return Timestamps{}, invalidCount("Tso", count, MaxTsoCount)
	}
	if c.ctx.Err() != nil {
		return Timestamps{}, &Error{Op: "Tso", Cause: ErrClosed}
	}
	first, era, err := c.tso.merger.take(ctx, count)
	if err != nil {
		return Timestamps{}, waited("Tso", err, c.tso.pipe.seen.Load())
	}
	return Timestamps{First: Timestamp(first), Count: count, Era: rooted.Era(era)}, nil
}

// Now returns one timestamp; see Tso.
func (c *Client) Now(ctx context.Context) (Timestamp, error) {
	t, err := c.Tso(ctx, 1)
	return t.First, err
}

func invalidCount(op string, count, most uint64) *Error {
	return invalid(op, "count %d is not in 1 to %d", count, most)
}

// invalid is the refusal of a request that need not be sent to be refused.
func invalid(op, format string, args ...any) *Error {
	d := &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_INVALID_REQUEST, Message: fmt.Sprintf(format, args...)}
	return &Error{Op: op, Reason: d.GetReason(), Detail: d, Cause: errOwn{words(d)}}
}

// errOwn is a refusal that no coordinator made.
type errOwn struct{ words string }

func (e errOwn) Error() string { return e.words }

// waited makes the error of a merged caller. When its context ended, it says
// what coordinators said last.
func waited(op string, err error, seen *Error) error {
	if _, ok := err.(*Error); ok {
		return err
	}
	if seen == nil {
		return &Error{Op: op, Cause: err}
	}
	e := *seen
	e.Op, e.Cause = op, err
	return &e
}

func newTimestamps(c *Client) *runs {
	return newRuns(c, "Tso", MaxTsoCount, true, coordinatorv1.CoordinatorClient.TsoStream,
		&c.count.tsoRequests, &c.count.tsoCallers)
}
