package balance

import (
	"cmp"
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/propose"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Make says what is to move, be cut, be joined, or get other owners.
func Make(in Input) Result {
	r := newRounds(&in)
	r.judge()
	r.out.Before, r.out.Excess, r.out.Imbalance = r.out.Imbalance, 0, 0
	r.constrain()
	r.widen()
	r.explain()
	switch {
	case !r.k.Even:
	case r.scale.Estimated:
		r.refuse(Refusal{Why: LoadUnknown})
	default:
		r.f.full = limitUntil // who gets more to even out may have to give it back
		r.shape()
		r.letBe()
		r.fill()
		r.shed()
	}
	r.judge()
	slices.SortFunc(r.out.Refusals, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Member, b.Member), cmp.Compare(a.Why, b.Why))
	})
	return r.out
}

// rounds makes one Result. Regions are named by their place in the input, by id, and
// members by their seat.
type rounds struct {
	*Input
	k Policy
	f *Field
	// regions in order of their ids. What each weighs is on each of its owners. holders are
	// these, as they will be: those of region i begin at first[i].
	regions []*Region
	weights []load.Pair
	first   []int32
	holders []int32
	rule    []int32
	// shares of the seats: those of seat i begin at begins[i]; sorted says that they are by
	// weight, heaviest first.
	begins []int32
	shares []int32
	sorted []bool
	// ruled are the rules of what each seat had at first, once asked for.
	ruled [][]int32
	// aheads and behinds are how many shares to pass from one that is not free.
	aheads, behinds []int32
	// begun regions are left alone by the rest of the plan.
	begun []bool
	// split members have a region that is about to be cut: nothing else is done about them.
	split map[int32]bool
	// lacks are what could not be put right.
	lacks []lacking
	// waits: it is said that something waits for moves that are under way.
	waits bool

	// share: nobody has room, so that those that have more than others give although nobody has.
	share bool
	// cause is why nothing leaves the member that is looked at, so far.
	cause Why

	scale Scale
	gap   load.Amount
	round Round
	// joiner is what part of all a member has that is given its part, in millionths.
	joiner uint64
	out    Result
}

func newRounds(in *Input) *rounds {
	r := &rounds{Input: in, k: in.Policy.withDefaults(), split: map[int32]bool{}}
	r.out.Budget = in.Budget.since(in.Now)
	r.regions = make([]*Region, len(in.Regions))
	for i := range in.Regions {
		r.regions[i] = &in.Regions[i]
	}
	if !slices.IsSortedFunc(r.regions, byID) {
		slices.SortFunc(r.regions, byID)
	}
	r.scale = ScaleOf(r.k, r.Members, len(r.regions), func(yield func(Told) bool) {
		for _, x := range r.regions {
			if !yield(Told{x.Start, x.Load, x.Known}) {
				return
			}
		}
	})
	r.out.ByCount, r.out.Total = r.scale.ByCount, r.scale.Total
	r.weights = make([]load.Pair, len(r.regions))
	for i, x := range r.regions {
		r.weights[i] = r.scale.Weight(x.Load, x.Known, 1)
	}
	k := r.k
	if r.out.ByCount {
		k.By = Count
	}
	if k.Absolute > 0 && (k.PerMember == 0 || k.Absolute < k.PerMember) {
		k.PerMember = k.Absolute // nothing goes where it would have to leave again
	}
	r.f = NewField(in.Keyspace, k, in.Members)
	r.f.low = r.low
	r.hold()
	r.seat()
	r.f.Open(r.held())
	for i := range r.f.seats {
		if s := &r.f.seats[i]; s.Stale || s.gets >= r.f.most(s) {
			r.f.bar(int32(i))
		}
	}
	r.gap = max(r.mean().Share(r.k.Gap, 1), 1)
	return r
}

// mean is what a region weighs on average.
func (r *rounds) mean() load.Amount { return r.scale.Total / load.Amount(max(len(r.regions), 1)) }

func byID(a, b *Region) int { return cmp.Compare(a.ID, b.ID) }

