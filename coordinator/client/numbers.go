package client

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// runs merges callers who want runs of numbers, timestamps or ids, onto one
// stream.
type runs struct {
	c      *Client
	name   string
	merger *merger
	pipe   *pipe[runRequest, runReply]
	// ordered: each run is above those before it.
	ordered bool
	last    uint64 // highest served; under pipe.mu

	requests, callers *atomic.Uint64
}

// newRuns makes the merged side of a stream of the service.
func newRuns[Q, R any](c *Client, name string, most uint64, ordered bool, connect streamOf[Q, R], requests, callers *atomic.Uint64) *runs {
	t := &runs{c: c, name: name, ordered: ordered, requests: requests, callers: callers}
	t.pipe = &pipe[runRequest, runReply]{
		c: c, op: operation{name: name, authority: true},
		connect: wired[runRequest, runReply](connect),
		match:   first[runRequest, runReply],
		judge:   t.judge,
		work:    make(chan struct{}, 1),
	}
	t.merger = newMerger(most, 1, t.launch)
	return t
}

func (t *runs) launch(b *batch) {
	if b.deserted() {
		t.merger.finish(b, 0, 0, errGaveUp)
		return
	}
	t.requests.Add(1)
	t.callers.Add(b.callers)
	t.pipe.send(&request[runRequest, runReply]{
		msg:      &runRequest{b.count},
		expires:  b.expires(t.c.cfg.DefaultTimeout),
		deserted: b.deserted,
		finish: func(reply *runReply, err error) {
			if err != nil {
				reply = &runReply{}
			}
			t.merger.finish(b, reply.first, reply.era, err)
		},
	})
}

// judge is promises (4) and (6): an era that is not over, and timestamps above
// all that were given out.
func (t *runs) judge(e *endpoint, r *request[runRequest, runReply], reply *runReply) error {
	if reply.refusal != nil {
		return refused(reply.refusal)
	}
	if err := t.c.acceptRun(e, reply); err != nil {
		return err
	}
	first, end := reply.first, reply.first+r.msg.count
	if reply.count != r.msg.count || first == 0 || end < first {
		return fmt.Errorf("%w: %d numbers from %d for a request of %d", errUnfit, reply.count, first, r.msg.count)
	}
	if !t.ordered {
		return nil
	}
	if first <= t.last {
		t.c.count.orderViolations.Add(1)
		t.c.log.Error("timestamps went back", "first", first, "last", t.last, "era", reply.era)
		return fmt.Errorf("%w: timestamp %d is not above %d", errUnfit, first, t.last)
	}
	t.last = end - 1
	return nil
}

// runRequest is a TsoRequest or an AllocIDRequest, runReply its answer.
type runRequest struct{ count uint64 }

type runReply struct {
	first, count, era, cluster uint64
	refusal                    *rootv1.ErrorDetail
}

func (r *runRequest) encoded() []byte {
	return protowire.AppendVarint(protowire.AppendTag(make([]byte, 0, 8), 1, protowire.VarintType), r.count)
}

func (r *runReply) decode(data []byte) error {
	return fields(data, func(n protowire.Number, v uint64, b []byte) error {
		switch n {
		case 1:
			r.first = v
		case 2:
			r.count = v
		case 3:
			r.era = v
		case 4:
			r.cluster = v
		case 5:
			r.refusal = &rootv1.ErrorDetail{}
			return proto.Unmarshal(b, r.refusal)
		}
		return nil
	})
}

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

// defaultBlock is how many ids an IDSource fetches at a time by default.
const defaultBlock = 10_000

// IDSource hands out ids one by one, from blocks that it fetches ahead. Any
// number of goroutines may use it. Its ids are not in order across processes, nor
// those of other sources; no id is ever given twice.
type IDSource struct {
	c     *Client
	size  uint64
	block atomic.Pointer[idBlock]

	mu sync.Mutex
	// Guarded by mu.
	ahead  *idBlock // fetched, and not begun
	fetch  *idFetch // under way; nil: none is
	closed bool
}

// errSourceClosed is ErrClosed of a source whose Client may be open.
type errSourceClosed struct{}

func (errSourceClosed) Error() string        { return "the source of ids is closed" }
func (errSourceClosed) Is(target error) bool { return target == ErrClosed }

// idBlock is a run of ids. next counts those handed out, and callers that came
// in vain.
type idBlock struct {
	IDs
	next atomic.Uint64
}

// idFetch is a block under way; err is set before done is closed.
type idFetch struct {
	done chan struct{}
	err  error
}

// IDs makes a source of single ids that fetches size of them at a time, and the
// next block when half of one is used. 0 means 10,000; more than MaxIDCount
// means MaxIDCount. Close it to learn which ids were fetched and not used; what
// is not closed loses them, which harms nobody.
func (c *Client) IDs(size uint64) *IDSource {
	if size == 0 {
		size = defaultBlock
	}
	s := &IDSource{c: c, size: min(size, MaxIDCount)}
	s.block.Store(&idBlock{})
	return s
}

// Next returns an id that was never given to anybody else. It waits, within ctx
// and DefaultTimeout, only when no block is there.
func (s *IDSource) Next(ctx context.Context) (uint64, error) {
	for {
		b := s.block.Load()
		if i := b.next.Add(1) - 1; i < b.Count {
			if i == b.Count/2 {
				s.mu.Lock()
				s.fetchLocked()
				s.mu.Unlock()
			}
			return b.First + i, nil
		}
		if err := s.turn(ctx, b); err != nil {
			return 0, err
		}
	}
}

// turn goes on from a block that is used up to the next one, waiting for it.
func (s *IDSource) turn(ctx context.Context, used *idBlock) error {
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return &Error{Op: "IDSource", Cause: errSourceClosed{}}
	case s.block.Load() != used:
		s.mu.Unlock()
		return nil
	case s.ahead != nil:
		s.block.Store(s.ahead)
		s.ahead = nil
		s.mu.Unlock()
		return nil
	}
	f := s.fetchLocked()
	s.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return waited("AllocID", ctx.Err(), s.c.ids.pipe.seen.Load())
	}
}

// fetchLocked fetches a block, unless there is one ahead or under way. It
// returns the fetch that brings it.
func (s *IDSource) fetchLocked() *idFetch {
	if s.fetch != nil || s.ahead != nil || s.closed {
		return s.fetch
	}
	f := &idFetch{done: make(chan struct{})}
	s.fetch = f
	get := func() {
		ids, err := s.c.AllocID(context.Background(), s.size) // within DefaultTimeout, or until Close of the Client
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.err = err; err == nil {
			s.ahead = &idBlock{IDs: ids}
		}
		s.fetch = nil
		close(f.done)
	}
	if !s.c.spawn(get) {
		s.fetch, f.err = nil, &Error{Op: "AllocID", Cause: ErrClosed}
		close(f.done)
	}
	return f
}

// Close ends the source and returns the ids that it fetched and did not hand
// out. It waits for a block under way, within DefaultTimeout.
func (s *IDSource) Close() (unused []IDs) {
	s.mu.Lock()
	s.closed = true
	f := s.fetch
	s.mu.Unlock()
	if f != nil {
		<-f.done
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range []*idBlock{s.block.Load(), s.ahead} {
		if b == nil {
			continue
		}
		// Whoever comes later finds nothing left.
		if given := b.next.Swap(math.MaxUint64 / 2); given < b.Count {
			unused = append(unused, IDs{First: b.First + given, Count: b.Count - given, Era: b.Era})
		}
	}
	s.ahead = nil
	return unused
}
