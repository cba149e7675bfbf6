package balance

import (
	"math"
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// mostTries bounds the regions of a member, of those that may move, that are looked at for one move,
	// mostPassed those that are passed.
	mostTries, mostPassed = 64, 4096
	// mostExchanges bounds the regions that room is made for, of one member.
	mostExchanges = 4
)

// shed relieves members that have too much: hottest first, of who has more than the
// absolute limit, down to it; else of who has more than the relative one, in the budget.
func (r *rounds) shed() {
	if r.limit() || r.k.Relative == 0 || r.f.capacity == 0 {
		return // the next round goes on from there; nobody has a part of what nobody may have
	}
	r.enter(Shed)
	begun, next := r.out.Budget.relieved, r.nextRound()
	rests, waits, idle := !r.out.Budget.over(Shed, &r.k, r.Now), nobody, nobody
	h := r.hottest(func(at int32) bool {
		s, most := &r.f.seats[at], r.high(at)
		_, goesOn := slices.BinarySearch(begun, s.Incarnation)
		if goesOn {
			most = r.low(at) + r.slack(at)
		}
		relieve := s.Low > most && s.losing < s.Low/losing
		if relieve && s.Low < r.limitOf(at).Share(r.k.Idle, 1000) {
			if idle < 0 || r.hotter(at, idle) {
				idle = at
			}
			return false
		}
		if relieve && rests && !goesOn {
			if waits < 0 || r.hotter(at, waits) {
				waits = at
			}
			return false
		}
		return relieve
	})
	if waits >= 0 {
		r.refuse(Refusal{Member: r.f.seats[waits].ID, Why: CoolingDown, At: next})
	}
	if idle >= 0 {
		r.refuse(Refusal{Member: r.f.seats[idle].ID, Why: LittleLoad})
	}
	if at := r.heldBack(func(at int32) bool { return r.f.seats[at].Low > r.high(at)+r.slack(at) }); at != nobody && !r.waits {
		r.wait(at)
	}
	if len(h.items) == 0 {
		return
	}
	if !rests {
		r.out.Budget.last[Shed] = lastRound{began: r.Now}
	}
	r.out.Budget.relieved = nil
	for _, at := range h.items {
		r.out.Budget.relieved = append(r.out.Budget.relieved, r.f.seats[at].Incarnation)
	}
	slices.Sort(r.out.Budget.relieved)
	refused := map[int32]int{}
	for at := h.top(); at >= 0; at = h.top() {
		why := r.shedOne(at, r.f.seats[at].Low-r.low(at))
		if why != 0 {
			f := r.refusal(at, why)
			if refused[at] = slices.Index(r.out.Refusals, f); refused[at] < 0 { // its limit has not said so
				refused[at] = len(r.out.Refusals)
				r.refuse(f)
			}
		}
		if why == BudgetSpent {
			break
		}
		if h.fix(at); why != 0 || r.f.seats[at].Low <= r.low(at)+r.slack(at) {
			h.remove(at)
		}
	}
	kinds := r.crowded()
	for at, i := range refused { // a better one gets nothing now
		if i < len(r.out.Refusals) && slices.Contains([]Why{NoGain, NoRoom}, r.out.Refusals[i].Why) && r.awaits(at, kinds) {
			r.out.Refusals[i].Why = TooManyMoves
		}
	}
}

// refusal is why nothing leaves a member: there is no gain where something may be moved.
func (r *rounds) refusal(at int32, why Why) Refusal {
	f, own := Refusal{Member: r.f.seats[at].ID, Why: why}, r.of(at)
	switch {
	case why == HotRegionAlone && len(own) > 0:
		f.Region = r.regions[own[0]].ID
	case why == BudgetSpent && r.round == Limit:
		f.At = r.nextRound()
	case why == NoGain && r.ahead(at, 0) == len(own) && slices.ContainsFunc(own, r.rests):
		f.Why, f.At = Resting, r.out.Budget.nextRested()
	}
	return f
}

// shedOne makes one member a little better. It says why not.
func (r *rounds) shedOne(at int32, excess load.Amount) Why {
	if r.f.seats[at].gives >= r.k.InFlight {
		return TooManyMoves
	}
	if r.alone(at) {
		return HotRegionAlone
	}
	why := r.relief(at, excess)
	if why != 0 && why != BudgetSpent && r.full(at) {
		r.share = true
		why = r.relief(at, excess)
		r.share = false
	}
	return why
}

