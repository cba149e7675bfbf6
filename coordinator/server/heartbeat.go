package server

import (
	"context"
	"errors"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// StoreHeartbeat implements coordinatorv1.CoordinatorServer.
func (s *Server) StoreHeartbeat(ctx context.Context, req *coordinatorv1.StoreHeartbeatRequest) (*coordinatorv1.StoreHeartbeatResponse, error) {
	if err := checkSender(req.GetMemberId(), req.GetIncarnation()); err != nil {
		return nil, err
	}
	if err := checkLoad(req.GetLoad()); err != nil {
		return nil, err
	}
	v, err := s.senderView(ctx, req.GetMemberId(), req.GetIncarnation())
	if err != nil {
		return nil, err
	}
	member, _, err := s.cfg.Soft.StoreHeartbeat(v.state, req, v.now)
	if err != nil {
		return nil, v.atToken(err)
	}
	resp := &coordinatorv1.StoreHeartbeatResponse{Era: uint64(v.view.Era), State: member.GetState()}
	if s.holds(v.view) {
		resp.Operations = s.hints.For(v.state, state.MemberID(req.GetMemberId()), v.now)
	}
	return resp, nil
}

// RegionHeartbeat implements coordinatorv1.CoordinatorServer.
func (s *Server) RegionHeartbeat(ctx context.Context, req *coordinatorv1.RegionHeartbeatRequest) (*coordinatorv1.RegionHeartbeatResponse, error) {
	if err := checkReport(req); err != nil {
		return nil, err
	}
	v, err := s.senderView(ctx, req.GetMemberId(), req.GetIncarnation())
	if err != nil {
		return nil, err
	}
	rooted := v.state.Region(state.RegionID(req.GetRegion().GetId()))
	if rooted != nil {
		_, owns := rooted.Owner(state.MemberID(req.GetMemberId()))
		if s.cfg.Access == nil || owns { // what others say of a region counts nothing
			if _, _, err := s.cfg.Soft.RegionHeartbeat(v.state, req, v.now); err != nil {
				return nil, v.atToken(err)
			}
		}
		// A report that tells nothing new is answered to those who may read; any other is
		// refused as one of a region that is not there.
		if !state.EpochFromProto(req.GetRegion().GetEpoch()).NewerThan(rooted.Epoch) && (owns || v.mayReadOf(ctx, rooted.Keyspace) == nil) {
			return &coordinatorv1.RegionHeartbeatResponse{Region: rooted.Proto()}, nil
		}
	}
	return s.rootReport(ctx, req.GetRegion(), rooted)
}

// rootReport publishes a descriptor that is newer than the rooted one, if the
// root still has that one, or none. Where the root is ahead, its descriptor is the answer;
// where the region is gone there is none, and the refusal says its last epoch.
func (s *Server) rootReport(ctx context.Context, reported *rootv1.Region, rooted *state.Region) (*coordinatorv1.RegionHeartbeatResponse, error) {
	publish := &rootv1.RegionPublished{Region: reported, ExpectedEpoch: new(rootv1.RegionEpoch)}
	if rooted != nil {
		publish.ExpectedEpoch = rooted.Epoch.Proto()
	}
	result, err := s.change(ctx, nil, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: publish}})
	if ahead := reason.From(err); ahead.GetReason() == rootv1.Reason_REASON_EPOCH_STALE && ahead.GetRegion().GetKeyspaceId() != 0 {
		return &coordinatorv1.RegionHeartbeatResponse{Region: ahead.GetRegion()}, nil
	}
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.RegionHeartbeatResponse{Region: made(result).GetRegion(), RootedAt: result.GetToken()}, nil
}

// senderView is the view that a member's report is judged by: the one at hand,
// or, when it does not know the member or its incarnation, a linearizable one.
func (s *Server) senderView(ctx context.Context, member string, incarnation uint64) (served, error) {
	v, err := s.serve(ctx, nil)
	if err != nil {
		return served{}, err
	}
	_, err = catalog.Sender(v.state, state.MemberID(member), incarnation)
	switch reason.Of(err) {
	case rootv1.Reason_REASON_REGISTER_FIRST, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED:
		if v, err = s.serve(ctx, &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}); err != nil {
			return served{}, err
		}
		_, err = catalog.Sender(v.state, state.MemberID(member), incarnation)
	}
	return v, v.atToken(err)
}

// checkLoad refuses what cannot be compared with other loads.
func checkLoad(load float64) error {
	if !catalog.IsLoad(load) {
		return invalid("load", "%v is not a load; it is 0 or more", load)
	}
	return nil
}

func checkSender(member string, incarnation uint64) error {
	switch {
	case member == "":
		return invalid("member_id", "it is empty")
	case len(member) > state.MaxIDBytes:
		return invalidLimit("member_id", uint64(len(member)), state.MaxIDBytes)
	case incarnation == 0:
		return invalid("incarnation", "it is 0; registration gives one")
	default:
		return nil
	}
}

func checkReport(req *coordinatorv1.RegionHeartbeatRequest) error {
	if err := checkSender(req.GetMemberId(), req.GetIncarnation()); err != nil {
		return err
	}
	region := req.GetRegion()
	switch {
	case region == nil:
		return invalid("region", "it is missing")
	case region.GetId() == 0:
		return invalid("region.id", "it is 0")
	case region.GetEpoch() == nil:
		return invalid("region.epoch", "it is missing")
	case len(region.GetEndKey()) > 0 && string(region.GetStartKey()) >= string(region.GetEndKey()):
		return reason.New(rootv1.Reason_REASON_INVALID_RANGE, "region: end_key is not above start_key: the range is [start, end)")
	}
	return checkCommand("region", &rootv1.Command{Events: []*rootv1.Event{
		{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: region}}},
	}})
}

// sweepEvery is the time between two looks at all soft state: a report that was
// judged by an older view may have come after what it is about was removed.
const sweepEvery = 10 * time.Minute

// forget drops the soft state of what the root removed, until ctx ends.
func (s *Server) forget(ctx context.Context) {
	for ctx.Err() == nil {
		period, cancel := context.WithTimeout(ctx, sweepEvery)
		s.forgetFor(period)
		cancel()
	}
}

// forgetFor follows what is removed behind a look at everything. On the way it
// sees handovers open.
func (s *Server) forgetFor(ctx context.Context) {
	for {
		view := s.view()
		s.cfg.Soft.Sweep(view.State)
		s.members.sweep(view.State)
		s.handover.look(view.State, s.cfg.Clock.Now())
		reader := s.cfg.Views.Subscribe(view.Token)
		batch, err := reader.Next(ctx)
		for ; err == nil && !batch.Snapshot; batch, err = reader.Next(ctx) {
			s.cfg.Soft.Forget(batch.Changes)
			s.handover.look(s.view().State, s.cfg.Clock.Now())
		}
		if err != nil && !errors.Is(err, rootview.ErrSnapshotNeeded) {
			return // ctx ended
		}
	}
}
