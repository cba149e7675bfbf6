package server

import (
	"context"
	"unicode/utf8"

	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/why"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Bounds of a plan that is asked for.
const (
	// MaxPlanMembers is the most members that are imagined to be there, and not to be.
	MaxPlanMembers = 1024
	// MaxPlanLimit is the most operations that are told, and refusals, MaxPlanMemberLimit
	// members.
	MaxPlanLimit       = 4096
	MaxPlanMemberLimit = 10_000
	// maxPlans is how many calls wait for a plan.
	maxPlans = 64
)

// Planner plans what is asked for, while it holds the Tenure. It is filled by
// *assigner.Assigner.
type Planner interface {
	Plan(ctx context.Context, req *coordinatorv1.PlanRequest, may func(keyspace string) bool) (*coordinatorv1.PlanResponse, error)
	ApplyPlan(ctx context.Context, id, actor, why string) (*coordinatorv1.ApplyPlanResponse, error)
}

// planning lets a call in that asks for a plan, if there is room.
func (s *Server) planning(ctx context.Context) (leave func(), err error) {
	if s.cfg.Planner == nil {
		return nil, reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "this coordinator plans nothing")
	}
	who := places.Of(ctx)
	if err := s.plans.Enter(who); err != nil {
		return nil, err
	}
	return func() { s.plans.Leave(who) }, nil
}

// Plan implements coordinatorv1.CoordinatorServer.
func (s *Server) Plan(ctx context.Context, req *coordinatorv1.PlanRequest) (*coordinatorv1.PlanResponse, error) {
	if err := checkPlan(req); err != nil {
		return nil, err
	}
	leave, err := s.planning(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.cfg.Planner.Plan(ctx, req, func(keyspace string) bool {
		return s.cfg.Access.May(ctx, s.view().State, rootv1.Verb_VERB_READ, keyspace) == nil
	})
}

func checkPlan(req *coordinatorv1.PlanRequest) error {
	if name := req.GetKeyspace(); name != "" {
		if err := checkName(name); err != nil {
			return err
		}
	}
	switch n, m := len(req.GetWithMembers()), len(req.GetWithoutMembers()); {
	case n > MaxPlanMembers:
		return invalidLimit("with_members", uint64(n), MaxPlanMembers)
	case m > MaxPlanMembers:
		return invalidLimit("without_members", uint64(m), MaxPlanMembers)
	case req.GetLimit() > MaxPlanLimit:
		return invalidLimit("limit", uint64(req.GetLimit()), MaxPlanLimit)
	case req.GetMemberLimit() > MaxPlanMemberLimit:
		return invalidLimit("member_limit", uint64(req.GetMemberLimit()), MaxPlanMemberLimit)
	case req.GetSettings() != nil && req.GetKeyspace() == "":
		return invalid("settings", "they are those of a keyspace: name it")
	}
	return nil
}

// ApplyPlan implements coordinatorv1.CoordinatorServer.
func (s *Server) ApplyPlan(ctx context.Context, req *coordinatorv1.ApplyPlanRequest) (*coordinatorv1.ApplyPlanResponse, error) {
	words := why.Of(ctx)
	switch {
	case req.GetPlanId() == "" || len(req.GetPlanId()) > state.MaxIDBytes:
		return nil, invalid("plan_id", "want what Plan said")
	case len(words) > state.MaxWhyBytes:
		return nil, invalidLimit(why.Key, uint64(len(words)), state.MaxWhyBytes)
	case !utf8.ValidString(words):
		return nil, invalid(why.Key, "it is not UTF-8")
	}
	leave, err := s.planning(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.cfg.Planner.ApplyPlan(ctx, req.GetPlanId(), principal.FromContext(ctx).Actor(), words)
}