// relief has one region leave a member, or makes room for one.
func (r *rounds) relief(at int32, excess load.Amount) Why {
	r.cause = NoGain
	if region, to := r.pick(at, excess); region >= 0 {
		if !r.affords(r.weights[region].High, 1) {
			return BudgetSpent
		}
		r.move(region, at, to, r.why())
		r.pay(region)
		return 0
	}
	return r.exchange(at, excess)
}

// full reports whether a member has more than it can take, nobody has room for anything of it, and
// nothing that is on its way keeps anybody from taking it: then all that can be had is that none
// has much more than others.
func (r *rounds) full(at int32) bool {
	own, most := r.of(at), r.limitOf(at)
	if len(own) == 0 || most == 0 || r.f.seats[at].Low <= most {
		return false
	}
	least, full := r.weights[own[len(own)-1]].High, false
	for _, rule := range r.rulesOf(at) {
		if r.f.roomFor(rule, nil, least, is(at)) >= 0 {
			return false
		}
		full = full || r.f.untaken(rule, []int32{at}, nil) == NoRoom
	}
	return full
}

// limitOf is the most load that a member can take; 0: it does not say, or it does not matter.
func (r *rounds) limitOf(at int32) load.Amount {
	if r.out.ByCount {
		return 0
	}
	return r.f.seats[at].Most
}

func is(at int32) func(int32) bool { return func(i int32) bool { return i == at } }

// alone reports whether one region is too much by itself, and all others are next to nothing.
func (r *rounds) alone(at int32) bool {
	own := r.of(at)
	if len(own) == 0 {
		return true
	}
	hot, fair := r.weights[own[0]].Low, r.f.whole.Share(r.f.seats[at].capacity, r.f.capacity)
	return hot >= r.low(at) && r.f.seats[at].Low-hot <= fair.Share(r.k.Reserve, 1000)
}

// pick chooses what leaves a member: the heaviest that fits what it has too much and the
// room of the coldest, below what is relieved where that matters; else the lightest that ends it.
func (r *rounds) pick(at int32, excess load.Amount) (region, to int32) {
	own := r.of(at)
	r.f.below = r.f.low != nil
	rooms := r.rooms(at)
	tries := tried{rooms: rooms, rules: r.rulesOf(at)}
	for i := r.ahead(at, r.from(own, min(excess, tries.most()))); i < len(own) && !tries.over(); i = r.ahead(at, i+1) {
		if region := own[i]; tries.worth(r.rule[region], r.weights[region].High) {
			if to := r.better(region, at); to >= 0 && (!r.share || r.f.seats[to].High+r.weights[region].High <= r.low(to)) {
				r.f.below = false
				return region, to
			}
		}
	}
	r.f.below = false
	tries = tried{rooms: rooms, rules: tries.rules}
	for i := r.behind(at, r.from(own, excess-1)-1); i >= 0 && !tries.over(); i = r.behind(at, i-1) {
		if tries.worth(r.rule[own[i]], 0) {
			if to := r.better(own[i], at); to >= 0 {
				return own[i], to
			}
		}
	}
	return -1, -1
}

// tried are the regions of a member that were looked at for one move. Those for which nobody has
// room, of all that their rule allows, are passed: rooms are what there is room for by rule.
type tried struct {
	rules     []int32
	rooms     []load.Amount
	n, passed int
}

func (t *tried) over() bool { return t.n >= mostTries || t.passed >= mostPassed }

// most is what there is room for at most. Where not all rules are told apart it is anything.
func (t *tried) most() load.Amount {
	if len(t.rules) == mostRules {
		return math.MaxInt64
	}
	return slices.Max(append([]load.Amount{0}, t.rooms...))
}

func (t *tried) worth(rule int32, w load.Amount) bool {
	if i := slices.Index(t.rules, rule); i >= 0 && w > t.rooms[i] {
		t.passed++
		return false
	}
	t.n++
	return true
}

// rooms is what there is room for elsewhere of what each rule of a member's regions holds for;
// negative: nobody may take it.
func (r *rounds) rooms(at int32) (rooms []load.Amount) {
	own := r.of(at)
	for _, rule := range r.rulesOf(at) {
		most := load.Amount(-1)
		for _, to := range r.takers(rule, r.weights[own[len(own)-1]].High, at) {
			if to < 0 {
				continue
			}
			room := r.f.room(to)
			if r.share {
				room = r.low(to) - r.f.seats[to].High
			}
			most = max(most, room, 0)
		}
		rooms = append(rooms, most)
	}
	return rooms
}

