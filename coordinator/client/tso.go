package client

import (
	"context"
	"fmt"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

const (
	// MaxTsoCount is the most timestamps of one call.
	MaxTsoCount = 1 << logicalBits
	logicalBits = 18
	// tsoSlots is how many merged requests are under way at once.
	tsoSlots = 1
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

// timestamps merges callers of Tso onto a TsoStream.
type timestamps struct {
	c      *Client
	merger *merger
	pipe   *pipe[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse]
	last   uint64 // highest served; under pipe.mu
}

func newTimestamps(c *Client) *timestamps {
	t := &timestamps{c: c}
	t.pipe = &pipe[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse]{
		c: c, op: operation{name: "Tso", authority: true},
		connect: func(ctx context.Context, e *endpoint) (grpc.BidiStreamingClient[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse], error) {
			return e.rpc.TsoStream(ctx)
		},
		match: first[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse],
		judge: t.judge,
		work:  make(chan struct{}, 1),
	}
	t.merger = newMerger(MaxTsoCount, tsoSlots, t.launch)
	return t
}

func (t *timestamps) launch(b *batch) {
	t.c.count.tsoRequests.Add(1)
	t.c.count.tsoCallers.Add(b.callers)
	t.pipe.send(&request[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse]{
		msg:     &coordinatorv1.TsoRequest{Count: b.count},
		expires: b.expires(t.c.cfg.DefaultTimeout),
		finish: func(reply *coordinatorv1.TsoResponse, err error) {
			t.merger.finish(b, reply.GetFirst(), reply.GetEra(), err)
		},
	})
}

// judge is promises (4) and (6): an era that is not over, and timestamps above
// all that were given out.
func (t *timestamps) judge(e *endpoint, r *request[coordinatorv1.TsoRequest, coordinatorv1.TsoResponse], reply *coordinatorv1.TsoResponse) error {
	if err := t.c.acceptRun(e, reply); err != nil {
		return err
	}
	first, end := reply.GetFirst(), reply.GetFirst()+r.msg.GetCount()
	if reply.GetCount() != r.msg.GetCount() || first == 0 || end < first {
		return fmt.Errorf("%w: %d timestamps from %d for a request of %d", errUnfit, reply.GetCount(), first, r.msg.GetCount())
	}
	if first <= t.last {
		t.c.count.orderViolations.Add(1)
		t.c.log.Error("timestamps went back", "first", first, "last", t.last, "era", reply.GetEra())
		return fmt.Errorf("%w: timestamp %d is not above %d", errUnfit, first, t.last)
	}
	t.last = end - 1
	return nil
}
