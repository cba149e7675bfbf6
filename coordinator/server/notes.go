package server

import (
	"context"
	"slices"
	"unicode/utf8"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/why"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// Notes are what who assigns knows of regions beside the root; nobody else has any. It is
// filled by *assigner.Assigner.
type Notes interface {
	// RegionNote is nil for a region of which nothing is known.
	RegionNote(id state.RegionID) *coordinatorv1.RegionNote
	// RegionNotes are those of a keyspace, a bounded number; more: there are others.
	RegionNotes(id state.KeyspaceID) (all []*coordinatorv1.RegionNote, more bool)
	// Stuck is what keyspaces wait for.
	Stuck() []*coordinatorv1.Stuck
	// ReleaseRegion takes a region out of quarantine, on behalf of somebody, within ctx.
	ReleaseRegion(ctx context.Context, id state.RegionID, actor, why string) (released bool, at state.Token, err error)
}

// notHolder refuses what only who holds the Tenure does, and says who that is.
func (v *served) notHolder() error {
	e := reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "this coordinator does not hold the Tenure")
	if t := v.state.Tenure(); !t.GetRetired() && t.GetHolderId() != string(v.server.cfg.ID) {
		e.Detail.HolderId, e.Detail.HolderAddress, e.Detail.Era = t.GetHolderId(), t.GetHolderAddress(), t.GetEra()
	}
	return v.atToken(e)
}

// assigning is the view of who holds the Tenure, as far as is known here.
func (s *Server) assigning() (*served, error) {
	view := s.view()
	v := &served{s, view, view.State, coordinatorv1.ServingClass_SERVING_CLASS_BEST_EFFORT, s.cfg.Clock.Now()}
	if s.cfg.Notes == nil || !serves(s.cfg.Authority.Status(), view, v.now) {
		return nil, v.notHolder()
	}
	return v, nil
}

// RegionNotes implements coordinatorv1.CoordinatorServer.
func (s *Server) RegionNotes(ctx context.Context, req *coordinatorv1.RegionNotesRequest) (*coordinatorv1.RegionNotesResponse, error) {
	if (req.GetRegionId() == 0) == (req.GetKeyspace() == "") {
		return nil, invalid("region_id", "want a region or a keyspace")
	}
	v, err := s.assigning()
	if err != nil {
		return nil, err
	}
	resp := &coordinatorv1.RegionNotesResponse{}
	if id := state.RegionID(req.GetRegionId()); id != 0 {
		r, err := v.region(ctx, id)
		if err != nil {
			return nil, v.atToken(err)
		}
		n := s.cfg.Notes.RegionNote(r.ID)
		if said := v.failing(r); said != "" {
			if n == nil {
				n = &coordinatorv1.RegionNote{RegionId: uint64(r.ID)}
			}
			n.Failing = said
		}
		if n != nil {
			resp.Notes = append(resp.Notes, n)
		}
		return resp, nil
	}
	k := v.state.KeyspaceByName(req.GetKeyspace())
	if k == nil || v.mayReadOf(ctx, state.KeyspaceID(k.GetId())) != nil {
		return nil, v.atToken(reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no keyspace %.64q", req.GetKeyspace()))
	}
	err = s.inTurn(ctx, manyRegions+1, func() error {
		resp.Notes, resp.More = s.cfg.Notes.RegionNotes(state.KeyspaceID(k.GetId()))
		return nil
	})
	if err != nil {
		return nil, err
	}
	for len(resp.Notes) > 0 && proto.Size(resp) > MaxReplyBytes {
		resp.Notes, resp.More = resp.Notes[:len(resp.Notes)/2], true
	}
	return resp, nil
}

// failing is what an owner of a region, or who is to own it next, could not do for it, as it said last.
func (v *served) failing(r *state.Region) string {
	owners := slices.Clone(r.Owners)
	if next := v.state.PendingTransition(r.ID).GetOwner(); next != nil {
		owners = append(owners, rooted.OwnerFromProto(next))
	}
	for _, o := range owners {
		if said, ok := v.server.cfg.Soft.Own(r.ID, o.Incarnation); ok && said.More != nil && said.More.Error != "" {
			return string(o.Member) + ": " + said.More.Error
		}
	}
	return ""
}

// ReleaseRegion implements coordinatorv1.CoordinatorServer.
func (s *Server) ReleaseRegion(ctx context.Context, req *coordinatorv1.ReleaseRegionRequest) (*coordinatorv1.ReleaseRegionResponse, error) {
	words := why.Of(ctx)
	switch {
	case req.GetRegionId() == 0:
		return nil, invalid("region_id", "it is 0")
	case len(words) > state.MaxWhyBytes-maxReleaseWords:
		return nil, invalidLimit(why.Key, uint64(len(words)), state.MaxWhyBytes-maxReleaseWords)
	case !utf8.ValidString(words):
		return nil, invalid(why.Key, "it is not UTF-8")
	}
	v, err := s.assigning()
	if err != nil {
		return nil, err
	}
	released, at, err := s.cfg.Notes.ReleaseRegion(ctx, state.RegionID(req.GetRegionId()), principal.FromContext(ctx).Actor(), words)
	switch {
	case reason.Of(err) == rootv1.Reason_REASON_TENURE_NOT_HELD:
		return nil, v.notHolder()
	case err != nil:
		return nil, v.atToken(err)
	}
	return &coordinatorv1.ReleaseRegionResponse{Released: released, Token: at.Proto()}, nil
}

// maxReleaseWords are those that are put before the caller's.
const maxReleaseWords = 32

// maxShownStuck bounds what keyspaces wait for in an answer.
const maxShownStuck = 256

// count says how many members and regions there are in which state.
func (v *served) count(ctx context.Context, resp *coordinatorv1.StatusResponse) {
	standing := v.server.cfg.Standing
	v.state.Members(func(m *rootv1.Member) bool {
		switch m.GetState() {
		case rootv1.MemberState_MEMBER_STATE_ACTIVE:
			resp.MembersActive++
		case rootv1.MemberState_MEMBER_STATE_DRAINING:
			resp.MembersDraining++
		case rootv1.MemberState_MEMBER_STATE_FAILED:
			if !rooted.HasLeft(m) {
				resp.MembersFailed++
			}
			return true
		default:
			return true
		}
		if standing != nil {
			if h := standing(state.MemberID(m.GetId())).Health; h == liveness.Suspected || h == liveness.Held {
				resp.MembersSuspected++
			}
		}
		return true
	})
	v.state.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if id := state.KeyspaceID(k.GetId()); k.GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED {
			resp.AssignedRegions += uint64(v.state.KeyspaceRegionCount(id) - v.state.KeyspaceOrphaned(id))
		}
		return true
	})
	if v.server.cfg.Notes == nil {
		return
	}
	for _, x := range v.server.cfg.Notes.Stuck() {
		if len(resp.Stuck) < maxShownStuck && v.mayRead(ctx, x.GetKeyspace()) == nil {
			resp.Stuck = append(resp.Stuck, x)
		}
	}
}
