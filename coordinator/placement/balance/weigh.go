package balance

import (
	"iter"
	"math"
	"slices"

	"github.com/nokv/nokv/coordinator/placement/load"
)

// Scale is what the regions of a keyspace weigh: their load, or one where loads do not matter
// or nobody has any. What is not known is estimated as what is in the middle, and no region is
// for nothing. Repairs, drains and rounds weigh by the same one.
type Scale struct {
	// ByCount: each weighs one. Estimated: too much of the load is not known.
	ByCount, Estimated bool
	// Total is what all weigh together, but for what is beyond heavy of each.
	Total load.Amount
	// least is what a region weighs at least, also what it weighs besides, and median what one
	// weighs whose load is not known.
	least, also, median load.Amount
	// A region that weighs more than heavy counts as counted in what all have together: it is more
	// than anybody's part whatever is done, and the parts of others are what is left for them.
	heavy, counted load.Amount
}

// Told is a region that is weighed: its first key, and its load, if that is known.
type Told struct {
	Start string
	Load  load.Pair
	Known bool
}

// eligible are the members that may have any of the regions.
func eligible(p *Policy, members []Member, regions iter.Seq[Told]) (able []Member) {
	if len(p.Rules) == 0 {
		return members
	}
	b := newBook(p.Rules)
	held := make([]bool, len(b.rules)+1)
	for x := range regions {
		held[b.of(x.Start)+1] = true
	}
	for i := range members {
		for rule := range held {
			if held[rule] && (rule == 0 || b.rules[rule-1].fits(members[i].Labels)) {
				able = append(able, members[i])
				break
			}
		}
	}
	return able
}

// ScaleOf is the scale of a keyspace with these regions, so many, for its members.
func ScaleOf(p Policy, members []Member, n int, regions iter.Seq[Told]) Scale {
	p = p.withDefaults()
	s := Scale{ByCount: true, Total: load.One * load.Amount(n), heavy: math.MaxInt64}
	if p.By == Count {
		return s
	}
	known, loads, sum := make([]load.Pair, 0, n), make([]load.Amount, 0, n+len(members)), load.Amount(0)
	for x := range regions {
		if x.Known {
			known, loads = append(known, x.Load), append(loads, mid(x.Load))
			sum = sum.Plus(mid(x.Load))
		}
	}
	if sum == 0 {
		return s
	}
	s.ByCount = false
	members = eligible(&p, members, regions)
	s.findHeavy(loads, members, sum)
	s.Total = 0
	for _, w := range loads {
		s.Total = s.Total.Plus(s.counts(w))
	}
	unknown := n - len(known)
	if unknown > 0 {
		s.median = middle(loads)
		estimated := s.median.Share(uint64(unknown), 1)
		s.Total = s.Total.Plus(estimated)
		s.Estimated = estimated > s.Total.Share(p.Unknown, 1000) || 1000*uint64(unknown) > p.Unknown*uint64(n) && s.median == 0
	}
	s.reserve(p, members, n)
	s.Total = s.Weight(load.Pair{}, false, 1).Low.Share(uint64(unknown), 1)
	for i := range known {
		s.Total = s.Total.Plus(s.counts(mid(s.Weight(known[i], true, 1))))
	}
	return s
}

// Weight is what a region weighs on each of its owners.
func (s *Scale) Weight(l load.Pair, known bool, owners int) load.Pair {
	switch {
	case s.ByCount:
		l = load.Same(load.One)
	case !known:
		l = load.Same(s.median)
	}
	if !s.ByCount {
		l.Low, l.High = max(l.Low, s.least).Plus(s.also), max(l.High, s.least).Plus(s.also)
	}
	if owners > 1 {
		l = l.Share(1, uint64(owners))
	}
	return l
}

// Beyond is what of so much load of one region, or of what is no region's, does not count in what
// all have together.
func (s *Scale) Beyond(p load.Pair) load.Amount { return mid(p) - s.counts(mid(p)) }

// counts is what so much of one region, or of what is no region's, counts as in what all have.
func (s *Scale) counts(w load.Amount) load.Amount {
	if w > s.heavy {
		return s.counted
	}
	return w
}

func mid(p load.Pair) load.Amount { return (p.Low + p.High) / 2 }

// heavyLooks bounds how often all loads are looked at for those that are heavy.
const heavyLooks = 32

// findHeavy finds above what a region is heavy: twice what a member would have of all that is
// not, among those that have no heavy one. Each counts as much as such a member has. Where there is
// nothing else, or as many as members, none is.
func (s *Scale) findHeavy(loads []load.Amount, members []Member, sum load.Amount) {
	takes := uint64(0)
	for i := range members {
		if m := &members[i]; m.Takes && !m.Stale {
			takes++
			loads, sum = append(loads, mid(m.Other)), sum.Plus(mid(m.Other))
		}
	}
	left := takes
	for n := 0; n < heavyLooks && left > 0 && sum > 0; n++ {
		heavy, rest, above := sum.Share(2, left), load.Amount(0), uint64(0)
		for _, w := range loads {
			if w > heavy {
				above++
			} else {
				rest = rest.Plus(w)
			}
		}
		if above == takes-left {
			s.heavy, s.counted = heavy, sum.Share(1, left)
			return
		}
		left, sum = takes-min(above, takes), rest
	}
}

func middle(of []load.Amount) load.Amount {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[len(of)/2]
}

// reserve has each region weigh its part of what is reserved, at least; by both, its
// part of all there is besides.
func (s *Scale) reserve(p Policy, members []Member, regions int) {
	can := load.Amount(0)
	for i := range members {
		if members[i].Takes && members[i].Most == 0 {
			can = s.Total
			break
		}
		can = can.Plus(members[i].Most)
	}
	s.least = can.Share(p.Reserve, 1000*uint64(max(regions, 1)))
	if p.By == Both {
		s.also = s.Total.Share(1, uint64(max(regions, 1)))
	}
}
