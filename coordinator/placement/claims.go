package placement

import (
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Claims says who gets the regions of one keyspace that are made because somebody asked
// for their keys. It is made of a state, which costs something for each member, and then
// goes on from what it gave itself. It is for one goroutine.
type Claims struct {
	p       *planner
	k       *settings
	t       *targets
	waiting map[state.MemberID]int
	loads   map[state.MemberID]load.Amount
	old     *Claims
}

// NewClaims begins at the State and Observed of an Input; nil: the keyspace is not there or
// not assigned. waiting are regions by member that were given and are not in the state.
// said is what a member has said of its load as a whole. old is what was made for the
// keyspace before, or nil: what it took long to make is used again.
func NewClaims(in Input, ks state.KeyspaceID, waiting map[state.MemberID]int, said func(*rootv1.Member) (float64, bool), old *Claims) *Claims {
	if in.Moves == nil {
		in.Moves = newMoves()
	}
	c := &Claims{p: newPlanner(in), waiting: waiting, old: old}
	c.p.claims = c
	if c.k = c.p.keyspace(ks); c.k == nil {
		return nil
	}
	if c.k.policy.By != 0 {
		c.weigh(said)
	}
	c.t = c.p.targetsOf(c.k)
	c.old = nil // one is enough
	return c
}

// weigh expresses the load of members in regions of the mean load, so that a new one, of
// which nobody knows what it brings, counts for one. Without loads regions are counted.
func (c *Claims) weigh(said func(*rootv1.Member) (float64, bool)) {
	loads, sum, regions := map[state.MemberID]float64{}, 0.0, 0
	candidates, _ := c.p.candidatesOf(c.k)
	for _, m := range candidates {
		if x, known := said(m.record); known {
			loads[m.ID] = x
			sum += x
			regions += c.p.State.MemberRegionCount(m.ID)
		}
	}
	if sum <= 0 || regions == 0 {
		return
	}
	c.loads = make(map[state.MemberID]load.Amount, len(loads))
	for id, x := range loads {
		share := x / sum * float64(regions)
		c.loads[id] = load.One*load.Amount(c.waiting[id]) + load.Amount(min(share, maxShare)*float64(load.One))
	}
}

// maxShare bounds what a member's load counts for, in regions.
const maxShare = 1 << 24

// Take gives the region of a key to a member. It says why nobody gets it otherwise.
func (c *Claims) Take(key string) (state.Owner, Why) {
	r := &state.Region{Region: rooted.Region{ID: state.RegionID(propose.Hash(c.k.id, 0, state.MemberID(key))), Keyspace: c.k.id, Start: key}}
	c.t.pending = c.t.pending.Plus(c.p.weight(c.k, r, 1).High)
	to, why := c.p.target(c.k, r, -1, false, 0)
	c.p.plan.Refusals = c.p.plan.Refusals[:0] // nobody reads why a strategy was passed over
	if to == nil {
		return state.Owner{}, why
	}
	return to.owner(), 0
}

// Candidates are the members as strategies see them, for whom a strategy is brought. They are
// a copy.
func (c *Claims) Candidates() []propose.Candidate { return slices.Clone(c.t.seen) }

func (c *Claims) booked(id state.MemberID) int {
	if c == nil {
		return 0
	}
	return c.waiting[id]
}

func (c *Claims) said(id state.MemberID) (load.Amount, bool) {
	if c == nil {
		return 0, false
	}
	x, known := c.loads[id]
	return x, known
}

// ring is the one that was made before, if it is of the same members.
func (c *Claims) ring(k *settings, seen []propose.Candidate) propose.Strategy {
	if c == nil || c.old == nil || c.old.k.vnodes != k.vnodes {
		return nil
	}
	ring, ok := c.old.t.strategy.(*propose.Ring)
	if !ok || !slices.EqualFunc(c.old.t.seen, seen, func(a, b propose.Candidate) bool { return a.ID == b.ID }) {
		return nil
	}
	return ring
}
