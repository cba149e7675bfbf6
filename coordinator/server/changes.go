package server

import (
	"context"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/why"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// identify gives an identity to commands whose caller made none, so that they
// are applied once, however often this process has to send them. A repetition by
// such a caller is another command.
func (s *Server) identify(cmds []*rootv1.Command) {
	for _, cmd := range cmds {
		if cmd.GetIdentity() == nil {
			cmd.Identity = s.identities.Next(s.view().Known.Index)
		}
	}
}

// change proposes one event of a typed call, with the identity that its caller
// gave. Whether it is a repetition is the root's to say: no view of this process
// may refuse before.
func (s *Server) change(ctx context.Context, id *rootv1.CommandIdentity, event *rootv1.Event) (*rootv1.CommandResult, error) {
	return s.changeIn(ctx, id, 0, event)
}

// changeIn is change while an era is active; 0: whenever.
func (s *Server) changeIn(ctx context.Context, id *rootv1.CommandIdentity, era uint64, event *rootv1.Event) (*rootv1.CommandResult, error) {
	cmd := &rootv1.Command{Events: []*rootv1.Event{event}, RequireEra: era, Identity: id, Why: why.Of(ctx)}
	readable(cmd)
	if d := state.CheckCommand(cmd); d != nil {
		return nil, &reason.Error{Detail: d}
	}
	results, err := s.propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return results[0], rejection(results[0])
}

// rejection is a rejected command as an error of the call; nil if it is none.
func rejection(result *rootv1.CommandResult) error {
	if result.GetOutcome() != rootv1.Outcome_OUTCOME_REJECTED {
		return nil
	}
	return &reason.Error{Detail: result.GetError()}
}

// changed says whether a command did something, now or when it first came.
func changed(result *rootv1.CommandResult) bool {
	return result.GetOutcome() == rootv1.Outcome_OUTCOME_APPLIED
}

// made is what the only event of a command made.
func made(result *rootv1.CommandResult) *rootv1.EventResult {
	if events := result.GetEvents(); len(events) > 0 {
		return events[0]
	}
	return nil
}

// PublishRootEvent implements coordinatorv1.CoordinatorServer.
func (s *Server) PublishRootEvent(ctx context.Context, req *coordinatorv1.PublishRootEventRequest) (*coordinatorv1.PublishRootEventResponse, error) {
	if err := checkPublished("event", req.GetEvent()); err != nil {
		return nil, err
	}
	if err := checkCommand("event", &rootv1.Command{Events: []*rootv1.Event{req.GetEvent()}}); err != nil {
		return nil, err
	}
	result, err := s.change(ctx, req.GetIdentity(), req.GetEvent())
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.PublishRootEventResponse{Result: result, Assessment: made(result).GetTransition().GetStatus()}, nil
}

// RemoveRegion implements coordinatorv1.CoordinatorServer. That there is no such
// region is an answer.
func (s *Server) RemoveRegion(ctx context.Context, req *coordinatorv1.RemoveRegionRequest) (*coordinatorv1.RemoveRegionResponse, error) {
	if req.GetRegionId() == 0 {
		return nil, invalid("region_id", "it is 0")
	}
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{
		RegionId: req.GetRegionId(), ExpectedEpoch: req.GetExpectedEpoch(),
	}}})
	if err != nil && (result == nil || reason.Of(err) != rootv1.Reason_REASON_NOT_FOUND) {
		return nil, err
	}
	return &coordinatorv1.RemoveRegionResponse{Removed: changed(result), Token: result.GetToken()}, nil
}

// checkPublished refuses events that are not the callers' to ask for.
func checkPublished(field string, event *rootv1.Event) error {
	if d := state.Publishable(event); d != nil {
		return invalid(field, "%s", d.GetMessage())
	}
	return nil
}
