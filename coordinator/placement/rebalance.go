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
	// most it can take, rest of its load that is no region's, and when that was heard.
	most  load.Amount
	rest  load.Pair
	heard clock.Instant
}

// everyone are the members that the root has as active, by id, once looked up: keyspaces ask
// for them one after another.
func (p *planner) everyone() []known {
	if p.acting != nil {
		return p.active
	}
	p.acting, p.hot = map[state.MemberID]uint64{}, map[uint64]bool{}
	p.State.Members(func(m *rootv1.Member) bool {
		id := state.MemberID(m.GetId())
		if !p.alive(state.Owner{Member: id, Incarnation: m.GetIncarnation()}) {
			return true
		}
		p.acting[id] = m.GetIncarnation()
		var b load.Member
		if p.Loads != nil {
			if b = p.Loads.Member(m.GetIncarnation(), p.Now); b.Capacity > 0 && b.Now > b.Capacity {
				p.hot[m.GetIncarnation()] = true
			}
		}
		if m.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE {
			return true
		}
		x := known{record: m, Member: balance.Member{
			ID: id, Incarnation: m.GetIncarnation(), Capacity: m.GetCapacity(), Labels: m.GetLabels(),
			Takes: p.Observed.Takes(id) && !p.onTrial(id), Regions: p.State.MemberRegionCount(id) + p.Busy.all(id),
		}}
		if p.Insight != nil {
			in := p.Insight.Member(id)
			x.Joined, x.RestsUntil = in.Joined, in.RestsUntil
		}
		x.most, x.rest, x.heard = b.Capacity, b.Rest, b.Heard
		p.active = append(p.active, x)
		return true
	})
	return p.active
}

// members are those of a keyspace. They are held if most of them, that the root has as
// active, may not get anything: it is more likely that this coordinator is cut off.
func (p *planner) members(k *settings) (members []balance.Member, held bool) {
	missing, leaving, byLoad := 0, 0, p.byLoad(k)
	var sums *Sums
	if byLoad {
		sums = p.sums()
	}
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
		if byLoad {
			x.Stale, x.Most, x.Other = p.tooOld(k, m.heard), m.most, m.rest.Plus(sums.elsewhere(x.ID, k.id))
		}
		members = append(members, x)
	}
	return members, 2*missing > len(members)-leaving
}

// Sums are the loads that members have by regions of each assigned keyspace, at a moment.
// They are added up by looking at every region there is, and so they are kept for a while:
// the longer, the more regions there are. The zero Sums are of no moment.
type Sums struct {
	until clock.Instant
	all   map[state.MemberID]load.Pair
	of    map[state.KeyspaceID]map[state.MemberID]load.Pair
}

// sumsFor is how long sums are kept, for each region in them.
const sumsFor = 20 * time.Microsecond

// sums are those of now, or of a while ago.
func (p *planner) sums() *Sums {
	if p.Sums == nil {
		p.Sums = &Sums{}
	}
	if p.Sums.of == nil || p.Now > p.Sums.until {
		p.sumUp(p.Sums)
	}
	return p.Sums
}

// elsewhere is the load that a member has of regions of assigned keyspaces, but for one's.
func (s *Sums) elsewhere(id state.MemberID, but state.KeyspaceID) load.Pair {
	return s.all[id].Minus(s.of[but][id])
}

func (p *planner) sumUp(s *Sums) {
	regions := 0
	s.all, s.of = map[state.MemberID]load.Pair{}, map[state.KeyspaceID]map[state.MemberID]load.Pair{}
	p.State.Keyspaces("", func(record *rootv1.Keyspace) bool {
		if !assigned(record) { // what is reported of others is no region's here
			return true
		}
		id, own := state.KeyspaceID(record.GetId()), map[state.MemberID]load.Pair{}
		p.addUp(id, own)
		for member, w := range own {
			s.all[member] = s.all[member].Plus(w)
		}
		s.of[id] = own
		regions += p.State.KeyspaceRegionCount(id)
		return true
	})
	s.until = p.Now.Add(sumsFor * time.Duration(regions))
}

// addUp adds what members have of a keyspace.
func (p *planner) addUp(id state.KeyspaceID, sums map[state.MemberID]load.Pair) {
	p.State.RegionsFrom(id, "", func(r *state.Region) bool {
		w, _ := p.Loads.Region(r.ID, p.Now)
		for _, o := range r.Owners {
			sums[o.Member] = sums[o.Member].Plus(w.Share(1, uint64(len(r.Owners))))
		}
		return true
	})
}

// stale reports whether a member has not been heard for so long that its load is not
// known.
func (p *planner) stale(k *settings, m *rootv1.Member) bool {
	return p.byLoad(k) && p.tooOld(k, p.Loads.Member(m.GetIncarnation(), p.Now).Heard)
}

