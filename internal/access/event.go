package access

import (
	"context"
	"slices"

	"github.com/nokv/nokv/internal/principal"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// known is what a command is judged by.
type known struct{ *state.State }

// Asked judges a command that a caller asks a coordinator for, by the call it
// made: a published event by its kind, that of a typed call by the call's row. nil: it
// may be proposed. A refusal by a state that may be behind what the caller knows is
// worth nothing: a newer one has to be asked. So it is with Proposed.
func (g *Gate) Asked(ctx context.Context, c *rootv1.Command, st *state.State) error {
	if g == nil {
		return nil
	}
	p := principal.FromContext(ctx)
	method, _ := grpc.Method(ctx)
	for _, e := range c.GetEvents() {
		r := calls[method]
		if publishes(method) {
			r = kinds[number(e)].published
		}
		if err := (known{st}).event(p, r, "publish", e); err != nil {
			return unlessRemembered(c, st, err)
		}
	}
	return nil
}

// unlessRemembered is a refusal, but of a command that was judged before: see (5).
func unlessRemembered(c *rootv1.Command, st *state.State, err error) error {
	if st.Remembers(c.GetIdentity()) {
		return nil
	}
	return err
}

// publishes says that the events of a call are its caller's.
func publishes(method string) bool {
	switch method {
	case coordinatorv1.Coordinator_PublishRootEvent_FullMethodName, coordinatorv1.Coordinator_PublishRootEvents_FullMethodName,
		coordinatorv1.Coordinator_PublishStream_FullMethodName, coordinatorv1.Coordinator_AssessRootEvent_FullMethodName:
		return true
	}
	return false
}

// Sign names who asks the root for a command: whoever called, or, if that is a
// coordinator, whom it names. Without a Gate nobody can vouch for a name.
func (g *Gate) Sign(ctx context.Context, c *rootv1.Command) {
	if g == nil {
		c.Actor = ""
		return
	}
	if p := principal.FromContext(ctx); p.Role != principal.Coordinator || c.GetActor() == "" {
		c.Actor = p.Actor()
	}
}

// Proposed judges a signed command that the root is asked for. nil: it may enter
// the log.
func (g *Gate) Proposed(ctx context.Context, c *rootv1.Command, st *state.State) error {
	if g == nil {
		return nil
	}
	p := principal.FromContext(ctx)
	by, err := actor(c.GetActor())
	if err != nil {
		return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "%v", err)
	}
	if by.Role == principal.Root || by.Role == principal.Coordinator && by.Name != p.Name {
		return denied("%v may not speak for %v: coordinators speak for members, clients and operators", p, by)
	}
	for _, e := range c.GetEvents() {
		if err := (known{st}).event(by, kinds[number(e)].proposed, "propose", e); err != nil {
			return unlessRemembered(c, st, err)
		}
	}
	return nil
}

// number of an event's kind; 0: it has none that is known here.
func number(e *rootv1.Event) (n protoreflect.FieldNumber) {
	if e == nil {
		return 0
	}
	if f := e.ProtoReflect().WhichOneof(kindOf); f != nil {
		n = f.Number()
	}
	return n
}

// event judges one event by a row. What is not there is nobody's, and in no keyspace
// that a grant is for: until the event is applied somebody else may have made it. An
// event does not see what those before it in its command make, either.
func (k known) event(p principal.Principal, r rules, what string, e *rootv1.Event) error {
	switch r[p.Role] {
	case Allowed:
		return nil
	case Own:
		if k.owns(p.Name, e) {
			return nil
		}
		if e.GetRegionPublished() != nil {
			return denied("%v may not %s %s: it is not about a region of its own, nor about a new one with expected_epoch {0, 0}", p, what, kindName(e))
		}
		return denied("%v may not %s %s: it is not about what is its own", p, what, kindName(e))
	case Granted:
		keyspaces := k.keyspacesOf(e)
		hidden := func() error {
			if e.GetKeyspaceCreated() != nil {
				return denied("%v may not %s %s: that needs a grant of %s for its name", p, what, kindName(e), verbWord(verbOf(e)))
			}
			return denied("%v may not %s %s: what it is about is not there, or needs a grant of %s", p, what, kindName(e), verbWord(verbOf(e)))
		}
		if len(keyspaces) == 0 || slices.Contains(keyspaces, "") {
			return hidden()
		}
		for _, keyspace := range keyspaces {
			err := may(p, k.State, verbOf(e), keyspace)
			if err != nil && (k.KeyspaceByName(keyspace) == nil || may(p, k.State, rootv1.Verb_VERB_READ, keyspace) != nil) {
				return hidden() // the name of a keyspace that it may not read would tell that it is there
			}
			if err != nil {
				return err
			}
		}
		return nil
	default:
		return denied("%v may not %s %s: %s", p, what, kindName(e), whoMay(r))
	}
}