// hold finds the seats of owners as they will be, and what is on its way.
func (r *rounds) hold() {
	r.first = make([]int32, len(r.regions)+1)
	r.holders = make([]int32, 0, len(r.regions)+len(r.regions)/8)
	r.rule = make([]int32, len(r.regions))
	r.begun = make([]bool, len(r.regions))
	if !r.out.ByCount {
		for i := range r.f.seats {
			s := &r.f.seats[i]
			s.beyond = r.scale.Beyond(s.Other)
		}
	}
	for i, x := range r.regions {
		r.rule[i] = r.f.rules.of(x.Start)
		r.begun[i] = x.Busy || x.Quarantined
		for _, o := range x.Owners {
			if at, ok := r.f.index[o.Member]; ok && o.Member != x.From {
				r.holders = append(r.holders, at)
			}
		}
		if at, ok := r.f.index[x.To]; ok && x.To != "" {
			r.holders = append(r.holders, at)
		}
		r.first[i+1] = int32(len(r.holders))
		own := r.first[i+1] - r.first[i]
		if x.To == "" && x.From == "" && int(own) < len(x.Owners) {
			r.begun[i] = true // an owner is no member any more
		}
		beyond := r.scale.Beyond(r.weights[i])
		if own > 1 {
			r.weights[i], beyond = r.weights[i].Share(1, uint64(own)), beyond.Share(1, uint64(own))
		}
		for _, at := range r.holders[r.first[i]:] {
			s := &r.f.seats[at]
			s.Low, s.High, s.Count = s.Low.Plus(r.weights[i].Low), s.High.Plus(r.weights[i].High), s.Count+1
			s.beyond = s.beyond.Plus(beyond)
		}
		if at, ok := r.f.index[x.From]; ok && x.From != "" {
			r.f.seats[at].losing += r.weights[i].Low
		}
	}
}

// seat sorts the shares by their seats.
func (r *rounds) seat() {
	r.begins = make([]int32, r.f.Len()+1)
	for _, at := range r.holders {
		r.begins[at+1]++
	}
	for i := range r.f.Len() {
		r.begins[i+1] += r.begins[i]
	}
	next := slices.Clone(r.begins)
	r.shares = make([]int32, len(r.holders))
	for i := range r.regions {
		for _, at := range r.holders[r.first[i]:r.first[i+1]] {
			r.shares[next[at]] = int32(i)
			next[at]++
		}
	}
	r.sorted, r.ruled = make([]bool, r.f.Len()), make([][]int32, r.f.Len())
	r.aheads, r.behinds = make([]int32, len(r.shares)), make([]int32, len(r.shares))
}

// held is which rules hold for a region.
func (r *rounds) held() []bool {
	held := make([]bool, len(r.f.rules.rules)+1)
	for _, rule := range r.rule {
		held[rule+1] = true
	}
	return held
}

// of are the regions of a seat as they were at first, heaviest first.
func (r *rounds) of(at int32) []int32 {
	s := r.shares[r.begins[at]:r.begins[at+1]]
	if !r.sorted[at] {
		r.sorted[at] = true
		slices.SortFunc(s, func(a, b int32) int {
			if c := cmp.Compare(r.weights[b].Low, r.weights[a].Low); c != 0 {
				return c
			}
			return cmp.Or(cmp.Compare(r.hash(a), r.hash(b)), cmp.Compare(a, b))
		})
	}
	return s
}

func (r *rounds) hash(region int32) uint64 {
	return propose.Hash(r.Keyspace, r.regions[region].ID, "")
}

// owners are the seats of a region's owners.
func (r *rounds) owners(region int32) []int32 { return r.holders[r.first[region]:r.first[region+1]] }

// rulesOf are the rules of the regions that a seat had at first, each once; mostRules bounds
// them.
func (r *rounds) rulesOf(at int32) []int32 {
	if r.ruled[at] == nil {
		rules := []int32{}
		for _, region := range r.of(at) {
			if rule := r.rule[region]; len(rules) < mostRules && !slices.Contains(rules, rule) {
				rules = append(rules, rule)
			}
		}
		r.ruled[at] = rules
	}
	return r.ruled[at]
}

// mostRules bounds the rules of one member's regions that are told apart.
const mostRules = 16

