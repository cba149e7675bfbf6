package placement

import (
	"cmp"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// settings are those of an assigned keyspace, with their defaults.
type settings struct {
	id        state.KeyspaceID
	name      string
	fence     liveness.Fence
	maxOwners int
	// prepareMax and deadline of its moves, and how many of them at a time.
	prepareMax, deadline time.Duration
	inFlight             int
	// interval is between two frames of a member.
	interval time.Duration
	strategy rootv1.Strategy
	vnodes   int
	policy   balance.Policy
}

// keyspace returns the settings of an assigned keyspace, nil of others.
func (p *planner) keyspace(id state.KeyspaceID) *settings {
	k, ok := p.keyspaces[id]
	if !ok {
		if record := p.State.Keyspace(id); assigned(record) {
			k = settingsOf(record)
			if brought, ok := p.Policies[id]; ok {
				k.policy = brought
			}
			k.policy.Settle = p.settle(k)
		}
		p.keyspaces[id] = k
	}
	return k
}

func assigned(k *rootv1.Keyspace) bool {
	return k.GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED
}

func settingsOf(record *rootv1.Keyspace) *settings {
	s := record.GetSettings()
	m := s.GetMoves()
	k := &settings{
		id: state.KeyspaceID(record.GetId()), name: record.GetName(), fence: liveness.FenceOf(record),
		maxOwners:  int(cmp.Or(s.GetOwnership().GetMaxOwners(), 1)),
		prepareMax: time.Duration(cmp.Or(m.GetPrepareMaxMillis(), 10_000)) * time.Millisecond,
		deadline:   time.Duration(cmp.Or(m.GetDeadlineMillis(), 60_000)) * time.Millisecond,
		inFlight:   int(min(cmp.Or(m.GetInFlight(), 16), maxInFlight)),
		interval:   time.Duration(cmp.Or(s.GetLiveness().GetIntervalMillis(), 1000)) * time.Millisecond,
		strategy:   s.GetPolicy().GetStrategy(),
		vnodes:     int(cmp.Or(s.GetPolicy().GetRingVnodes(), 128)),
	}
	k.policy = policyOf(s, k)
	return k
}

// policyOf is what the settings of a keyspace say of how it is evened out: by count, as
// these are numbers of regions.
func policyOf(s *rootv1.KeyspaceSettings, k *settings) balance.Policy {
	r := s.GetPolicy().GetRebalance()
	p := balance.Policy{
		Even: r != nil, Relative: r.GetMeanPermille(), Absolute: bounded(r.GetAbsoluteLimit()), Gap: r.GetMinGap(), MostMoves: bounded(r.GetMaxMoves()),
		Cooldown:  time.Duration(r.GetCooldownMillis()) * time.Millisecond,
		PerMember: bounded(s.GetLimits().GetMaxRegionsPerMember()), InFlight: k.inFlight, OwnersMax: k.maxOwners,
		Ranges: s.GetLayout().GetRanges() != nil && k.maxOwners == 1,
	}
	for _, rule := range s.GetPolicy().GetLabelRules() {
		p.Rules = append(p.Rules, balance.Rule{Prefix: string(rule.GetKeyPrefix()), Labels: rule.GetLabels()})
	}
	return p
}

// bounded is a number of a setting; what is more than all regions there may be is any.
func bounded(n uint64) int { return int(min(n, 1<<31)) }

// maxInFlight bounds the moves under way from one member, and to one.
const maxInFlight = 4096

func (k *settings) shared() bool { return k.maxOwners > 1 }
