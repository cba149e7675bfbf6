package server

import (
	"context"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// rootPeersTimeout is how long Status waits for the root peers to answer.
const rootPeersTimeout = 500 * time.Millisecond

// Status implements coordinatorv1.CoordinatorServer. It answers also while
// there is no view.
func (s *Server) Status(ctx context.Context, req *coordinatorv1.StatusRequest) (*coordinatorv1.StatusResponse, error) {
	view := s.view()
	v := served{s, view, view.State, coordinatorv1.ServingClass_SERVING_CLASS_BEST_EFFORT, s.cfg.Clock.Now()}
	authority := s.cfg.Authority.Status()
	resp := &coordinatorv1.StatusResponse{
		CoordinatorId: string(s.cfg.ID), Address: s.cfg.Address, Incarnation: s.cfg.Incarnation,
		Cluster: v.state.Cluster(), Tenure: v.state.Tenure(), Allocators: v.state.Allocators(),
		ServingAuthority: serves(authority, view, v.now),
		IdWindowLeft:     authority.IDsLeft, TsoWindowLeft: authority.TimestampsLeft, ClockBound: authority.ClockBound,
		Disclosure: v.disclosure(),
		Keyspaces:  uint64(v.state.KeyspaceCount()),
		Regions:    uint64(v.state.RegionCount()),
		Members:    uint64(v.state.MemberCount()),

		OrphanedRegions: uint64(v.state.Orphaned()),
		Coordinators:    v.coordinators(),
		UptimeMillis:    uint64(v.now.Sub(s.started).Milliseconds()),
		Version:         s.cfg.Version,
		Channel:         s.cfg.channel().Kind(), CertificateEndsUnixSeconds: s.cfg.channel().Ends(),
	}
	if s.cfg.Rounds != nil && !req.GetBrief() {
		for _, r := range s.cfg.Rounds() {
			if len(resp.Rounds) < maxShownRounds && v.mayRead(ctx, r.GetKeyspace()) == nil {
				resp.Rounds = append(resp.Rounds, r)
			}
		}
	}
	if s.cfg.Scaling != nil && !req.GetBrief() {
		for _, x := range s.cfg.Scaling() {
			if len(resp.Scaling) < maxShownRounds && v.mayRead(ctx, x.GetKeyspace()) == nil {
				resp.Scaling = append(resp.Scaling, x)
			}
		}
	}
	if s.cfg.RestingHooks != nil && !req.GetBrief() {
		for _, x := range s.cfg.RestingHooks() {
			if len(resp.RestingHooks) < maxShownRounds && v.mayRead(ctx, x.GetKeyspace()) == nil {
				resp.RestingHooks = append(resp.RestingHooks, x)
			}
		}
	}
	if !req.GetBrief() {
		v.count(ctx, resp)
	}
	violations := s.invariants.violations()
	resp.InvariantViolations = violations[:]
	if handovers := v.state.Handovers(); len(handovers) > 0 {
		resp.Handover = handovers[len(handovers)-1]
	}
	if s.cfg.RootPeers != nil && !req.GetBrief() {
		ask, cancel := context.WithTimeout(ctx, rootPeersTimeout)
		defer cancel()
		resp.RootPeers = s.cfg.RootPeers(ask)
	}
	return resp, nil
}

// maxShownRounds bounds the rounds in an answer, the wishes for members, and the hooks that rest.
const maxShownRounds = 256

// serves says whether a holder can serve now: its confirmation is good. Without a
// ttl none lasts, and it is enough that the root is heard and names it.
func serves(a tenure.Status, view *rootview.View, now clock.Instant) bool {
	if a.Phase != tenure.Holding || a.Superseded || a.ClockBound {
		return false
	}
	if a.Tenure.GetTtlMillis() > 0 {
		return a.Confirmed
	}
	heard := view.Mode(now) != coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE
	return heard && uint64(view.Era) == a.Era && !view.State.Tenure().GetRetired()
}

// ListCoordinators implements coordinatorv1.CoordinatorServer.
func (s *Server) ListCoordinators(ctx context.Context, req *coordinatorv1.ListCoordinatorsRequest) (*coordinatorv1.ListCoordinatorsResponse, error) {
	limit, err := pageOf(req.GetAfter(), req.GetLimit(), MaxListLimit)
	if err != nil {
		return nil, err
	}
	v, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	resp := &coordinatorv1.ListCoordinatorsResponse{Disclosure: v.disclosure()}
	v.state.CoordinatorsAfter(state.CoordinatorID(req.GetAfter()), func(c *rootv1.Coordinator) bool {
		if resp.More = len(resp.Coordinators) == limit; resp.More {
			return false
		}
		resp.Coordinators = append(resp.Coordinators, c)
		return true
	})
	return resp, nil
}

// answersTimeout is how long a coordinator that is to be removed may take to answer.
const answersTimeout = time.Second

// RemoveCoordinator implements coordinatorv1.CoordinatorServer. What is rooted of a
// process that answers stays: its level and its address count.
func (s *Server) RemoveCoordinator(ctx context.Context, req *coordinatorv1.RemoveCoordinatorRequest) (*coordinatorv1.RemoveCoordinatorResponse, error) {
	id := state.CoordinatorID(req.GetCoordinatorId())
	if req.GetIncarnation() == 0 {
		return nil, invalid("incarnation", "it is 0; give that of the process that is gone, as ListCoordinators shows it")
	}
	known := s.view().State.Coordinator(id)
	if known.GetIncarnation() == req.GetIncarnation() && s.cfg.Answers != nil {
		ask, cancel := context.WithTimeout(ctx, answersTimeout)
		who, err := s.cfg.Answers(ask, known.GetAddress())
		cancel()
		if err == nil && who == id {
			return nil, reason.New(rootv1.Reason_REASON_STILL_RUNNING,
				"coordinator %q answers at %s: stop it, then it takes itself off the list", id, known.GetAddress())
		}
	}
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_CoordinatorLeft{CoordinatorLeft: &rootv1.CoordinatorLeft{
		Id: string(id), Incarnation: req.GetIncarnation(),
	}}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.RemoveCoordinatorResponse{Token: result.GetToken(), Removed: changed(result)}, nil
}

// coordinators are at most state.MaxCoordinators.
func (v *served) coordinators() []*rootv1.Coordinator {
	var all []*rootv1.Coordinator
	v.state.Coordinators(func(c *rootv1.Coordinator) bool {
		all = append(all, c)
		return true
	})
	return all
}

// ListTransitions implements coordinatorv1.CoordinatorServer.
func (s *Server) ListTransitions(ctx context.Context, req *coordinatorv1.ListTransitionsRequest) (*coordinatorv1.ListTransitionsResponse, error) {
	limit, err := pageOf(req.GetPage(), req.GetLimit(), DefaultListLimit)
	if err != nil {
		return nil, err
	}
	v, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	resp, bytes := &coordinatorv1.ListTransitionsResponse{Disclosure: v.disclosure()}, 0
	v.state.TransitionsAfter(req.GetPage(), func(t *rootv1.Transition) bool {
		switch n := len(resp.Transitions); {
		case !listed(t, req) || v.mayReadOf(ctx, state.KeyspaceID(t.GetKeyspaceId())) != nil:
			return true
		case n == limit || bytes > MaxReplyBytes:
			resp.NextPage = resp.Transitions[n-1].GetId()
			return false
		}
		bytes += proto.Size(t)
		resp.Transitions = append(resp.Transitions, t)
		return true
	})
	return resp, nil
}

func listed(t *rootv1.Transition, req *coordinatorv1.ListTransitionsRequest) bool {
	if id := req.GetRegionId(); id != 0 && t.GetRegionId() != id && t.GetRightRegionId() != id {
		return false
	}
	return req.GetIncludeEnded() || t.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING
}

// AssessRootEvent implements coordinatorv1.CoordinatorServer.
func (s *Server) AssessRootEvent(ctx context.Context, req *coordinatorv1.AssessRootEventRequest) (*coordinatorv1.AssessRootEventResponse, error) {
	if err := checkPublished("event", req.GetEvent()); err != nil {
		return nil, err
	}
	if err := checkCommand("event", &rootv1.Command{Events: []*rootv1.Event{req.GetEvent()}}); err != nil {
		return nil, err
	}
	v, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	event := &rootv1.Command{Events: []*rootv1.Event{req.GetEvent()}}
	if err := s.cfg.Access.Asked(ctx, event, v.state); err != nil {
		return nil, v.atToken(err)
	}
	assessed, status := v.state.Assess(req.GetEvent())
	result := assessed.Proto()
	s.conceal(ctx, result)
	return &coordinatorv1.AssessRootEventResponse{Result: result, Assessment: status, Disclosure: v.disclosure()}, nil
}
