package state

import (
	"cmp"
	"maps"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What counts where a setting of a keyspace is not set, and what bounds it, each once: whoever
// reads a setting asks here, or one of the functions below that fill settings in.
const (
	// DefaultIntervalMillis is between two frames of a member. Whatever a keyspace asks for, it is
	// at least and at most those. Suspicion and death take so many intervals.
	DefaultIntervalMillis, LeastIntervalMillis, MostIntervalMillis = 1000, 100, 10_000
	DefaultSuspectIntervals, DefaultDeadIntervals                  = 3, 10
	// DefaultRingVnodes are the points of a member on the ring.
	DefaultRingVnodes = 128
	// DefaultHookTimeoutMillis is for answers of hooks, those of wishes for members too.
	DefaultHookTimeoutMillis = 1000
	// DefaultRebalanceIntervalMillis is between two looks at what is not even, and
	// DefaultLoadMaxAgeMillis how old a load may be, also where nothing is evened out.
	DefaultRebalanceIntervalMillis, DefaultLoadMaxAgeMillis = 30_000, 10_000
	// DefaultIdleScans are the looks for idle points in the time after which one is idle.
	DefaultIdleScans = 4
)

// LivenessOf are a keyspace's settings of liveness, with what counts where nothing is set. The
// interval is what members are told, and silence counts from two frames on.
func LivenessOf(s *rootv1.KeyspaceSettings) *rootv1.Liveness {
	l := s.GetLiveness()
	interval := min(max(cmp.Or(l.GetIntervalMillis(), DefaultIntervalMillis), LeastIntervalMillis), MostIntervalMillis)
	dead := cmp.Or(l.GetDeadAfterMillis(), DefaultDeadIntervals*interval)
	suspect := max(cmp.Or(l.GetSuspectAfterMillis(), min(DefaultSuspectIntervals*interval, dead)), 2*interval)
	return &rootv1.Liveness{
		IntervalMillis: interval, SuspectAfterMillis: suspect, DeadAfterMillis: max(dead, suspect),
		ClosedStream: cmp.Or(l.GetClosedStream(), rootv1.ClosedStream_CLOSED_STREAM_SUSPECT), Probe: l.GetProbe(),
	}
}

// IdleScanMillis is the time between two looks for idle points; 0: nothing gets idle.
func IdleScanMillis(s *rootv1.KeyspaceSettings) uint64 {
	c := s.GetCadence()
	return cmp.Or(c.GetIdleScanMillis(), c.GetIdleEvictMillis()/DefaultIdleScans)
}

// checkSettings checks the settings of a keyspace.
func checkSettings(s *rootv1.KeyspaceSettings) *rootv1.ErrorDetail {
	if s.GetPlacement() == rootv1.Placement_PLACEMENT_UNSPECIFIED {
		return invalid("the placement is missing: reported or assigned")
	}
	return first(checkLayout(s.GetLayout()), checkOwnership(s.GetOwnership()), checkLiveness(s.GetLiveness()),
		checkPolicy(s.GetPolicy()), checkCadence(s.GetCadence()), checkLabels(s.GetLabels()), checkMoves(s.GetMoves()), checkGuards(s.GetGuards()), checkStart(s.GetStart()),
		checkText("preset", s.GetPreset(), MaxNameBytes))
}

func checkLayout(l *rootv1.Layout) *rootv1.ErrorDetail {
	switch k := l.GetKind().(type) {
	case *rootv1.Layout_Ranges_, *rootv1.Layout_Points_:
		return nil
	case *rootv1.Layout_Slots_:
		if n := k.Slots.GetCount(); n < 1 || n > MaxSlots {
			return invalid("%d slots, 1 to %d are allowed", n, MaxSlots)
		}
		return nil
	default:
		return invalid("the layout is missing: ranges, slots or points")
	}
}

func checkOwnership(o *rootv1.Ownership) *rootv1.ErrorDetail {
	switch {
	case o.GetMaxOwners() > MaxOwners:
		return invalid("ownership-max-owners is %d, at most %d are allowed", o.GetMaxOwners(), MaxOwners)
	case o.GetMinOwners() > max(o.GetMaxOwners(), 1):
		return invalid("ownership-min-owners is %d, above ownership-max-owners %d", o.GetMinOwners(), max(o.GetMaxOwners(), 1))
	case o.GetFence() == rootv1.Fence_FENCE_TTL && o.GetTtlMillis() == 0:
		return invalid("ownership-fence ttl needs an ownership-ttl")
	default:
		return checkMillis("ownership-ttl", o.GetTtlMillis())
	}
}

func checkLiveness(l *rootv1.Liveness) *rootv1.ErrorDetail {
	if s, d := l.GetSuspectAfterMillis(), l.GetDeadAfterMillis(); s > 0 && d > 0 && s > d {
		return invalid("liveness-suspect-after is %d ms, above liveness-dead-after %d ms", s, d)
	}
	return checkMillis("liveness", l.GetIntervalMillis(), l.GetSuspectAfterMillis(), l.GetDeadAfterMillis())
}

func checkPolicy(p *rootv1.Policy) *rootv1.ErrorDetail {
	switch {
	case p.GetRingVnodes() > MaxRingVnodes:
		return invalid("policy-ring-vnodes is %d, at most %d are allowed", p.GetRingVnodes(), MaxRingVnodes)
	case p.GetStrategy() == rootv1.Strategy_STRATEGY_HOOK && p.GetHookUrl() == "":
		return invalid("policy-strategy hook needs a policy-hook-url")
	case len(p.GetLabelRules()) > MaxLabelRules:
		return invalid("%d label rules, at most %d fit", len(p.GetLabelRules()), MaxLabelRules)
	}
	for _, r := range p.GetLabelRules() {
		if d := first(checkBytes("key prefix", r.GetKeyPrefix(), MaxKeyBytes), checkLabels(r.GetLabels())); d != nil {
			return d
		}
	}
	r := p.GetRebalance()
	return first(checkText("policy-hook-url", p.GetHookUrl(), MaxAddressBytes), checkText("policy-spread", p.GetSpread(), MaxLabelBytes), checkRebalance(r),
		checkMillis("policy", p.GetHookTimeoutMillis(), r.GetIntervalMillis(), r.GetCooldownMillis(), r.GetSettleMillis(),
			r.GetSpacingMillis(), r.GetBackoffMillis(), r.GetLoadMaxAgeMillis(), r.GetQuietMillis(), r.GetCutMillis()))
}

func checkRebalance(r *rootv1.Rebalance) *rootv1.ErrorDetail {
	all := rebalanceOf(r)
	switch {
	case r == nil:
		return nil
	case r.GetReservePermille() > 1000:
		return invalid("policy-rebalance-reserve-permille is %d, at most 1000, which is everything, is allowed", r.GetReservePermille())
	case r.GetRoundPermille() > 1000:
		return invalid("policy-rebalance-round-permille is %d, at most 1000, which is everything, is allowed", r.GetRoundPermille())
	case r.GetHourPermille() > 1000:
		return invalid("policy-rebalance-hour-permille is %d, at most 1000, which is everything, is allowed", r.GetHourPermille())
	case all.GetRoundPermille() > all.GetHourPermille():
		return invalid("policy-rebalance-round-permille is %d, above policy-rebalance-hour-permille %d", all.GetRoundPermille(), all.GetHourPermille())
	case r.GetInFlight() > MaxMovesInFlight:
		return invalid("policy-rebalance-in-flight is %d, at most %d are allowed", r.GetInFlight(), MaxMovesInFlight)
	}
	return nil
}

// RebalanceOf is how a keyspace is evened out, with what counts where nothing is set; nil: it
// is not.
func RebalanceOf(s *rootv1.KeyspaceSettings) *rootv1.Rebalance {
	r := s.GetPolicy().GetRebalance()
	if r == nil {
		return nil
	}
	all := rebalanceOf(r)
	all.InFlight = cmp.Or(r.GetInFlight(), MovesOf(s).GetInFlight())
	return all
}

func rebalanceOf(r *rootv1.Rebalance) *rootv1.Rebalance {
	return &rootv1.Rebalance{
		AbsoluteLimit: r.GetAbsoluteLimit(), MeanPermille: r.GetMeanPermille(), MinGap: r.GetMinGap(), MaxMoves: r.GetMaxMoves(),
		IntervalMillis: cmp.Or(r.GetIntervalMillis(), DefaultRebalanceIntervalMillis), CooldownMillis: r.GetCooldownMillis(),
		By: cmp.Or(r.GetBy(), rootv1.BalanceBy_BALANCE_BY_COUNT), ReservePermille: cmp.Or(r.GetReservePermille(), 20), SettleMillis: r.GetSettleMillis(),
		InFlight: r.GetInFlight(), RoundPermille: cmp.Or(r.GetRoundPermille(), 50), HourPermille: cmp.Or(r.GetHourPermille(), 500),
		SpacingMillis: cmp.Or(r.GetSpacingMillis(), 120_000), BackoffMillis: cmp.Or(r.GetBackoffMillis(), 300_000),
		LoadMaxAgeMillis: cmp.Or(r.GetLoadMaxAgeMillis(), DefaultLoadMaxAgeMillis), Reshape: r.GetReshape(),
		QuietMillis: cmp.Or(r.GetQuietMillis(), 600_000), CutMillis: cmp.Or(r.GetCutMillis(), 1_800_000),
	}
}

func checkCadence(c *rootv1.Cadence) *rootv1.ErrorDetail {
	return checkMillis("cadence", c.GetCheckpointIntervalMillis(), c.GetIdleEvictMillis(), c.GetIdleScanMillis())
}

// MovesOf are a keyspace's settings of moves, with what counts where nothing is set.
func MovesOf(s *rootv1.KeyspaceSettings) *rootv1.Moves {
	m := s.GetMoves()
	return &rootv1.Moves{
		PrepareMaxMillis: cmp.Or(m.GetPrepareMaxMillis(), 10_000), DeadlineMillis: cmp.Or(m.GetDeadlineMillis(), 60_000),
		HoldRequestsMillis: cmp.Or(m.GetHoldRequestsMillis(), 2000), InFlight: cmp.Or(m.GetInFlight(), 16),
	}
}

// GuardsOf are a keyspace's guards, with what counts where nothing is set.
func GuardsOf(s *rootv1.KeyspaceSettings) *rootv1.Guards {
	g := s.GetGuards()
	return &rootv1.Guards{
		MassPermille: cmp.Or(g.GetMassPermille(), 500), MassWindowMillis: cmp.Or(g.GetMassWindowMillis(), 10_000),
		FlapFailures: cmp.Or(g.GetFlapFailures(), 3), FlapWindowMillis: cmp.Or(g.GetFlapWindowMillis(), 300_000),
		NoMoveBackMillis: cmp.Or(g.GetNoMoveBackMillis(), 120_000), MassHoldMillis: cmp.Or(g.GetMassHoldMillis(), 600_000),
	}
}

func checkMoves(m *rootv1.Moves) *rootv1.ErrorDetail {
	all := MovesOf(&rootv1.KeyspaceSettings{Moves: m})
	switch {
	case all.GetPrepareMaxMillis() > all.GetDeadlineMillis():
		return invalid("moves-prepare-max is %d ms, above moves-deadline %d ms: the move would be given up first", all.GetPrepareMaxMillis(), all.GetDeadlineMillis())
	case m.GetInFlight() > MaxMovesInFlight:
		return invalid("moves-in-flight is %d, at most %d are allowed", m.GetInFlight(), MaxMovesInFlight)
	}
	return checkMillis("moves", m.GetPrepareMaxMillis(), m.GetDeadlineMillis(), m.GetHoldRequestsMillis())
}

func checkGuards(g *rootv1.Guards) *rootv1.ErrorDetail {
	switch {
	case g.GetMassPermille() > 1000:
		return invalid("guards-mass-permille is %d, at most 1000, which are all members, are allowed", g.GetMassPermille())
	case g.GetFlapFailures() > MaxFlapFailures:
		return invalid("guards-flap-failures is %d, at most %d are allowed", g.GetFlapFailures(), MaxFlapFailures)
	}
	return checkMillis("guards", g.GetMassWindowMillis(), g.GetFlapWindowMillis(), g.GetNoMoveBackMillis(), g.GetMassHoldMillis())
}

// StartOf is how a keyspace begins, with what counts where nothing is set: the regions of some
// presets are kept for a while, which clusters of older feature levels cannot be told.
func StartOf(s *rootv1.KeyspaceSettings) *rootv1.Start {
	return &rootv1.Start{Members: s.GetStart().GetMembers(), HoldMillis: cmp.Or(s.GetStart().GetHoldMillis(), presetHolds[s.GetPreset()])}
}

func checkStart(s *rootv1.Start) *rootv1.ErrorDetail {
	if s.GetMembers() > MaxMembers {
		return invalid("start-members is %d, at most %d are allowed", s.GetMembers(), MaxMembers)
	}
	if s.GetHoldMillis() > MaxHoldMillis {
		return invalid("start-hold is %d ms, at most %d ms are allowed", s.GetHoldMillis(), MaxHoldMillis)
	}
	return nil
}

func checkMillis(what string, values ...uint64) *rootv1.ErrorDetail {
	for _, v := range values {
		if v > MaxMillis {
			return invalid("%s: %d ms, at most %d ms are allowed", what, v, uint64(MaxMillis))
		}
	}
	return nil
}

func checkLabels(labels map[string]string) *rootv1.ErrorDetail {
	if n := len(labels); n > MaxLabels {
		return invalid("%d labels, at most %d fit", n, MaxLabels)
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if name == "" {
			return invalid("a label has no name")
		}
		if d := first(checkText("label name", name, MaxLabelBytes), checkText("label", labels[name], MaxLabelBytes)); d != nil {
			return d
		}
	}
	return nil
}
