package client

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// change makes a unary call that changes something. ask makes its request with
// the identity by which every repetition is recognised. When the root has
// forgotten too much to tell whether the command is a repetition, and it was sent
// only once, it is asked for again under a new identity.
func change[Q, R any](ctx context.Context, c *Client, name string, ask func(*rootv1.CommandIdentity) *Q, m method[Q, R]) (*R, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	if err := c.learnCluster(ctx, name); err != nil {
		return nil, err
	}
	for {
		var open atomic.Int64 // tries that may have arrived and were not judged
		once := func(rpc coordinatorv1.CoordinatorClient, ctx context.Context, req *Q, opts ...grpc.CallOption) (*R, error) {
			open.Add(1)
			reply, err := m(rpc, ctx, req, opts...)
			if judged(err) {
				open.Add(-1)
			}
			return reply, err
		}
		req := ask(c.identities.Next(c.index.Load()))
		reply, err := do(ctx, c, operation{name: name, changes: true}, req, once)
		if !forgotten(err) || open.Load() > 0 {
			return reply, err
		}
	}
}

// learnCluster asks for the cluster, and how far its log is, when no answer has
// told yet: the identity of the first change needs both.
func (c *Client) learnCluster(ctx context.Context, name string) error {
	if c.cluster.Load() != 0 && c.index.Load() != 0 {
		return nil
	}
	_, err := do(ctx, c, operation{name: name}, &coordinatorv1.StatusRequest{}, coordinatorv1.CoordinatorClient.Status)
	return err
}

// judged says whether a try's error tells that the try did nothing.
func judged(err error) bool {
	d := reason.From(err)
	return d != nil && (d.GetReason() != rootv1.Reason_REASON_OUTCOME_UNKNOWN || tooOld(d))
}

// tooOld says whether the root refused a command because it has forgotten
// commands that came after it was first sent. Any other unknown outcome names no
// position.
func tooOld(d *rootv1.ErrorDetail) bool {
	return d.GetReason() == rootv1.Reason_REASON_OUTCOME_UNKNOWN && d.GetCurrentToken() != nil
}

// forgotten is tooOld for the error of a call.
func forgotten(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Cause == errRefused && tooOld(e.Detail)
}

// identified is a command with an identity: a copy that shares its events, if
// its caller made none.
func (c *Client) identified(cmd *rootv1.Command) *rootv1.Command {
	if cmd.GetIdentity() != nil {
		return cmd
	}
	return &rootv1.Command{Events: cmd.GetEvents(), RequireEra: cmd.GetRequireEra(), Identity: c.identities.Next(c.index.Load())}
}