// kindName is the name of an event's kind in rootv1.Event.
func kindName(e *rootv1.Event) string {
	if f := kindFields.ByNumber(number(e)); f != nil {
		return string(f.Name())
	}
	return "an event of no known kind"
}

func verbOf(e *rootv1.Event) rootv1.Verb {
	switch e.GetKind().(type) {
	case *rootv1.Event_KeyspaceCreated, *rootv1.Event_KeyspaceUpdated, *rootv1.Event_KeyspaceDeleted:
		return rootv1.Verb_VERB_ADMIN
	}
	return rootv1.Verb_VERB_PUBLISH
}

// owns says whether an event is about the coordinator or member of a name, or
// about what is its own.
func (k known) owns(name string, e *rootv1.Event) bool {
	switch e := e.GetKind().(type) {
	case *rootv1.Event_FenceExtended:
		return k.holds(name, e.FenceExtended.GetEra())
	case *rootv1.Event_HandoverAdvanced:
		by := e.HandoverAdvanced.GetHolderId()
		return (by == "" || by == name) && k.holds(name, e.HandoverAdvanced.GetEra())
	case *rootv1.Event_TenureClaimed:
		return e.TenureClaimed.GetHolderId() == name
	case *rootv1.Event_TenureRetired:
		return e.TenureRetired.GetHolderId() == name
	case *rootv1.Event_CoordinatorJoined:
		return e.CoordinatorJoined.GetId() == name
	case *rootv1.Event_CoordinatorLeft:
		return e.CoordinatorLeft.GetId() == name

	case *rootv1.Event_MemberJoined:
		return e.MemberJoined.GetMember().GetId() == name
	case *rootv1.Event_MemberStateChanged:
		return e.MemberStateChanged.GetMemberId() == name && e.MemberStateChanged.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING

	case *rootv1.Event_RegionBootstrapped:
		return k.ownsDescribed(name, e.RegionBootstrapped.GetRegion(), true)
	case *rootv1.Event_RegionPublished:
		expected := e.RegionPublished.GetExpectedEpoch()
		return k.ownsDescribed(name, e.RegionPublished.GetRegion(), expected != nil && state.EpochFromProto(expected) == state.Epoch{})
	case *rootv1.Event_RegionTombstoned:
		return k.ownsRegion(name, e.RegionTombstoned.GetRegionId())
	case *rootv1.Event_RegionsAssigned:
		for _, a := range e.RegionsAssigned.GetAssignments() {
			if !k.ownsRegion(name, a.GetRegionId()) {
				return false
			}
		}
		return len(e.RegionsAssigned.GetAssignments()) > 0
	case *rootv1.Event_PeerChangePlanned:
		return k.ownsRegion(name, e.PeerChangePlanned.GetRegionId())
	case *rootv1.Event_SplitPlanned:
		return k.ownsRegion(name, e.SplitPlanned.GetRegionId())
	case *rootv1.Event_MergePlanned:
		return k.ownsRegion(name, e.MergePlanned.GetLeftRegionId()) && k.ownsRegion(name, e.MergePlanned.GetRightRegionId())
	case *rootv1.Event_MovePlanned:
		return e.MovePlanned.GetFrom().GetMemberId() == name && k.ownsRegion(name, e.MovePlanned.GetRegionId())
	case *rootv1.Event_MoveReady:
		return k.movesTo(name, e.MoveReady.GetTransitionId())
	case *rootv1.Event_TransitionCompleted:
		return k.ownsTransition(name, e.TransitionCompleted.GetTransitionId())
	case *rootv1.Event_TransitionCancelled:
		return k.ownsTransition(name, e.TransitionCancelled.GetTransitionId())
	}
	return false
}

// holds says whether a coordinator holds an era. Of one that is over the root says
// so: its former holder has to hear that.
func (k known) holds(name string, era uint64) bool {
	t := k.Tenure()
	return era < t.GetEra() || era == t.GetEra() && t.GetHolderId() == name
}

