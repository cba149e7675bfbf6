package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nokv/nokv/test/hermetic"
)

// endsWithin is how long a process may take that ends behind its test: one whose parent was killed.
const endsWithin = 10 * time.Second

// leftProcesses are those that tests of a run have left behind and that do not end within a time; they
// are killed. Only Linux tells.
func leftProcesses(run string, within time.Duration) (left []string) {
	mark := []byte(hermetic.Run + "=" + run)
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) { // nothing tells of the end of another's child
		left = nil
		over := time.Since(begun) > within
		environs, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, name := range environs {
			environ, err := os.ReadFile(name)
			if err != nil || !hasVariable(environ, mark) {
				continue
			}
			dir := filepath.Dir(name)
			pid, _ := strconv.Atoi(filepath.Base(dir))
			words, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			if len(words) == 0 {
				continue // it has ended, and nobody has asked how
			}
			left = append(left, fmt.Sprintf("a process was left behind: %s", shorten(strings.ReplaceAll(strings.Trim(string(words), "\x00"), "\x00", " "), 200)))
			if over {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if len(left) == 0 || over {
			return left
		}
	}
}

func hasVariable(environ, variable []byte) bool {
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if bytes.Equal(v, variable) {
			return true
		}
	}
	return false
}

// leftFiles are those that tests have left in the temporary folder of a run.
func leftFiles(temp string) (left []string) {
	entries, err := os.ReadDir(temp)
	if err != nil {
		return []string{err.Error()}
	}
	for _, e := range entries {
		left = append(left, fmt.Sprintf("a file was left behind in the temporary folder: %q", e.Name()))
	}
	return left
}
