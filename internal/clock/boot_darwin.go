package clock

import "golang.org/x/sys/unix"

// bootClock counts the time that the machine sleeps; there, Go's monotonic
// clock is another one, which does not.
const bootClock = unix.CLOCK_MONOTONIC

func clockGettime(clock int32, ts *unix.Timespec) error { return unix.ClockGettime(clock, ts) }
