// Package clock is how the rest of NoKV learns the time.
//
// It owns nothing. It promises: (1) an Instant never decreases within a
// process; (2) the time between two Instants counts a suspended machine's
// sleep; (3) wall time is only for people and for timestamps, never compared
// between machines. Whoever needs a timer takes it from package time.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a moment of elapsed time in nanoseconds since an arbitrary start
// of this process. Instants of two processes are not comparable.
type Instant int64

// Add returns the moment d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Clock tells elapsed and wall time.
type Clock interface {
	// Now returns the current moment of elapsed time.
	Now() Instant
	// Wall returns Unix milliseconds by the machine's clock; it may jump.
	Wall() uint64
}

// System is the machine's clock: elapsed time is the larger of the monotonic
// and the boot-time clock, because the first stands still while a machine
// sleeps.
type System struct {
	start time.Time
	// boot reads the clock that goes on while the machine sleeps, in nanoseconds.
	boot      func() int64
	bootStart int64
}

// NewSystem starts a system clock at Instant 1.
func NewSystem() *System { return newSystem(bootNanos) }

func newSystem(boot func() int64) *System {
	return &System{start: time.Now(), boot: boot, bootStart: boot()}
}

// Now implements Clock.
func (c *System) Now() Instant {
	elapsed := int64(time.Since(c.start))
	return Instant(max(elapsed, c.boot()-c.bootStart) + 1)
}

// Wall implements Clock.
func (c *System) Wall() uint64 { return uint64(time.Now().UnixMilli()) }

func bootNanos() int64 {
	var ts unix.Timespec
	if err := clockGettime(bootClock, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// Monotonic is a clock over package time alone. Inside a testing/synctest
// bubble it follows the bubble's virtual time.
type Monotonic struct{ start time.Time }

// NewMonotonic starts a monotonic clock at Instant 1.
func NewMonotonic() *Monotonic { return &Monotonic{start: time.Now()} }

// Now implements Clock.
func (c *Monotonic) Now() Instant { return Instant(time.Since(c.start)) + 1 }

// Wall implements Clock.
func (c *Monotonic) Wall() uint64 { return uint64(time.Now().UnixMilli()) }

// Manual is a clock that moves when told. It is for simulations and tests of
// one goroutine.
type Manual struct {
	Elapsed Instant
	// WallMillis is what Wall returns, in Unix milliseconds.
	WallMillis uint64
}

// Now implements Clock.
func (c *Manual) Now() Instant { return c.Elapsed }

// Wall implements Clock.
func (c *Manual) Wall() uint64 { return c.WallMillis }

// Advance moves both clocks by d.
func (c *Manual) Advance(d time.Duration) {
	c.Elapsed += Instant(d)
	c.WallMillis += uint64(d.Milliseconds())
}