// takers are who takes most of what a rule holds for.
func (r *rounds) takers(rule int32, least load.Amount, except int32) []int32 {
	if r.f.roomy == nil || r.share {
		return []int32{r.f.coldest(rule, nil, is(except))}
	}
	return []int32{r.f.roomFor(rule, nil, least, is(except)), r.f.roomiest(rule, nil, is(except))}
}

// better is the coldest member that a region may go to, if the higher load of the two
// falls; -1: it does not.
func (r *rounds) better(region, from int32) int32 {
	to := r.target(region, from)
	if to < 0 && !r.f.below {
		r.blame(r.untaken(region, from))
	}
	if to < 0 || !r.lowers(from, to, r.weights[region].High) {
		return -1
	}
	return to
}

// lowers reports whether the higher load of two members falls by the gap, as far as the
// one that gets so much more is concerned. What leaves a member above the load that it can take is no
// question of that for one that has room of its own.
func (r *rounds) lowers(from, to int32, more load.Amount) bool {
	return r.round == Limit && r.limitOf(to) > 0 ||
		r.level(to, r.f.seats[to].High+more) <= r.below(from)
}

// hasRoom reports whether a member can take so much more, or is to have its share all the same.
func (r *rounds) hasRoom(at int32, more load.Amount) bool { return r.share || r.f.room(at) >= more }

// level is a load as it would be if the member could take as much as they can on average.
func (r *rounds) level(at int32, l load.Amount) load.Amount {
	return l.Share(r.f.capacity, r.f.seats[at].capacity*r.f.counted)
}

// below is the level of a member that gives, less the gap: lower than its level, also where the gap
// is rounded away.
func (r *rounds) below(at int32) load.Amount {
	low := r.f.seats[at].Low
	return min(r.level(at, low-r.gapOf(at)), r.level(at, low)-1)
}

// gapOf is by how much a move from a member has to lower the higher load.
func (r *rounds) gapOf(at int32) load.Amount {
	if r.out.ByCount {
		return r.gap
	}
	return max(r.gap, r.slack(at))
}

// slack is how much above the relative limit is not worth a move.
func (r *rounds) slack(at int32) load.Amount {
	if r.out.ByCount {
		return 0
	}
	return r.f.fair(at) / leastGap
}

// exchange makes room in the coldest member for a region that fits nowhere, by moving
// others of it elsewhere: also back to who gives the region, which is a swap.
func (r *rounds) exchange(at int32, excess load.Amount) Why {
	own := r.of(at)
	// From the lightest that ends it on; where there is none, the heaviest are as near as it gets.
	first := max(r.from(own, excess-1)-1, min(len(own), mostExchanges)-1)
	spent := false
	for i := first; i >= max(first-mostExchanges+1, 0); i-- {
		if !r.free(own[i]) {
			continue
		}
		switch r.exchangeOne(own[i], at) {
		case 0:
			return 0
		case BudgetSpent:
			spent = true
		}
	}
	switch {
	case spent:
		return BudgetSpent
	case (r.cause == NoGain || r.cause == NoRoom) && r.weights[own[0]].Low >= r.low(at):
		return HotRegionAlone
	}
	return r.cause
}

// exchangeOne tries it with one region: all of it, or nothing. The coldest member passes on what it has
// to, so that the highest of all these loads falls, and what others lack.
func (r *rounds) exchangeOne(region, from int32) Why {
	w := r.weights[region]
	to := r.anybody(region, from)
	if to >= 0 && !r.share && r.limitOf(to) > 0 && r.limitOf(to) < w.High {
		to = r.target(region, from) // no room that could be made there is enough
	}
	if to < 0 {
		r.blame(r.untaken(region, from))
	}
	if to < 0 || r.split[to] {
		return NoGain
	}
	was := r.below(from)
	trail := []hop{{region, from, to}}
	r.shift(trail[0], 1)
	sum, costs, room := w.Low, w.High, r.low(to)
	if most := r.limitOf(to); most > 0 && !r.share {
		room = min(room, most.Share(r.f.full, 1000))
	}
	gains := func() bool {
		most := was - r.level(from, sum/worth)
		return r.hasRoom(to, 0) && r.level(to, r.f.seats[to].High) <= most && r.level(from, r.f.seats[from].Low) <= most
	}
	for _, x := range r.of(to) {
		s := &r.f.seats[to]
		if s.High <= room || s.gives >= r.k.InFlight {
			break
		}
		if !r.free(x) || r.weights[x].High > s.High-min(room, w.High) {
			continue // what is heavier than what it has too much makes others hot
		}
		next := r.target(x, to)
		if next < 0 || r.f.seats[next].gets >= r.f.most(&r.f.seats[next]) {
			continue
		}
		if has := r.f.seats[next].High + r.weights[x].High; has > r.low(next) && (gains() || r.level(next, has) > was) {
			continue // there is room without it, or another one gets as hot: it would come back
		}
		h := hop{x, to, next}
		r.shift(h, 1)
		trail = append(trail, h)
		sum, costs = sum+r.weights[x].Low, costs+r.weights[x].High
	}
	gained, full, affords := gains(), !r.hasRoom(to, 0), r.affords(costs, len(trail))
	for _, h := range slices.Backward(trail) {
		r.shift(h, -1)
	}
	switch {
	case !gained:
		if full && r.target(region, from) < 0 {
			r.blame(r.untaken(region, from))
		}
		return NoGain
	case !affords:
		return BudgetSpent
	}
	for _, h := range trail {
		r.move(h.region, h.from, h.to, rootv1.OperationReason_OPERATION_REASON_HOT)
		r.pay(h.region)
	}
	return 0
}

