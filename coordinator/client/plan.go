package client

import (
	"context"
	"errors"
	"time"

	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Plan says what the planner would do now, and why; nothing changes. It takes as long as
// the holder of the Tenure needs, and the context lasts.
func (c *Client) Plan(ctx context.Context, req *coordinatorv1.PlanRequest) (*coordinatorv1.PlanResponse, error) {
	return atHolder(ctx, c, operation{name: "Plan"}, req, coordinatorv1.CoordinatorClient.Plan)
}

// ApplyPlan begins what a Plan said, all of it or nothing; WithWhy says why. It may be asked
// for again: it is done once. ErrNotFound: there is no such plan at the holder of the Tenure;
// plan again, as after every other refusal.
func (c *Client) ApplyPlan(ctx context.Context, id string) (*coordinatorv1.ApplyPlanResponse, error) {
	return atHolder(ctx, c, operation{name: "ApplyPlan", changes: true}, &coordinatorv1.ApplyPlanRequest{PlanId: id}, coordinatorv1.CoordinatorClient.ApplyPlan)
}

// atHolder asks the holder of the Tenure, and no other, for what takes it a while: who is
// silent is not given up before the context ends.
func atHolder[Q, R any](ctx context.Context, c *Client, op operation, req *Q, m method[Q, R]) (*R, error) {
	if err := sendable(op.name, req); err != nil {
		return nil, err
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	if op.changes {
		if err := c.learnCluster(ctx, op.name); err != nil {
			return nil, err
		}
	}
	var last error
	for pause := c.cfg.BackoffMin; ; pause = min(2*pause, c.cfg.BackoffMax) {
		address, err := c.holderAddress(ctx, op.name)
		for hops := 0; err == nil && address != "" && hops < 3; hops++ {
			var reply *R
			if reply, err = askOne(ctx, c, op, address, req, m); err == nil {
				return reply, nil
			}
			d := detailOf(err)
			if d.GetReason() != rootv1.Reason_REASON_TENURE_NOT_HELD || d.GetHolderAddress() == "" || d.GetHolderAddress() == address {
				break
			}
			address = d.GetHolderAddress()
			last, err = err, nil
		}
		switch d := detailOf(err); {
		case err == nil:
			if last == nil {
				last = &Error{Op: op.name, Reason: rootv1.Reason_REASON_TENURE_NOT_HELD, Cause: errors.New("no coordinator is known to hold the Tenure")}
			}
		case d == nil, d.GetReason() == rootv1.Reason_REASON_TENURE_NOT_HELD, d.GetReason() == rootv1.Reason_REASON_OVERLOADED:
			last = err
			pause = max(pause, time.Duration(d.GetRetryAfterMillis())*time.Millisecond)
		default:
			return nil, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, last
		}
	}
}

// detailOf is the detail of a refusal; nil: it is none.
func detailOf(err error) *rootv1.ErrorDetail {
	if e, ok := errors.AsType[*Error](err); ok && e.Detail != nil {
		return e.Detail
	}
	return reason.From(err)
}

// holderAddress is where the holder of the Tenure is, by any coordinator's view; "": there
// is none.
func (c *Client) holderAddress(ctx context.Context, op string) (string, error) {
	st, err := do(ctx, c, operation{name: op}, &coordinatorv1.StatusRequest{Brief: true}, coordinatorv1.CoordinatorClient.Status)
	if err != nil {
		return "", err
	}
	if t := st.GetTenure(); !t.GetRetired() {
		return t.GetHolderAddress(), nil
	}
	return "", nil
}
