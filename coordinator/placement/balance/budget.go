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

// Budget is what was moved lately to even out. It is a value: Make returns the next one.
type Budget struct {
	// began is when the last round did that relieves members, round and moves what was moved
	// in it, relieved the incarnations of those members that it is not done with, in order.
	began    clock.Instant
	round    spent
	moves    int
	relieved []uint64
	// filling are the incarnations of members that are given their part, filled of those that
	// joined lately and have had it, in order.
	filling, filled []uint64
	// slots is what was moved in each five minutes of an hour.
	slots [12]slot
	// rests are regions that are let be, by id.
	rests []rest
}

// spent is what was moved, in millionths of all.
type spent struct{ load, regions uint64 }

func (s *spent) add(o spent) { s.load, s.regions = s.load+o.load, s.regions+o.regions }

func (s spent) above(n uint64) bool { return s.load > n || s.regions > n }

type slot struct {
	number int64
	spent
}

type rest struct {
	region state.RegionID
	until  clock.Instant
}

// mostRests bounds the regions that rest: with more, nothing is moved to even out.
const mostRests = 65_536

const slotTime = 5 * time.Minute

// Failed has a region rest that was not moved in the end.
func (b Budget) Failed(id state.RegionID, p Policy, now clock.Instant) Budget {
	b.rests = slices.Clone(b.rests)
	b.rest(id, now.Add(p.withDefaults().Backoff))
	return b
}

// Asked is the Budget behind steps that somebody else's plan made: they count as if they were
// of a round at now.
func (b Budget) Asked(steps []Step, total load.Amount, regions int, p Policy, now clock.Instant) Budget {
	p = p.withDefaults()
	b = b.next(now)
	if b.began == 0 || now >= b.began.Add(p.Cooldown) {
		b.began, b.round, b.moves, b.relieved = now, spent{}, 0, nil
	}
	for i := range steps {
		s := &steps[i]
		if s.Kind != Move || s.Round != Shed && s.Round != Fill {
			continue
		}
		if s.Round == Shed {
			b.spend(part(s.Load, total, 1, regions), now)
		}
		b.rest(s.Region, now.Add(p.Spacing))
	}
	return b
}

// part is so much of all, in millionths.
func part(w, total load.Amount, n, regions int) spent {
	return spent{load: uint64(w.Share(1_000_000, uint64(max(total, 1)))), regions: uint64(n) * 1_000_000 / uint64(max(regions, 1))}
}

// Past is a move to even out that was rooted, planned by another one.
type Past struct {
	Region state.RegionID
	At     clock.Instant
	// Failed: it was given up. Late: it was at At at the latest, and nobody knows when.
	Failed, Late bool
}

// Recall is the Budget of a keyspace with so many regions when moves were planned by
// another one. Each counts as a region: how much load it was is not known.
func Recall(moves []Past, regions int, p Policy, now clock.Instant) Budget {
	p = p.withDefaults()
	var b Budget
	until := map[state.RegionID]clock.Instant{}
	for _, m := range moves {
		rests := m.At.Add(p.Spacing)
		if m.Failed {
			rests = m.At.Add(p.Backoff)
		}
		if rests > now {
			until[m.Region] = max(until[m.Region], rests)
		}
		if !m.Failed && !m.Late && now.Sub(m.At) < time.Hour {
			b.spend(spent{regions: 1_000_000 / uint64(max(regions, 1))}, m.At)
			b.began = max(b.began, m.At)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(until)) {
		if len(b.rests) < mostRests {
			b.rests = append(b.rests, rest{id, until[id]})
		}
	}
	return b
}

// next is a Budget of its own, without what is over.
func (b Budget) next(now clock.Instant) Budget {
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

// hour is what was moved in the last hour.
func (b *Budget) hour(now clock.Instant) (all spent) {
	for _, s := range b.slots {
		if int64(now)/int64(slotTime)-s.number < int64(len(b.slots)) {
			all.add(s.spent)
		}
	}
	return all
}

func (b *Budget) spend(what spent, now clock.Instant) {
	number := int64(now) / int64(slotTime)
	s := &b.slots[number%int64(len(b.slots))]
	if s.number != number {
		*s = slot{number: number}
	}
	s.add(what)
	b.round.add(what)
	b.moves++
}
