package balance

import (
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
)

// fruitless is how many members are tried in a row for something to take.
const fruitless = 64

// hotter orders members that give.
func (r *rounds) hotter(a, b int32) bool {
	x, y := &r.f.seats[a], &r.f.seats[b]
	c := load.Compare(x.Low, x.capacity, y.Low, y.capacity)
	return c > 0 || c == 0 && (x.hash < y.hash || x.hash == y.hash && a < b)
}

// gives reports whether a member gives something to even out.
func (r *rounds) gives(at int32) bool {
	s := &r.f.seats[at]
	return s.Takes && !s.Stale && s.gets == 0 && s.gives < r.k.InFlight && !r.split[at]
}

// hottest are the members that give, in a heap.
func (r *rounds) hottest(which func(int32) bool) *heap {
	h := newHeap(nowhere(r.f.Len()), r.hotter)
	for i := range r.f.seats {
		if r.gives(int32(i)) && which(int32(i)) {
			h.push(int32(i))
		}
	}
	return h
}

// letBe has nothing go to members that joined just now, or recovered, to even out. Those that
// would get something are named.
func (r *rounds) letBe() {
	for i := range r.f.seats {
		at, s := int32(i), &r.f.seats[i]
		until, why := s.RestsUntil, Recovered
		if settled := s.Joined.Add(r.k.Settle); s.Joined != 0 && settled > until {
			until, why = settled, Joined
		}
		if r.Now >= until {
			continue
		}
		if s.Takes && !s.Stale && r.fresh(at) && r.lacksMuch(at) {
			r.refuse(Refusal{Member: s.ID, Why: why, At: until})
		}
		r.f.rest(at, why)
	}
}

// fresh reports whether a member has joined, or had nothing, and has not had its part yet.
// Where nobody is relieved, that is who has much less than its part, whenever it joined.
func (r *rounds) fresh(at int32) bool {
	s, b := &r.f.seats[at], &r.out.Budget
	_, had := slices.BinarySearch(b.filled, s.Incarnation)
	_, goesOn := slices.BinarySearch(b.filling, s.Incarnation)
	if !r.f.reached[r.f.sets[s.set].kind] {
		return false // it may have nothing
	}
	if s.Count == 0 || goesOn || r.joined(at) && !had {
		return !s.There || r.lacksMuch(at)
	}
	return r.k.Relative == 0 && r.k.Absolute == 0 && r.lacksMuch(at) && r.hasFew(at)
}

// hasFew reports whether a member has much fewer regions than its fair part.
func (r *rounds) hasFew(at int32) bool {
	s := &r.f.seats[at]
	return load.Compare(load.Amount(s.Count)*1000, s.capacity, load.Amount(r.f.regions)*leastPart, r.f.capacity) < 0
}

func (r *rounds) joined(at int32) bool {
	s := &r.f.seats[at]
	return s.Joined != 0 && r.Now.Sub(s.Joined) < max(newcomer, 2*r.k.Settle)
}

// lacksMuch reports whether a member has much less than its fair part.
func (r *rounds) lacksMuch(at int32) bool {
	return r.f.seats[at].High < r.f.fair(at).Share(leastPart, 1000)
}

// fill gives members that have joined, or have nothing, their fair part.
func (r *rounds) fill() {
	r.enter(Fill)
	begun, short := len(r.out.Steps), nobody
	var joiners []int32
	waits := nobody
	for i := range r.f.seats {
		switch at := int32(i); {
		case !r.fresh(at):
		case r.f.gettable(at):
			joiners = append(joiners, at)
		case !r.f.seats[i].Stale && r.f.standing(at) == crowded && r.lacksSome(at):
			waits = at
		}
	}
	if len(joiners) > 0 {
		slices.SortFunc(joiners, func(a, b int32) int {
			if r.f.colder(a, b) {
				return -1
			}
			return 1
		})
		h := r.hottest(func(at int32) bool { return r.f.seats[at].Low > r.floor(at) })
		for _, to := range joiners {
			if short == nobody && !r.fillOne(h, to) {
				short = to
			}
		}
	}
	r.haveHad(joiners, len(r.out.Steps) == begun && short == nobody)
	if short == nobody {
		r.waitFor(waits, joiners)
		return
	}
	r.refuse(Refusal{Member: r.f.seats[short].ID, Why: BudgetSpent, At: r.nextRound()})
}

// haveHad keeps in mind which members are given their part, and which newcomers have had it:
// those that lack nothing when nothing is to be done, and nothing is on its way.
func (r *rounds) haveHad(joiners []int32, done bool) {
	b := &r.out.Budget
	was, begun := b.filled, b.filling
	b.filled, b.filling = nil, nil
	for i := range r.f.seats {
		at, s := int32(i), &r.f.seats[i]
		if _, had := slices.BinarySearch(was, s.Incarnation); had && r.joined(at) {
			b.filled = append(b.filled, s.Incarnation)
		}
		done = done && s.gives == 0 && s.gets == 0
	}
	for _, at := range joiners {
		s := &r.f.seats[at]
		_, goesOn := slices.BinarySearch(begun, s.Incarnation)
		switch had := done && !r.lacksMuch(at); {
		case !had && (goesOn || s.gets > 0):
			b.filling = append(b.filling, s.Incarnation)
		case had && r.joined(at):
			b.filled = append(b.filled, s.Incarnation)
		}
	}
	slices.Sort(b.filled)
	slices.Sort(b.filling)
}

