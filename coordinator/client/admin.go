package client

import (
	"context"
	"fmt"
	"iter"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
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

// Status describes one coordinator; "" for any. It asks that one alone, once.
func (c *Client) Status(ctx context.Context, address string) (*coordinatorv1.StatusResponse, error) {
	op := operation{name: "Status"}
	if address == "" {
		return do(ctx, c, op, &coordinatorv1.StatusRequest{}, coordinatorv1.CoordinatorClient.Status)
	}
	return askOne(ctx, c, op, address, &coordinatorv1.StatusRequest{}, coordinatorv1.CoordinatorClient.Status)
}

// askOne asks the coordinator at an address, and no other, once.
func askOne[Q, R any](ctx context.Context, c *Client, op operation, address string, req *Q, m method[Q, R]) (*R, error) {
	if c.ctx.Err() != nil {
		return nil, &Error{Op: op.name, Cause: ErrClosed}
	}
	e := c.ends.find(address)
	if e == nil {
		var err error
		if e, err = c.ends.dial("", address); err != nil {
			return nil, &Error{Op: op.name, Endpoint: address, Cause: fmt.Errorf("%q is not an address: %w", address, err)}
		}
		defer func() { _ = e.conn.Close() }()
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	reply, err := once(ctx, c, op, e, req, m)
	if err != nil {
		var t trail
		t.note(e.address, err)
		return nil, t.fail(op.name, ctx.Err())
	}
	return reply, nil
}

// CreateKeyspace makes a keyspace from a preset ("" for none) and settings
// that replace the preset's (nil for none). Making it again with the same
// settings is no error.
func (c *Client) CreateKeyspace(ctx context.Context, name, preset string, settings *rootv1.KeyspaceSettings) (*coordinatorv1.CreateKeyspaceResponse, error) {
	return change(ctx, c, "CreateKeyspace", func(id *rootv1.CommandIdentity) *coordinatorv1.CreateKeyspaceRequest {
		return &coordinatorv1.CreateKeyspaceRequest{Name: name, Preset: preset, Settings: settings, Identity: id}
	}, coordinatorv1.CoordinatorClient.CreateKeyspace)
}

// CreateKeyspaceOf is CreateKeyspace with settings that are all there is: what is not set
// in them is not set.
func (c *Client) CreateKeyspaceOf(ctx context.Context, name string, settings *rootv1.KeyspaceSettings) (*coordinatorv1.CreateKeyspaceResponse, error) {
	return change(ctx, c, "CreateKeyspace", func(id *rootv1.CommandIdentity) *coordinatorv1.CreateKeyspaceRequest {
		return &coordinatorv1.CreateKeyspaceRequest{Name: name, Settings: settings, Whole: true, Identity: id}
	}, coordinatorv1.CoordinatorClient.CreateKeyspace)
}

// UpdateKeyspace replaces the settings of a keyspace at a version.
func (c *Client) UpdateKeyspace(ctx context.Context, name string, version uint64, settings *rootv1.KeyspaceSettings) (*coordinatorv1.UpdateKeyspaceResponse, error) {
	return change(ctx, c, "UpdateKeyspace", func(id *rootv1.CommandIdentity) *coordinatorv1.UpdateKeyspaceRequest {
		return &coordinatorv1.UpdateKeyspaceRequest{Name: name, ExpectedVersion: version, Settings: settings, Identity: id}
	}, coordinatorv1.CoordinatorClient.UpdateKeyspace)
}

// DeleteKeyspace removes an empty keyspace at a version; 0 for any.
func (c *Client) DeleteKeyspace(ctx context.Context, name string, version uint64) (*coordinatorv1.DeleteKeyspaceResponse, error) {
	return change(ctx, c, "DeleteKeyspace", func(id *rootv1.CommandIdentity) *coordinatorv1.DeleteKeyspaceRequest {
		return &coordinatorv1.DeleteKeyspaceRequest{Name: name, ExpectedVersion: version, Identity: id}
	}, coordinatorv1.CoordinatorClient.DeleteKeyspace)
}

// GetKeyspace finds a keyspace by name; "" is "default". ErrNotFound: there is none.
func (c *Client) GetKeyspace(ctx context.Context, name string, opts ...ReadOption) (*coordinatorv1.GetKeyspaceResponse, error) {
	r := readOf(opts)
	req := &coordinatorv1.GetKeyspaceRequest{Name: name, Read: r.options}
	reply, err := do(ctx, c, operation{name: "GetKeyspace"}, req, coordinatorv1.CoordinatorClient.GetKeyspace)
	r.saw(reply.GetDisclosure())
	return reply, err
}

// RegisterMember registers a member process (Id, Address, Labels, Capacity, Kind,
// Keyspaces, ProbeAddress and StartNonce, random per process start) and returns it with
// its incarnation; it supersedes the process that is rooted now. ErrMemberRetired: a
// newer one has registered meanwhile.
func (c *Client) RegisterMember(ctx context.Context, m *rootv1.Member) (*rootv1.Member, error) {
	if err := sendable("RegisterMember", m); err != nil {
		return nil, err
	}
	there, err := c.member(ctx, "RegisterMember", m.GetId(), readOf([]ReadOption{Strong()}))
	if err != nil {
		return nil, err
	}
	return c.RegisterMemberAfter(ctx, m, there.GetMember().GetIncarnation())
}

// GetMember finds a member by id. ErrMemberNotFound: it never registered, or was
// removed long ago.
func (c *Client) GetMember(ctx context.Context, id rooted.MemberID, opts ...ReadOption) (*coordinatorv1.MemberStatus, error) {
	m, err := c.member(ctx, "GetMember", string(id), readOf(opts))
	if m == nil && err == nil {
		return nil, noMember("GetMember", id)
	}
	return m, err
}

// GetMemberAt is GetMember by what one coordinator has observed. It asks that one alone,
// once.
func (c *Client) GetMemberAt(ctx context.Context, address string, id rooted.MemberID) (*coordinatorv1.MemberStatus, error) {
	req := &coordinatorv1.ListMembersRequest{MemberId: string(id)}
	list, err := askOne(ctx, c, operation{name: "GetMemberAt"}, address, req, coordinatorv1.CoordinatorClient.ListMembers)
	if err == nil && len(list.GetMembers()) == 0 {
		err = noMember("GetMemberAt", id)
	}
	if err != nil {
		return nil, err
	}
	return list.GetMembers()[0], nil
}

func noMember(op string, id rooted.MemberID) error {
	d := &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_MEMBER_NOT_FOUND, Message: fmt.Sprintf("there is no member %q", id)}
	return &Error{Op: op, Reason: d.Reason, Detail: d, Cause: errRefused}
}

// member is nil when there is none.
func (c *Client) member(ctx context.Context, op, id string, r read) (*coordinatorv1.MemberStatus, error) {
	req := &coordinatorv1.ListMembersRequest{MemberId: id, Read: r.options}
	list, err := do(ctx, c, operation{name: op}, req, coordinatorv1.CoordinatorClient.ListMembers)
	r.saw(list.GetDisclosure())
	if err != nil || len(list.GetMembers()) == 0 {
		return nil, err
	}
	return list.GetMembers()[0], nil
}

// RegisterMemberAfter is RegisterMember for a process that knows whom it follows: its
// own incarnation, when that was said to have failed. ErrMemberRetired: another one is
// rooted.
func (c *Client) RegisterMemberAfter(ctx context.Context, m *rootv1.Member, follows uint64) (*rootv1.Member, error) {
	reply, err := change(ctx, c, "RegisterMember", func(id *rootv1.CommandIdentity) *coordinatorv1.RegisterMemberRequest {
		return &coordinatorv1.RegisterMemberRequest{Member: m, Follows: follows, Identity: id}
	}, coordinatorv1.CoordinatorClient.RegisterMember)
	return reply.GetMember(), err
}

// MemberStream opens a member's line to one coordinator; see package member. Its
// address is learned if it is new; an id that is empty: whoever is there. The stream ends with the context.
func (c *Client) MemberStream(ctx context.Context, id rooted.CoordinatorID, address string) (grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], error) {
	e := c.ends.learn(id, address)
	if c.ctx.Err() != nil || e == nil {
		return nil, &Error{Op: "MemberStream", Endpoint: address, Cause: ErrClosed}
	}
	if err := c.nameCluster(ctx, e); err != nil {
		return nil, err
	}
	return e.rpc.MemberStream(ctx)
}

