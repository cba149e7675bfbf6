package state

import (
	"fmt"
	"slices"
	"strconv"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// Feature levels: what processes of different builds agree to understand. What
// is new in a level is refused until every process understands it.
const (
	// BaseFeatureLevel is what every build understands, and where a cluster begins
	// whose founders do not say what they understand.
	BaseFeatureLevel = 1
	// FeatureLevel is what this build understands. Level 2 adds moves; level 3 the
	// cluster's settings, grants, keys of bearer tokens, sealed keys, the end of an era
	// that was asked for, and what the root judges whoever asks: see restrictive. Level 4
	// adds keyspaces and a probe address of a member, moves, guards, scaling and what is evened out
	// of a keyspace, how it starts, frontiers that are acknowledged, why owners, splits and merges are planned, steps
	// that name the plan they are of, the coordinator that names an actor, and the time of an
	// entry, keeps whom a region was taken from, judges each event of an actor by what those
	// before it in its command made, and has owners let go of what is split or merged.
	FeatureLevel = 4

	movesLevel      = 2
	restrictedLevel = 3
	membersLevel    = 4

	// AcknowledgedLevel is where owners' frontiers are rooted while they go on.
	AcknowledgedLevel = 4

	// DatedLevel is where leaders begin to say the time of an entry.
	DatedLevel = 4
)

// supported stands for a build that understands less, for tests of upgrades:
// -ldflags "-X github.com/nokv/nokv/meta/root/state.supported=1".
var supported string

// supportedLevel is FeatureLevel, or less.
var supportedLevel = func() uint32 {
	if supported == "" {
		return FeatureLevel
	}
	n, err := strconv.ParseUint(supported, 10, 32)
	if err != nil || n < BaseFeatureLevel || n > FeatureLevel {
		panic(fmt.Sprintf("state: built to support feature level %q, want %d to %d", supported, BaseFeatureLevel, FeatureLevel))
	}
	return uint32(n)
}()

// SupportedLevel is the highest feature level that this process understands.
func SupportedLevel() uint32 { return supportedLevel }

// FeatureLevel is the rooted feature level: events above it are refused.
func (s *State) FeatureLevel() uint32 { return LevelOf(s.cluster.GetFeatureLevel()) }

// LevelOf is a feature level as it is told: 0 counts as BaseFeatureLevel.
func LevelOf(told uint32) uint32 { return max(told, BaseFeatureLevel) }

// RequiredLevel is the feature level that a command is of.
func RequiredLevel(c *rootv1.Command) uint32 {
	level := uint32(BaseFeatureLevel)
	for _, e := range c.GetEvents() {
		level = max(level, eventLevel(e))
	}
	return level
}

// eventLevel is the table of what is new in which level.
func eventLevel(e *rootv1.Event) uint32 {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_MoveReady:
		return max(movesLevel, plannedLevel(k.MoveReady.GetPlannedAt()))
	case *rootv1.Event_MovePlanned:
		return movesLevel
	case *rootv1.Event_PeerChangePlanned:
		return reasonLevel(k.PeerChangePlanned.GetReason())
	case *rootv1.Event_SplitPlanned:
		return reasonLevel(k.SplitPlanned.GetReason())
	case *rootv1.Event_MergePlanned:
		return reasonLevel(k.MergePlanned.GetReason())
	case *rootv1.Event_TransitionCancelled:
		return plannedLevel(k.TransitionCancelled.GetPlannedAt())
	case *rootv1.Event_TransitionCompleted:
		if at := k.TransitionCompleted.GetPlannedAt(); at > 0 {
			return plannedLevel(at)
		}
		if k.TransitionCompleted.GetSetFrontier() || len(k.TransitionCompleted.GetFrontier()) > 0 {
			return movesLevel
		}
	case *rootv1.Event_MemberJoined:
		return memberLevel(k.MemberJoined.GetMember())
	case *rootv1.Event_KeyspaceCreated:
		return settingsLevel(k.KeyspaceCreated.GetSettings())
	case *rootv1.Event_KeyspaceUpdated:
		return settingsLevel(k.KeyspaceUpdated.GetSettings())
	case *rootv1.Event_RegionBootstrapped:
		return regionLevel(k.RegionBootstrapped.GetRegion())
	case *rootv1.Event_RegionPublished:
		return regionLevel(k.RegionPublished.GetRegion())
	case *rootv1.Event_RegionsAssigned:
		if slices.ContainsFunc(k.RegionsAssigned.GetAssignments(), (*rootv1.Assignment).GetAcknowledged) {
			return membersLevel
		}
	case *rootv1.Event_KeyspaceDeleted:
		if k.KeyspaceDeleted.GetForce() {
			return membersLevel
		}
	case *rootv1.Event_TenureEnded, *rootv1.Event_ClusterSettingsChanged, *rootv1.Event_AccessGranted, *rootv1.Event_AccessRevoked,
		*rootv1.Event_TokenKeyRotated, *rootv1.Event_TokenRevoked:
		return restrictedLevel
	case *rootv1.Event_PinKeyRotated:
		if k.PinKeyRotated.GetSealed() {
			return restrictedLevel
		}
	case *rootv1.Event_TenureClaimed:
		if len(k.TenureClaimed.GetRetireDigest()) > 0 || k.TenureClaimed.GetUnlessConfirmed() {
			return restrictedLevel
		}
	case *rootv1.Event_TenureRetired:
		if len(k.TenureRetired.GetRetireSecret()) > 0 {
			return restrictedLevel
		}
	case *rootv1.Event_HandoverAdvanced:
		if h := k.HandoverAdvanced; h.GetHolderId() != "" || h.GetHolderIncarnation() != 0 {
			return restrictedLevel
		}
	}
	return BaseFeatureLevel
}

