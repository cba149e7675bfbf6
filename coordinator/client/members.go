package client

import (
	"context"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// RegisterMember registers a member process (Id, Address, Labels, Capacity, Kind
// and StartNonce, random per process start) and returns it with its incarnation;
// it supersedes the process that is rooted now. ErrMemberRetired: a newer one has
// registered meanwhile.
func (c *Client) RegisterMember(ctx context.Context, m *rootv1.Member) (*rootv1.Member, error) {
	list, err := do(ctx, c, operation{name: "RegisterMember"}, &coordinatorv1.ListMembersRequest{
		MemberId: m.GetId(), Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG},
	}, coordinatorv1.CoordinatorClient.ListMembers)
	if err != nil {
		return nil, err
	}
	follows := uint64(0)
	for _, there := range list.GetMembers() {
		follows = there.GetMember().GetIncarnation()
	}
	reply, err := change(ctx, c, "RegisterMember", func(id *rootv1.CommandIdentity) *coordinatorv1.RegisterMemberRequest {
		return &coordinatorv1.RegisterMemberRequest{Member: m, Follows: follows, Identity: id}
	}, coordinatorv1.CoordinatorClient.RegisterMember)
	return reply.GetMember(), err
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
func (c *Client) RemoveMember(ctx context.Context, member rooted.MemberID, incarnation uint64, reason string) (rooted.Token, error) {
	reply, err := change(ctx, c, "RemoveMember", func(id *rootv1.CommandIdentity) *coordinatorv1.RemoveMemberRequest {
		return &coordinatorv1.RemoveMemberRequest{MemberId: string(member), Incarnation: incarnation, Reason: reason, Identity: id}
	}, coordinatorv1.CoordinatorClient.RemoveMember)
	return rooted.TokenFromProto(reply.GetToken()), err
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