// DrainMember keeps new regions away from a member; with undo it takes that back.
// Incarnation 0 is the current one.
func (c *Client) DrainMember(ctx context.Context, member rooted.MemberID, incarnation uint64, reason string, undo bool) (*rootv1.Member, error) {
	reply, err := change(ctx, c, "DrainMember", func(id *rootv1.CommandIdentity) *coordinatorv1.DrainMemberRequest {
		return &coordinatorv1.DrainMemberRequest{MemberId: string(member), Incarnation: incarnation, Reason: reason, Undo: undo, Identity: id}
	}, coordinatorv1.CoordinatorClient.DrainMember)
	return reply.GetMember(), err
}

// FailMember is the verdict that an incarnation of a member is dead, with the
// signals that led to it.
func (c *Client) FailMember(ctx context.Context, member rooted.MemberID, incarnation uint64, reason string, signals ...string) (*rootv1.Member, error) {
	reply, err := change(ctx, c, "FailMember", func(id *rootv1.CommandIdentity) *coordinatorv1.FailMemberRequest {
		return &coordinatorv1.FailMemberRequest{MemberId: string(member), Incarnation: incarnation, Reason: reason, Signals: signals, Identity: id}
	}, coordinatorv1.CoordinatorClient.FailMember)
	return reply.GetMember(), err
}

