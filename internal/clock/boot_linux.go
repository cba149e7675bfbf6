package clock

import "golang.org/x/sys/unix"

// bootClock counts the time that the machine sleeps.
const bootClock = unix.CLOCK_BOOTTIME
