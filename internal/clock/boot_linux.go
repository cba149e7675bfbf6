package clock

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// bootClock counts the time that the machine sleeps.
const bootClock = unix.CLOCK_BOOTTIME

// clockGettime is unix.ClockGettime without what the Go scheduler does around a call
// that may block: this one never does, and is made with nearly every message. It
// wakes a thread each time in a process that was idle.
func clockGettime(clock int32, ts *unix.Timespec) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(ts)), 0); errno != 0 {
		return errno
	}
	return nil
}
