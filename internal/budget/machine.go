package budget

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Minimum is the smallest budget that a process takes: in less, one caller's share
// has no room for as many calls as a connection may have open.
const Minimum Size = 128 << 20

// unknownMemory is what a machine has that does not tell.
const unknownMemory = 2 << 30

// Default is half of what the process may have of the machine's memory.
func Default() Size { return max(Machine()/2, Minimum) }

// Machine is how much memory the process may have: the machine's, the limit of
// its control group or GOMEMLIMIT, whichever is smallest.
func Machine() Size {
	return Size(min(debug.SetMemoryLimit(-1), physical(), controlGroup(os.DirFS("/"))))
}

// controlGroup is the smallest memory limit of the control group that the process
// is in, version 1 or 2, and those around it.
func controlGroup(root fs.FS) int64 {
	least := int64(math.MaxInt64)
	membership, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return least
	}
	for line := range strings.Lines(string(membership)) {
		// hierarchy:controllers:path, as in 0::/system.slice (2) and 4:memory:/docker/1 (1)
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		folder, file := "sys/fs/cgroup", "memory.max"
		if parts[1] != "" {
			folder, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
			if parts[1] != "memory" {
				continue
			}
		}
		// In a container the path is the host's, and the own group is at the top.
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			least = min(least, limitIn(root, path.Join(folder, group, file)))
			if group == "/" {
				break
			}
		}
	}
	return least
}

// limitIn is the limit that a file of a control group says; none if it says "max".
func limitIn(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n
}
