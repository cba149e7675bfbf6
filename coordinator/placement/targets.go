package placement

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Accepts reports whether a member takes regions of a keyspace, and may by the grants.
func Accepts(st *state.State, m *rootv1.Member, keyspace string) bool {
	return (len(m.GetKeyspaces()) == 0 || slices.Contains(m.GetKeyspaces(), keyspace)) && st.Hosts(state.MemberID(m.GetId()), keyspace)
}

// targets are the members that take regions of one keyspace, coldest first, and the
// strategy that proposes one of them.
type targets struct {
	field *balance.Field
	// fit: see candidatesOf.
	fit bool
	// candidates by the number of their seats, and as strategies see them: the one that was
	// brought, and the settings' one; nil: the coldest one is meant.
	candidates        []*known
	brought, strategy propose.Strategy
	seen              []propose.Candidate
	assigned          int
	// pending is what regions weigh that this plan is to give: fair parts do not have it.
	pending load.Amount
	// joiners are those of candidates that are let be because they joined, once found.
	joiners []int
	found   bool
}

// onTrial reports whether all that a member has is a region in quarantine: it gets nothing
// else that anybody else may have.
func (p *planner) onTrial(id state.MemberID) (alone bool) {
	if p.trials[id] {
		return true
	}
	if p.Insight != nil && p.State.MemberRegionCount(id) == 1 {
		p.State.MemberRegionsAfter(id, 0, func(r *state.Region) bool {
			alone = p.quarantined(r.ID)
			return false
		})
	}
	return alone
}

// candidatesOf are those that take regions of a keyspace. One that failed too often, that has a
// region on trial, or that fails to acquire what it has, is better than nobody: what failed with it
// was served in between. Then they are not fit.
func (p *planner) candidatesOf(k *settings) (all []*known, fit bool) {
	var unfit, spare []*known
	everyone := p.everyone()
	for i := range everyone {
		switch m := &everyone[i]; {
		case !m.Takes && !m.spare || !Accepts(p.State, m.record, k.name):
		case m.spare:
			spare = append(spare, m)
		case p.unfit(k, m.ID, m.Incarnation):
			unfit = append(unfit, m)
		default:
			all = append(all, m)
		}
	}
	if len(all) > 0 {
		return all, true
	}
	return append(unfit, spare...), false
}

// unfit reports whether a member gets nothing of a keyspace that anybody else may have. One on
// probation has had its one region when something is on its way to it.
func (p *planner) unfit(k *settings, id state.MemberID, incarnation uint64) bool {
	o := state.Owner{Member: id, Incarnation: incarnation}
	return p.Observed.Unfit(o, k.id) || p.Observed.Probation(o, k.id) && p.Moves.takesIn(id, k.id)+p.Busy.in(id, k.id) > 0
}

func (p *planner) targetsOf(k *settings) *targets {
	t := p.targets[k.id]
	if t != nil {
		return t
	}
	t = &targets{}
	p.targets[k.id] = t
	t.candidates, t.fit = p.candidatesOf(k)
	slices.SortFunc(t.candidates, func(a, b *known) int { return cmp.Compare(a.ID, b.ID) })
	policy, s := k.policy, (*weighed)(nil)
	if p.byLoad(k) {
		if s = p.scale(k); s.ByCount {
			policy.By = balance.Count
		}
	}
	members := make([]balance.Member, len(t.candidates))
	for i, c := range t.candidates {
		members[i] = c.Member
		members[i].Takes = true
		p.weighs(k, c, &members[i])
	}
	t.field = balance.NewField(k.id, policy, members)
	for i, c := range t.candidates {
		count := p.State.MemberKeyspaceRegionCount(c.ID, k.id) + p.Moves.takesIn(c.ID, k.id) + p.Busy.in(c.ID, k.id) + p.claims.booked(c.ID)
		has, beyond := load.Same(load.One*load.Amount(count)), load.Amount(0)
		if s != nil {
			if has, beyond = s.has[c.ID], s.beyond[c.ID]; !s.ByCount {
				beyond = beyond.Plus(s.Beyond(members[i].Other))
			}
		} else if said, known := p.claims.said(c.ID); known {
			has = load.Same(said)
		}
		t.field.Has(c.ID, has, beyond, count)
	}
	t.field.Open(nil)
	p.strategy(k, t)
	return t
}

