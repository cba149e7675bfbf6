// Package procs runs the processes of a cluster on this machine.
//
// It owns the processes that it started. It promises: (1) on Linux a process
// ends with this one, even when this one is killed; elsewhere it ends when its
// owner says so; (2) a process that Kill returned for is gone: its ports are
// free and nothing of it runs; (3) only loopback ports are given out, each one once, and
// on Linux the system gives none of them to anybody else, so that a port stays free
// while its process is down. Waiting until a cluster serves is the caller's.
package procs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Options describe a process.
type Options struct {
	// Name is for messages, and names the log.
	Name string
	// Path and Args are what to run.
	Path string
	Args []string
	// Env is added to this process's.
	Env []string
	// Dir is the working folder; empty: this process's.
	Dir string
	// Log is the file that standard output and standard error are added to.
	Log string
	// Stderr replaces the log for standard error, when it is set.
	Stderr *os.File
}

// Process is a running process, or what is left of it. Its methods may be
// called from any goroutine.
type Process struct {
	cmd *exec.Cmd
	// ended is closed when the process is gone and reaped.
	ended  chan struct{}
	reaped sync.WaitGroup
}

// Start starts a process. The owner ends it with Kill, or waits for its end and
// then calls Kill, which joins what watches it.
func Start(o Options) (*Process, error) {
	out, err := os.OpenFile(o.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &Process{cmd: exec.Command(o.Path, o.Args...), ended: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = append(os.Environ(), o.Env...), o.Dir
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if o.Stderr != nil {
		p.cmd.Stderr = o.Stderr
	}
	p.cmd.SysProcAttr = Attributes()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Name, err)
	}
	p.reaped.Go(func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended is read from its state
	})
	return p, nil
}

// PID is the process id, which is also that of its group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process and its group at once, and returns when it is gone.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // fails only when it is gone
	p.reaped.Wait()
}

// Signal sends a signal to the process alone. A process that is gone is no error.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s to process %d: %w", s, p.PID(), err)
	}
	return nil
}

// SignalGroup sends a signal to the process and its group.
func (p *Process) SignalGroup(s syscall.Signal) error {
	if err := syscall.Kill(-p.PID(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s to process group %d: %w", s, p.PID(), err)
	}
	return nil
}

// Running says whether the process is there.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Ended is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode is the exit status of a process that is gone; -1: a signal ended it,
// or it still runs.
func (p *Process) ExitCode() int {
	if p.Running() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// KilledBy is the signal that ended a process that is gone; 0: none did, or it
// still runs.
func (p *Process) KilledBy() syscall.Signal {
	if p.Running() {
		return 0
	}
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ws.Signal()
	}
	return 0
}

// Wait returns the exit status once the process is gone, -1 for a signal, or an
// error when that takes longer than within.
func (p *Process) Wait(within time.Duration) (int, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.ended:
		return p.ExitCode(), nil
	case <-timer.C:
		return -1, fmt.Errorf("process %d did not end within %s", p.PID(), within)
	}
}
