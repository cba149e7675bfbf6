package balance

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

// Budget is what was moved lately, but for what had to: repairs, drains and what breaks a
// constraint. It is a value: Make returns the next one.
type Budget struct {
	// last are the last rounds of each kind. relieved are the incarnations of those members that
	// the last Shed is not done with, in order.
	last     [Shed + 1]lastRound
	relieved []uint64
	// filling are the incarnations of members that are given their part, filled of those that
	// joined lately and have had it, in order.
	filling, filled []uint64
	// slots is what was moved in each five minutes of an hour. from is since when that is known;
	// 0: always.
	slots [12]slot
	from  clock.Instant
	// rests are regions that are let be, by id.
	rests []rest
}

// lastRound is when a round began, and what was moved in it, by how many moves.
type lastRound struct {
	began clock.Instant
	spent
	moves int
}

// over reports whether the next round of a kind may begin.
func (b *Budget) over(of Round, p *Policy, now clock.Instant) bool {
	return b.last[of].began == 0 || now >= b.next(of, p)
}

// next is when the next round of a kind may begin.
func (b *Budget) next(of Round, p *Policy) clock.Instant {
	every := p.Cooldown
	if of == Fill {
		every = min(every, joinEvery)
	}
	return b.last[of].began.Add(every)
}

func (l *lastRound) spend(what spent, now clock.Instant) {
	l.add(what)
	l.moves++
	if l.began == 0 {
		l.began = now
	}
}

// spent is what was moved, in millionths of all.
type spent struct{ load, regions uint64 }

func (s *spent) add(o spent) { s.load, s.regions = s.load+o.load, s.regions+o.regions }

func (s spent) above(n uint64) bool { return s.load > n || s.regions > n }

func (s spent) reaches(n uint64) bool { return s.load >= n || s.regions >= n }

type slot struct {
	number int64
	spent
	// recalled is load that others moved, of which it is not known how much of all it was.
	recalled load.Amount
}

type rest struct {
	region state.RegionID
	until  clock.Instant
}

// mostRests bounds the regions that rest: with more, nothing is moved that has to pay.
const mostRests = 65_536

const slotTime = 5 * time.Minute

// Failed has a region rest that was not moved in the end.
func (b Budget) Failed(id state.RegionID, p Policy, now clock.Instant) Budget {
	b.rests = slices.Clone(b.rests)
	b.rest(id, now.Add(p.withDefaults().Backoff))
	return b
}

// Asked is the Budget behind steps that somebody else's plan made: they count as if they were
// of rounds at now.
func (b Budget) Asked(steps []Step, total load.Amount, regions int, p Policy, now clock.Instant) Budget {
	p = p.withDefaults()
	b = b.since(now)
	for i := range b.last {
		if b.over(Round(i), &p, now) {
			b.last[i] = lastRound{}
		}
	}
	if b.last[Shed].began == 0 {
		b.relieved = nil
	}
	for i := range steps {
		s := &steps[i]
		switch {
		case s.Round == Constrain:
		case s.Kind == Split:
			b.last[s.Round].spend(part(0, total, 1, regions), now)
		case s.Kind == Add:
			b.last[s.Round].spend(part(s.Load, total, 1, regions), now)
			b.rest(s.Region, now.Add(p.Spacing))
		default:
			b.spend(s.Round, part(s.Load, total, 1, regions), now)
			b.rest(s.Region, now.Add(p.Spacing))
		}
	}
	return b
}

// part is so much of all, in millionths.
func part(w, total load.Amount, n, regions int) spent {
	return spent{load: uint64(w.Share(1_000_000, uint64(max(total, 1)))), regions: uint64(n) * 1_000_000 / uint64(max(regions, 1))}
}

// Past is a change that was rooted and has to be paid for, planned by another one.
type Past struct {
	Region state.RegionID
	At     clock.Instant
	// Round that it was of, and Load that it moved, as far as that is known.
	Round Round
	Load  load.Amount
	// Failed: it was given up. Late: it was at At at the latest, and nobody knows when.
	Failed, Late bool
}

// Recall is the Budget of a keyspace with so many regions when changes were planned by
// another one, of which all are known from a time on; 0: all.
func Recall(changes []Past, from clock.Instant, regions int, p Policy, now clock.Instant) Budget {
	p = p.withDefaults()
	b := Budget{from: from}
	until := map[state.RegionID]clock.Instant{}
	for _, m := range changes {
		rests := m.At.Add(p.Spacing)
		if m.Failed {
			rests = m.At.Add(p.Backoff)
		}
		if rests > now {
			until[m.Region] = max(until[m.Region], rests)
		}
		if !m.Failed && !m.Late && now.Sub(m.At) < time.Hour {
			b.spend(m.Round, part(0, 0, 1, regions), m.At).recalled += m.Load
			b.last[m.Round].began = max(b.last[m.Round].began, m.At)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(until)) {
		if len(b.rests) < mostRests {
			b.rests = append(b.rests, rest{id, until[id]})
		}
	}
	return b
}

// since is a Budget of its own, without what is over.
func (b Budget) since(now clock.Instant) Budget {
	b.rests = slices.DeleteFunc(slices.Clone(b.rests), func(r rest) bool { return r.until <= now })
	return b
}

func (b *Budget) rest(id state.RegionID, until clock.Instant) {
	i, found := b.at(id)
	switch {
	case found:
		b.rests[i].until = max(b.rests[i].until, until)
	case len(b.rests) < mostRests:
		b.rests = slices.Insert(b.rests, i, rest{id, until})
	}
}

func (b *Budget) at(id state.RegionID) (int, bool) {
	return slices.BinarySearchFunc(b.rests, id, func(r rest, id state.RegionID) int { return cmp.Compare(r.region, id) })
}

// restsUntil is until when a region is let be; 0: it is not.
func (b *Budget) restsUntil(id state.RegionID) clock.Instant {
	if i, found := b.at(id); found {
		return b.rests[i].until
	}
	return 0
}

// nextRested is when the first of the regions that rest has done so; 0: none rests.
func (b *Budget) nextRested() (first clock.Instant) {
	for i := range b.rests {
		if first == 0 || b.rests[i].until < first {
			first = b.rests[i].until
		}
	}
	return first
}

// hour is what was moved in the last hour, of so much load; 0: loads do not matter.
func (b *Budget) hour(now clock.Instant, total load.Amount) (all spent) {
	recalled := load.Amount(0)
	for _, s := range b.slots {
		if int64(now)/int64(slotTime)-s.number < int64(len(b.slots)) {
			all.add(s.spent)
			recalled = recalled.Plus(s.recalled)
		}
	}
	if total > 0 {
		all.load += part(recalled, total, 0, 1).load
	}
	return all
}

// allows is how many of so many millionths may be moved in an hour: of one that is known in part,
// that part, because as much may have been moved in the rest.
func (b *Budget) allows(millionths uint64, now clock.Instant) uint64 {
	if known := now.Sub(b.from); b.from != 0 && known < time.Hour {
		return millionths * uint64(max(known, 0)/time.Second) / uint64(time.Hour/time.Second)
	}
	return millionths
}

// spend counts what was moved in the last round of a kind, which begins with it if there is
// none, and in the hour.
func (b *Budget) spend(of Round, what spent, now clock.Instant) *slot {
	number := int64(now) / int64(slotTime)
	s := &b.slots[number%int64(len(b.slots))]
	if s.number != number {
		*s = slot{number: number}
	}
	s.add(what)
	b.last[of].spend(what, now)
	return s
}
