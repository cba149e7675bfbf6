package placement

import (
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Insight is what is known of members and regions beside what Observed has to know.
type Insight interface {
	Member(id state.MemberID) MemberInsight
	Region(id state.RegionID) RegionInsight
}

// MemberInsight is what is known of a member.
type MemberInsight struct {
	// Joined is when it registered, if that was lately. RestsUntil is when something may be
	// moved to it again, to even out: it recovered.
	Joined, RestsUntil clock.Instant
	// Ended is the incarnation whose process ended last, and EndedAt when it was heard
	// last; 0: it is not known, or was long ago.
	Ended   uint64
	EndedAt clock.Instant
}

// RegionInsight is what is known of a region.
type RegionInsight struct {
	// Saturated: an owner says so. CoolSince is since when the region is cold and none
	// does, CutAt when it was cut; 0: it is not, or not lately.
	Saturated        bool
	CoolSince, CutAt clock.Instant
	// Quarantined: see Poison.
	Quarantined bool
	// Median is the key below which half of the load is, HotKey the one with most of it,
	// and HotPermille its part.
	Median, HotKey string
	HotPermille    uint64
	// Keys in it, where their number is limited; 0: not told.
	Keys uint64
}

// rebalance evens keyspaces out.
func (p *planner) rebalance() {
	steps := 0
	for _, id := range sorted(p.Rebalance) {
		k := p.keyspace(id)
		if k == nil || p.Most > 0 && steps >= p.Most {
			continue
		}
		members, held := p.members(k)
		if held {
			p.refuse(Refusal{Keyspace: id, Why: MassFailureHold, Even: true})
			continue
		}
		regions := p.regions(k)
		out := balance.Make(balance.Input{
			Keyspace: id, Policy: k.policy, Members: members, Regions: regions, Budget: p.Budgets[id], Now: p.Now, Most: max(p.Most-steps, 0),
			Young: p.Created[id] != 0 && p.Now.Sub(p.Created[id]) < time.Hour,
		})
		p.overKeys(k, regions, out.Steps)
		steps += len(out.Steps)
		if p.plan.Balanced == nil {
			p.plan.Balanced = map[state.KeyspaceID]balance.Result{}
		}
		p.plan.Balanced[id] = out
		for i := range out.Steps {
			p.carryOut(k, &out.Steps[i])
		}
		for _, f := range out.Refusals {
			p.refuse(Refusal{Region: f.Region, Keyspace: id, Member: f.Member, Regions: f.Regions, Why: whyOf[f.Why], Wants: f.Wants, At: f.At, Even: true})
		}
	}
}

// overKeys refuses regions with more keys than they may have, that nobody cuts.
func (p *planner) overKeys(k *settings, regions []balance.Region, steps []balance.Step) {
	if k.policy.MaxKeys == 0 || !k.policy.CutKeys {
		return
	}
	cut := map[state.RegionID]bool{}
	for i := range steps {
		cut[steps[i].Region] = steps[i].Kind == balance.Split
	}
	f := Refusal{Keyspace: k.id, Why: KeysOverLimit, Even: true}
	for i := range regions {
		x := &regions[i]
		if x.Keys <= k.policy.MaxKeys || x.Busy || cut[x.ID] {
			continue
		}
		if f.Regions++; f.Region == 0 {
			f.Region = x.ID
		}
	}
	if f.Regions > 0 {
		p.refuse(f)
	}
}

var whyOf = [...]Why{
	balance.NoMember: NoEligibleMember, balance.TooManyMoves: TooManyMoves, balance.HotRegionAlone: HotRegionAlone, balance.NoGain: NoGain,
	balance.LoadUnknown: LoadUnknown, balance.BudgetSpent: BudgetSpent, balance.Resting: Resting, balance.PoisonSuspected: PoisonSuspected,
	balance.MembersFull: MembersFull, balance.NoneMatches: NoneMatches, balance.NoOther: NoOther,
	balance.CoolingDown: CoolingDown, balance.Joined: Joined, balance.Recovered: Recovered,
	balance.NoRoom: NoRoom, balance.LittleLoad: LittleLoad,
}

// known is what a plan knows of a member, whatever the keyspace.
type known struct {
	record *rootv1.Member
	balance.Member
	// of is what is known of its load. spare: it gets what nobody else may have.
	of    load.Member
	spare bool
}

func (m *known) owner() state.Owner {
	return state.Owner{Member: m.ID, Incarnation: m.Incarnation}
}

// everyone are the members that the root has as active, by id, once looked up: keyspaces ask
// for them one after another.
func (p *planner) everyone() []known {
	if p.looked {
		return p.active
	}
	p.looked, p.hot = true, map[uint64]bool{}
	p.State.Members(func(m *rootv1.Member) bool {
		active := m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE
		if !active && m.GetState() != rootv1.MemberState_MEMBER_STATE_DRAINING {
			return true
		}
		x := known{record: m, Member: balance.Member{ID: state.MemberID(m.GetId()), Incarnation: m.GetIncarnation(), Capacity: m.GetCapacity(), Labels: m.GetLabels()}}
		if p.Loads != nil {
			if x.of = p.Loads.Member(x.Incarnation, p.Now); x.of.Capacity > 0 && x.of.Now > x.of.Capacity {
				p.hot[x.Incarnation] = true
			}
		}
		if !active {
			return true
		}
		trial := p.onTrial(x.ID)
		x.Takes, x.Regions = p.Observed.Takes(x.ID) && !trial, p.State.MemberRegionCount(x.ID)+p.Moves.Takes(x.ID)+p.Busy.all(x.ID)
		x.spare = !x.Takes && (trial || p.Observed.Damped(x.ID))
		if p.Insight != nil {
			in := p.Insight.Member(x.ID)
			x.Joined, x.RestsUntil = in.Joined, in.RestsUntil
		}
		p.active = append(p.active, x)
		return true
	})
	return p.active
}

// weighs says what a member can take, and has besides a keyspace that is by load.
func (p *planner) weighs(k *settings, m *known, x *balance.Member) {
	if p.byLoad(k) {
		x.Stale = m.of.Heard == 0 || p.Now.Sub(m.of.Heard) > k.maxAge
		x.Most, x.Other = m.of.Capacity, m.of.Rest.Plus(p.sums().elsewhere(x.ID, k.id))
	}
}

// members are those of a keyspace. They are held if most of them, that the root has as
// active, may not get anything: it is more likely that this coordinator is cut off.
func (p *planner) members(k *settings) (members []balance.Member, held bool) {
	missing, leaving := 0, 0
	all := p.everyone()
	members = make([]balance.Member, 0, len(all))
	for i := range all {
		m := &all[i]
		x := m.Member
		if !Accepts(p.State, m.record, k.name) {
			if p.State.MemberKeyspaceRegionCount(x.ID, k.id) > 0 {
				x.Gives, x.Leaves, x.Takes = p.under(x.ID), true, false
				members, leaving = append(members, x), leaving+1
			}
			continue
		}
		x.Gives, x.Gets = p.under(x.ID), p.taking(x.ID)
		x.Takes = x.Takes && !p.trials[x.ID]
		if !x.Takes {
			missing++
		}
		x.Takes = x.Takes && !p.unfit(k, x.ID, x.Incarnation)
		x.OneAtATime = p.Observed.Probation(state.Owner{Member: x.ID, Incarnation: x.Incarnation}, k.id)
		if p.Insight != nil {
			x.There = x.Joined <= p.Created[k.id]
		}
		p.weighs(k, m, &x)
		members = append(members, x)
	}
	return members, 2*missing > len(members)-leaving
}

// regions are those of a keyspace, until those of another one are asked for. One is busy
// that has a change under way, or an owner that may not act. everyone has been asked for.
func (p *planner) regions(k *settings) []balance.Region {
	regions, acting := slices.Grow(p.room[:0], p.State.KeyspaceRegionCount(k.id)), p.actors()
	p.State.RegionsFrom(k.id, "", func(r *state.Region) bool {
		x := balance.Region{ID: r.ID, Epoch: r.Epoch, Start: r.Start, End: r.End, Owners: r.Owners}
		x.Busy = p.Busy.Has(r.ID) || p.Attempts.RestsUntil(r) > p.Now
		_, done := p.begun[r.ID]
		x.Busy = x.Busy || done || p.State.PendingTransition(r.ID) != nil
		x.Owners, x.From, x.To = p.planned(r)
		x.Busy = x.Busy || x.From != "" // another one was added for it
		for _, o := range x.Owners {
			x.Busy = x.Busy || o.Incarnation == 0 || acting[o.Member] != o.Incarnation
		}
		if p.byLoad(k) {
			x.Load, x.Known = p.loadOf(r)
		}
		if p.Insight != nil {
			in := p.Insight.Region(r.ID)
			x.Saturated, x.CoolSince, x.CutAt, x.Quarantined = in.Saturated, in.CoolSince, in.CutAt, in.Quarantined
			x.Median, x.HotKey, x.HotPermille = in.Median, in.HotKey, in.HotPermille
			x.Keys = in.Keys
		}
		regions = append(regions, x)
		return true
	})
	p.room = regions
	return regions
}

// actors are the incarnations that may act, once looked up: rounds ask for each owner there is.
func (p *planner) actors() map[state.MemberID]uint64 {
	if p.acting == nil {
		p.acting = make(map[state.MemberID]uint64, p.State.MemberCount())
		p.State.Members(func(m *rootv1.Member) bool {
			if o := (state.Owner{Member: state.MemberID(m.GetId()), Incarnation: m.GetIncarnation()}); p.alive(o) {
				p.acting[o.Member] = o.Incarnation
			}
			return true
		})
	}
	return p.acting
}

// planned are the owners of a region, and who of them gives it and who gets it, by what is under
// way, on its way to the root, or begins with this plan.
func (p *planner) planned(r *state.Region) (owners []state.Owner, from, to state.MemberID) {
	owners = r.Owners
	if m, under := p.Moves.byRegion[r.ID]; under {
		from, to = m.from, m.to
	}
	if l, goes := p.Moves.leavers[r.ID]; goes {
		from = l.from.Member
	}
	o := p.Busy.of(r.ID)
	if n := p.begun[r.ID]; n > 0 {
		o = &p.plan.Operations[n-1]
	}
	if o == nil {
		return owners, from, to
	}
	switch o.Kind {
	case Assign:
		return o.Owners, "", ""
	case PlanMove, AddOwner, RemoveOwner:
		return owners, o.From.Member, o.To.Member
	}
	return owners, from, to
}

// carryOut makes an operation of a step.
func (p *planner) carryOut(k *settings, s *balance.Step) {
	r := p.State.Region(s.Region)
	o := Operation{Reason: s.Reason, Load: uint64(s.Load / (load.One / 1000)), Even: true}
	from, _ := r.Owner(s.From)
	to := state.Owner{Member: s.To, Incarnation: p.State.Member(s.To).GetIncarnation()}
	switch s.Kind {
	case balance.Move:
		o.Kind, o.From, o.To, o.PrepareMax, o.Deadline = PlanMove, from, to, k.prepareMax, k.deadline
		if k.oneMore(r) {
			o.Kind = AddOwner // from goes when it serves
		}
	case balance.Add:
		o.Kind, o.To = AddOwner, to
	case balance.Remove:
		o.Kind, o.From = RemoveOwner, from
	case balance.Split:
		o.Kind, o.Key = PlanSplit, s.Key
	case balance.Merge:
		o.Kind, o.Next, o.NextEpoch = PlanMerge, s.Next, rooted.Epoch(s.NextEpoch)
	}
	if o.From.Member != "" {
		p.gives[o.From.Member]++
	}
	if o.To.Member != "" {
		p.takes[o.To.Member]++
	}
	p.do(r, o)
}

// DrainSettle is how long a member that joined is let be where nothing is set, while others drain.
const DrainSettle = 10 * time.Second

// settle is how long a member that joined is let be: after a drain, for a little while,
// because the next one drains soon.
func (p *planner) settle(k *settings) time.Duration {
	if k.policy.Settle == 0 && p.Drained != 0 && p.Now.Sub(p.Drained) < 10*time.Minute {
		return DrainSettle
	}
	return k.policy.Settle
}

func (p *planner) quarantined(id state.RegionID) bool {
	return p.Insight != nil && p.Insight.Region(id).Quarantined
}
