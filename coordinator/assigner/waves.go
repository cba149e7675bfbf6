package assigner

import (
	"maps"
	"math"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/meta/root/state"
)

// outlook is what comes behind a plan.
type outlook struct {
	waves, changes, imbalance uint64
}

// outlooks are what comes behind a plan for keyspaces: where as many moves are under way as
// may be, or as much was moved, the plan is made once more as if anything might be.
func (s *survey) outlooks(ids []state.KeyspaceID, plan *placement.Plan, most int) map[state.KeyspaceID]outlook {
	outlooks := make(map[state.KeyspaceID]outlook, len(ids))
	for id, out := range plan.Balanced {
		outlooks[id] = outlook{imbalance: out.Imbalance}
	}
	s.wavesOf(plan, most, outlooks)
	policies := maps.Clone(s.policies)
	var crowded []state.KeyspaceID
	for _, id := range ids {
		if p := policies[id]; waitsForMoves(plan, id) || most > 0 && outlooks[id].changes > 0 {
			p.InFlight, p.Round, p.Hour, p.MostMoves = math.MaxInt32, anyPart, anyPart, 0
			policies[id] = p
			crowded = append(crowded, id)
		}
	}
	if len(crowded) == 0 {
		return outlooks
	}
	all := s.planWith(crowded, policies, 0)
	for _, id := range crowded {
		outlooks[id] = outlook{imbalance: all.Balanced[id].Imbalance}
	}
	s.wavesOf(&all, most, outlooks)
	return outlooks
}

// anyPart is how many of 1,000 are moved in a round and in an hour if that is not bounded.
const anyPart = 1 << 32

// waitsForMoves reports whether something waits for moves that are under way, or were made.
func waitsForMoves(plan *placement.Plan, id state.KeyspaceID) bool {
	for i := range plan.Refusals {
		if f := &plan.Refusals[i]; f.Keyspace == id && f.Even && (f.Why == placement.TooManyMoves || f.Why == placement.BudgetSpent) {
			return true
		}
	}
	return false
}

// wavesOf counts the changes of a plan, and in how many waves they go: by who gives or gets
// most of them.
func (s *survey) wavesOf(plan *placement.Plan, most int, outlooks map[state.KeyspaceID]outlook) {
	type share struct {
		keyspace state.KeyspaceID
		member   state.MemberID
		gives    bool
	}
	shares := map[share]uint64{}
	for i := range plan.Operations {
		o := &plan.Operations[i]
		x := outlooks[o.Keyspace]
		x.changes++
		x.waves = max(x.waves, 1)
		if o.Even && o.From.Member != "" {
			shares[share{o.Keyspace, o.From.Member, true}]++
		}
		if o.Even && o.To.Member != "" {
			shares[share{o.Keyspace, o.To.Member, false}]++
		}
		outlooks[o.Keyspace] = x
	}
	for of, n := range shares {
		x := outlooks[of.keyspace]
		x.waves = max(x.waves, parts(n, uint64(s.policies[of.keyspace].InFlight)))
		outlooks[of.keyspace] = x
	}
	for id, x := range outlooks {
		if most > 0 {
			x.waves = max(x.waves, parts(x.changes, uint64(most)))
			outlooks[id] = x
		}
	}
}

// parts is how many parts of a size there are in n.
func parts(n, size uint64) uint64 {
	if size == 0 {
		return 1
	}
	return (n + size - 1) / size
}
