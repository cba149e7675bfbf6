package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc"
)

// method is a unary call of the service.
type method[Q, R any] func(coordinatorv1.CoordinatorClient, context.Context, *Q, ...grpc.CallOption) (*R, error)

// operation is what the retry rules must know of a call.
type operation struct {
	name string
	// authority: only the Tenure holder answers.
	authority bool
	// towardsHolder: any coordinator answers, the holder best.
	towardsHolder bool
	// changes: the call changes something, so it must name its cluster.
	changes bool
	// seen is where what coordinators said last is left for callers that wait
	// for each other; nil: nowhere.
	seen *atomic.Pointer[Error]
}

// do makes a unary call, moving from coordinator to coordinator until one
// helps or the context ends.
func do[Q, R any](ctx context.Context, c *Client, op operation, req *Q, m method[Q, R]) (*R, error) {
	return doAfter(ctx, c, op, errElsewhere{}, req, m)
}

// doAfter is do when a coordinator has said something already.
func doAfter[Q, R any](ctx context.Context, c *Client, op operation, before errElsewhere, req *Q, m method[Q, R]) (*R, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var w walk
	w.reset(c, op)
	if before.by != nil {
		if err := w.failed(ctx, before.by, before.said); err != nil {
			return nil, err
		}
	}
	for {
		if cause := w.over(ctx); cause != nil {
			return nil, w.trail.fail(op.name, cause)
		}
		e := w.next()
		reply, by, err := hedged(ctx, c, op, &w, e, req, m)
		if err == nil {
			w.succeeded(by)
			return reply, nil
		}
		if err := w.failed(ctx, by, err); err != nil {
			return nil, err
		}
	}
}

// bound gives a context its deadline.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.DefaultTimeout)
}

// once is one try at one coordinator.
func once[Q, R any](ctx context.Context, c *Client, op operation, e *endpoint, req *Q, m method[Q, R]) (*R, error) {
	if op.changes {
		if err := c.nameCluster(ctx, e); err != nil {
			return nil, err
		}
	}
	reply, err := m(e.rpc, ctx, req)
	if err != nil {
		return nil, err
	}
	if err := c.accept(e, reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// hedged is a try that does not wait for one coordinator alone: after
// TryTimeout the next one is asked as well, and so on. The first answer that
// settles the call counts, and the other tries are cancelled. It returns who
// answered.
func hedged[Q, R any](ctx context.Context, c *Client, op operation, w *walk, e *endpoint, req *Q, m method[Q, R]) (*R, *endpoint, error) {
	if len(*c.ends.list.Load()) == 1 {
		reply, err := once(ctx, c, op, e, req, m)
		return reply, e, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &hedge[R]{cancel: cancel, silent: []*endpoint{e}}
	h.ask = func(e *endpoint) (*R, error) { return once(ctx, c, op, e, req, m) }
	h.arm(c, w.first(), w.tried)
	reply, err := h.ask(e)
	return h.settle(ctx, w, e, reply, err)
}

// hedge is the race of one try's coordinators.
type hedge[R any] struct {
	ask    func(*endpoint) (*R, error)
	cancel context.CancelFunc

	mu      sync.Mutex
	timer   *time.Timer
	silent  []*endpoint // asked, in order
	running int         // asked beside the first and not answered
	over    bool
	settled bool // one has answered:
	reply   *R
	by      *endpoint
	err     error
	idle    chan struct{} // closed when running falls to 0, if the first one waits for it
}

// arm asks the next coordinator after TryTimeout.
func (h *hedge[R]) arm(c *Client, first *endpoint, tried []*endpoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || h.settled {
		return
	}
	h.timer = time.AfterFunc(c.cfg.TryTimeout, func() { h.extra(c, first, tried) })
}

// extra runs on its own goroutine: one more coordinator.
func (h *hedge[R]) extra(c *Client, first *endpoint, tried []*endpoint) {
	if !c.enter() {
		return
	}
	defer c.leave()
	h.mu.Lock()
	if h.over || h.settled {
		h.mu.Unlock()
		return
	}
	c.ends.shun(h.silent[len(h.silent)-1])
	e := c.ends.pick(first, append(append([]*endpoint(nil), tried...), h.silent...))
	if e == nil {
		h.mu.Unlock()
		return
	}
	h.silent = append(h.silent, e)
	h.running++
	h.mu.Unlock()
	c.count.hedges.Add(1)
	h.arm(c, first, tried)
	reply, err := h.ask(e)
	h.finish(e, reply, err)
}

func (h *hedge[R]) finish(e *endpoint, reply *R, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if !h.settled && !h.over && settles(err) {
		h.settled, h.reply, h.by, h.err = true, reply, e, err
		h.cancel()
	}
	if h.running == 0 && h.idle != nil {
		close(h.idle)
	}
}

// settles says whether an answer ends the race.
func settles(err error) bool {
	if err == nil {
		return true
	}
	class, _ := classify(err)
	return class == final || class == redirect
}

// settle is called with the answer of the first one asked. When it settles
// nothing, the others are waited for.
func (h *hedge[R]) settle(ctx context.Context, w *walk, e *endpoint, reply *R, err error) (*R, *endpoint, error) {
	h.mu.Lock()
	if h.timer != nil {
		h.timer.Stop()
	}
	if !h.settled && !settles(err) && h.running > 0 {
		h.idle = make(chan struct{})
		h.mu.Unlock()
		select {
		case <-h.idle:
		case <-ctx.Done():
		}
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	h.over = true
	if h.settled {
		return h.reply, h.by, h.err
	}
	if w.over(ctx) != nil {
		for _, silent := range h.silent {
			w.trail.noteEnd(silent.address, errSilent)
		}
	}
	return reply, e, err
}
