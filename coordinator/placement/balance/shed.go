package balance

import (
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// mostTries bounds the regions of a member, of those that may move, that are looked at for one move.
	mostTries = 64
	// mostExchanges bounds the regions that room is made for, of one member.
	mostExchanges = 4
	// leastGap of a move by load is the fair part by this; so much too much is not too much.
	leastGap = 50
	// worth is what part of all that an exchange moves the higher load falls by, at least.
	worth = 8
	// losing is the part of its load that a member gives away at most at a time.
	losing = 8
)

// shed relieves members that have too much: hottest first, of who has more than the
// absolute limit, down to it; else of who has more than the relative one, in the budget.
func (r *rounds) shed() {
	if r.limit() || r.k.Relative == 0 || r.f.capacity == 0 {
		return // the next round goes on from there; nobody has a part of what nobody may have
	}
	r.round = Shed
	begun, next := r.out.Budget.relieved, r.out.Budget.began.Add(r.k.Cooldown)
	rests, waits := r.out.Budget.began != 0 && r.Now < next, int32(-1)
	h := r.hottest(func(at int32) bool {
		s, most := &r.f.seats[at], r.high(at)
		_, goesOn := slices.BinarySearch(begun, s.Incarnation)
		if goesOn {
			most = r.low(at) + r.slack(at)
		}
		relieve := s.Low > most && s.losing < s.Low/losing && (s.Most == 0 || s.Low >= s.Most.Share(r.k.Idle, 1000))
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
	if at := r.heldBack(func(at int32) bool { return r.f.seats[at].Low > r.high(at)+r.slack(at) }); at != nobody && !r.waits {
		r.wait(at)
	}
	if len(h.items) == 0 {
		return
	}
	if !rests {
		r.out.Budget.began, r.out.Budget.round, r.out.Budget.moves = r.Now, spent{}, 0
	}
	r.out.Budget.relieved = nil
	for _, at := range h.items {
		r.out.Budget.relieved = append(r.out.Budget.relieved, r.f.seats[at].Incarnation)
	}
	slices.Sort(r.out.Budget.relieved)
	refused := len(r.out.Refusals)
	for at := h.top(); at >= 0; at = h.top() {
		why := r.shedOne(at, r.f.seats[at].Low-r.low(at))
		if why != 0 {
			r.refuse(Refusal{Member: r.f.seats[at].ID, Region: r.hot(at, why), Why: why})
		}
		if why == BudgetSpent {
			break
		}
		if h.fix(at); why != 0 || r.f.seats[at].Low <= r.low(at)+r.slack(at) {
			h.remove(at)
		}
	}
	if !r.crowded() {
		return
	}
	for i := range r.out.Refusals[refused:] { // it is not for nothing that nobody else is better
		if f := &r.out.Refusals[refused+i]; f.Why == NoGain {
			f.Why = TooManyMoves
		}
	}
}

// hot is the region that a refusal is about.
func (r *rounds) hot(at int32, why Why) (id state.RegionID) {
	if own := r.of(at); why == HotRegionAlone && len(own) > 0 {
		return r.regions[own[0]].ID
	}
	return 0
}

// affords reports whether so much more may be moved in this round: one thing always may.
func (r *rounds) affords(w load.Amount, n int) bool {
	if r.spent(n) {
		return false
	}
	b := &r.out.Budget
	hour, round := b.hour(r.Now), b.round
	hour.add(r.part(w, n))
	if round.add(r.part(w, n)); hour.above(r.k.Hour * 1000) {
		return false
	}
	return b.round.regions == 0 || !round.above(r.k.Round*1000) && (r.k.MostMoves == 0 || b.moves+n <= r.k.MostMoves)
}

// part is so much of all, in millionths.
func (r *rounds) part(w load.Amount, n int) spent {
	return part(w, r.total, n, len(r.regions))
}

// shedOne makes one member a little better. It says why not.
func (r *rounds) shedOne(at int32, excess load.Amount) Why {
	if r.f.seats[at].gives >= r.k.InFlight {
		return TooManyMoves
	}
	if r.alone(at) {
		return HotRegionAlone
	}
	if region, to := r.pick(at, excess); region >= 0 {
		if !r.affords(r.weights[region].Low, 1) {
			return BudgetSpent
		}
		r.even(region, at, to, r.why())
		return 0
	}
	return r.exchange(at, excess)
}

// alone reports whether one region is too much by itself, and all others are next to nothing.
func (r *rounds) alone(at int32) bool {
	own := r.of(at)
	if len(own) == 0 {
		return true
	}
	hot := r.weights[own[0]].Low
	return hot >= r.low(at) && r.f.seats[at].Low-hot <= r.f.fair(at).Share(r.k.Reserve, 1000)
}

// even moves a region to even out.
func (r *rounds) even(region, from, to int32, why rootv1.OperationReason) {
	r.move(region, from, to, why)
	r.out.Budget.spend(r.part(r.weights[region].Low, 1), r.Now)
	r.out.Budget.rest(r.regions[region].ID, r.Now.Add(r.k.Spacing))
}

// pick chooses what leaves a member: the heaviest that fits what it has too much and the
// room of the coldest; else the lightest that ends it.
func (r *rounds) pick(at int32, excess load.Amount) (region, to int32) {
	own := r.of(at)
	most := excess
	if t := r.f.coldest(free, nil, func(i int32) bool { return i == at }); t >= 0 {
		most = min(most, r.low(t)-r.f.seats[t].High)
	}
	for i, tries := r.ahead(at, r.from(own, most)), 0; i < len(own) && tries < mostTries; i, tries = r.ahead(at, i+1), tries+1 {
		if to := r.better(own[i], at); to >= 0 && r.f.seats[to].High+r.weights[own[i]].High <= r.low(to) {
			return own[i], to
		}
	}
	for i, tries := r.behind(at, r.from(own, excess-1)-1), 0; i >= 0 && tries < mostTries; i, tries = r.behind(at, i-1), tries+1 {
		if to := r.better(own[i], at); to >= 0 {
			return own[i], to
		}
	}
	return -1, -1
}

// better is the coldest member that a region may go to, if the higher load of the two
// falls; -1: it does not.
func (r *rounds) better(region, from int32) int32 {
	to := r.target(region, from)
	if to < 0 || !r.lowers(from, to, r.weights[region].High) {
		return -1
	}
	return to
}

// lowers reports whether the higher load of two members falls by the gap, as far as the
// one that gets so much more is concerned.
func (r *rounds) lowers(from, to int32, more load.Amount) bool {
	s := &r.f.seats[to]
	return r.hasRoom(to, more) && r.level(to, s.High+more) <= r.below(from)
}

// hasRoom reports whether a member can take so much more.
func (r *rounds) hasRoom(at int32, more load.Amount) bool {
	s := &r.f.seats[at]
	return r.out.ByCount || s.Most == 0 || s.High+more <= s.Most
}

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
	why := NoGain
	for i := first; i >= max(first-mostExchanges+1, 0); i-- {
		if !r.free(own[i]) {
			continue
		}
		switch got := r.exchangeOne(own[i], at); got {
		case 0:
			return 0
		case BudgetSpent:
			why = got
		}
	}
	if why == NoGain && r.weights[own[0]].Low >= r.low(at) {
		why = HotRegionAlone
	}
	return why
}

// exchangeOne tries it with one region: all of it, or nothing. The coldest member passes on what it has
// to, so that the highest of all these loads falls, and what others lack.
func (r *rounds) exchangeOne(region, from int32) Why {
	to := r.target(region, from)
	if to < 0 || r.split[to] {
		return NoGain
	}
	was, w := r.below(from), r.weights[region]
	trail := []hop{{region, from, to}}
	r.shift(trail[0], 1)
	sum, room := w.Low, r.low(to)
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
		if next < 0 || r.f.seats[next].gets >= r.f.most(&r.f.seats[next]) || !r.hasRoom(next, r.weights[x].High) {
			continue
		}
		if has := r.f.seats[next].High + r.weights[x].High; has > r.low(next) && (gains() || r.level(next, has) > was) {
			continue // there is room without it, or another one gets as hot: it would come back
		}
		h := hop{x, to, next}
		r.shift(h, 1)
		trail = append(trail, h)
		sum += r.weights[x].Low
	}
	gained, affords := gains(), r.affords(sum, len(trail))
	for _, h := range slices.Backward(trail) {
		r.shift(h, -1)
	}
	switch {
	case !gained:
		return NoGain
	case !affords:
		return BudgetSpent
	}
	for _, h := range trail {
		r.even(h.region, h.from, h.to, rootv1.OperationReason_OPERATION_REASON_HOT)
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
	r.f.seats[h.to].gets += by
}

// limit relieves members with more than the absolute limit: down to it, and no further.
// Of too many regions those go that weigh least; of too much load, what pick chooses. It
// reports whether there were such members.
func (r *rounds) limit() bool {
	r.round = Limit
	steps := len(r.out.Steps)
	for i := range r.f.seats {
		s, at := &r.f.seats[i], int32(i)
		over := !r.out.ByCount && s.Most > 0 && s.Low > s.Most
		if over && r.busy(at) {
			r.refuse(Refusal{Member: s.ID, Why: TooManyMoves})
		}
		if !r.gives(at) {
			continue
		}
		own := r.of(at)
		for i := len(own) - 1; r.k.Absolute > 0 && i >= 0 && s.Count > r.k.Absolute && s.gives < r.k.InFlight && !r.spent(1); i-- {
			if !r.free(own[i]) {
				continue
			}
			if to := r.target(own[i], at); to >= 0 {
				r.move(own[i], at, to, rootv1.OperationReason_OPERATION_REASON_LIMIT)
			}
		}
		for !r.out.ByCount && s.Most > 0 && s.Low > s.Most && s.gives < r.k.InFlight && !r.spent(1) {
			region, to := r.pick(at, s.Low-s.Most)
			if region < 0 {
				if r.k.Relative == 0 { // else what is shed says so
					r.refuse(Refusal{Member: s.ID, Why: NoGain})
				}
				break
			}
			r.move(region, at, to, rootv1.OperationReason_OPERATION_REASON_LIMIT)
		}
	}
	return len(r.out.Steps) > steps
}