// RemoveMember retires a member that owns nothing. Incarnation 0 is the current one.
func (c *Client) RemoveMember(ctx context.Context, member rooted.MemberID, incarnation uint64, reason string) (*rootv1.Member, error) {
	reply, err := change(ctx, c, "RemoveMember", func(id *rootv1.CommandIdentity) *coordinatorv1.RemoveMemberRequest {
		return &coordinatorv1.RemoveMemberRequest{MemberId: string(member), Incarnation: incarnation, Reason: reason, Identity: id}
	}, coordinatorv1.CoordinatorClient.RemoveMember)
	return reply.GetMember(), err
}

// AssignRegions sets the owners of regions of assigned keyspaces, all or none,
// while an era is active; 0: whenever. Changed is false when all of it was true.
func (c *Client) AssignRegions(ctx context.Context, era rooted.Era, assignments ...*rootv1.Assignment) (*coordinatorv1.AssignRegionsResponse, error) {
	return change(ctx, c, "AssignRegions", func(id *rootv1.CommandIdentity) *coordinatorv1.AssignRegionsRequest {
		return &coordinatorv1.AssignRegionsRequest{Assignments: assignments, RequireEra: uint64(era), Identity: id}
	}, coordinatorv1.CoordinatorClient.AssignRegions)
}

// RotatePinKey makes a new key for pins behind the newest one, 0 for none, and
// returns its id. The secret stays inside the cluster.
func (c *Client) RotatePinKey(ctx context.Context, newest uint32) (uint32, error) {
	reply, err := change(ctx, c, "RotatePinKey", func(id *rootv1.CommandIdentity) *coordinatorv1.RotatePinKeyRequest {
		return &coordinatorv1.RotatePinKeyRequest{ExpectedId: newest, Identity: id}
	}, coordinatorv1.CoordinatorClient.RotatePinKey)
	return reply.GetId(), err
}

