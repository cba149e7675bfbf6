package placement

import (
	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// maxEventBytes bounds an event of many grants: a command has room for one, and for
// who asks and why.
const maxEventBytes = state.MaxCommandBytes / 2

// MaxGrants bounds the regions of one event: an entry of the log is applied as a whole, and
// everybody else's changes wait for it.
const MaxGrants = 768

// Grants are the events of those operations that are of kind Assign, in their order,
// MaxGrants in each as far as they fit. The root takes or refuses each as a whole.
func Grants(operations []Operation) []*rootv1.Event {
	var events []*rootv1.Event
	var grants *rootv1.RegionsAssigned
	size := 0
	for i := range operations {
		if operations[i].Kind != Assign {
			continue
		}
		a := operations[i].assignment()
		n := proto.Size(a) + 4
		if grants == nil || size+n > maxEventBytes || len(grants.Assignments) == MaxGrants {
			grants, size = &rootv1.RegionsAssigned{}, 0
			events = append(events, &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: grants}})
		}
		grants.Assignments = append(grants.Assignments, a)
		size += n
	}
	return events
}

func (o *Operation) assignment() *rootv1.Assignment {
	a := &rootv1.Assignment{RegionId: uint64(o.Region), ExpectedEpoch: o.Epoch.Proto(), Reason: o.Reason}
	for _, owner := range o.Owners {
		a.Owners = append(a.Owners, owner.Proto())
	}
	if a.SetFrontier = o.SetFrontier; o.Frontier != "" {
		a.Frontier = []byte(o.Frontier)
	}
	return a
}

// Event is the event of one operation.
func (o *Operation) Event() *rootv1.Event {
	switch o.Kind {
	case Complete:
		e := &rootv1.TransitionCompleted{TransitionId: o.Transition, PlannedAt: o.PlannedAt, SetFrontier: o.SetFrontier}
		if o.Frontier != "" {
			e.Frontier = []byte(o.Frontier)
		}
		return &rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: e}}
	case Ready:
		return &rootv1.Event{Kind: &rootv1.Event_MoveReady{MoveReady: &rootv1.MoveReady{TransitionId: o.Transition, PlannedAt: o.PlannedAt, Incarnation: o.To.Incarnation}}}
	case Cancel:
		return &rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{
			TransitionId: o.Transition, PlannedAt: o.PlannedAt, Aborted: true, Reason: o.Because,
		}}}
	case PlanMove:
		return &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
			RegionId: uint64(o.Region), ExpectedEpoch: o.Epoch.Proto(), From: o.From.Proto(), To: o.To.Proto(),
			PrepareMaxMillis: uint64(o.PrepareMax.Milliseconds()), DeadlineMillis: uint64(o.Deadline.Milliseconds()), Reason: o.Reason,
		}}}
	case PlanSplit:
		return &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
			RegionId: uint64(o.Region), ExpectedEpoch: o.Epoch.Proto(), SplitKey: []byte(o.Key), Reason: o.Reason,
		}}}
	case PlanMerge:
		return &rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: &rootv1.MergePlanned{
			LeftRegionId: uint64(o.Region), LeftExpectedEpoch: o.Epoch.Proto(), RightRegionId: uint64(o.Next), RightExpectedEpoch: o.NextEpoch.Proto(),
			Reason: o.Reason,
		}}}
	case AddOwner:
		return o.peerChange(rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER, o.To)
	case RemoveOwner:
		return o.peerChange(rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER, o.From)
	default:
		return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{o.assignment()}}}}
	}
}

func (o *Operation) peerChange(kind rootv1.TransitionKind, owner state.Owner) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_PeerChangePlanned{PeerChangePlanned: &rootv1.PeerChangePlanned{
		RegionId: uint64(o.Region), ExpectedEpoch: o.Epoch.Proto(), Kind: kind, Owner: owner.Proto(), Reason: o.Reason,
	}}}
}
