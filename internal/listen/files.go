package listen

import "syscall"

// openFiles is how many descriptors the process may have.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // What systems give when nobody asks for more.
	}
	return limit.Cur
}
