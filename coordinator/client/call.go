package client

import (
	"context"
	"sync/atomic"

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
			c.hedges.earn()
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
