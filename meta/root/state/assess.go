package state

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// Assess judges an event without applying it: what ApplyEntry would answer,
// and how far the change is that the event is about:
//
//	OPEN        it would apply now
//	PENDING     it is a plan that is pending already, or the change that a
//	            pending plan waits for
//	COMPLETED   it is true already, or would complete a plan
//	CONFLICT    a pending transition or another region is in the way
//	SUPERSEDED  the region has moved on, would leave its pending plan behind, or the plan
//	            was made anew
//	CANCELLED, ABORTED  it is about a transition that ended so
//	UNSPECIFIED it is refused for another reason, or malformed
//
// The State is unchanged. Assess may overlap with reads and with other Assess
// calls of a State that nobody applies to any more.
func (s *State) Assess(event *rootv1.Event) (Result, rootv1.TransitionStatus) {
	c := &rootv1.Command{Events: []*rootv1.Event{proto.CloneOf(event)}}
	if d := CheckCommand(c); d != nil {
		result := Result{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Reject: d, Token: s.token}
		return result, rootv1.TransitionStatus_TRANSITION_STATUS_UNSPECIFIED
	}
	b := s.branch()
	b.token.Index++
	t := turn{State: b, out: new(Applied)}
	t.command(c, true)
	result := t.out.Results[0]
	result.Token = s.token
	return result, s.assessed(event, result)
}

func (s *State) assessed(event *rootv1.Event, result Result) rootv1.TransitionStatus {
	switch result.Outcome {
	case rootv1.Outcome_OUTCOME_REJECTED:
		return s.assessedReject(result.Reject)
	case rootv1.Outcome_OUTCOME_ALREADY_APPLIED:
		if p := result.Events[0].Transition; p != nil {
			return p.GetStatus()
		}
		return rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED
	}
	p := result.Events[0].Transition
	if p == nil || p.GetStatus() == pendingStatus {
		return rootv1.TransitionStatus_TRANSITION_STATUS_OPEN
	}
	if event.GetTransitionCompleted() != nil {
		return pendingStatus
	}
	return p.GetStatus()
}

func (s *State) assessedReject(d *rootv1.ErrorDetail) rootv1.TransitionStatus {
	switch d.GetReason() {
	case rootv1.Reason_REASON_RANGE_CHANGE_PENDING, rootv1.Reason_REASON_RANGE_OVERLAP, rootv1.Reason_REASON_ALREADY_EXISTS:
		return rootv1.TransitionStatus_TRANSITION_STATUS_CONFLICT
	case rootv1.Reason_REASON_EPOCH_STALE:
		return rootv1.TransitionStatus_TRANSITION_STATUS_SUPERSEDED
	case rootv1.Reason_REASON_TRANSITION_CLOSED:
		if p := s.Transition(d.GetTransitionId()); p.GetStatus() != pendingStatus {
			return p.GetStatus()
		}
		return rootv1.TransitionStatus_TRANSITION_STATUS_SUPERSEDED // planned again
	default:
		return rootv1.TransitionStatus_TRANSITION_STATUS_UNSPECIFIED
	}
}
