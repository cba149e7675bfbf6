package state

import (
	"slices"
	"strings"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// judgeActor judges again what a member or client may change by what it owns or was
// granted: since the command was let into the log an owner may have changed, or a grant
// been taken back. What no change of state can take back whoever took the call has judged.
func (t *turn) judgeActor(e *rootv1.Event) *rootv1.ErrorDetail {
	role, name, _ := strings.Cut(t.actor, "/")
	switch {
	case role == roleMember && changesRegions(e) && !(t.Owns(name, e) && t.HostsAll(name, e)):
		return refuse(rootv1.Reason_REASON_PERMISSION_DENIED, "what %s asks to change is not its own, or in no keyspace where it may own regions", t.actor)
	case role == roleClient && !t.granted(name, e):
		return refuse(rootv1.Reason_REASON_PERMISSION_DENIED, "what %s asks to change is in no keyspace where it has a grant of %s", t.actor, verbWords[VerbOf(e)])
	}
	return nil
}

// HostsAll says whether a member may own regions of each keyspace that an event changes.
func (s *State) HostsAll(name string, e *rootv1.Event) bool {
	return !slices.ContainsFunc(s.KeyspacesOf(e), func(keyspace string) bool { return !s.Hosts(MemberID(name), keyspace) })
}

// InTurn says that an event of a role is judged when it applies, by what the events
// before it in its command have made.
func InTurn(role string, e *rootv1.Event) bool {
	return role == roleClient || role == roleMember && changesRegions(e)
}

var verbWords = map[rootv1.Verb]string{rootv1.Verb_VERB_PUBLISH: "publish", rootv1.Verb_VERB_ADMIN: "admin"}

// granted says whether a client has the grants that an event takes, of each keyspace
// that it changes.
func (s *State) granted(name string, e *rootv1.Event) bool {
	keyspaces := s.KeyspacesOf(e)
	return len(keyspaces) > 0 && !slices.ContainsFunc(keyspaces, func(keyspace string) bool {
		return keyspace == "" || !s.May(roleClient, name, VerbOf(e), keyspace)
	})
}

// VerbOf is what a grant must say for an event.
func VerbOf(e *rootv1.Event) rootv1.Verb {
	switch e.GetKind().(type) {
	case *rootv1.Event_KeyspaceCreated, *rootv1.Event_KeyspaceUpdated, *rootv1.Event_KeyspaceDeleted:
		return rootv1.Verb_VERB_ADMIN
	}
	return rootv1.Verb_VERB_PUBLISH
}

// changesRegions says whether an event is about regions or their changes.
func changesRegions(e *rootv1.Event) bool {
	switch e.GetKind().(type) {
	case *rootv1.Event_RegionBootstrapped, *rootv1.Event_RegionPublished, *rootv1.Event_RegionTombstoned, *rootv1.Event_RegionsAssigned,
		*rootv1.Event_PeerChangePlanned, *rootv1.Event_SplitPlanned, *rootv1.Event_MergePlanned, *rootv1.Event_MovePlanned, *rootv1.Event_MoveReady,
		*rootv1.Event_TransitionCompleted, *rootv1.Event_TransitionCancelled:
		return true
	}
	return false
}

// Owns says whether an event about regions or their changes is about what is a member's own.
func (s *State) Owns(name string, e *rootv1.Event) bool {
	switch e := e.GetKind().(type) {
	case *rootv1.Event_RegionBootstrapped:
		return s.ownsDescribed(name, e.RegionBootstrapped.GetRegion(), true)
	case *rootv1.Event_RegionPublished:
		expected := e.RegionPublished.GetExpectedEpoch()
		return s.ownsDescribed(name, e.RegionPublished.GetRegion(), expected != nil && EpochFromProto(expected) == Epoch{})
	case *rootv1.Event_RegionTombstoned:
		return s.ownsRegion(name, e.RegionTombstoned.GetRegionId())
	case *rootv1.Event_RegionsAssigned:
		for _, a := range e.RegionsAssigned.GetAssignments() {
			if !s.ownsRegion(name, a.GetRegionId()) {
				return false
			}
		}
		return len(e.RegionsAssigned.GetAssignments()) > 0
	case *rootv1.Event_PeerChangePlanned:
		return s.ownsRegion(name, e.PeerChangePlanned.GetRegionId())
	case *rootv1.Event_SplitPlanned:
		return s.ownsRegion(name, e.SplitPlanned.GetRegionId())
	case *rootv1.Event_MergePlanned:
		return s.ownsRegion(name, e.MergePlanned.GetLeftRegionId()) && s.ownsRegion(name, e.MergePlanned.GetRightRegionId())
	case *rootv1.Event_MovePlanned:
		return e.MovePlanned.GetFrom().GetMemberId() == name && s.ownsRegion(name, e.MovePlanned.GetRegionId())
	case *rootv1.Event_MoveReady:
		return s.movesTo(name, e.MoveReady.GetTransitionId())
	case *rootv1.Event_TransitionCompleted:
		return s.ownsTransition(name, e.TransitionCompleted.GetTransitionId())
	case *rootv1.Event_TransitionCancelled:
		return s.ownsTransition(name, e.TransitionCancelled.GetTransitionId())
	}
	return false
}

// ownsRegion says whether a member owns a region.
func (s *State) ownsRegion(name string, id uint64) bool {
	r := s.Region(RegionID(id))
	if r == nil {
		return false
	}
	_, owns := r.Owner(MemberID(name))
	return owns
}

// ownsDescribed says whether a member may publish a descriptor: of a region that
// it owns, or of a new one that it is an owner of, where members report theirs. asNew
// says that it is refused when somebody else's region has come to be there.
func (s *State) ownsDescribed(name string, p *rootv1.Region, asNew bool) bool {
	id := p.GetId()
	if id != 0 && s.Region(RegionID(id)) != nil {
		return s.ownsRegion(name, id)
	}
	keyspace := s.Keyspace(KeyspaceID(p.GetKeyspaceId()))
	return keyspace != nil && keyspace.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED &&
		(asNew || id == 0) && slices.ContainsFunc(p.GetOwners(), func(o *rootv1.Owner) bool { return o.GetMemberId() == name })
}

// movesTo says whether a move goes to a member.
func (s *State) movesTo(name, transition string) bool {
	t := s.Transition(transition)
	return t != nil && t.GetOwner().GetMemberId() == name
}

// ownsTransition says whether a member owns the region that changes, or its share
// is what changes.
func (s *State) ownsTransition(name, transition string) bool {
	t := s.Transition(transition)
	return t != nil && (t.GetOwner().GetMemberId() == name || t.GetFrom().GetMemberId() == name || s.ownsRegion(name, t.GetRegionId()))
}

// KeyspacesOf are the names of the keyspaces that an event changes; empty names
// for what is not there.
func (s *State) KeyspacesOf(e *rootv1.Event) []string {
	byID := func(id KeyspaceID) string { return s.Keyspace(id).GetName() }
	region := func(id uint64) string {
		if r := s.Region(RegionID(id)); r != nil {
			return byID(r.Keyspace)
		}
		return ""
	}
	described := func(r *rootv1.Region) []string {
		names := []string{byID(KeyspaceID(r.GetKeyspaceId()))}
		if had := region(r.GetId()); had != "" && had != names[0] {
			names = append(names, had)
		}
		return names
	}
	called := func(name string, id uint32) string {
		if name != "" {
			return name
		}
		return byID(KeyspaceID(id))
	}
	transition := func(id string) string { return byID(KeyspaceID(s.Transition(id).GetKeyspaceId())) }

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