func (p *planner) tooOld(k *settings, heard clock.Instant) bool {
	return heard == 0 || p.Now.Sub(heard) > k.maxAge
}

// regions are those of a keyspace, until those of another one are asked for. One is busy
// that has a change under way, or an owner that may not act. everyone has been asked for.
func (p *planner) regions(k *settings) []balance.Region {
	regions := slices.Grow(p.room[:0], p.State.KeyspaceRegionCount(k.id))
	p.State.RegionsFrom(k.id, "", func(r *state.Region) bool {
		x := balance.Region{ID: r.ID, Epoch: r.Epoch, Start: r.Start, End: r.End, Owners: r.Owners}
		x.Busy = p.Busy.Has(r.ID) || p.Attempts.RestsUntil(r) > p.Now
		_, done := p.begun[r.ID]
		x.Busy = x.Busy || done || p.State.PendingTransition(r.ID) != nil
		x.Owners, x.From, x.To = p.planned(r)
		for _, o := range x.Owners {
			x.Busy = x.Busy || o.Incarnation == 0 || p.acting[o.Member] != o.Incarnation
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

// planned are the owners of a region, and who of them gives it and who gets it, by what is under
// way, on its way to the root, or begins with this plan.
func (p *planner) planned(r *state.Region) (owners []state.Owner, from, to state.MemberID) {
	owners = r.Owners
	if m, under := p.Moves.byRegion[r.ID]; under {
		from, to = m.from, m.to
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

// loadOf is the load of a region: of one on a member above what it can take, the fast
// average alone. everyone has been asked for.
func (p *planner) loadOf(r *state.Region) (w load.Pair, known bool) {
	w, known = p.Loads.Region(r.ID, p.Now)
	if known && len(r.Owners) == 1 && len(p.hot) > 0 && p.hot[r.Owners[0].Incarnation] {
		w = load.Same(p.Loads.Fast(r.ID, p.Now))
	}
	return w, known
}

// scaled is what the regions of a keyspace weigh in a plan, and what members have of it by that, or
// are about to have, and how much of it does not count in what all have.
type scaled struct {
	balance.Scale
	members map[state.MemberID]balance.Member
	has     map[state.MemberID]load.Pair
	beyond  map[state.MemberID]load.Amount
}

// scale weighs a keyspace by load, as rounds do, when the first of its regions needs a member:
// repairs and drains give by it, and the next round finds nothing to even out behind them.
func (p *planner) scale(k *settings) *scaled {
	s := p.scales[k.id]
	if s != nil {
		return s
	}
	s = &scaled{members: map[state.MemberID]balance.Member{}, has: map[state.MemberID]load.Pair{}, beyond: map[state.MemberID]load.Amount{}}
	p.scales[k.id] = s
	members, _ := p.members(k)
	n := p.State.KeyspaceRegionCount(k.id)
	known, regions := make([]load.Pair, 0, n), make([]told, 0, n)
	p.State.RegionsFrom(k.id, "", func(r *state.Region) bool {
		x := told{region: r}
		if x.load, x.known = p.loadOf(r); x.known {
			known = append(known, x.load)
		}
		regions = append(regions, x)
		return true
	})
	starts := func(yield func(string) bool) {
		for i := 0; i < len(regions) && yield(regions[i].region.Start); i++ {
		}
	}
	s.Scale = balance.ScaleOf(k.policy, balance.Eligible(k.policy, members, starts), known, len(regions)-len(known))
	for i := range members {
		s.members[members[i].ID] = members[i]
		if !s.ByCount {
			s.beyond[members[i].ID] = s.Beyond(members[i].Other)
		}
	}
	for i := range regions {
		s.hold(p, &regions[i])
	}
	return s
}

// told is a region with the load that its owners tell.
type told struct {
	region *state.Region
	load   load.Pair
	known  bool
}

// hold counts a region for those that have it, or are about to.
func (s *scaled) hold(p *planner, x *told) {
	owners, from, to := p.planned(x.region)
	n := len(owners)
	if to != "" {
		n++
	}
	if from != "" {
		n--
	}
	w := s.Weight(x.load, x.known, n)
	beyond := s.Beyond(s.Weight(x.load, x.known, 1)).Share(1, uint64(max(n, 1)))
	give := func(id state.MemberID) {
		s.has[id] = s.has[id].Plus(w)
		if beyond > 0 {
			s.beyond[id] = s.beyond[id].Plus(beyond)
		}
	}
	for _, o := range owners {
		if o.Member != from {
			give(o.Member)
		}
	}
	if to != "" {
		give(to)
	}
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
