// Package tso hands out timestamps from rooted windows.
//
// A timestamp is 64 bits: 46 bits of Unix milliseconds, 18 bits of counter. A
// Window belongs to one era and dies with it: it is never reused or reset. It
// promises:
//
//  1. Timestamps strictly grow, whatever the wall clock does, and those of one
//     request are contiguous.
//  2. None is handed out at or below the inherited frontier, below the start
//     flag, or outside a window that was rooted for this era; so none before
//     the era's first fence is committed.
//  3. A timestamp is not behind the wall clock that came with the request,
//     unless the root has refused that clock.
//  4. Windows are asked for only while timestamps are.
//  5. Consumed is exact: the successor of an orderly end may start right
//     behind it.
//
// More than 2^18 timestamps within a millisecond run ahead into the next ones,
// as far as the window reaches. It leaves to others (package tenure): rooting
// the windows, reading clocks, locking, and the question whether the era may
// still serve.
package tso

import (
	"time"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/internal/clock"
)

// Limits and the layout of timestamps.
const (
	// CounterBits is the width of the counter below the milliseconds.
	CounterBits = 18
	// MaxCount is the most timestamps of one request.
	MaxCount = 1 << CounterBits
	// Max is the highest timestamp: timestamps fit signed 64-bit integers until
	// the year 3084.
	Max = 1<<63 - 1
	// MaxMillis is the latest moment a timestamp can tell, in Unix milliseconds.
	MaxMillis = Max >> CounterBits
	// DefaultAhead is how far ahead of use the fence is rooted.
	DefaultAhead = 3 * time.Second

	// maxWaiting bounds what waiting requests add to a window: a minute.
	maxWaiting = 60_000 << CounterBits
	// A refused clock is offered to the root again after retestAfter.
	retestAfter = time.Second
)

// Compose makes a timestamp of Unix milliseconds, MaxMillis at most, and a counter below MaxCount.
func Compose(millis, counter uint64) uint64 { return millis<<CounterBits | counter }

// Millis is the moment that a timestamp tells, in Unix milliseconds.
func Millis(timestamp uint64) uint64 { return timestamp >> CounterBits }

// Window hands out the timestamps of one era.
type Window struct {
	runs  idalloc.Runs
	start uint64
	ahead uint64
	// taken counts values handed out since the last window was asked for;
	// asked that somebody did ask.
	taken uint64
	asked bool
	// pending: a window was asked for and the answer is not known.
	pending bool
	rooted  bool
	// A wall clock beyond the fence is disregarded until retestAt.
	clockRefused bool
	retestAt     clock.Instant
	wallAsked    uint64
}

// New makes the window of a new era, which starts above inherited, and not
// below start. ahead is how far ahead of use to root; 0 counts as DefaultAhead.
func New(inherited, start uint64, ahead time.Duration) *Window {
	return &Window{runs: idalloc.NewRuns(inherited), start: start, ahead: spanOf(ahead)}
}

// spanOf is a duration in timestamps.
func spanOf(ahead time.Duration) uint64 {
	if ahead <= 0 {
		ahead = DefaultAhead
	}
	return max(uint64(ahead.Milliseconds()), 1) << CounterBits
}

// First describes the first window that New would ask for, whatever was
// inherited: size timestamps above the fence, or above floor if that is higher.
func First(start uint64, ahead time.Duration, wallMillis uint64) (floor, size uint64) {
	w := Window{start: start}
	return max(w.floor(wallMillis), 1) - 1, spanOf(ahead)
}

// Take hands out count contiguous timestamps, not behind wallMillis, and
// returns the first. It reports false when no rooted window has room.
func (w *Window) Take(count, wallMillis uint64) (first uint64, ok bool) {
	w.asked = true
	first, ok = w.runs.Take(w.floor(wallMillis), count)
	if !ok && w.clockRefused {
		first, ok = w.runs.Take(w.start, count)
	}
	if ok {
		w.taken += count
	}
	return first, ok
}

func (w *Window) floor(wallMillis uint64) uint64 {
	return max(min(wallMillis, MaxMillis)<<CounterBits, w.start)
}

// Low reports that it is time to ask NeedExtend.
func (w *Window) Low() bool {
	return !w.pending && (w.clockRefused || w.runs.Top()-w.runs.Last() < w.ahead/2)
}

// NeedExtend says which window to root next, if any: size timestamps above the
// fence, or above floor if that is higher. waiting is the number of timestamps that
// requests in the queue wait for. Until Extended, Refused or ClockRefused tells the
// outcome it asks for nothing more: repeat the same request.
func (w *Window) NeedExtend(waiting, wallMillis uint64, now clock.Instant) (floor, size uint64, want bool) {
	if w.pending {
		return 0, 0, false
	}
	from := w.runs.Top()
	base := max(w.floor(wallMillis), w.runs.Last())
	if w.clockRefused && now < w.retestAt {
		base = max(w.start, w.runs.Last())
	}
	short := base >= from || from-base < w.ahead/2
	if w.rooted && waiting == 0 && (!w.asked || !short) {
		return 0, 0, false
	}
	to := add(base, w.ahead+min(w.taken, w.ahead))
	if waiting > 0 {
		to = add(max(to, from), min(waiting, maxWaiting))
	}
	// The window begins behind floor, with base.
	if floor = max(base, from+1) - 1; to <= floor {
		return 0, 0, false
	}
	w.runs.GiveUp()
	w.pending, w.asked, w.taken = true, waiting > 0, 0
	w.wallAsked = 0
	if base > w.runs.Last() && base > w.start {
		w.wallAsked = base
	}
	return floor, to - floor, true
}

// Extended says that (from, to] is rooted for this era.
func (w *Window) Extended(from, to uint64) error {
	if err := w.runs.Add(from, to); err != nil {
		return err
	}
	w.pending, w.rooted = false, true
	if w.wallAsked != 0 {
		w.clockRefused = false
	}
	return nil
}

// Refused says that no window was rooted, and where the fence is.
func (w *Window) Refused(fence uint64) {
	w.runs.Skip(fence)
	w.pending = false
}

// ClockRefused says that the root found the window too far ahead of its own
// wall clock. When it was this machine's wall clock that reached so far, it is
// disregarded beyond the fence for a while, and time goes on from the last
// timestamp; when it was demand, callers wait until time has caught up.
func (w *Window) ClockRefused(now clock.Instant) {
	w.pending = false
	w.asked = true
	if w.wallAsked != 0 {
		w.clockRefused = true
		w.retestAt = now.Add(retestAfter)
	}
}

// Exhausted reports that no further window can be rooted.
func (w *Window) Exhausted() bool { return w.runs.Top() >= Max }

// Consumed is the exact frontier of this era.
func (w *Window) Consumed() uint64 { return w.runs.Consumed() }

// Left is the number of timestamps between the last one and the fence.
func (w *Window) Left() uint64 { return w.runs.Left(0) }

// add is a + b, at most Max.
func add(a, b uint64) uint64 {
	if a >= Max || b >= Max-a {
		return Max
	}
	return a + b
}
