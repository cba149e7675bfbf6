package budget

import "golang.org/x/sys/unix"

// physical is the machine's memory, in bytes.
func physical() int64 {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return unknownMemory
	}
	return int64(n)
}
