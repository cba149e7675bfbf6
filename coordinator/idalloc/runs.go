package idalloc

import "fmt"

// Runs holds the values that one era may serve: what is left of the windows
// (from, to] that were rooted for it. It keeps a current run and at most one
// behind it that does not adjoin. The zero value serves nothing above zero;
// make one with NewRuns.
type Runs struct {
	// last is the highest value handed out or passed over, at first the
	// inherited frontier; values in (last, limit] are free.
	last, limit uint64
	// (nextFrom, nextTo] is the run behind the current one; empty when equal.
	nextFrom, nextTo uint64
	// top is the highest fence heard of: the next window starts there.
	top uint64
	// foreign is the highest value known to belong to somebody else.
	foreign uint64
	// newest is where the newest window begins, and givenUp what does not count
	// as left at the end: see GiveUp.
	newest, givenUp uint64
}

// NewRuns makes Runs that serve values above inherited, once some are added.
func NewRuns(inherited uint64) Runs {
	return Runs{last: inherited, limit: inherited, top: inherited}
}

// Take hands out count contiguous values, none below floor, and returns the
// first. It reports false, and changes nothing, when no run has room. What a
// request cannot use of the current run before it goes on to the next is
// passed over, so that values only grow.
func (r *Runs) Take(floor, count uint64) (first uint64, ok bool) {
	if first, ok = fit(r.last, r.limit, floor, count); ok {
		r.last = first + (count - 1)
		return first, true
	}
	if first, ok = fit(r.nextFrom, r.nextTo, floor, count); ok {
		r.advance()
		r.last = first + (count - 1)
		return first, true
	}
	return 0, false
}

// fit finds count values in (after, limit] at floor or above.
func fit(after, limit, floor, count uint64) (first uint64, ok bool) {
	if after >= limit || count == 0 {
		return 0, false
	}
	first = max(after+1, floor)
	return first, first <= limit && limit-first >= count-1
}

// Add makes the rooted window (from, to] available. A window that is empty or
// reaches below a fence heard of before is refused: its values may have been
// served.
func (r *Runs) Add(from, to uint64) error {
	if to <= from || from < r.top {
		return fmt.Errorf("window (%d, %d] does not lie above fence %d", from, to, r.top)
	}
	if from > r.top {
		r.Skip(from)
	}
	r.top, r.newest = to, from
	queued := r.nextFrom < r.nextTo
	switch {
	case !queued && from == r.limit:
		r.limit = to
	case queued && from == r.nextTo:
		r.nextTo = to
	default:
		if queued {
			r.advance()
		}
		r.nextFrom, r.nextTo = from, to
	}
	return nil
}

// advance gives up the rest of the current run for the next one.
func (r *Runs) advance() {
	r.last, r.limit = r.nextFrom, r.nextTo
	r.nextFrom, r.nextTo = 0, 0
}

// Skip notes a fence that somebody else raised: values up to it that are not
// in a run belong to others.
func (r *Runs) Skip(fence uint64) {
	if fence > r.top {
		r.top, r.foreign = fence, fence
	}
}

// GiveUp is said before another window is asked for: what lies below the newest
// one counts as consumed from then on, should the era end. The root refuses an
// end below that. It matters to requests for more than a window, whose callers
// went away: otherwise all that is served.
func (r *Runs) GiveUp() { r.givenUp = r.newest }

// Top is the highest fence heard of.
func (r *Runs) Top() uint64 { return r.top }

// Last is the highest value handed out, or the inherited frontier.
func (r *Runs) Last() uint64 { return r.last }

// Left counts the values at floor or above that can still be handed out.
func (r *Runs) Left(floor uint64) uint64 {
	below := max(floor, 1) - 1
	return r.limit - min(max(r.last, below), r.limit) + r.nextTo - min(max(r.nextFrom, below), r.nextTo)
}

// Consumed is the exact frontier: no value above it was handed out by this
// era or, as far as was heard, by anybody else.
func (r *Runs) Consumed() uint64 { return max(r.last, r.foreign, r.givenUp) }
