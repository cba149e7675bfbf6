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
// Whoever has a request writes it to the stream itself; one goroutine reads,
// and runs from the first request to Close.
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
	// encodeFirst is for requests that may be impossible to encode: sending one
	// would end the stream, and with it everybody's requests.
	encodeFirst bool

	// Since when there is a request without an answer and no answer came, Unix
	// nanoseconds; 0: there is none.
	waitingSince atomic.Int64
	seen         atomic.Pointer[Error] // what coordinators said last

	// writing is held while a request is written to the stream, so that the
	// queue and the stream have one order. Never by the reading goroutine: a
	// stream whose windows are full takes a request only when answers are read.
	writing sync.Mutex

	mu      sync.Mutex // guards what follows
	started bool
	ended   bool
	queue   []*request[Q, R] // without an answer, oldest first
	stream  grpc.BidiStreamingClient[Q, R]
	work    chan struct{} // the queue is not empty; capacity 1
}

// maxQueued is the most requests of a pipe without an answer. More callers
// than that are refused while coordinators are away.
const maxQueued = 4096

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
	// finish gets the answer, or a final error. Called once, on the reading
	// goroutine or inside send. It may send again only what cannot block.
	finish func(*R, error)
}

// errGaveUp is the cause when no coordinator answered within DefaultTimeout a
// request made for callers together.
var errGaveUp error = gaveUpError{}

type gaveUpError struct{}

func (gaveUpError) Error() string        { return "no coordinator answered in time" }
func (gaveUpError) Is(target error) bool { return target == context.DeadlineExceeded }

func gaveUp(err error) bool { return errors.Is(err, errGaveUp) }

// send puts a request into the queue, and on the stream if there is one.
func (p *pipe[Q, R]) send(r *request[Q, R]) {
	p.writing.Lock()
	stream, err := p.enqueue(r)
	fits := stream == nil || p.write(stream, r)
	p.writing.Unlock()
	if err != nil {
		r.finish(nil, err)
	}
	if !fits {
		p.refuse(r)
	}
}

// write sends a request, or says that it cannot be encoded. Any other error is
// left to the reader, which gets it too.
func (p *pipe[Q, R]) write(stream grpc.BidiStreamingClient[Q, R], r *request[Q, R]) (fits bool) {
	if !p.encodeFirst {
		_ = stream.SendMsg(r.msg)
		return true
	}
	m := &grpc.PreparedMsg{}
	if err := m.Encode(stream, r.msg); err != nil {
		return stream.Context().Err() != nil
	}
	_ = stream.SendMsg(m)
	return true
}

// refuse ends requests that cannot be encoded.
func (p *pipe[Q, R]) refuse(requests ...*request[Q, R]) {
	for _, r := range p.remove(func(r *request[Q, R]) bool { return slices.Contains(requests, r) }) {
		r.finish(nil, invalid(p.op.name, "the request cannot be encoded: is a text in it not UTF-8?"))
	}
}

// enqueue returns the stream to write r to; nil: there is none yet.
func (p *pipe[Q, R]) enqueue(r *request[Q, R]) (grpc.BidiStreamingClient[Q, R], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.started {
		p.op.seen = &p.seen
		p.started = true
		p.ended = !p.c.spawn(p.run)
	}
	if p.ended {
		return nil, &Error{Op: p.op.name, Cause: ErrClosed}
	}
	if len(p.queue) >= maxQueued {
		return nil, overloaded(p.op.name, "%d requests wait for coordinators", maxQueued)
	}
	p.queue = append(p.queue, r)
	if p.stream == nil {
		p.signal()
	} else {
		p.waitingSince.CompareAndSwap(0, time.Now().UnixNano())
	}
	return p.stream, nil
}

func (p *pipe[Q, R]) signal() {
	select {
	case p.work <- struct{}{}:
	default:
	}
}

// run keeps a stream up while there is something to send.
func (p *pipe[Q, R]) run() {
	defer p.drain()
	var w walk
	for {
		select {
		case <-p.work:
		case <-p.c.ctx.Done():
			return
		}
		w.reset(p.c, p.op)
		for p.pending() {
			e := w.next()
			helped, err := p.serve(&w, e)
			if p.c.ctx.Err() != nil {
				return
			}
			if helped && !p.pending() {
				break // ended while nobody used it: nothing is wrong with e
			}
			if helped {
				w.reset(p.c, p.op)
			}
			if err := p.failed(&w, e, err); err != nil && p.c.ctx.Err() != nil {
				return
			}
		}
	}
}