// RotatePins is RotatePinKey behind whichever key is the newest.
func (c *Client) RotatePins(ctx context.Context) (uint32, error) {
	reply, err := change(ctx, c, "RotatePinKey", func(id *rootv1.CommandIdentity) *coordinatorv1.RotatePinKeyRequest {
		return &coordinatorv1.RotatePinKeyRequest{BehindNewest: true, Identity: id}
	}, coordinatorv1.CoordinatorClient.RotatePinKey)
	return reply.GetId(), err
}

// PinKeys returns the keys by which pins of a keyspace are sealed and opened: for
// members, and clients who may publish there. Package pin takes them.
func (c *Client) PinKeys(ctx context.Context, keyspace string, opts ...ReadOption) (*coordinatorv1.PinKeysResponse, error) {
	r := readOf(opts)
	req := &coordinatorv1.PinKeysRequest{Keyspace: keyspace, Read: r.options}
	reply, err := do(ctx, c, operation{name: "PinKeys"}, req, coordinatorv1.CoordinatorClient.PinKeys)
	r.saw(reply.GetDisclosure())
	return reply, err
}

// ResolvePin has a coordinator open a pin, and say where its member is. ErrPinLost: that
// process has ended, or the pin; ErrNotFound: it is none of this keyspace.
func (c *Client) ResolvePin(ctx context.Context, keyspace, pin string, opts ...ReadOption) (*coordinatorv1.ResolvePinResponse, error) {
	r := readOf(opts)
	req := &coordinatorv1.ResolvePinRequest{Keyspace: keyspace, Pin: pin, Read: r.options}
	reply, err := do(ctx, c, operation{name: "ResolvePin"}, req, coordinatorv1.CoordinatorClient.ResolvePin)
	r.saw(reply.GetDisclosure())
	return reply, err
}

// pageSize is how many records a list asks for at a time.
const pageSize = 256

// paged yields the records of a list, a page at a time, at most so many as Limit
// says. ask returns a page and where the next one begins; empty: there is none.
// An error ends the sequence.
func paged[T any](r read, ask func(after string, limit uint32) (page []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after, given := "", 0; ; {
			limit := pageSize
			if r.limit > 0 {
				limit = min(limit, r.limit-given)
			}
			page, next, err := ask(after, uint32(limit))
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range page {
				if given++; !yield(item, nil) || given == r.limit {
					return
				}
			}
			if next == "" || len(page) == 0 {
				return
			}
			after = next
		}
	}
}

// lastOf is the id of a page's last record when more follow.
func lastOf[T any](page []T, more bool, id func(T) string) string {
	if !more || len(page) == 0 {
		return ""
	}
	return id(page[len(page)-1])
}

// ListKeyspaces yields the keyspaces by name.
func (c *Client) ListKeyspaces(ctx context.Context, opts ...ReadOption) iter.Seq2[*rootv1.Keyspace, error] {
	r := readOf(opts)
	return paged(r, func(after string, limit uint32) ([]*rootv1.Keyspace, string, error) {
		req := &coordinatorv1.ListKeyspacesRequest{After: after, Limit: limit, Read: r.options}
		reply, err := do(ctx, c, operation{name: "ListKeyspaces"}, req, coordinatorv1.CoordinatorClient.ListKeyspaces)
		r.saw(reply.GetDisclosure())
		return reply.GetKeyspaces(), lastOf(reply.GetKeyspaces(), reply.GetMore(), (*rootv1.Keyspace).GetName), err
	})
}

