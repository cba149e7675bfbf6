package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// pipe sends requests on one stream without waiting for their answers. When
// the stream breaks, what has no answer is sent again on the next one, in the
// same order. Requests must be safe to repeat.
//
// A caller only puts its request into the queue: it never waits for a peer that
// does not read. One goroutine reads, and runs from the first request to Close;
// beside it another one writes while there is a stream.
type pipe[Q, R any] struct {
	c  *Client
	op operation
	// connect opens the stream.
	connect func(context.Context, *endpoint) (grpc.BidiStreamingClient[Q, R], error)
	// match is the position in the queue of what a reply answers; below 0: nothing.
	match func([]*request[Q, R], *R) int
	// judge says why a reply is not an answer. A refusal that is final ends
	// its request; any other error breaks the stream.
	judge func(*endpoint, *request[Q, R], *R) error
	// partial says that more replies to the same request follow. nil: there is one.
	partial func(*R) bool
	// apart says that an error that is not final concerns its request alone: it ends
	// with errElsewhere, and who asked goes to other coordinators alone. nil: it
	// breaks the stream.
	apart func(error) bool
	// alone asks one coordinator a request by a call of its own; final errors are
	// everywhere the same. nil: no request is asked twice.
	alone func(context.Context, *endpoint, *Q) ([]*R, error)

	// Since when there is a request without an answer and no answer came, Unix
	// nanoseconds; 0: there is none.
	waitingSince atomic.Int64
	seen         atomic.Pointer[Error] // what coordinators said last

	mu      sync.Mutex // guards what follows
	started bool
	ended   bool
	queue   []*request[Q, R] // without an answer, oldest first
	bytes   int              // of queue
	sent    int              // how many of queue's first were written to the stream
	// suspects is how many of queue's first were under way when a stream ended with
	// a final error: one of them is to blame. They are sent one at a time.
	suspects int
	attached bool          // there is a stream
	work     chan struct{} // there is something to send; capacity 1
}

// maxQueued and maxQueuedBytes are the most requests of a pipe without an
// answer. More than that are refused while coordinators are away.
const (
	maxQueued      = 4096
	maxQueuedBytes = 128 << 20
)

// overloaded is a refusal by this client itself.
func overloaded(op, format string, args ...any) *Error {
	d := &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_OVERLOADED, Message: fmt.Sprintf(format, args...)}
	return &Error{Op: op, Reason: d.GetReason(), Detail: d, Cause: errOwn{words(d)}}
}

// request is one request of a pipe.
type request[Q, R any] struct {
	msg *Q
	// expires is when it is given up if no coordinator has answered it.
	expires time.Time
	// finish gets the answer, or a final error. Called once, on a goroutine of
	// the pipe or inside send.
	finish func(*R, error)
	// deserted says that nobody waits for the answer any more; it is asked before
	// the request is sent. nil: never.
	deserted func() bool
	// bytes is the size of msg, if that is worth counting.
	bytes int
	// waits: the answer may have to wait for the root.
	waits bool
	// parts are the replies that came, but for the last. Guarded by pipe.mu until it
	// left the queue.
	parts []*R
	// by is the address of who answered; set before finish is called with what it said.
	by string
}

// errElsewhere is what one coordinator said and others may not.
type errElsewhere struct {
	by   *endpoint
	said error
}

func (e errElsewhere) Error() string { return e.said.Error() }

// errGaveUp is the cause when no coordinator answered within DefaultTimeout a
// request made for callers together.
var errGaveUp error = gaveUpError{}

type gaveUpError struct{}

func (gaveUpError) Error() string        { return "no coordinator answered in time" }
func (gaveUpError) Is(target error) bool { return target == context.DeadlineExceeded }

func gaveUp(err error) bool { return errors.Is(err, errGaveUp) }

// send puts a request into the queue. It does not wait.
func (p *pipe[Q, R]) send(r *request[Q, R]) {
	if err := p.enqueue(r); err != nil {
		r.finish(nil, err)
	}
}

func (p *pipe[Q, R]) enqueue(r *request[Q, R]) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.started {
		p.op.seen = &p.seen
		p.started = true
		p.ended = !p.c.spawn(p.run)
	}
	if p.ended {
		return &Error{Op: p.op.name, Cause: ErrClosed}
	}
	if len(p.queue) >= maxQueued || p.bytes+r.bytes > maxQueuedBytes {
		return overloaded(p.op.name, "%d requests of %d bytes wait for coordinators", len(p.queue), p.bytes)
	}
	p.queue, p.bytes = append(p.queue, r), p.bytes+r.bytes
	if p.attached {
		p.waitingSince.CompareAndSwap(0, time.Now().UnixNano())
	}
	p.signal()
	return nil
}

func (p *pipe[Q, R]) signal() {
	select {
	case p.work <- struct{}{}:
	default:
	}
}

