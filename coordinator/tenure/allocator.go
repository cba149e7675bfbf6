package tenure

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// window is what an allocator needs of an idalloc.Window or a tso.Window
// besides taking and extending, which differ.
type window interface {
	Low() bool
	Extended(from, to uint64) error
	Refused(fence uint64)
	Exhausted() bool
	Consumed() uint64
	Left() uint64
}

// allocator hands out the values of one mandate in one era: a window, and the
// queue of those that wait for it. It is dropped with the era.
type allocator struct {
	mandate   rootv1.Mandate
	inherited uint64
	limit     int
	count     *Counters
	// extensions counts windows rooted.
	extensions *atomic.Uint64
	// low is signalled when the extender should look.
	low chan struct{}
	// fenced: the first window is rooted.
	fenced atomic.Bool
	// reportedAt is when a refused clock was reported last; the extender's own.
	reportedAt clock.Instant

	// mu guards what follows.
	mu           sync.Mutex
	window       window
	take         func(count uint64) (uint64, bool)
	need         func(waiting uint64, now clock.Instant) (from, to uint64, want bool)
	clockRefused func(now clock.Instant)
	queue        []*waiter
	closed       error
}

// waiter is a request that waits for a window.
type waiter struct {
	count uint64
	// first and err are set before done is closed.
	first uint64
	err   error
	done  chan struct{}
}

// reserve takes count contiguous values and returns the first. It waits in
// turn, within ctx, when the window has no room. What it returns is generated,
// not yet checked.
func (a *allocator) reserve(ctx context.Context, count uint64) (first uint64, err error) {
	a.mu.Lock()
	if a.closed != nil {
		defer a.mu.Unlock()
		return 0, a.closed
	}
	if len(a.queue) == 0 {
		if v, ok := a.take(count); ok {
			low := a.window.Low()
			a.mu.Unlock()
			if low {
				a.signal()
			}
			return a.assert(v)
		}
	}
	w, err := a.enqueueLocked(count)
	a.mu.Unlock()
	if err != nil {
		return 0, err
	}
	a.signal()
	return a.await(ctx, w)
}

func (a *allocator) enqueueLocked(count uint64) (*waiter, error) {
	if len(a.queue) >= a.limit {
		a.count.Overloads.Add(1)
		return nil, overloaded(a.limit)
	}
	w := &waiter{count: count, done: make(chan struct{})}
	a.queue = append(a.queue, w)
	return w, nil
}

func (a *allocator) await(ctx context.Context, w *waiter) (uint64, error) {
	select {
	case <-w.done:
	case <-ctx.Done():
		if a.leave(w) {
			return 0, gaveUp(ctx, "no window was rooted in time")
		}
	}
	if w.err != nil {
		return 0, w.err
	}
	return a.assert(w.first)
}

// leave takes w off the queue; it reports false when w was served already.
func (a *allocator) leave(w *waiter) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, other := range a.queue {
		if other == w {
			a.queue = append(a.queue[:i], a.queue[i+1:]...)
			return true
		}
	}
	return false
}

// assert refuses a value that a predecessor may have served (2).
func (a *allocator) assert(first uint64) (uint64, error) {
	if first <= a.inherited {
		a.count.Violations.Inheritance.Add(1)
		return 0, reason.New(rootv1.Reason_REASON_INHERITANCE,
			"value %d is not above the inherited frontier %d", first, a.inherited)
	}
	return first, nil
}

func (a *allocator) signal() {
	select {
	case a.low <- struct{}{}:
	default:
	}
}

// next says which window to root next, if any, and whether requests wait.
func (a *allocator) next(now clock.Instant) (from, to uint64, want, waiting bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serveLocked()
	var sum uint64
	for _, w := range a.queue {
		sum += w.count
	}
	from, to, want = a.need(sum, now)
	if !want && sum > 0 && a.window.Exhausted() {
		a.failLocked(reason.New(rootv1.Reason_REASON_EXHAUSTED, "%s: the number space is used up", a.mandate))
	}
	return from, to, want, sum > 0
}

// extended adds a rooted window and serves those that wait.
func (a *allocator) extended(from, to uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.window.Extended(from, to); err != nil {
		return fmt.Errorf("extend %s: %w", a.mandate, err)
	}
	a.serveLocked()
	return nil
}

func (a *allocator) serveLocked() {
	served := 0
	for _, w := range a.queue {
		first, ok := a.take(w.count)
		if !ok {
			break
		}
		w.first = first
		close(w.done)
		served++
	}
	a.queue = append(a.queue[:0], a.queue[served:]...)
}

func (a *allocator) refused(fence uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.window.Refused(fence)
}

func (a *allocator) refusedByClock(now clock.Instant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clockRefused(now)
	a.serveLocked()
}

// close ends the allocator: nothing is taken after it returns, so that
// consumed is final.
func (a *allocator) close(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed == nil {
		a.closed = err
		a.failLocked(err)
	}
}

func (a *allocator) failLocked(err error) {
	for _, w := range a.queue {
		w.err = err
		close(w.done)
	}
	a.queue = nil
}

func (a *allocator) consumed() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.window.Consumed()
}

func (a *allocator) left() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.window.Left()
}