// ListMembers yields the members by id, with what is rooted of them and what the
// coordinator that answers has observed.
func (c *Client) ListMembers(ctx context.Context, opts ...ReadOption) iter.Seq2[*coordinatorv1.MemberStatus, error] {
	r := readOf(opts)
	return paged(r, func(after string, limit uint32) ([]*coordinatorv1.MemberStatus, string, error) {
		req := &coordinatorv1.ListMembersRequest{After: after, Limit: limit, Read: r.options}
		reply, err := do(ctx, c, operation{name: "ListMembers"}, req, coordinatorv1.CoordinatorClient.ListMembers)
		r.saw(reply.GetDisclosure())
		id := func(m *coordinatorv1.MemberStatus) string { return m.GetMember().GetId() }
		return reply.GetMembers(), lastOf(reply.GetMembers(), reply.GetMore(), id), err
	})
}

// ListCoordinators yields the coordinators by id.
func (c *Client) ListCoordinators(ctx context.Context, opts ...ReadOption) iter.Seq2[*rootv1.Coordinator, error] {
	r := readOf(opts)
	return paged(r, func(after string, limit uint32) ([]*rootv1.Coordinator, string, error) {
		req := &coordinatorv1.ListCoordinatorsRequest{After: after, Limit: limit, Read: r.options}
		reply, err := do(ctx, c, operation{name: "ListCoordinators"}, req, coordinatorv1.CoordinatorClient.ListCoordinators)
		r.saw(reply.GetDisclosure())
		return reply.GetCoordinators(), lastOf(reply.GetCoordinators(), reply.GetMore(), (*rootv1.Coordinator).GetId), err
	})
}

// RemoveCoordinator takes a coordinator whose process is gone off the list.
// ErrStillRunning: it answers. ErrNotFound: it is not on the list.
func (c *Client) RemoveCoordinator(ctx context.Context, id string) (rooted.Token, error) {
	for k, err := range c.ListCoordinators(ctx, Strong()) {
		if err != nil {
			return rooted.Token{}, err
		}
		if k.GetId() != id {
			continue
		}
		reply, err := change(ctx, c, "RemoveCoordinator", func(identity *rootv1.CommandIdentity) *coordinatorv1.RemoveCoordinatorRequest {
			return &coordinatorv1.RemoveCoordinatorRequest{CoordinatorId: id, Incarnation: k.GetIncarnation(), Identity: identity}
		}, coordinatorv1.CoordinatorClient.RemoveCoordinator)
		return rooted.TokenFromProto(reply.GetToken()), err
	}
	d := &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_NOT_FOUND, Message: fmt.Sprintf("no coordinator %q is on the list", id)}
	return rooted.Token{}, &Error{Op: "RemoveCoordinator", Reason: d.Reason, Detail: d, Cause: errRefused}
}

// ListTransitions yields planned changes of a region, 0 for all, with how the
// recent ones ended if they are asked for.
func (c *Client) ListTransitions(ctx context.Context, region rooted.RegionID, ended bool, opts ...ReadOption) iter.Seq2[*rootv1.Transition, error] {
	r := readOf(opts)
	return paged(r, func(after string, limit uint32) ([]*rootv1.Transition, string, error) {
		req := &coordinatorv1.ListTransitionsRequest{RegionId: uint64(region), IncludeEnded: ended, Limit: limit, Read: r.options, Page: after}
		reply, err := do(ctx, c, operation{name: "ListTransitions"}, req, coordinatorv1.CoordinatorClient.ListTransitions)
		r.saw(reply.GetDisclosure())
		return reply.GetTransitions(), reply.GetNextPage(), err
	})
}

// Witness shows who held authority and who holds it, and how the four
// guarantees were judged from rooted truth by the coordinator that answers.
func (c *Client) Witness(ctx context.Context, opts ...ReadOption) (*coordinatorv1.WitnessResponse, error) {
	r := readOf(opts)
	reply, err := do(ctx, c, operation{name: "Witness"}, &coordinatorv1.WitnessRequest{Read: r.options}, coordinatorv1.CoordinatorClient.Witness)
	r.saw(reply.GetDisclosure())
	return reply, err
}
