package state

import rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"

// subject is a digest of what a command is about: of each event its kind, and what
// it changes, as its sender named it. Two commands under one identity that differ
// in it are not one. It leaves out what a coordinator fills in anew whenever it
// sends a command on: what a registration follows, the version of a keyspace, its
// settings, a secret. It is part of the format.
func subject(c *rootv1.Command) uint32 {
	h := uint64(len(c.GetEvents()))
	for _, e := range c.GetEvents() {
		h = aboutEvent(h, e)
	}
	return uint32(h ^ h>>32)
}

// aboutEvent adds an event to a digest: first the number of its kind in
// rootv1.Event, then what tells it from another of its kind.
func aboutEvent(h uint64, e *rootv1.Event) uint64 {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_ClusterBootstrapped:
		return numbers(h, 1, k.ClusterBootstrapped.GetCluster().GetClusterId())
	case *rootv1.Event_FenceExtended:
		f := k.FenceExtended
		return numbers(h, 2, uint64(f.GetMandate()), f.GetEra(), f.GetFloor(), f.GetSize())
	case *rootv1.Event_TenureClaimed:
		return text(numbers(h, 3, k.TenureClaimed.GetHolderIncarnation(), k.TenureClaimed.GetExpectedEra()), k.TenureClaimed.GetHolderId())
	case *rootv1.Event_TenureRetired:
		return text(numbers(h, 4, k.TenureRetired.GetHolderIncarnation(), k.TenureRetired.GetEra()), k.TenureRetired.GetHolderId())
	case *rootv1.Event_HandoverAdvanced:
		return numbers(h, 5, k.HandoverAdvanced.GetEra(), uint64(k.HandoverAdvanced.GetStage()))
	case *rootv1.Event_CoordinatorJoined:
		return text(numbers(h, 6, k.CoordinatorJoined.GetIncarnation()), k.CoordinatorJoined.GetId())
	case *rootv1.Event_CoordinatorLeft:
		return text(numbers(h, 7, k.CoordinatorLeft.GetIncarnation()), k.CoordinatorLeft.GetId())
	case *rootv1.Event_MemberJoined:
		return text(numbers(h, 8, k.MemberJoined.GetMember().GetStartNonce()), k.MemberJoined.GetMember().GetId())
	case *rootv1.Event_MemberStateChanged:
		m := k.MemberStateChanged
		return text(numbers(h, 9, uint64(m.GetState()), m.GetIncarnation()), m.GetMemberId())
	case *rootv1.Event_KeyspaceCreated:
		return text(numbers(h, 10), k.KeyspaceCreated.GetName())
	case *rootv1.Event_KeyspaceUpdated:
		return text(numbers(h, 11, uint64(k.KeyspaceUpdated.GetKeyspaceId())), k.KeyspaceUpdated.GetName())
	case *rootv1.Event_KeyspaceDeleted:
		return text(numbers(h, 12, uint64(k.KeyspaceDeleted.GetKeyspaceId())), k.KeyspaceDeleted.GetName())
	case *rootv1.Event_PinKeyRotated:
		return numbers(h, 22, uint64(k.PinKeyRotated.GetExpectedId()))
	case *rootv1.Event_RootPeerAdded:
		return numbers(h, 23, k.RootPeerAdded.GetPeer().GetNodeId(), k.RootPeerAdded.GetReplaces())
	case *rootv1.Event_RootPeerPromoted:
		return numbers(h, 24, k.RootPeerPromoted.GetNodeId())
	case *rootv1.Event_RootPeersSettled:
		return numbers(h, 25, k.RootPeersSettled.GetNodeId())
	case *rootv1.Event_RootPeerDropped:
		return numbers(h, 26, k.RootPeerDropped.GetNodeId())
	case *rootv1.Event_FeatureLevelRaised:
		return numbers(h, 27, uint64(k.FeatureLevelRaised.GetTo()))
	default:
		return aboutRegions(h, e)
	}
}

// aboutRegions is aboutEvent for what changes regions. The epoch of a plan is part
// of its transition's name.
func aboutRegions(h uint64, e *rootv1.Event) uint64 {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_RegionBootstrapped:
		return aboutRegion(numbers(h, 13), k.RegionBootstrapped.GetRegion())
	case *rootv1.Event_RegionPublished:
		return aboutRegion(numbers(h, 14), k.RegionPublished.GetRegion())
	case *rootv1.Event_RegionTombstoned:
		return numbers(h, 15, k.RegionTombstoned.GetRegionId())
	case *rootv1.Event_RegionsAssigned:
		return aboutAssignments(h, k.RegionsAssigned.GetAssignments())
	case *rootv1.Event_PeerChangePlanned:
		p := k.PeerChangePlanned
		h = aboutPlan(numbers(h, 17, uint64(p.GetKind())), p.GetRegionId(), p.GetExpectedEpoch())
		return text(h, p.GetOwner().GetMemberId())
	case *rootv1.Event_SplitPlanned:
		p := k.SplitPlanned
		return text(aboutPlan(numbers(h, 18, p.GetRightRegionId()), p.GetRegionId(), p.GetExpectedEpoch()), p.GetSplitKey())
	case *rootv1.Event_MergePlanned:
		p := k.MergePlanned
		return aboutPlan(numbers(h, 19, p.GetRightRegionId()), p.GetLeftRegionId(), p.GetLeftExpectedEpoch())
	case *rootv1.Event_TransitionCompleted:
		return text(numbers(h, 20), k.TransitionCompleted.GetTransitionId())
	case *rootv1.Event_TransitionCancelled:
		return text(numbers(h, 21), k.TransitionCancelled.GetTransitionId())
	case *rootv1.Event_MovePlanned:
		p := k.MovePlanned
		h = aboutPlan(numbers(h, 28), p.GetRegionId(), p.GetExpectedEpoch())
		return text(text(h, p.GetFrom().GetMemberId()), p.GetTo().GetMemberId())
	case *rootv1.Event_MoveReady:
		return text(numbers(h, 29, k.MoveReady.GetIncarnation()), k.MoveReady.GetTransitionId())
	default:
		return h
	}
}

func aboutRegion(h uint64, r *rootv1.Region) uint64 {
	h = numbers(h, r.GetId(), uint64(r.GetKeyspaceId()), r.GetEpoch().GetVersion(), r.GetEpoch().GetConfVersion())
	return text(text(h, r.GetStartKey()), r.GetEndKey())
}

func aboutPlan(h, region uint64, base *rootv1.RegionEpoch) uint64 {
	return numbers(h, region, base.GetVersion(), base.GetConfVersion())
}

func aboutAssignments(h uint64, all []*rootv1.Assignment) uint64 {
	h = numbers(h, 16, uint64(len(all)))
	for _, a := range all {
		h = numbers(h, a.GetRegionId(), uint64(len(a.GetOwners())))
		for _, o := range a.GetOwners() {
			h = text(h, o.GetMemberId())
		}
	}
	return h
}

// numbers adds numbers to a digest.
func numbers(h uint64, all ...uint64) uint64 {
	for _, n := range all {
		h = mix(h^n^0xa0761d6478bd642f, 0xe7037ed1a0b428db)
	}
	return h
}

// text adds a string and its length to a digest, eight bytes at a time.
func text[T string | []byte](h uint64, s T) uint64 {
	h = numbers(h, uint64(len(s)))
	for len(s) > 0 {
		var word uint64
		for i := range min(len(s), 8) {
			word |= uint64(s[i]) << (8 * i)
		}
		h, s = numbers(h, word), s[min(len(s), 8):]
	}
	return h
}