// recordLevel is eventLevel for records.
func recordLevel(r *rootv1.Record) uint32 {
	if p := r.GetTransition(); p.GetKind() == kindMove || p.GetFrom() != nil || p.GetReadyAt() != nil ||
		p.GetPrepareMaxMillis()|p.GetDeadlineMillis() != 0 || p.GetCause() != 0 {
		return movesLevel
	}
	if t := r.GetTenure(); t.GetEnd() != nil || len(t.GetRetireDigest()) > 0 ||
		r.GetHandover().GetLegacy().GetEnd() != nil || r.GetClusterSettings() != nil || r.GetGrant() != nil ||
		r.GetPinKey().GetSealed() || r.GetTokenKey() != nil || r.GetRevokedToken() != nil {
		return restrictedLevel
	}
	if r.GetKeyspace().GetFormerTtlMillis() > 0 {
		return membersLevel
	}
	return max(memberLevel(r.GetMember()), settingsLevel(r.GetKeyspace().GetSettings()), regionLevel(r.GetRegion()))
}

func memberLevel(m *rootv1.Member) uint32 {
	if len(m.GetKeyspaces()) > 0 || m.GetProbeAddress() != "" {
		return membersLevel
	}
	return BaseFeatureLevel
}

func settingsLevel(s *rootv1.KeyspaceSettings) uint32 {
	old := s.GetPolicy().GetRebalance()
	if old != nil {
		old = &rootv1.Rebalance{
			AbsoluteLimit: old.GetAbsoluteLimit(), MeanPermille: old.GetMeanPermille(), MinGap: old.GetMinGap(),
			IntervalMillis: old.GetIntervalMillis(), CooldownMillis: old.GetCooldownMillis(), MaxMoves: old.GetMaxMoves(),
		}
	}
	if s.GetMoves() != nil || s.GetGuards() != nil || s.GetStart() != nil || s.GetLimits().GetRefuseKeys() || s.GetOwnership().GetMinOwners() > 0 || s.GetPolicy().GetSpread() != "" ||
		s.GetScaling() != nil || s.GetPolicy().GetHookFallback() != 0 ||
		!proto.Equal(old, s.GetPolicy().GetRebalance()) {
		return membersLevel
	}
	return BaseFeatureLevel
}

func reasonLevel(r rootv1.OperationReason) uint32 {
	if r != 0 {
		return membersLevel
	}
	return BaseFeatureLevel
}

func regionLevel(r *rootv1.Region) uint32 {
	if r.GetFormer() != nil {
		return membersLevel
	}
	return BaseFeatureLevel
}

func plannedLevel(plannedAt uint64) uint32 {
	if plannedAt > 0 {
		return membersLevel
	}
	return BaseFeatureLevel
}

// restrictive says whether the root judges, whoever asks, what was once left to
// honest callers: who retires and advances an era, how long its ttl is, how many ids
// it takes, whom a coordinator follows. Builds of lower levels do not, so that it has a level.
func (s *State) restrictive() bool { return s.FeatureLevel() >= restrictedLevel }

// CheckLevel refuses what is above the rooted level: some process would have to
// stop at it.
func (s *State) CheckLevel(c *rootv1.Command) *rootv1.ErrorDetail {
	return s.CheckRequired(RequiredLevel(c))
}

// CheckRequired is CheckLevel for what requires a level.
func (s *State) CheckRequired(need uint32) *rootv1.ErrorDetail {
	rooted := s.FeatureLevel()
	if need <= rooted {
		return nil
	}
	d := refuse(rootv1.Reason_REASON_FEATURE_LEVEL, "this is of feature level %d, the cluster is at %d: upgrade every process, then raise it", need, rooted)
	d.FeatureLevel = rooted
	return d
}

// CutUnknown takes out of a command what it may do without, as long as some process
// of the cluster may not know it and would have to stop: who asked, through whom, and why.
func (s *State) CutUnknown(c *rootv1.Command) {
	if s.FeatureLevel() < restrictedLevel {
		c.Actor, c.Why = "", ""
	}
	if s.FeatureLevel() < membersLevel {
		c.Via = ""
	}
}

// featureLevelRaised raises the level. Already applied: it is there, or above.
func (t *turn) featureLevelRaised(e *rootv1.FeatureLevelRaised) verdict {
	rooted := t.FeatureLevel()
	switch {
	case e.GetTo() <= rooted:
		return already
	case LevelOf(e.GetFrom()) != rooted:
		d := refuse(rootv1.Reason_REASON_FEATURE_LEVEL, "the feature level is %d, not %d", rooted, e.GetFrom())
		d.FeatureLevel = rooted
		return verdict{reject: d}
	}
	t.setCluster(func(c *rootv1.Cluster) { c.FeatureLevel = e.GetTo() })
	return applied
}
