package sidecar

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// gateName is how this binary is called as a process that waits at a gate.
const gateName = "nokv-sidecar-gate"

// What a process at a gate reads and writes beside what the command does: a byte that opens the gate, and
// why the command could not be run.
const (
	gateOpens = 3 + iota
	gateFails
)

// A gate holds a process up that is to become a command: it has the command's process id and group already.
type gate struct {
	cmd *exec.Cmd
	// theirs are the ends of the process, opens and fails those of this one.
	theirs       []*os.File
	opens, fails *os.File
}

// newGate prepares a gate for a command line. The command is looked up here, as exec.Command does.
func newGate(argv []string) (*gate, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, err
	}
	self := "/proc/self/exe" // also when the file has been replaced
	if _, err := os.Stat(self); errors.Is(err, fs.ErrNotExist) {
		if self, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	opened, opens, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	fails, failed, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, opened.Close(), opens.Close())
	}
	g := &gate{cmd: exec.Command(self), theirs: []*os.File{opened, failed}, opens: opens, fails: fails}
	g.cmd.Args, g.cmd.ExtraFiles = append([]string{gateName, path}, argv...), g.theirs
	return g, nil
}

// open lets the process become the command, and returns why it could not.
func (g *gate) open() error {
	for _, f := range g.theirs {
		_ = f.Close() // so that only the process has them
	}
	if _, err := g.opens.Write([]byte{1}); err != nil {
		return err
	}
	why, err := io.ReadAll(g.fails) // it ends when the command runs
	if len(why) > 0 {
		return errors.New(string(why))
	}
	return err
}

func (g *gate) close() {
	for _, f := range append(g.theirs, g.opens, g.fails) {
		_ = f.Close() // again, where it was opened
	}
}

func init() {
	if len(os.Args) > 2 && os.Args[0] == gateName {
		os.Exit(wait(os.Args[1], os.Args[2:]))
	}
}

// wait is what a process does at a gate. It returns only when it does not become the command: the sidecar
// ended before it opened the gate, or the command cannot be run.
func wait(path string, argv []string) int {
	syscall.CloseOnExec(gateOpens)
	syscall.CloseOnExec(gateFails)
	if n, _ := os.NewFile(gateOpens, "gate").Read(make([]byte, 1)); n == 0 {
		return 1
	}
	err := syscall.Exec(path, argv, os.Environ())
	fmt.Fprintf(os.NewFile(gateFails, "gate"), "exec %s: %v", path, err)
	return 1
}
