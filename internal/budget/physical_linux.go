package budget

import "golang.org/x/sys/unix"

// physical is the machine's memory, in bytes.
func physical() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return unknownMemory
	}
	return int64(info.Totalram) * int64(info.Unit)
}