// write sends what waits until the stream ends; it fills the stream's windows
// and waits there.
func (p *pipe[Q, R]) write(ctx context.Context, stream grpc.BidiStreamingClient[Q, R]) {
	for {
		r := p.next()
		if r == nil {
			select {
			case <-p.work:
				continue
			case <-ctx.Done():
				return
			}
		}
		if r.deserted != nil && r.deserted() {
			p.give(r, errGaveUp)
		} else if stream.SendMsg(r.msg) != nil {
			return // the reader gets the error too
		}
	}
}

// next takes a request that is to be written now; nil: there is none.
func (p *pipe[Q, R]) next() *request[Q, R] {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sent == len(p.queue) || p.suspects > 0 && p.sent > 0 {
		return nil
	}
	p.sent++
	return p.queue[p.sent-1]
}

// give ends a request with an error, if that has not been done.
func (p *pipe[Q, R]) give(r *request[Q, R], err error) {
	for _, r := range p.remove(func(other *request[Q, R]) bool { return other == r }) {
		r.finish(nil, err)
	}
}

// run keeps a stream up while there is something to send.
func (p *pipe[Q, R]) run() {
	defer p.drain()
	var w walk
	var failed time.Time
	for {
		select {
		case <-p.work:
		case <-p.c.ctx.Done():
			return
		}
		w.begin(p.c, p.op, failed)
		for p.pending() {
			e := w.next()
			helped, sent, err := p.serve(&w, e)
			if p.c.ctx.Err() != nil {
				return
			}
			if helped && !p.pending() {
				failed = time.Time{}
				break // ended while nobody used it: nothing is wrong with e
			}
			if helped {
				w.reset(p.c, p.op)
			}
			p.failed(&w, e, sent, err)
			failed = time.Now()
			if p.c.ctx.Err() != nil {
				return
			}
		}
	}
}

// failed pauses as the walk says, and then gives up what has waited too long.
// An error that is final is for the request alone that was under way: of
// several, any may be to blame, and each is sent again alone. When none was, it
// is for all.
func (p *pipe[Q, R]) failed(w *walk, e *endpoint, sent []*request[Q, R], err error) {
	end := w.failed(p.c.ctx, e, err)
	now := time.Now()
	for _, r := range p.remove(func(r *request[Q, R]) bool { return !now.Before(r.expires) }) {
		r.finish(nil, w.trail.fail(p.op.name, errGaveUp))
	}
	if end == nil {
		return
	}
	if len(sent) > 1 {
		p.mu.Lock()
		p.suspects = min(len(sent), len(p.queue))
		p.mu.Unlock()
	} else {
		for _, r := range p.remove(func(r *request[Q, R]) bool { return len(sent) == 0 || r == sent[0] }) {
			r.finish(nil, end)
		}
	}
	w.reset(p.c, p.op)
}

func (p *pipe[Q, R]) pending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) > 0
}

// remove takes requests out of the queue.
func (p *pipe[Q, R]) remove(gone func(*request[Q, R]) bool) []*request[Q, R] {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*request[Q, R]
	for i := 0; i < len(p.queue); {
		if r := p.queue[i]; gone(r) {
			out = append(out, r)
			p.removeLocked(i)
		} else {
			i++
		}
	}
	if len(p.queue) == 0 {
		p.waitingSince.Store(0)
	}
	return out
}

func (p *pipe[Q, R]) removeLocked(i int) {
	p.bytes -= p.queue[i].bytes
	p.queue = slices.Delete(p.queue, i, i+1)
	if i < p.sent {
		p.sent--
	}
	if i < p.suspects {
		p.suspects--
		p.signal() // the next one may go
	}
}

// drain ends what is left after Close.
func (p *pipe[Q, R]) drain() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	for _, r := range p.remove(func(*request[Q, R]) bool { return true }) {
		r.finish(nil, &Error{Op: p.op.name, Cause: ErrClosed})
	}
}

// serve opens a stream to e, sends what waits, and reads answers until the
// stream breaks. It says whether any request was answered, and which ones were
// sent and not answered.
func (p *pipe[Q, R]) serve(w *walk, e *endpoint) (helped bool, sent []*request[Q, R], err error) {
	ctx, cancel := context.WithCancelCause(p.c.ctx)
	defer cancel(nil)
	defer p.guard(ctx, cancel, e).Stop()
	p.waitingSince.Store(time.Now().UnixNano()) // connecting counts as waiting
	stream, err := p.dial(ctx, e)
	if err == nil {
		p.attach()
		var writer sync.WaitGroup
		writer.Go(func() { p.write(ctx, stream) })
		defer func() {
			cancel(nil) // ends a write that is stuck
			writer.Wait()
			sent = p.detach()
		}()
		help := func() {
			if !helped {
				helped = true
				w.succeeded(e)
			}
		}
		for err == nil {
			reply := new(R)
			switch err = stream.RecvMsg(reply); err {
			case nil:
				err = p.answer(e, reply, help)
			case io.EOF:
				err = status.Error(codes.Unavailable, "the stream was ended")
			}
			if err == nil && p.alone != nil {
				p.c.hedges.earn()
			}
		}
	}
	if ctx.Err() != nil && p.c.ctx.Err() == nil {
		err = context.Cause(ctx) // the guard's
	}
	p.c.count.streamBreaks.Add(1)
	return helped, nil, err
}