// byLoad reports whether loads count in a keyspace: they are wanted, and there are any.
func (p *planner) byLoad(k *settings) bool { return p.Loads != nil && k.policy.By != balance.Count }

// mostPart is how many of 1,000 of its fair part a member may have that a strategy
// proposes: beyond, the coldest one is taken.
const mostPart = 1250

// strategy makes the one of a keyspace's settings, beside what was brought.
func (p *planner) strategy(k *settings, t *targets) {
	t.brought = p.Strategies[k.id]
	ring := false
	switch k.strategy {
	case rootv1.Strategy_STRATEGY_ROUND_ROBIN:
		t.strategy = propose.RoundRobin{}
	case rootv1.Strategy_STRATEGY_RANDOM:
		t.strategy = propose.Random{}
	case rootv1.Strategy_STRATEGY_TWO_CHOICES:
		t.strategy = propose.TwoChoices{}
	case rootv1.Strategy_STRATEGY_RING:
		ring = true
	}
	if t.brought == nil && t.strategy == nil && !ring {
		return // the coldest is the least loaded, and keeps it balanced
	}
	t.assigned = p.State.KeyspaceRegionCount(k.id) - p.State.KeyspaceOrphaned(k.id) + p.Busy.first(k.id)
	for i, c := range t.candidates {
		t.seen = append(t.seen, propose.Candidate{
			ID: c.ID, Labels: c.Labels, Capacity: max(c.Capacity, 1), Load: t.field.Seat(i).High,
		})
	}
	if ring {
		if t.strategy = p.claims.ring(k, t.seen); t.strategy == nil {
			t.strategy = propose.NewRing(k.id, t.seen, k.vnodes)
		}
	}
}

// propose is who the strategy that was brought says, else the settings' one; -1: nobody. A
// reason says why the first was not taken, and named whom it said.
func (t *targets) propose(r *state.Region, owners []state.Owner, w load.Amount) (i int, named state.MemberID, why Why) {
	if len(t.seen) == 0 {
		return -1, "", 0
	}
	if t.brought != nil {
		if i, named, why = t.named(t.brought, r, owners, w); i >= 0 {
			return i, named, why
		}
	}
	if t.strategy == nil {
		return -1, named, why
	}
	i, _, _ = t.named(t.strategy, r, owners, w)
	return i, named, why
}

// named is who a strategy says, if that member may take the region, and would not have much
// more than its part.
func (t *targets) named(s propose.Strategy, r *state.Region, owners []state.Owner, w load.Amount) (int, state.MemberID, Why) {
	may := func(i int) bool { return t.field.May(i, r.Start, owners) }
	i, ok := s.Propose(&propose.Question{
		Keyspace: r.Keyspace, Region: r.ID, Key: r.Start, Load: w, Nth: t.assigned, Candidates: t.seen, Allowed: may, Room: t.room,
	})
	switch {
	case !ok:
		return -1, "", 0
	case i < 0 || i >= len(t.seen):
		return -1, "", NamedNobody
	case !may(i):
		return -1, t.candidates[i].ID, NamedUnfit
	case t.seen[i].Load.Plus(w) > max(t.room(i, mostPart), w):
		return -1, t.candidates[i].ID, NamedFull
	}
	return i, t.candidates[i].ID, 0
}

// room is so many of 1,000 of a member's fair part, when everything has been given.
func (t *targets) room(i int, permille uint64) load.Amount {
	return t.field.FairWith(t.pending, i, permille)
}

// expect has strategies reckon with regions that are about to be given: of a new keyspace
// nobody has any part yet. What orphans weigh only one that is brought reckons with: others
// even out what one that failed had.
func (p *planner) expect(k *settings, regions []homeless) {
	t := p.targetsOf(k)
	if t.seen == nil {
		return
	}
	for _, h := range regions {
		if len(h.keep) == 0 && (t.brought != nil || h.reason == rootv1.OperationReason_OPERATION_REASON_FIRST_TOUCH) {
			t.pending = t.pending.Plus(p.weight(k, h.region, 1).High)
		}
	}
}

