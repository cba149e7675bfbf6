package server

import (
	"context"
	"slices"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// RegisterMember implements coordinatorv1.CoordinatorServer. Whom a registration
// follows only its process knows: by the time the call comes, another may live.
func (s *Server) RegisterMember(ctx context.Context, req *coordinatorv1.RegisterMemberRequest) (*coordinatorv1.RegisterMemberResponse, error) {
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member: req.GetMember(), Follows: req.GetFollows(),
	}}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.RegisterMemberResponse{Member: made(result).GetMember(), Token: result.GetToken()}, nil
}

// DrainMember implements coordinatorv1.CoordinatorServer.
func (s *Server) DrainMember(ctx context.Context, req *coordinatorv1.DrainMemberRequest) (*coordinatorv1.DrainMemberResponse, error) {
	to := rootv1.MemberState_MEMBER_STATE_DRAINING
	if req.GetUndo() {
		to = rootv1.MemberState_MEMBER_STATE_ACTIVE
	}
	member, token, err := s.setMember(ctx, req.GetIdentity(), &rootv1.MemberStateChanged{
		MemberId: req.GetMemberId(), Incarnation: req.GetIncarnation(), State: to, Reason: req.GetReason(),
	})
	return &coordinatorv1.DrainMemberResponse{Member: member, Token: token}, err
}

// FailMember implements coordinatorv1.CoordinatorServer.
func (s *Server) FailMember(ctx context.Context, req *coordinatorv1.FailMemberRequest) (*coordinatorv1.FailMemberResponse, error) {
	if req.GetIncarnation() == 0 {
		return nil, invalid("incarnation", "it is 0; a verdict of failed is about one process: give its incarnation, as ListMembers shows it")
	}
	member, token, err := s.setMember(ctx, req.GetIdentity(), &rootv1.MemberStateChanged{
		MemberId: req.GetMemberId(), Incarnation: req.GetIncarnation(), State: rootv1.MemberState_MEMBER_STATE_FAILED,
		Reason: req.GetReason(), Signals: req.GetSignals(),
	})
	return &coordinatorv1.FailMemberResponse{Member: member, Token: token}, err
}

// RemoveMember implements coordinatorv1.CoordinatorServer.
func (s *Server) RemoveMember(ctx context.Context, req *coordinatorv1.RemoveMemberRequest) (*coordinatorv1.RemoveMemberResponse, error) {
	member, token, err := s.setMember(ctx, req.GetIdentity(), &rootv1.MemberStateChanged{
		MemberId: req.GetMemberId(), Incarnation: req.GetIncarnation(), State: rootv1.MemberState_MEMBER_STATE_REMOVED, Reason: req.GetReason(),
	})
	return &coordinatorv1.RemoveMemberResponse{Member: member, Token: token}, err
}

func (s *Server) setMember(ctx context.Context, id *rootv1.CommandIdentity, change *rootv1.MemberStateChanged) (*rootv1.Member, *rootv1.RootToken, error) {
	result, err := s.change(ctx, id, &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: change}})
	if err != nil {
		return nil, nil, err
	}
	return made(result).GetMember(), result.GetToken(), nil
}

