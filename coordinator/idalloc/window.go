// Package idalloc hands out ids from rooted windows.
//
// A Window belongs to one era and dies with it: it is never reused or reset.
// It owns the arithmetic of what may be handed out, nothing else. It promises:
//
//  1. No id is handed out twice, and none outside a window that was rooted for
//     this era.
//  2. Ids grow, and those of one request are contiguous.
//  3. Nothing is handed out before the era's first window is rooted.
//  4. Consumed is exact: the successor of an orderly end may start right
//     behind it.
//
// It leaves to others (package tenure): rooting the windows, time, locking, and
// the question whether the era may still serve.
package idalloc

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
)

// Limits of requests, windows and ids.
const (
	// MaxCount is the most ids of one request.
	MaxCount = 1_000_000
	// DefaultWindow is the number of ids rooted at a time at first.
	DefaultWindow = 10_000
	// MaxWindow is what the window grows to under demand, in ids; waiting
	// requests are added to it.
	MaxWindow = 1 << 20
	// MaxID is the highest id: ids fit signed 64-bit integers.
	MaxID = 1<<63 - 1

	// MaxSkip is how far ahead of the fence the root lets a window begin where ids
	// were given before, in ids.
	MaxSkip = 1 << 40

	maxWaiting = 4 * MaxWindow
	// A window used up within growWithin is doubled; one that lasted
	// shrinkAfter is halved.
	growWithin  = time.Second
	shrinkAfter = 10 * time.Second
)

// Window hands out the ids of one era.
type Window struct {
	runs  Runs
	start uint64
	least uint64
	size  uint64
	// pending: a window was asked for and the answer is not known.
	pending bool
	rooted  bool
	askedAt clock.Instant
	// refused: the start may be further ahead of the fence than the root lets a
	// window begin. It is gone to in steps.
	refused bool
}

// New makes the window of a new era, which starts above inherited, and not
// below start. size is the least number of ids to root at a time; 0 counts as
// DefaultWindow.
func New(inherited, start, size uint64) *Window {
	size = sizeOf(size)
	return &Window{runs: NewRuns(inherited), start: start, least: size, size: size}
}

func sizeOf(size uint64) uint64 {
	if size == 0 {
		size = DefaultWindow
	}
	return min(size, MaxWindow)
}

// First describes the first window that New would ask for, whatever was
// inherited: size ids above the fence, or above floor if that is higher.
func First(start, size uint64) (floor, count uint64) {
	return max(start, 1) - 1, sizeOf(size)
}

// Take hands out count contiguous ids and returns the first. It reports false
// when no rooted window has room.
func (w *Window) Take(count uint64) (first uint64, ok bool) {
	return w.runs.Take(w.start, count)
}

// Low reports that it is time to ask NeedExtend.
func (w *Window) Low() bool { return !w.pending && w.usable() < w.size/2 }

func (w *Window) usable() uint64 { return w.runs.Left(w.start) }

// NeedExtend says which window to root next, if any: size ids above the fence, or
// above floor if that is higher, since others raise the fence too. waiting is the
// number of ids that requests in the queue wait for. Until Extended or Refused
// tells the outcome it asks for nothing more: repeat the same request.
func (w *Window) NeedExtend(waiting uint64, now clock.Instant) (floor, size uint64, want bool) {
	if w.pending || (waiting == 0 && w.rooted && !w.Low()) {
		return 0, 0, false
	}
	floor = max(w.start, 1) - 1
	if top := w.runs.Top(); w.refused && floor > top {
		floor = top + min(floor-top, MaxSkip)
	}
	base := max(w.runs.Top(), floor)
	if base >= MaxID {
		return 0, 0, false
	}
	w.adapt(now)
	w.runs.GiveUp()
	w.pending = true
	return floor, min(w.size+min(waiting, maxWaiting), MaxID-base), true
}

// adapt sizes the window by how long the last one lasted.
func (w *Window) adapt(now clock.Instant) {
	if w.rooted {
		switch lasted := now.Sub(w.askedAt); {
		case lasted < growWithin:
			w.size = min(2*w.size, MaxWindow)
		case lasted > shrinkAfter:
			w.size = max(w.size/2, w.least)
		}
	}
	w.askedAt = now
}

// Extended says that (from, to] is rooted for this era.
func (w *Window) Extended(from, to uint64) error {
	if err := w.runs.Add(from, to); err != nil {
		return err
	}
	w.pending, w.rooted = false, true
	return nil
}

// Refused says that no window was rooted, and where the fence is. What is left of
// older windows stays usable.
func (w *Window) Refused(fence uint64) {
	w.runs.Skip(fence)
	w.pending, w.refused = false, true
}

// Exhausted reports that no further window can be rooted.
func (w *Window) Exhausted() bool { return w.runs.Top() >= MaxID }

// Consumed is the exact frontier of this era.
func (w *Window) Consumed() uint64 { return w.runs.Consumed() }

// Left is the number of ids that can be handed out at once.
func (w *Window) Left() uint64 { return w.usable() }
