package spread

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

// cluster is members with regions, each with one owner.
type cluster struct {
	keyspace state.KeyspaceID
	members  []balance.Member
	regions  []balance.Region
	loads    []load.Amount
	total    load.Amount
	byID     map[state.MemberID]load.Amount
	// moved is what was moved since it was 0.
	moved  load.Amount
	now    clock.Instant
	budget balance.Budget
	joined int
}

func newCluster(ks state.KeyspaceID, members int, loads []load.Amount) *cluster {
	c := &cluster{keyspace: ks, loads: loads, byID: map[state.MemberID]load.Amount{}, now: clock.Instant(24 * time.Hour)}
	for range members {
		c.join(0)
	}
	c.regions = make([]balance.Region, len(loads))
	for i := range c.regions {
		c.regions[i] = balance.Region{
			ID: state.RegionID(i + 1), Epoch: state.Epoch{Version: 1, ConfVersion: 1}, Start: fmt.Sprintf("%08d", i), Load: load.Same(loads[i]), Known: true,
		}
		c.total += loads[i]
	}
	return c
}

func (c *cluster) join(at clock.Instant) {
	c.joined++
	c.members = append(c.members, balance.Member{ID: state.MemberID(fmt.Sprintf("m%06d", c.joined)), Incarnation: uint64(c.joined), Takes: true, Joined: at})
}

// give makes a member the owner of a region.
func (c *cluster) give(region int, to state.MemberID) {
	r := &c.regions[region]
	if len(r.Owners) > 0 {
		if r.Owners[0].Member == to {
			return
		}
		c.byID[r.Owners[0].Member] -= c.loads[region]
		c.moved += c.loads[region]
	}
	r.Owners = []state.Owner{{Member: to, Incarnation: 1}}
	c.byID[to] += c.loads[region]
}

func (c *cluster) imbalance() float64 {
	most := load.Amount(0)
	for i := range c.members {
		most = max(most, c.byID[c.members[i].ID])
	}
	return float64(most) * float64(len(c.members)) / float64(c.total)
}

// placer gives regions to members: at first, and when the members are others.
type placer interface {
	first(c *cluster)
	again(c *cluster)
}

// measure has a placer place everything, and then has a member join, and another one leave.
func (c *cluster) measure(p placer) (row Row) {
	p.first(c)
	c.moved = 0
	row.Least = max(float64(slices.Max(c.loads))*float64(len(c.members))/float64(c.total), 1)
	p.again(c)
	row.Imbalance, row.Evened = c.imbalance(), float64(c.moved)/float64(c.total)

	c.moved, c.now = 0, c.now.Add(24*time.Hour)
	c.join(c.now)
	p.again(c)
	row.JoinMoved = float64(c.moved) * float64(len(c.members)) / float64(c.total)
	row.JoinImbalance = c.imbalance()

	c.moved, c.now = 0, c.now.Add(24*time.Hour)
	c.members[len(c.members)-1].Joined = 0
	gone := len(c.members) / 2
	least := c.byID[c.members[gone].ID]
	c.members = slices.Delete(c.members, gone, gone+1)
	p.again(c)
	row.LeaveMoved = float64(c.moved) / float64(max(least, 1))
	row.LeaveImbalance = c.imbalance()
	return row
}

func (c Config) placer(strategy string) placer {
	switch strategy {
	case Ring:
		return ring{c.Points, 0}
	case Bounded:
		return ring{c.Points, c.Bound}
	default:
		return balanced{}
	}
}

// ring names the owner of each region anew, as those do that root no owners.
type ring struct {
	points int
	bound  uint64
}

func (p ring) first(c *cluster) { p.again(c) }

func (p ring) again(c *cluster) {
	seen := make([]propose.Candidate, len(c.members))
	for i := range c.members {
		seen[i] = propose.Candidate{ID: c.members[i].ID, Capacity: 1}
	}
	r := propose.NewRing(c.keyspace, seen, p.points)
	if p.bound > 0 {
		r = r.Bounded(p.bound)
	}
	q := propose.Question{
		Keyspace: c.keyspace, Candidates: seen, Allowed: func(int) bool { return true },
		Room: func(_ int, permille uint64) load.Amount { return c.total.Share(permille, 1000*uint64(len(seen))) },
	}
	for i := range c.regions {
		q.Region, q.Load = c.regions[i].ID, c.loads[i]
		at, ok := r.Propose(&q)
		if !ok { // it is more than anybody has room for
			at, _ = propose.LeastLoaded{}.Propose(&q)
		}
		seen[at].Load += c.loads[i]
		c.give(i, seen[at].ID)
	}
}

// balanced is the planner with its usual budgets: regions go to the coldest while nothing
// is known of their loads, those without an owner hottest first, and rounds even out.
type balanced struct{}

// interval is between two rounds; evenFor bounds how long there are any.
const (
	interval = 30 * time.Second
	evenFor  = 12 * time.Hour
)

var evenLoads = balance.Policy{By: balance.Load, Even: true, Relative: 1200}

func (balanced) first(c *cluster) {
	f := balance.NewField(c.keyspace, evenLoads, c.members)
	f.Open(nil)
	for i := range c.regions {
		at := f.Coldest(c.regions[i].Start, nil, 0, nil)
		f.Book(at, load.Same(load.One), 1)
		c.give(i, f.Seat(at).ID)
	}
}

func (p balanced) again(c *cluster) {
	p.house(c)
	for until := c.now.Add(evenFor); c.now < until; c.now = c.now.Add(interval) {
		out := balance.Make(balance.Input{Keyspace: c.keyspace, Policy: evenLoads, Members: c.members, Regions: c.regions, Budget: c.budget, Now: c.now})
		c.budget = out.Budget
		for i := range out.Steps {
			c.give(int(out.Steps[i].Region-1), out.Steps[i].To)
		}
		if len(out.Steps) == 0 && !slices.ContainsFunc(out.Refusals, waits) {
			return
		}
	}
}

// waits reports whether time alone allows what was refused.
func waits(f balance.Refusal) bool {
	return f.Why == balance.BudgetSpent || f.Why == balance.Resting || f.Why == balance.CoolingDown || f.Why == balance.Joined || f.Why == balance.TooManyMoves
}

// house gives away what belongs to nobody who is there.
func (balanced) house(c *cluster) {
	f := balance.NewField(c.keyspace, evenLoads, c.members)
	there := map[state.MemberID]bool{}
	for i := range c.members {
		id := c.members[i].ID
		there[id] = true
		f.Has(id, load.Same(c.byID[id]), 0, 0)
	}
	f.Open(nil)
	var homeless []int
	for i := range c.regions {
		if !there[c.regions[i].Owners[0].Member] {
			homeless = append(homeless, i)
		}
	}
	slices.SortFunc(homeless, func(a, b int) int { return cmp.Or(cmp.Compare(c.loads[b], c.loads[a]), cmp.Compare(a, b)) })
	for _, i := range homeless {
		at := f.Coldest(c.regions[i].Start, nil, 0, nil)
		f.Book(at, load.Same(c.loads[i]), 1)
		c.give(i, f.Seat(at).ID)
	}
}