type hop struct{ region, from, to int32 }

// shift books a region elsewhere, for a try; by is 1, and -1 to take it back.
func (r *rounds) shift(h hop, by int) {
	w := r.weights[h.region]
	w.Low, w.High = w.Low*load.Amount(by), w.High*load.Amount(by)
	r.f.book(h.from, load.Pair{Low: -w.Low, High: -w.High}, -by)
	r.f.book(h.to, w, by)
	r.f.seats[h.from].gives += by
	r.f.onWay(h.to, by)
}

// limit relieves members with more than the absolute limit. Of too many regions those go that
// weigh least, down to the limit; of too much load goes what pick chooses, down to a little below, and
// to who is farther below: else members that are at the limit pass regions to and fro. It reports
// whether there were such members that can be relieved, or will be in the next round.
func (r *rounds) limit() (relieves bool) {
	r.enter(Limit)
	for i := range r.f.seats {
		s, at := &r.f.seats[i], int32(i)
		over := r.limitOf(at) > 0 && s.Low > r.limitOf(at)
		if over && r.busy(at) {
			r.refuse(Refusal{Member: s.ID, Why: TooManyMoves})
		}
		if !r.gives(at) || !over && (r.k.Absolute == 0 || s.Count <= r.k.Absolute) {
			continue
		}
		r.cause = NoGain
		n := len(r.out.Steps)
		if r.k.Absolute > 0 {
			r.fewer(at)
		}
		if over {
			if r.f.low != nil {
				r.f.roomBy(nil)
			}
			r.f.full = limitTo
			r.less(at, s.Most.Share(limitUntil, 1000))
			r.f.full = limitUntil
		}
		relieves = relieves || len(r.out.Steps) > n || r.cause == BudgetSpent
		if len(r.out.Steps) == n || r.cause == BudgetSpent || r.k.Relative == 0 && r.cause != NoGain {
			r.refuse(r.refusal(at, r.cause))
		}
	}
	if r.f.low == nil {
		r.f.roomBy(r.low)
	}
	return relieves
}

// fewer moves what a member has too many of, the lightest first.
func (r *rounds) fewer(at int32) {
	own, s := r.of(at), &r.f.seats[at]
	for i := len(own) - 1; i >= 0 && s.Count > r.k.Absolute && s.gives < r.k.InFlight && !r.spent(1); i-- {
		if !r.free(own[i]) {
			continue
		}
		if !r.affords(r.weights[own[i]].High, 1) {
			r.cause = BudgetSpent
			return
		}
		to := r.target(own[i], at)
		if to < 0 {
			r.blame(r.untaken(own[i], at))
			continue
		}
		r.move(own[i], at, to, rootv1.OperationReason_OPERATION_REASON_LIMIT)
		r.pay(own[i])
	}
}

// less moves load off a member until it has so much.
func (r *rounds) less(at int32, until load.Amount) {
	s := &r.f.seats[at]
	for s.Low > until && s.gives < r.k.InFlight && !r.spent(1) {
		region, to := r.pick(at, s.Low-until)
		if region < 0 {
			if own := r.of(at); len(own) > 0 && r.target(own[len(own)-1], at) < 0 {
				r.blame(r.untaken(own[len(own)-1], at))
			}
			return
		}
		if !r.affords(r.weights[region].High, 1) {
			r.cause = BudgetSpent
			return
		}
		r.move(region, at, to, rootv1.OperationReason_OPERATION_REASON_LIMIT)
		r.pay(region)
	}
}
