package balance

import (
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
)

// enter goes on with the last round of a kind, or begins the next one when its time has come.
// Shed begins its own.
func (r *rounds) enter(round Round) {
	r.round = round
	if b := &r.out.Budget; round != Shed && b.over(round, &r.k, r.Now) {
		b.last[round] = lastRound{}
	}
}

// affords reports whether so much more may be moved in this round, where one thing always may, and
// whether this hour has not moved all that it may: in a keyspace of few regions one is much of all.
func (r *rounds) affords(w load.Amount, n int) bool {
	total := r.scale.Total
	if r.out.ByCount {
		total = 0
	}
	b := &r.out.Budget
	most := r.k.Hour * 1000
	if known := b.allows(most, r.Now); known < most {
		most = min(most, known+r.allowance())
	}
	if b.hour(r.Now, total).reaches(most) && !(r.round == Fill && r.Young) {
		return false
	}
	return r.fitsRound(w, n)
}

// fitsRound is affords, whatever the hour was.
func (r *rounds) fitsRound(w load.Amount, n int) bool {
	b := &r.out.Budget
	if r.spent(n) || len(b.rests)+n > mostRests {
		return false
	}
	l := &b.last[r.round]
	round := l.spent
	if r.round > Fill && !b.over(Fill, &r.k, r.Now) {
		round.add(b.last[Fill].spent) // what joiners get relieves others, too
	}
	first := round.regions == 0
	round.add(r.part(w, n))
	return first || !round.above(r.allowance()) && (r.round != Shed || r.k.MostMoves == 0 || l.moves+n <= r.k.MostMoves)
}

// allowance is how many millionths of all are moved in this round.
func (r *rounds) allowance() uint64 {
	switch r.round {
	case Shed:
		return r.k.Round * 1000
	case Fill: // as much as one member lacks that has nothing
		return max(r.k.Round*1000, r.joiner)
	default:
		return max(r.k.Round, ownRound) * 1000
	}
}

// pay counts what a region weighs as moved in this round and in this hour, and has the region
// rest.
func (r *rounds) pay(region int32) {
	if costs := r.part(r.weights[region].High, 1); r.round == Fill && r.Young {
		r.out.Budget.last[Fill].spend(costs, r.Now)
	} else {
		r.out.Budget.spend(r.round, costs, r.Now)
	}
	r.out.Budget.rest(r.regions[region].ID, r.Now.Add(r.k.Spacing))
}

// part is so much of all, in millionths.
func (r *rounds) part(w load.Amount, n int) spent {
	return part(w, r.scale.Total, n, len(r.regions))
}

// nextRound is when the next round of this kind may begin, where the hour allows it.
func (r *rounds) nextRound() clock.Instant { return r.out.Budget.next(r.round, &r.k) }
