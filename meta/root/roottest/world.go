package roottest

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/clock"
)

// World is virtual time: events happen in order, one at a time.
type World struct {
	// Rand is the source of every decision.
	Rand *rand.Rand
	// Faults counts what was injected, by kind.
	Faults map[string]int

	now    clock.Instant
	order  uint64
	events events
}

// NewWorld makes a world at Instant 1 without events.
func NewWorld(seed uint64) *World {
	return &World{Rand: rand.New(rand.NewPCG(seed, 0x6e6f6b76)), Faults: make(map[string]int), now: 1}
}

// Now is the true time, which no process sees: each has a clock of its own.
func (w *World) Now() clock.Instant { return w.now }

// After runs fn when d has passed.
func (w *World) After(d time.Duration, fn func()) {
	w.order++
	heap.Push(&w.events, event{at: w.now.Add(max(d, 0)), order: w.order, fn: fn})
}

// Between is a random duration in [lo, hi).
func (w *World) Between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.Rand.Int64N(int64(hi-lo)))
}

// Chance is true with probability p.
func (w *World) Chance(p float64) bool { return w.Rand.Float64() < p }

// Fault counts an injected fault.
func (w *World) Fault(kind string) { w.Faults[kind]++ }

// Step runs the next event; false when there is none before limit.
func (w *World) Step(limit clock.Instant) bool {
	if len(w.events) == 0 || w.events[0].at > limit {
		w.now = max(w.now, limit)
		return false
	}
	e := heap.Pop(&w.events).(event)
	w.now = e.at
	e.fn()
	return true
}

// RunFor runs events until d has passed or stop returns true.
func (w *World) RunFor(d time.Duration, stop func() bool) bool {
	limit := w.now.Add(d)
	for {
		if stop != nil && stop() {
			return true
		}
		if !w.Step(limit) {
			return stop != nil && stop()
		}
	}
}

// FaultCounts lists the injected faults for people.
func FaultCounts(faults map[string]int) string {
	kinds := make([]string, 0, len(faults))
	for k := range faults {
		kinds = append(kinds, k)
	}
	sort.Strings(kinds)
	var b strings.Builder
	for i, k := range kinds {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %d", k, faults[k])
	}
	return b.String()
}

type event struct {
	at    clock.Instant
	order uint64
	fn    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if e[i].at != e[j].at {
		return e[i].at < e[j].at
	}
	return e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	old[len(old)-1] = event{}
	*e = old[:len(old)-1]
	return x
}

// Clock is a process's clock: it runs at a rate of its own and stands still
// while the process is paused only if the machine sleeps with it; here elapsed
// time always counts sleep, as clock.System does.
type Clock struct {
	world *World
	// offset and permille make elapsed time of true time.
	offset   clock.Instant
	permille int64
	// WallOffset is how far wall time is from true time, in milliseconds.
	WallOffset int64
}

// wallStart is Unix milliseconds at Instant 0 of the world.
const wallStart = 1_700_000_000_000

// NewClock makes a clock that runs within drift permille of true time.
func (w *World) NewClock(drift int64) *Clock {
	c := &Clock{world: w, offset: clock.Instant(w.Rand.Int64N(int64(time.Hour))), permille: 1000}
	if drift > 0 {
		c.permille += w.Rand.Int64N(2*drift+1) - drift
	}
	return c
}

// Now implements clock.Clock.
func (c *Clock) Now() clock.Instant {
	return c.offset + clock.Instant(int64(c.world.now)/1000*c.permille)
}

// Wall implements clock.Clock.
func (c *Clock) Wall() uint64 { return uint64(int64(c.world.Wall()) + c.WallOffset) }

// Wall is true Unix milliseconds.
func (w *World) Wall() uint64 { return uint64(wallStart + int64(w.now)/int64(time.Millisecond)) }