// target is the coldest member that a region may go to and that has room for it, except some.
func (r *rounds) target(region int32, except ...int32) int32 {
	if r.share {
		return r.anybody(region, except...)
	}
	zones, skip := r.besides(region, except)
	return r.f.roomFor(r.rule[region], zones, r.weights[region].High, skip)
}

// anybody is the coldest member that a region may go to, room or not, except some.
func (r *rounds) anybody(region int32, except ...int32) int32 {
	zones, skip := r.besides(region, except)
	return r.f.coldest(r.rule[region], zones, skip)
}

// best is the coldest that has room, or if nobody has the coldest: what breaks a constraint is
// put right all the same.
func (r *rounds) best(region int32, except ...int32) int32 {
	if to := r.target(region, except...); to >= 0 {
		return to
	}
	return r.anybody(region, except...)
}

// besides are the zones of a region's owners, and who does not get it: they and some others. Who
// gives it, the first of these, makes room in its zone.
func (r *rounds) besides(region int32, except []int32) (zones []string, skip func(int32) bool) {
	own := r.owners(region)
	if r.k.Spread != "" {
		for _, at := range own {
			if len(except) == 0 || at != except[0] {
				zones = append(zones, r.f.zone(at))
			}
		}
	}
	return zones, func(at int32) bool { return slices.Contains(own, at) || slices.Contains(except, at) }
}

// move moves a region.
func (r *rounds) move(region, from, to int32, why rootv1.OperationReason) {
	w := r.weights[region]
	r.f.book(from, load.Pair{Low: -w.Low, High: -w.High}, -1)
	r.f.book(to, w, 1)
	r.f.seats[from].gives++
	r.f.gets(to)
	r.do(region, Step{Kind: Move, From: r.f.seats[from].ID, To: r.f.seats[to].ID, Reason: why})
}

// spent reports whether there is no room for so many steps more.
func (r *rounds) spent(n int) bool { return r.Most > 0 && len(r.out.Steps)+n > r.Most }

// do plans a step; nothing else is planned for the region.
func (r *rounds) do(region int32, s Step) {
	x := r.regions[region]
	s.Round = r.round
	s.Region, s.Epoch, s.Load = x.ID, x.Epoch, r.weights[region].High
	r.begun[region] = true
	r.out.Steps = append(r.out.Steps, s)
}

// mostRefusals bounds a Result.
const mostRefusals = 4096

func (r *rounds) refuse(f Refusal) {
	if len(r.out.Refusals) < mostRefusals {
		r.out.Refusals = append(r.out.Refusals, f)
	}
}

// why evens out.
func (r *rounds) why() rootv1.OperationReason {
	if r.out.ByCount {
		return rootv1.OperationReason_OPERATION_REASON_COUNT
	}
	return rootv1.OperationReason_OPERATION_REASON_LOAD
}

// high is the most that a member may have before it is relieved, low how much it has
// afterwards. By count these are whole regions, and never less than the next above the
// fair part.
func (r *rounds) high(at int32) load.Amount { return r.bound(at, r.k.Relative) }

func (r *rounds) low(at int32) load.Amount {
	return r.bound(at, min(r.k.Until, cmp.Or(r.k.Relative, r.k.Until)))
}

func (r *rounds) bound(at int32, permille uint64) load.Amount {
	fair := r.f.fair(at)
	bound := fair.Share(permille, 1000)
	if r.out.ByCount {
		return max(bound, (fair+load.One-1)/load.One*load.One)
	}
	return bound
}

// floor is the fair part of a member; by count, of whole regions.
func (r *rounds) floor(at int32) load.Amount {
	fair := r.f.fair(at)
	if r.out.ByCount {
		return fair / load.One * load.One
	}
	return fair
}

// judge says how far from even it is.
func (r *rounds) judge() {
	for i := range r.f.seats {
		s, fair := &r.f.seats[i], r.f.fair(int32(i))
		if !s.Takes || s.Stale || fair == 0 {
			continue
		}
		r.out.Imbalance = max(r.out.Imbalance, uint64(min(s.Low, load.Most)*1000/fair))
		if r.k.Relative > 0 {
			r.out.Excess = r.out.Excess.Plus(max(s.Low-r.high(int32(i)), 0))
		}
	}
}
