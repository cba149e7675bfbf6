package sidecar

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/nokv/nokv/internal/procs"
)

// process is the command that a sidecar runs.
type process struct {
	cmd *exec.Cmd
	// ended is closed when it is gone and reaped, and its group with it.
	ended chan struct{}
}

// guardian is what ends its group when its standard input does, as it does when this process is gone,
// however that ended. Then nobody else knows of what the command has started, which may serve.
const guardian = `trap "" HUP INT QUIT TERM USR1 USR2; read _; kill -9 0`

// start runs a command that leads a group, so that it makes none of its own, and a guardian in that, so
// that no other group ever has its number. The guardian is there before the command is: until then its process
// waits at a gate, and ends there with this one. Where there is no /bin/sh, and so no guardian, the command itself
// ends with this process, on Linux.
func start(argv, env []string, stdin io.Reader, stdout, stderr io.Writer) (*process, error) {
	p, err := startAt(argv, env, stdin, stdout, stderr, func() {})
	if err != nil {
		return nil, fmt.Errorf("start the command: %w", err)
	}
	return p, nil
}

// startAt is start, which calls a function before the guardian is there.
func startAt(argv, env []string, stdin io.Reader, stdout, stderr io.Writer, unguarded func()) (*process, error) {
	g, err := newGate(argv)
	if err != nil {
		return nil, err
	}
	watched, alive, err := os.Pipe()
	if err != nil {
		g.close()
		return nil, err
	}
	p := &process{cmd: g.cmd, ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, stdout, stderr
	p.cmd.SysProcAttr = procs.Attributes()
	guard := exec.Command("/bin/sh", "-c", guardian)
	guard.Env, guard.Stdin = []string{}, watched
	begun := make(chan error, 1)
	go func() { // joined by ended
		defer close(p.ended)
		defer alive.Close()
		defer g.close()
		// The kernel ends the child with the thread that made it, so this one has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := p.cmd.Start(); err != nil {
			_ = watched.Close()
			begun <- err
			return
		}
		unguarded()
		guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: p.cmd.Process.Pid}
		guarded := guard.Start() == nil
		_ = watched.Close()
		begun <- g.open()
		_ = p.cmd.Wait() // how it ended is read from its state
		// What it started may have its listener, and serve: it goes too.
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		if guarded {
			_ = guard.Wait()
		}
	}()
	if err := <-begun; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
}

// signal passes a signal on; one to a process that is gone is lost.
func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends it and its group, and returns when it is gone.
func (p *process) kill() {
	if p == nil {
		return
	}
	select {
	case <-p.ended:
		return
	default:
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	p.signal(syscall.SIGKILL) // it may have gone to another group
	<-p.ended
}

// end asks it to end, and ends it when it has not within grace.
func (p *process) end(grace time.Duration) {
	if p == nil {
		return
	}
	p.signal(syscall.SIGTERM)
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case <-p.ended:
	case <-late.C:
		p.kill()
	}
}

// Ended says that the process has ended.
type Ended struct {
	// Code is its exit status, 128 and the signal's number for one that a signal ended.
	Code int
	// Why is said to people.
	Why string
}

// Error implements error.
func (e *Ended) Error() string { return e.Why }

// outcome is how it ended; nil: with status 0.
func (p *process) outcome() error {
	state := p.cmd.ProcessState
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return &Ended{Code: 128 + int(status.Signal()), Why: fmt.Sprintf("the command was ended by signal %d (%s)", int(status.Signal()), status.Signal())}
	}
	if code := state.ExitCode(); code != 0 {
		return &Ended{Code: code, Why: fmt.Sprintf("the command ended with exit status %d", code)}
	}
	return nil
}
