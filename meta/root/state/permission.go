package state

import (
	"slices"
	"strings"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// judgeActor judges again what a member, client or proxy may change by what it owns or was
// granted: since the command was let into the log an owner may have changed, or a grant
// been taken back. What no change of state can take back whoever took the call has judged.
func (t *turn) judgeActor(e *rootv1.Event) *rootv1.ErrorDetail {
	role, name, _ := strings.Cut(t.actor, "/")
	client := role == roleClient || role == roleProxy
	switch {
	case role == roleMember && changesRegions(e) && !(t.Owns(name, e) && t.HostsAll(name, e)):
		return refuse(rootv1.Reason_REASON_PERMISSION_DENIED, "what %s asks to change is not its own, or in no keyspace where it may own regions", t.actor)
	case role == roleCoordinator && e.GetTransitionCompleted() != nil && !t.byEra:
		return refuse(rootv1.Reason_REASON_PERMISSION_DENIED, "%s may complete a transition in an era that it holds, and in no other", t.actor)
	case client && !t.granted(role, name, e):
		return refuse(rootv1.Reason_REASON_PERMISSION_DENIED, "what %s asks to change is in no keyspace where it has a grant of %s", t.actor, verbWords[VerbOf(e)])
	case client && t.givenAway(e):
		return refuse(rootv1.Reason_REASON_PERMISSION_DENIED, "%s may plan this and not complete it: an owner acts for the region, and it, the holder of the Tenure or an operator says how far it got", t.actor)
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
	return role == roleClient || role == roleProxy || role == roleMember && changesRegions(e)
}

var verbWords = map[rootv1.Verb]string{rootv1.Verb_VERB_PUBLISH: "publish", rootv1.Verb_VERB_ADMIN: "admin"}

// granted says whether a client or proxy has the grants that an event takes, of each keyspace
// that it changes.
func (s *State) granted(role, name string, e *rootv1.Event) bool {
	keyspaces := s.KeyspacesOf(e)
	return len(keyspaces) > 0 && !slices.ContainsFunc(keyspaces, func(keyspace string) bool {
		return keyspace == "" || !s.May(role, name, VerbOf(e), keyspace)
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

// Owns says whether a member may ask for an event about regions, by what it owns. Where members report
// their regions each speaks for all of their owners: it says what has become of them, how they are split and
// merged, and who owns them then. Where regions are assigned a member removes one that is its alone, and no
// more: what it has let go of, and what it is ready for, it reports, and the holder of the Tenure goes on from that.
func (s *State) Owns(name string, e *rootv1.Event) bool {
	switch e := e.GetKind().(type) {
	case *rootv1.Event_RegionPublished:
		return s.ownsDescribed(name, e.RegionPublished)
	case *rootv1.Event_RegionTombstoned:
		r := s.Region(RegionID(e.RegionTombstoned.GetRegionId()))
		return ownedBy(name, r) && (len(r.Owners) == 1 || !s.assigns(r))
	case *rootv1.Event_SplitPlanned:
		return s.speaksFor(name, e.SplitPlanned.GetRegionId())
	case *rootv1.Event_MergePlanned:
		return s.speaksFor(name, e.MergePlanned.GetLeftRegionId()) && s.speaksFor(name, e.MergePlanned.GetRightRegionId())
	case *rootv1.Event_TransitionCompleted:
		switch p := s.Transition(e.TransitionCompleted.GetTransitionId()); p.GetKind() {
		case kindSplit:
			return s.speaksFor(name, p.GetRegionId())
		case kindMerge:
			return s.speaksFor(name, p.GetRegionId()) && s.speaksFor(name, p.GetRightRegionId())
		}
	}
	return false
}

// ownedBy says whether a region, if there is one, has a member for an owner.
func ownedBy(name string, r *Region) bool {
	return r != nil && r.ownerAt(MemberID(name)) >= 0
}

// speaksFor says whether a member owns a region that its members report.
func (s *State) speaksFor(name string, id uint64) bool {
	r := s.Region(RegionID(id))
	return ownedBy(name, r) && !s.assigns(r)
}

// assigns says whether a region is of a keyspace whose regions are assigned.
func (s *State) assigns(r *Region) bool {
	return s.Keyspace(r.Keyspace).GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED
}

// ownsDescribed says whether a member may publish a descriptor: of a region that it speaks for, which takes
// in no keys but of one that it speaks for, too; or of a new one that it is an owner of, where members report
// theirs, and which is refused when somebody else's region has come to be there.
func (s *State) ownsDescribed(name string, e *rootv1.RegionPublished) bool {
	p := e.GetRegion()
	if r := s.Region(RegionID(p.GetId())); r != nil {
		taken := s.takenIn(r, RegionFromProto(p))
		return s.speaksFor(name, p.GetId()) && (taken == nil || s.speaksFor(name, uint64(taken.ID)))
	}
	keyspace := s.Keyspace(KeyspaceID(p.GetKeyspaceId()))
	asNew := p.GetId() == 0 || e.GetExpectedEpoch() != nil && EpochFromProto(e.GetExpectedEpoch()) == Epoch{}
	return keyspace != nil && keyspace.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED && asNew &&
		slices.ContainsFunc(p.GetOwners(), func(o *rootv1.Owner) bool { return o.GetMemberId() == name })
}

// givenAway says whether an event takes an assigned region from an owner that acts for it, or says how far
// that one got. A split and a merge wait by themselves for who has to let go.
func (s *State) givenAway(e *rootv1.Event) bool {
	acts := func(id uint64) bool {
		r := s.Region(RegionID(id))
		return r != nil && s.assigns(r) && slices.ContainsFunc(r.Owners, s.Acts)
	}
	switch e := e.GetKind().(type) {
	case *rootv1.Event_TransitionCompleted:
		p := s.Transition(e.TransitionCompleted.GetTransitionId())
		reshapes := p.GetKind() == kindSplit || p.GetKind() == kindMerge
		return (!reshapes || e.TransitionCompleted.GetSetFrontier()) && acts(p.GetRegionId())
	case *rootv1.Event_RegionsAssigned:
		return slices.ContainsFunc(e.RegionsAssigned.GetAssignments(), func(a *rootv1.Assignment) bool {
			return a.GetSetFrontier() && acts(a.GetRegionId())
		})
	case *rootv1.Event_RegionPublished:
		r := e.RegionPublished.GetRegion()
		return len(r.GetFrontier()) > 0 && acts(r.GetId()) && string(r.GetFrontier()) != s.Region(RegionID(r.GetId())).Frontier
	}
	return false
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
