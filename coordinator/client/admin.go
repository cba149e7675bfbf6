package client

import (
	"context"
	"fmt"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// AssessRootEvent says what would become of an event; nothing changes. That it
// would be rejected is an answer, not an error.
func (c *Client) AssessRootEvent(ctx context.Context, event *rootv1.Event, opts ...ReadOption) (*coordinatorv1.AssessRootEventResponse, error) {
	r := readOf(opts)
	req := &coordinatorv1.AssessRootEventRequest{Event: event, Read: r.options}
	reply, err := do(ctx, c, operation{name: "AssessRootEvent"}, req, coordinatorv1.CoordinatorClient.AssessRootEvent)
	r.saw(reply.GetDisclosure())
	return reply, err
}

// PublishRootEvent proposes one event on a call of its own and returns, beside
// its result, what the event's transition became. A rejection is an *Error.
// Publish is faster for many callers.
func (c *Client) PublishRootEvent(ctx context.Context, event *rootv1.Event) (*coordinatorv1.PublishRootEventResponse, error) {
	return change(ctx, c, "PublishRootEvent", func(id *rootv1.CommandIdentity) *coordinatorv1.PublishRootEventRequest {
		return &coordinatorv1.PublishRootEventRequest{Event: event, Identity: id}
	}, coordinatorv1.CoordinatorClient.PublishRootEvent)
}

// ListTransitions lists planned changes of a region, 0 for all, with how the
// recent ones ended if they are asked for. Limit bounds it; 256 without.
func (c *Client) ListTransitions(ctx context.Context, region rooted.RegionID, ended bool, opts ...ReadOption) (*coordinatorv1.ListTransitionsResponse, error) {
	r := readOf(opts)
	req := &coordinatorv1.ListTransitionsRequest{RegionId: uint64(region), IncludeEnded: ended, Limit: uint32(max(r.limit, 0)), Read: r.options}
	reply, err := do(ctx, c, operation{name: "ListTransitions"}, req, coordinatorv1.CoordinatorClient.ListTransitions)
	r.saw(reply.GetDisclosure())
	return reply, err
}

// RemoveRegion removes a region at an epoch; the zero Epoch means any. That
// there is none is no error: Removed is false.
func (c *Client) RemoveRegion(ctx context.Context, id rooted.RegionID, epoch rooted.Epoch) (*coordinatorv1.RemoveRegionResponse, error) {
	return change(ctx, c, "RemoveRegion", func(identity *rootv1.CommandIdentity) *coordinatorv1.RemoveRegionRequest {
		return &coordinatorv1.RemoveRegionRequest{RegionId: uint64(id), ExpectedEpoch: expected(epoch), Identity: identity}
	}, coordinatorv1.CoordinatorClient.RemoveRegion)
}

// expected is an epoch as a condition; nil for the zero one, which is none.
func expected(epoch rooted.Epoch) *rootv1.RegionEpoch {
	if epoch == (rooted.Epoch{}) {
		return nil
	}
	return epoch.Proto()
}

// StoreHeartbeat reports a member's load. It goes to the Tenure holder when
// that is known, because only the holder's answer carries operations.
func (c *Client) StoreHeartbeat(ctx context.Context, req *coordinatorv1.StoreHeartbeatRequest) (*coordinatorv1.StoreHeartbeatResponse, error) {
	return do(ctx, c, operation{name: "StoreHeartbeat", changes: true, towardsHolder: true}, req, coordinatorv1.CoordinatorClient.StoreHeartbeat)
}

// RegionHeartbeat reports a region as its owner has it; a newer descriptor is rooted.
func (c *Client) RegionHeartbeat(ctx context.Context, req *coordinatorv1.RegionHeartbeatRequest) (*coordinatorv1.RegionHeartbeatResponse, error) {
	return do(ctx, c, operation{name: "RegionHeartbeat", changes: true}, req, coordinatorv1.CoordinatorClient.RegionHeartbeat)
}

// ListMembers lists the members.
func (c *Client) ListMembers(ctx context.Context, opts ...ReadOption) (*coordinatorv1.ListMembersResponse, error) {
	r := readOf(opts)
	reply, err := do(ctx, c, operation{name: "ListMembers"}, &coordinatorv1.ListMembersRequest{Read: r.options}, coordinatorv1.CoordinatorClient.ListMembers)
	r.saw(reply.GetDisclosure())
	return reply, err
}

// ListCoordinators lists the coordinators.
func (c *Client) ListCoordinators(ctx context.Context, opts ...ReadOption) (*coordinatorv1.ListCoordinatorsResponse, error) {
	r := readOf(opts)
	reply, err := do(ctx, c, operation{name: "ListCoordinators"}, &coordinatorv1.ListCoordinatorsRequest{Read: r.options}, coordinatorv1.CoordinatorClient.ListCoordinators)
	r.saw(reply.GetDisclosure())
	return reply, err
}

// Status describes one coordinator; "" for any. It asks that one alone, once.
func (c *Client) Status(ctx context.Context, address string) (*coordinatorv1.StatusResponse, error) {
	op := operation{name: "Status"}
	if address == "" {
		return do(ctx, c, op, &coordinatorv1.StatusRequest{}, coordinatorv1.CoordinatorClient.Status)
	}
	if c.ctx.Err() != nil {
		return nil, &Error{Op: op.name, Cause: ErrClosed}
	}
	e := c.ends.find(address)
	if e == nil {
		var err error
		if e, err = c.ends.dial(address); err != nil {
			return nil, &Error{Op: op.name, Endpoint: address, Cause: fmt.Errorf("%q is not an address: %w", address, err)}
		}
		defer func() { _ = e.conn.Close() }()
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	reply, err := once(ctx, c, op, e, &coordinatorv1.StatusRequest{}, coordinatorv1.CoordinatorClient.Status)
	if err != nil {
		var t trail
		t.note(e.address, err)
		return nil, t.fail(op.name, ctx.Err())
	}
	return reply, nil
}
