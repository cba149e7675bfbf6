package tenure_test

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/history"
)

// world is a deterministic simulation: one goroutine, virtual time, messages
// that are late, lost and repeated.
type world struct {
	rng    *rand.Rand
	now    time.Duration
	events eventHeap
	order  uint64
	calm   bool

	knobs knobs
	root  *simRoot
	nodes []*simNode
	log   history.History
	fault faults
}

// knobs are what a run is made of; variant leaves one rule out.
type knobs struct {
	seed    uint64
	ttl     time.Duration
	lasting time.Duration
	// rate is how far clock rates differ from 1 at most; drift what the root allows for.
	rate, drift float64
	// late and slow are how many messages, and commits, of a thousand take long.
	late, slow int
	variant    variant
}

// faults counts what happened, so that a quiet run cannot pass for a good one.
type faults struct {
	pauses, crashes, shutdowns, leaders, cuts, suspicions, lost, repeated, late, wallJumps, rootIDs, clockRefusals, firstWindows, ends int
}

type event struct {
	at    time.Duration
	order uint64
	fn    func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

func (w *world) after(d time.Duration, fn func()) {
	w.order++
	heap.Push(&w.events, event{at: w.now + d, order: w.order, fn: fn})
}

// every calls fn again and again, at random distances around d.
func (w *world) every(d time.Duration, fn func()) {
	w.after(w.spread(d), func() {
		fn()
		w.every(d, fn)
	})
}

func (w *world) spread(d time.Duration) time.Duration {
	return d/2 + time.Duration(w.rng.Int64N(int64(d)))
}

func (w *world) chance(permille int) bool { return w.rng.IntN(1000) < permille }

// trouble is chance, but never in the calm at the end.
func (w *world) trouble(permille int) bool { return !w.calm && w.chance(permille) }

func (w *world) run(until time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= until {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.fn()
	}
	w.now = until
}

// send delivers fn after a while, perhaps twice, perhaps never.
func (w *world) send(fn func()) {
	if w.trouble(20) {
		w.fault.lost++
		return
	}
	copies := 1
	if w.trouble(20) {
		w.fault.repeated++
		copies = 2
	}
	for range copies {
		d := time.Duration(50+w.rng.Int64N(1000)) * time.Microsecond
		if w.trouble(w.knobs.late) {
			w.fault.late++
			d += time.Duration(w.rng.Int64N(int64(150 * time.Millisecond)))
		}
		w.after(d, fn)
	}
}

// simClock is a clock whose rate is a little off.
type simClock struct {
	w      *world
	rate   float64
	offset clock.Instant
}

func (w *world) newClock() simClock {
	return simClock{w: w, rate: 1 + (2*w.rng.Float64()-1)*w.knobs.rate, offset: clock.Instant(1 + w.rng.Int64N(1e12))}
}

func (c simClock) now() clock.Instant {
	return c.offset + clock.Instant(float64(c.w.now)*c.rate)
}

const simEpoch = uint64(1_800_000_000_000)

// wall is the right Unix time in milliseconds.
func (w *world) wall() uint64 { return simEpoch + uint64(w.now.Milliseconds()) }