// awaits reports whether a region waits for what somebody is asked about it. Nobody is asked
// where the answer would be of no use.
func (p *planner) awaits(k *settings, h homeless) bool {
	asker, ok := p.Strategies[k.id].(Asker)
	if !ok || asker.Answered(h.region.ID, h.region.Epoch) || p.quarantined(h.region.ID) {
		return false
	}
	t := p.targetsOf(k)
	if t.field.Coldest(h.region.Start, nil, 0, nil) < 0 {
		return false
	}
	if p.plan.Asked == nil {
		p.plan.Asked = map[state.KeyspaceID]*Asked{}
	}
	a := p.plan.Asked[k.id]
	if a == nil {
		a = &Asked{Candidates: t.seen}
		p.plan.Asked[k.id] = a
	}
	a.Regions = append(a.Regions, Awaiting{h.region, p.weight(k, h.region, 1).High, h.reason})
	return true
}

// target takes a member that does not own a region: the one that had it and came back, who
// is proposed for it, else the one with least that has room. A move goes to no member to which too many are under way. Without one it
// says why.
func (p *planner) target(k *settings, r *state.Region, back int, move bool, inFlight int) (*known, Why) {
	t := p.targetsOf(k)
	var why Why
	owners, alone := r.Owners, p.quarantined(r.ID)
	if !move { // the root moves nothing to another incarnation of an owner, but grants it
		owners = slices.DeleteFunc(slices.Clone(owners), func(o state.Owner) bool { return !p.alive(o) })
	}
	shares := len(owners)
	if !move {
		shares++ // it becomes one of them
	}
	weight, i := p.weight(k, r, shares), back
	w := weight.High
	switch {
	case alone: // with who has nothing else, whoever had it or is proposed
		i = -1
	case i >= 0: // its own again
	case move:
		i = p.joiner(k, t, r, owners, inFlight)
	default:
		var unfit Why
		var named state.MemberID
		if i, named, unfit = t.propose(r, owners, w); unfit != 0 {
			p.refuse(Refusal{Region: r.ID, Keyspace: r.Keyspace, Member: named, Why: unfit})
		}
	}
	if i < 0 {
		i = t.field.Coldest(r.Start, owners, w, func(s *balance.Seat) bool {
			if busy := move && p.taking(s.ID) >= inFlight; busy {
				why = TooManyMoves
				return true
			}
			return alone && s.Regions > 0
		})
	}
	if i < 0 {
		switch {
		case alone:
			why = PoisonSuspected
		case why == 0:
			why = whyOf[t.field.Untaken(r.Start, owners)]
		}
		return nil, why
	}
	t.field.Book(i, weight, 1)
	if alone {
		p.trials[t.candidates[i].ID] = true
	}
	if alone || t.fit && p.Observed.Probation(t.candidates[i].owner(), k.id) { // it is better than nobody
		t.field.Bar(i)
	}
	if t.seen != nil {
		t.seen[i].Load = t.seen[i].Load.Plus(w)
		t.assigned++
	}
	t.candidates[i].Regions++
	return t.candidates[i], 0
}

// weight is what a region counts for on each of so many owners.
func (p *planner) weight(k *settings, r *state.Region, owners int) load.Pair {
	if !p.byLoad(k) {
		return load.Same(load.One)
	}
	scale := p.scale(k)
	w, known := p.loadOf(r)
	return scale.Weight(w, known, owners)
}

// joiner is the newest member that is let be because it joined, and has less than its
// part: what is to leave another one goes there; -1: there is none.
func (p *planner) joiner(k *settings, t *targets, r *state.Region, owners []state.Owner, inFlight int) int {
	best := -1
	if !t.found {
		t.found = true
		for i, c := range t.candidates {
			if c.Joined != 0 && p.Now < c.Joined.Add(p.settle(k)) {
				t.joiners = append(t.joiners, i)
			}
		}
	}
	for _, i := range t.joiners {
		c := t.candidates[i]
		if t.field.Seat(i).High >= t.field.Fair(i, 1000) {
			continue
		}
		if p.taking(c.ID) < inFlight && t.field.May(i, r.Start, owners) &&
			(best < 0 || c.Incarnation > t.candidates[best].Incarnation) {
			best = i
		}
	}
	return best
}