// AssignRegions implements coordinatorv1.CoordinatorServer.
func (s *Server) AssignRegions(ctx context.Context, req *coordinatorv1.AssignRegionsRequest) (*coordinatorv1.AssignRegionsResponse, error) {
	result, err := s.changeIn(ctx, req.GetIdentity(), req.GetRequireEra(), &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{
		RegionsAssigned: &rootv1.RegionsAssigned{Assignments: req.GetAssignments()},
	}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.AssignRegionsResponse{Token: result.GetToken(), Changed: changed(result)}, nil
}

// RotatePinKey implements coordinatorv1.CoordinatorServer. The secret is made
// here and leaves the cluster's processes in no answer.
func (s *Server) RotatePinKey(ctx context.Context, req *coordinatorv1.RotatePinKeyRequest) (*coordinatorv1.RotatePinKeyResponse, error) {
	expected := req.GetExpectedId()
	if req.GetBehindNewest() {
		if expected != 0 {
			return nil, invalid("behind_newest", "it is set beside expected_id %d: want one of them", expected)
		}
		v, err := s.strong(ctx)
		if err != nil {
			return nil, err
		}
		if keys := v.state.PinKeys(); len(keys) > 0 {
			expected = keys[len(keys)-1].GetId()
		}
		switch outcome, why, known := v.state.Judged(req.GetIdentity()); {
		case known && outcome == rootv1.Outcome_OUTCOME_REJECTED:
			return nil, reason.New(why, "the root refused this rotation when it was first asked for, and the newest key is %d: ask for it again, as a new one", expected)
		case known: // it was asked for before: that made this one, or a later one
			return &coordinatorv1.RotatePinKeyResponse{Id: expected, Token: v.disclosure().GetServedRootToken()}, nil
		}
	}
	secret, sealed := s.newKey(seal.Pins, expected)
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_PinKeyRotated{PinKeyRotated: &rootv1.PinKeyRotated{
		ExpectedId: expected, Secret: secret, Sealed: sealed,
	}}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.RotatePinKeyResponse{Id: expected + 1, Token: result.GetToken()}, nil
}

// memberFor is a member as a caller may see it.
func (v *served) memberFor(ctx context.Context, m *rootv1.Member) *rootv1.Member {
	if p := principal.FromContext(ctx); p.Role == principal.Member && p.Name == m.GetId() {
		return m
	}
	return concealed(m, func(keyspace string) bool { return v.mayRead(ctx, keyspace) == nil })
}

// concealed is a member with one word in the place of the keyspaces that are not shown: that it
// takes only some is no secret.
func concealed(m *rootv1.Member, shown func(keyspace string) bool) *rootv1.Member {
	if !slices.ContainsFunc(m.GetKeyspaces(), func(keyspace string) bool { return !shown(keyspace) }) {
		return m
	}
	c := proto.CloneOf(m)
	c.Keyspaces = append(slices.DeleteFunc(c.Keyspaces, func(keyspace string) bool { return !shown(keyspace) }), concealedKeyspace)
	return c
}

// concealedKeyspace is no keyspace's name.
const concealedKeyspace = "?"

// ListMembers implements coordinatorv1.CoordinatorServer.
func (s *Server) ListMembers(ctx context.Context, req *coordinatorv1.ListMembersRequest) (*coordinatorv1.ListMembersResponse, error) {
	limit, err := pageOf(req.GetAfter(), req.GetLimit(), DefaultListLimit)
	if err != nil {
		return nil, err
	}
	v, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	resp, bytes := &coordinatorv1.ListMembersResponse{Disclosure: v.disclosure()}, 0
	if id := req.GetMemberId(); id != "" {
		if m := v.state.Member(state.MemberID(id)); m != nil {
			resp.Members = append(resp.Members, v.memberStatus(ctx, m))
		}
		return resp, nil
	}
	v.state.MembersAfter(state.MemberID(req.GetAfter()), func(m *rootv1.Member) bool {
		if resp.More = len(resp.Members) == limit || bytes > MaxReplyBytes; resp.More {
			return false
		}
		status := v.memberStatus(ctx, m)
		bytes += proto.Size(status)
		resp.Members = append(resp.Members, status)
		return true
	})
	return resp, nil
}

func (v *served) memberStatus(ctx context.Context, m *rootv1.Member) *coordinatorv1.MemberStatus {
	id := state.MemberID(m.GetId())
	status := &coordinatorv1.MemberStatus{Member: v.memberFor(ctx, m), OwnedRegions: uint64(v.state.MemberRegionCount(id))}
	if report, ok := v.server.cfg.Soft.Store(id); ok {
		status.LastHeartbeat = report.Heartbeat
		status.HeartbeatAgeMillis = uint64(max(v.now.Sub(report.At), 0).Milliseconds())
	}
	if heard, ok := v.server.members.heardOf(id); ok && heard.incarnation == m.GetIncarnation() {
		status.Connected, status.Frames, status.Load = heard.stream != nil, heard.frames, heard.load
		if age := uint64(max(v.now.Sub(heard.at), 0).Milliseconds()); status.LastHeartbeat == nil || age < status.HeartbeatAgeMillis {
			status.HeartbeatAgeMillis = age
		}
	}
	if v.server.cfg.Standing != nil {
		if s := v.server.cfg.Standing(id); s.Incarnation == m.GetIncarnation() {
			status.Health, status.Signals, status.Guard = coordinatorv1.MemberHealth(s.Health), s.Signals.Names(), s.Guard.String()
			status.DampedMillis = uint64(max(s.DampedUntil.Sub(v.now), 0).Milliseconds())
			status.RestingMillis = uint64(max(s.RestsUntil.Sub(v.now), 0).Milliseconds())
		}
	}
	return status
}

// pageOf is the number of records of a page behind an id.
func pageOf(after string, limit, standard uint32) (int, error) {
	if len(after) > state.MaxIDBytes {
		return 0, invalidLimit("after", uint64(len(after)), state.MaxIDBytes)
	}
	return limitOf(limit, standard, MaxListLimit)
}
