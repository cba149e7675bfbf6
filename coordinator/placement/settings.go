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
	// maxAge is how old what a member says of its load may be.
	maxAge   time.Duration
	strategy rootv1.Strategy
	vnodes   int
	policy   balance.Policy
	// hold is how long regions wait for the next process of their owner, first how many members
	// the first plan waits for.
	hold  time.Duration
	first int
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
	m := state.MovesOf(s)
	k := &settings{
		id: state.KeyspaceID(record.GetId()), name: record.GetName(), fence: liveness.FenceOf(record),
		maxOwners:  int(cmp.Or(s.GetOwnership().GetMaxOwners(), 1)),
		prepareMax: millis(m.GetPrepareMaxMillis()),
		deadline:   millis(m.GetDeadlineMillis()),
		inFlight:   int(min(m.GetInFlight(), maxInFlight)),
		strategy:   s.GetPolicy().GetStrategy(),
		vnodes:     int(cmp.Or(s.GetPolicy().GetRingVnodes(), state.DefaultRingVnodes)),
	}
	if k.strategy == rootv1.Strategy_STRATEGY_HOOK {
		k.strategy = s.GetPolicy().GetHookFallback()
	}
	k.policy = PolicyOf(s)
	start := state.StartOf(s)
	k.hold, k.first = millis(start.GetHoldMillis()), bounded(start.GetMembers())
	r := s.GetPolicy().GetRebalance()
	k.maxAge = max(3*millis(state.LivenessOf(s).GetIntervalMillis()), millis(cmp.Or(r.GetLoadMaxAgeMillis(), state.DefaultLoadMaxAgeMillis)))
	return k
}

func millis(n uint64) time.Duration { return time.Duration(n) * time.Millisecond }

// PolicyOf is what the settings of an assigned keyspace say of how it is evened out. A
// round of moves has the time until the next look, at least.
func PolicyOf(s *rootv1.KeyspaceSettings) balance.Policy {
	owners := int(cmp.Or(s.GetOwnership().GetMaxOwners(), 1))
	p := balance.Policy{
		PerMember: bounded(s.GetLimits().GetMaxRegionsPerMember()), OwnersMax: owners, OwnersMin: int(s.GetOwnership().GetMinOwners()),
		InFlight: int(min(state.MovesOf(s).GetInFlight(), maxInFlight)), Spread: s.GetPolicy().GetSpread(),
		MaxKeys: s.GetLimits().GetMaxKeysPerRegion(), CutKeys: s.GetLimits().GetRefuseKeys(),
	}
	if r := state.RebalanceOf(s); r != nil {
		p.Even, p.By = true, by[r.GetBy()]
		p.Absolute, p.Gap, p.MostMoves = bounded(r.GetAbsoluteLimit()), r.GetMinGap(), bounded(r.GetMaxMoves())
		if p.Relative = r.GetMeanPermille(); p.Relative > 0 {
			p.Relative = max(p.Relative, 1000) // nobody can have less than all have on average
		}
		p.Cooldown = max(millis(r.GetCooldownMillis()), millis(r.GetIntervalMillis()))
		p.Spacing, p.Backoff, p.Settle = millis(r.GetSpacingMillis()), millis(r.GetBackoffMillis()), millis(r.GetSettleMillis())
		p.InFlight = int(min(r.GetInFlight(), maxInFlight))
		p.Round, p.Hour, p.Reserve = r.GetRoundPermille(), r.GetHourPermille(), r.GetReservePermille()
		p.Ranges = r.GetReshape() && s.GetLayout().GetRanges() != nil && owners == 1
		p.Quiet, p.Cut = millis(r.GetQuietMillis()), millis(r.GetCutMillis())
	}
	for _, rule := range s.GetPolicy().GetLabelRules() {
		p.Rules = append(p.Rules, balance.Rule{Prefix: string(rule.GetKeyPrefix()), Labels: rule.GetLabels()})
	}
	return p
}

var by = map[rootv1.BalanceBy]balance.By{
	rootv1.BalanceBy_BALANCE_BY_COUNT: balance.Count, rootv1.BalanceBy_BALANCE_BY_LOAD: balance.Load, rootv1.BalanceBy_BALANCE_BY_BOTH: balance.Both,
}

// bounded is a number of a setting; what is more than all regions there may be is any.
func bounded(n uint64) int { return int(min(n, 1<<31)) }

// maxInFlight bounds the moves under way from one member, and to one.
const maxInFlight = 4096

func (k *settings) shared() bool { return k.maxOwners > 1 }