// ownsRegion says whether a member owns a region.
func (k known) ownsRegion(name string, id uint64) bool {
	r := k.Region(state.RegionID(id))
	if r == nil {
		return false
	}
	_, owns := r.Owner(state.MemberID(name))
	return owns
}

// ownsDescribed says whether a member may publish a descriptor: of a region that
// it owns, or of a new one that it is an owner of, where members report theirs. asNew
// says that it is refused when somebody else's region has come to be there.
func (k known) ownsDescribed(name string, p *rootv1.Region, asNew bool) bool {
	id := p.GetId()
	if id != 0 && k.Region(state.RegionID(id)) != nil {
		return k.ownsRegion(name, id)
	}
	keyspace := k.Keyspace(state.KeyspaceID(p.GetKeyspaceId()))
	return keyspace != nil && keyspace.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED &&
		(asNew || id == 0) && slices.ContainsFunc(p.GetOwners(), func(o *rootv1.Owner) bool { return o.GetMemberId() == name })
}

// movesTo says whether a move goes to a member.
func (k known) movesTo(name, transition string) bool {
	t := k.Transition(transition)
	return t != nil && t.GetOwner().GetMemberId() == name
}

// ownsTransition says whether a member owns the region that changes, or its share
// is what changes.
func (k known) ownsTransition(name, transition string) bool {
	t := k.Transition(transition)
	return t != nil && (t.GetOwner().GetMemberId() == name || t.GetFrom().GetMemberId() == name || k.ownsRegion(name, t.GetRegionId()))
}

// keyspacesOf are the names of the keyspaces that an event changes; empty names
// for what is not there.
func (k known) keyspacesOf(e *rootv1.Event) []string {
	byID := func(id state.KeyspaceID) string { return k.Keyspace(id).GetName() }
	region := func(id uint64) string {
		if r := k.Region(state.RegionID(id)); r != nil {
			return byID(r.Keyspace)
		}
		return ""
	}
	described := func(r *rootv1.Region) []string {
		names := []string{byID(state.KeyspaceID(r.GetKeyspaceId()))}
		if had := region(r.GetId()); had != "" && had != names[0] {
			names = append(names, had)
		}
		return names
	}
	called := func(name string, id uint32) string {
		if name != "" {
			return name
		}
		return byID(state.KeyspaceID(id))
	}
	transition := func(id string) string { return byID(state.KeyspaceID(k.Transition(id).GetKeyspaceId())) }

	switch e := e.GetKind().(type) {
	case *rootv1.Event_KeyspaceCreated:
		return []string{e.KeyspaceCreated.GetName()}
	case *rootv1.Event_KeyspaceUpdated:
		return []string{called(e.KeyspaceUpdated.GetName(), e.KeyspaceUpdated.GetKeyspaceId())}
	case *rootv1.Event_KeyspaceDeleted:
		return []string{called(e.KeyspaceDeleted.GetName(), e.KeyspaceDeleted.GetKeyspaceId())}
	case *rootv1.Event_RegionBootstrapped:
		return described(e.RegionBootstrapped.GetRegion())
	case *rootv1.Event_RegionPublished:
		return described(e.RegionPublished.GetRegion())
	case *rootv1.Event_RegionTombstoned:
		return []string{region(e.RegionTombstoned.GetRegionId())}
	case *rootv1.Event_RegionsAssigned:
		var names []string
		for _, a := range e.RegionsAssigned.GetAssignments() {
			if name := region(a.GetRegionId()); len(names) == 0 || names[len(names)-1] != name {
				names = append(names, name)
			}
		}
		return names
	case *rootv1.Event_PeerChangePlanned:
		return []string{region(e.PeerChangePlanned.GetRegionId())}
	case *rootv1.Event_SplitPlanned:
		return []string{region(e.SplitPlanned.GetRegionId())}
	case *rootv1.Event_MergePlanned:
		return []string{region(e.MergePlanned.GetLeftRegionId()), region(e.MergePlanned.GetRightRegionId())}
	case *rootv1.Event_MovePlanned:
		return []string{region(e.MovePlanned.GetRegionId())}
	case *rootv1.Event_MoveReady:
		return []string{transition(e.MoveReady.GetTransitionId())}
	case *rootv1.Event_TransitionCompleted:
		return []string{transition(e.TransitionCompleted.GetTransitionId())}
	case *rootv1.Event_TransitionCancelled:
		return []string{transition(e.TransitionCancelled.GetTransitionId())}
	}
	return nil
}
