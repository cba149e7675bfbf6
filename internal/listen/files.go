package listen

import (
	"os"
	"syscall"
)

// OpenFileLimit is how many descriptors the process may have.
func OpenFileLimit() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // What systems give when nobody asks for more.
	}
	return limit.Cur
}

// OpenFiles is how many descriptors the process has; 0 where the system does not tell.
func OpenFiles() int {
	folder, err := os.Open("/dev/fd")
	if err != nil {
		return 0
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return 0
	}
	return len(names) - 1 // The folder itself is one.
}