func (p *pipe[Q, R]) dial(ctx context.Context, e *endpoint) (grpc.BidiStreamingClient[Q, R], error) {
	if p.op.changes || p.op.authority {
		if err := p.c.nameCluster(ctx, e); err != nil {
			return nil, err
		}
	}
	return p.connect(ctx, e)
}

func (p *pipe[Q, R]) attach() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attached = true
	p.waitLocked()
}

// waitLocked begins to wait for the next answer, if there is one to come.
func (p *pipe[Q, R]) waitLocked() {
	if len(p.queue) > 0 {
		p.waitingSince.Store(time.Now().UnixNano())
	} else {
		p.waitingSince.Store(0)
	}
}

// detach makes all that has no answer wait for the next stream. It returns what
// was sent on this one.
func (p *pipe[Q, R]) detach() []*request[Q, R] {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := slices.Clone(p.queue[:p.sent])
	for _, r := range sent {
		r.parts = nil
	}
	p.attached, p.sent = false, 0
	return sent
}

// answer gives a reply to its request. help is called before that when e helped: the next
// call of whoever asked goes there.
func (p *pipe[Q, R]) answer(e *endpoint, reply *R, help func()) error {
	p.mu.Lock()
	i := p.match(p.queue[:p.sent], reply)
	if i < 0 {
		p.mu.Unlock()
		return fmt.Errorf("%w: a reply to nothing that was asked", errUnfit)
	}
	r := p.queue[i]
	err := p.judge(e, r, reply)
	final := err == nil || isFinal(err)
	apart := !final && p.apart != nil && p.apart(err)
	more := err == nil && p.partial != nil && p.partial(reply)
	switch {
	case !final && !apart:
		p.mu.Unlock()
		return err
	case more:
		r.parts = append(r.parts, reply)
	default:
		r.by = e.address
		p.removeLocked(i)
	}
	p.waitLocked()
	p.mu.Unlock()
	left := apart && p.c.ends.near.Load() != e // others do better, and the stream goes there
	if !left {
		help()
	}
	switch {
	case more:
		return nil
	case err == nil:
		r.finish(reply, nil)
		return nil
	case apart:
		r.finish(nil, errElsewhere{e, err})
		if left {
			return err
		}
		return nil
	default:
		var t trail
		t.note(e.address, err)
		r.finish(nil, t.fail(p.op.name, nil))
		return nil
	}
}

func isFinal(err error) bool {
	class, _ := classify(err)
	return class == final
}

// askable is the request to ask others too: the oldest that need not wait for the
// root, or else the oldest; nil: there is none.
func (p *pipe[Q, R]) askable() (oldest *request[Q, R]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.queue {
		switch {
		case r.deserted != nil && r.deserted():
		case !r.waits:
			return r
		case oldest == nil:
			oldest = r
		}
	}
	return oldest
}

// guard breaks a stream that brought no answer for TryTimeout while one was due.
// Before that it heeds the silence: another coordinator may have an answer, and
// another one may hold the Tenure.
func (p *pipe[Q, R]) guard(ctx context.Context, cancel context.CancelCauseFunc, e *endpoint) *time.Timer {
	limit := p.c.cfg.TryTimeout
	heed := func(context.Context, context.CancelCauseFunc, time.Duration) time.Duration { return limit }
	switch {
	case p.op.authority:
		heed = (&succession{c: p.c, holder: e}).heed
	case p.alone != nil:
		heed = (&streamHedge[Q, R]{p: p, at: e}).heed
	}
	var t *time.Timer
	ready := make(chan struct{})
	t = time.AfterFunc(min(limit, takeoverTime), func() {
		<-ready
		if ctx.Err() != nil {
			return
		}
		var silence time.Duration
		if since := p.waitingSince.Load(); since != 0 {
			silence = time.Duration(time.Now().UnixNano() - since)
		}
		if silence >= limit {
			cancel(errSilent)
			return
		}
		t.Reset(min(limit-silence, heed(ctx, cancel, silence)))
	})
	close(ready)
	return t
}

// first matches replies that come in the order of the requests.
func first[Q, R any](queue []*request[Q, R], _ *R) int {
	if len(queue) == 0 {
		return -1
	}
	return 0
}