// lacksSome reports whether an average region has room in a member's part.
func (r *rounds) lacksSome(at int32) bool {
	return r.f.seats[at].High.Plus(max(r.mean(), 1)) <= r.f.fair(at)
}

// waitFor refuses what joiners lack still if it is what is on its way that keeps it from them:
// to one of them, or from whoever has too much; or that regions rest.
func (r *rounds) waitFor(waits int32, joiners []int32) {
	lacks := nobody
	for _, at := range joiners {
		if r.lacksSome(at) {
			lacks = at
			if r.f.standing(at) == crowded {
				waits = at
			}
		}
	}
	if waits == nobody && lacks != nobody {
		waits = r.heldBack(func(at int32) bool { return r.f.seats[at].Low > r.floor(at) })
	}
	switch until := r.out.Budget.nextRested(); {
	case waits != nobody && !r.spent(1):
		r.wait(waits)
	case waits == nobody && lacks != nobody && until != 0 && len(r.out.Steps) == 0:
		r.refuse(Refusal{Member: r.f.seats[lacks].ID, Why: Resting, At: until})
	}
}

// wait refuses what waits for moves from a member, or to it.
func (r *rounds) wait(at int32) {
	r.waits = true
	r.refuse(Refusal{Member: r.f.seats[at].ID, Why: TooManyMoves})
}

// fillOne gives a member its part. It reports whether that may be moved in this round.
func (r *rounds) fillOne(h *heap, to int32) bool {
	var passed []int32
	affords := true
	r.joiner = (1_000_000*r.f.seats[to].capacity + r.f.capacity - 1) / max(r.f.capacity, 1)
	for affords && len(passed) < fruitless && r.f.gettable(to) && !r.spent(1) {
		from := h.top()
		if from < 0 {
			break
		}
		region := r.fits(from, to)
		if region < 0 {
			passed = append(passed, from)
			h.remove(from)
			continue
		}
		if affords = r.affords(r.weights[region].High, 1); !affords {
			break
		}
		r.move(region, from, to, r.why())
		r.pay(region)
		if h.fix(from); r.f.seats[from].gives >= r.k.InFlight || r.f.seats[from].Low <= r.floor(from) {
			h.remove(from)
		}
	}
	for _, at := range passed {
		h.push(at)
	}
	return affords
}

// fits is the heaviest region that a member lacks, and that another one has too much, or
// has more of than the first one will have; -1: there is none.
func (r *rounds) fits(from, to int32) int32 {
	x, y := &r.f.seats[from], &r.f.seats[to]
	over, room := x.Low-r.floor(from), r.f.fair(to)-y.High
	own := r.of(from)
	for i, tries := r.ahead(from, r.from(own, room)), 0; i < len(own) && tries < mostTries; i, tries = r.ahead(from, i+1), tries+1 {
		region := own[i]
		w := r.weights[region]
		fewer := w.Low <= over || r.level(from, x.Low-w.Low) >= r.level(to, y.High+w.High)
		if fewer && w.High <= room && r.hasRoom(to, w.High) && r.may(region, from, to) {
			return region
		}
	}
	return -1
}

// from is where the regions begin that weigh so much at most.
func (r *rounds) from(own []int32, most load.Amount) int {
	i, _ := slices.BinarySearchFunc(own, most, func(region int32, most load.Amount) int {
		if r.weights[region].Low > most {
			return -1
		}
		return 1
	})
	return i
}

// free reports whether a region may move to even out.
func (r *rounds) free(region int32) bool { return !r.begun[region] && !r.rests(region) }

// rests reports whether a region moved lately, or failed to.
func (r *rounds) rests(region int32) bool { return r.out.Budget.restsUntil(r.regions[region].ID) != 0 }

// ahead is the first of a seat's regions that is free, from one on; behind is the last, up to
// one; -1 or their number: there is none. Those that are not are passed once in a plan: they
// stay so.
func (r *rounds) ahead(at int32, i int) int { return r.pass(r.aheads, at, i, 1) }

func (r *rounds) behind(at int32, i int) int { return r.pass(r.behinds, at, i, -1) }

func (r *rounds) pass(skips []int32, at int32, i, by int) int {
	skips = skips[r.begins[at]:r.begins[at+1]]
	own, from := r.of(at), i
	for i >= 0 && i < len(own) && (skips[i] > 0 || !r.free(own[i])) {
		skips[i] = max(skips[i], 1)
		i += by * int(skips[i])
	}
	for from != i { // whoever comes by the same way is there at once
		next := from + by*int(skips[from])
		skips[from] = int32(by * (i - from))
		from = next
	}
	return i
}

// may reports whether a member may take a region that another one gives.
func (r *rounds) may(region, from, to int32) bool {
	if !r.f.allowed(r.rule[region], to) {
		return false
	}
	zone := r.f.zone(to)
	return !slices.ContainsFunc(r.owners(region), func(o int32) bool {
		return o == to || o != from && zone != "" && r.f.zone(o) == zone
	})
}
