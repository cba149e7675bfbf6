package state

import (
	"maps"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// checkSettings checks the settings of a keyspace.
func checkSettings(s *rootv1.KeyspaceSettings) *rootv1.ErrorDetail {
	if s.GetPlacement() == rootv1.Placement_PLACEMENT_UNSPECIFIED {
		return invalid("the placement is missing: reported or assigned")
	}
	return first(checkLayout(s.GetLayout()), checkOwnership(s.GetOwnership()), checkLiveness(s.GetLiveness()),
		checkPolicy(s.GetPolicy()), checkCadence(s.GetCadence()), checkLabels(s.GetLabels()),
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
		return invalid("%d owners a region, at most %d fit", o.GetMaxOwners(), MaxOwners)
	case o.GetFence() == rootv1.Fence_FENCE_TTL && o.GetTtlMillis() == 0:
		return invalid("a ttl fence needs a ttl")
	default:
		return checkMillis("ownership ttl", o.GetTtlMillis())
	}
}

func checkLiveness(l *rootv1.Liveness) *rootv1.ErrorDetail {
	if s, d := l.GetSuspectAfterMillis(), l.GetDeadAfterMillis(); s > 0 && d > 0 && s > d {
		return invalid("suspected after %d ms, but dead after %d ms", s, d)
	}
	return checkMillis("liveness", l.GetIntervalMillis(), l.GetSuspectAfterMillis(), l.GetDeadAfterMillis())
}

func checkPolicy(p *rootv1.Policy) *rootv1.ErrorDetail {
	switch {
	case p.GetRingVnodes() > MaxRingVnodes:
		return invalid("%d virtual nodes, at most %d fit", p.GetRingVnodes(), MaxRingVnodes)
	case p.GetStrategy() == rootv1.Strategy_STRATEGY_HOOK && p.GetHookUrl() == "":
		return invalid("the hook strategy needs a hook url")
	case len(p.GetLabelRules()) > MaxLabelRules:
		return invalid("%d label rules, at most %d fit", len(p.GetLabelRules()), MaxLabelRules)
	}
	for _, r := range p.GetLabelRules() {
		if d := first(checkBytes("key prefix", r.GetKeyPrefix(), MaxKeyBytes), checkLabels(r.GetLabels())); d != nil {
			return d
		}
	}
	return first(checkText("hook url", p.GetHookUrl(), MaxAddressBytes), checkMillis("policy", p.GetHookTimeoutMillis(),
		p.GetRebalance().GetIntervalMillis(), p.GetRebalance().GetCooldownMillis()))
}

func checkCadence(c *rootv1.Cadence) *rootv1.ErrorDetail {
	return checkMillis("cadence", c.GetCheckpointIntervalMillis(), c.GetIdleEvictMillis(), c.GetIdleScanMillis())
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
