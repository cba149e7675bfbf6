package client

import (
	"cmp"
	"context"
	"fmt"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// How often the end of a planned change is looked for.
const (
	reshapePause     = 20 * time.Millisecond
	reshapePauseMost = 500 * time.Millisecond
)

// reshape is complete for a split or a merge. Where an owner has to let go of the region
// first, the plan is rooted alone, and the holder of the Tenure completes it.
func (c *Client) reshape(ctx context.Context, op string, kind rootv1.TransitionKind, known *rooted.Region, plan *rootv1.Event) (*rootv1.EventResult, rooted.Token, error) {
	made, at, err := c.complete(ctx, kind, known, plan)
	e, refused := err.(*Error)
	id := rooted.TransitionID(kind, known.ID, known.Epoch)
	if !refused || e.Reason != rootv1.Reason_REASON_RANGE_CHANGE_PENDING || e.Detail.GetTransitionId() != id {
		return made, at, err
	}
	result, err := c.PublishEvent(ctx, plan)
	if err != nil {
		return nil, rooted.Token{}, err
	}
	t, err := c.awaitEnd(ctx, op, known.ID, id, rooted.TokenFromProto(result.GetToken()))
	if err != nil {
		return nil, rooted.Token{}, err
	}
	made = &rootv1.EventResult{Transition: t}
	left, err := c.GetRegion(ctx, known.ID, Strong())
	if err != nil {
		return nil, rooted.Token{}, err
	}
	made.Region = left.Region.Proto()
	if kind == rootv1.TransitionKind_TRANSITION_KIND_SPLIT {
		right, err := c.GetRegion(ctx, rooted.RegionID(t.GetRightRegionId()), Strong())
		if err != nil {
			return nil, rooted.Token{}, err
		}
		made.RightRegion = right.Region.Proto()
	}
	return made, rooted.TokenFromProto(t.GetEndedAt()), nil
}

// awaitEnd waits until a transition that was planned at a token, or before, has ended.
func (c *Client) awaitEnd(ctx context.Context, op string, region rooted.RegionID, id string, planned rooted.Token) (*rootv1.Transition, error) {
	for pause := reshapePause; ; pause = min(2*pause, reshapePauseMost) {
		var last *rootv1.Transition
		for t, err := range c.ListTransitions(ctx, region, true, Strong()) {
			if err != nil {
				return nil, fmt.Errorf("transition %s is planned, and goes on: %w", id, err)
			}
			if t.GetId() == id {
				last = t
			}
		}
		switch last.GetStatus() {
		case rootv1.TransitionStatus_TRANSITION_STATUS_PENDING:
		case rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED:
			return last, nil
		default:
			d := &rootv1.ErrorDetail{
				Reason: rootv1.Reason_REASON_TRANSITION_CLOSED, TransitionId: id,
				Message: fmt.Sprintf("transition %s, planned at %s, was given up: %s", id, planned, cmp.Or(last.GetReason(), "why is not kept any more; see nokv events")),
			}
			return nil, &Error{Op: op, Reason: d.Reason, Detail: d, Cause: errRefused}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("transition %s is planned, and goes on: %w", id, ctx.Err())
		}
	}
}