// failed gives up what has waited too long, and everything if the error is
// final. It pauses as the walk says.
func (p *pipe[Q, R]) failed(w *walk, e *endpoint, err error) error {
	end := w.failed(p.c.ctx, e, err)
	now := time.Now()
	for _, r := range p.remove(func(r *request[Q, R]) bool { return end != nil || !now.Before(r.expires) }) {
		if end != nil {
			r.finish(nil, end)
		} else {
			r.finish(nil, w.trail.fail(p.op.name, errGaveUp))
		}
	}
	if end != nil {
		w.reset(p.c, p.op)
	}
	return end
}

func (p *pipe[Q, R]) pending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) > 0
}

func (p *pipe[Q, R]) remove(gone func(*request[Q, R]) bool) []*request[Q, R] {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out, stay []*request[Q, R]
	for _, r := range p.queue {
		if gone(r) {
			out = append(out, r)
		} else {
			stay = append(stay, r)
		}
	}
	p.queue = stay
	if len(stay) == 0 {
		p.waitingSince.Store(0)
	}
	return out
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
// stream breaks. It says whether any request was answered.
func (p *pipe[Q, R]) serve(w *walk, e *endpoint) (helped bool, err error) {
	ctx, cancel := context.WithCancelCause(p.c.ctx)
	defer cancel(nil)
	guard := p.guard(ctx, cancel)
	defer guard.Stop()
	p.waitingSince.Store(time.Now().UnixNano()) // connecting counts as waiting
	stream, err := p.dial(ctx, e)
	if err == nil {
		var attached sync.WaitGroup
		attached.Go(func() { p.attach(stream) })
		defer func() {
			cancel(nil) // ends a write that is stuck
			attached.Wait()
			p.detach()
		}()
		for err == nil {
			reply := new(R)
			switch err = stream.RecvMsg(reply); err {
			case nil:
				err = p.answer(e, reply)
			case io.EOF:
				err = status.Error(codes.Unavailable, "the stream was ended")
			}
			if err == nil && !helped {
				helped = true
				w.succeeded(e)
			}
		}
	}
	if errors.Is(context.Cause(ctx), errSilent) {
		err = errSilent
	}
	p.c.count.streamBreaks.Add(1)
	return helped, err
}

func (p *pipe[Q, R]) dial(ctx context.Context, e *endpoint) (grpc.BidiStreamingClient[Q, R], error) {
	if p.op.changes {
		if err := p.c.nameCluster(ctx, e); err != nil {
			return nil, err
		}
	}
	return p.connect(ctx, e)
}

// attach makes a stream the one to write to, after sending again what has no
// answer.
func (p *pipe[Q, R]) attach(s grpc.BidiStreamingClient[Q, R]) {
	p.writing.Lock()
	p.mu.Lock()
	p.stream = s
	waiting := slices.Clone(p.queue)
	p.waitLocked()
	p.mu.Unlock()
	waiting = slices.DeleteFunc(waiting, func(r *request[Q, R]) bool { return p.write(s, r) })
	p.writing.Unlock()
	if len(waiting) > 0 {
		p.refuse(waiting...)
	}
}

// waitLocked begins to wait for the next answer, if there is one to come.
func (p *pipe[Q, R]) waitLocked() {
	if len(p.queue) > 0 {
		p.waitingSince.Store(time.Now().UnixNano())
	} else {
		p.waitingSince.Store(0)
	}
}

func (p *pipe[Q, R]) detach() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stream = nil
}

// answer gives a reply to its request.
func (p *pipe[Q, R]) answer(e *endpoint, reply *R) error {
	p.mu.Lock()
	i := p.match(p.queue, reply)
	if i < 0 {
		p.mu.Unlock()
		return fmt.Errorf("%w: a reply to nothing that was asked", errUnfit)
	}
	r := p.queue[i]
	err := p.judge(e, r, reply)
	if err != nil && !isFinal(err) {
		p.mu.Unlock()
		return err
	}
	p.queue = slices.Delete(p.queue, i, i+1)
	p.waitLocked()
	p.mu.Unlock()
	if err != nil {
		var t trail
		t.note(e.address, err)
		r.finish(nil, t.fail(p.op.name, nil))
		return nil
	}
	r.finish(reply, nil)
	return nil
}

func isFinal(err error) bool {
	class, _ := classify(err)
	return class == final
}

// guard breaks a stream that brought no answer for TryTimeout while one was due.
func (p *pipe[Q, R]) guard(ctx context.Context, cancel context.CancelCauseFunc) *time.Timer {
	limit := p.c.cfg.TryTimeout
	var t *time.Timer
	ready := make(chan struct{})
	t = time.AfterFunc(limit, func() {
		<-ready
		if ctx.Err() != nil {
			return
		}
		left := limit
		if since := p.waitingSince.Load(); since != 0 {
			left -= time.Duration(time.Now().UnixNano() - since)
		}
		if left <= 0 {
			cancel(errSilent)
			return
		}
		t.Reset(left)
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
