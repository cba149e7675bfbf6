// Package proctest runs real processes in tests.
//
// It owns the processes that it started, and leaves how to run them to procs, and their
// environment to hermetic. It promises: (1) a process ends with its test, however the
// test ends; (2) a failed test shows the end of what each of its processes wrote, and
// keeps the whole of it where hermetic.Logs says; (3) only loopback ports of procs are
// used.
package proctest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/test/hermetic"
)

// Patience is how long a test waits for another process. It is no figure of the
// program: only what does not come at all fails a test, on a machine of any speed.
// How long things take belongs into reports and benchmarks.
const Patience = 2 * time.Minute

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
	// Empty: a file of the test's.
	Log string
	// Stderr replaces the log for standard error, when it is set.
	Stderr *os.File
	// Parent says that the process has children outside of its group: at the
	// end of the test it is asked to end, with them, before it is killed.
	Parent bool
}

// Process is a running process of a test, or what is left of it.
type Process struct {
	*procs.Process
	t testing.TB
	o Options
}

// logTail is how much of a log a failed test shows, in bytes.
const logTail = 4096

// Start starts a process that ends with the test at the latest.
func Start(t testing.TB, o Options) *Process {
	t.Helper()
	if o.Log == "" {
		o.Log = filepath.Join(t.TempDir(), o.Name+".log")
	}
	child, err := procs.Start(procs.Options{Name: o.Name, Path: o.Path, Args: o.Args, Env: o.Env, Dir: o.Dir, Log: o.Log, Stderr: o.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{Process: child, t: t, o: o}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of %s, %s:\n%s", o.Name, p.keep(), p.Tail())
		}
		if o.Parent {
			_ = child.Signal(syscall.SIGTERM)
			select {
			case <-p.Ended():
			case <-time.After(Patience):
			}
		}
		p.Kill()
	})
	return p
}

// Signal sends a signal to the process alone.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: %v", p.o.Name, err)
	}
}

// SignalGroup sends a signal to the process and its group.
func (p *Process) SignalGroup(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.SignalGroup(s); err != nil {
		p.t.Fatalf("%s: %v", p.o.Name, err)
	}
}

// Wait waits for the end and returns the exit status; -1 for a signal. It
// fails the test when the end does not come in time.
func (p *Process) Wait(within time.Duration) int {
	p.t.Helper()
	code, err := p.Process.Wait(within)
	if err != nil {
		p.t.Fatalf("%s: %v", p.o.Name, err)
	}
	return code
}

// Log returns everything the process wrote to its log, and what processes
// before it wrote there.
func (p *Process) Log() string {
	raw, err := os.ReadFile(p.o.Log)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// Tail returns the end of the log.
func (p *Process) Tail() string {
	log := p.Log()
	return log[max(0, len(log)-logTail):]
}

// keep copies the log to where logs of failed tests are kept, and says where it is then.
func (p *Process) keep() string {
	folder := os.Getenv(hermetic.Logs)
	if folder == "" {
		return "which is removed with the test"
	}
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == filepath.Separator {
			return '_'
		}
		return r
	}, filepath.Base(os.Args[0])+"-"+p.t.Name()+"-"+filepath.Base(p.o.Log))
	path := filepath.Join(folder, name)
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(path, []byte(p.Log()), 0o644)); err != nil {
		return fmt.Sprintf("which could not be kept (%v)", err)
	}
	return "kept as " + path
}

// WaitLog waits until the log holds a text; the test fails when the process
// ends before, or when it takes too long.
func (p *Process) WaitLog(text string, within time.Duration) {
	p.t.Helper()
	Eventually(p.t, within, func() error {
		if strings.Contains(p.Log(), text) {
			return nil
		}
		if !p.Running() {
			p.t.Fatalf("%s ended without writing %q", p.o.Name, text)
		}
		return fmt.Errorf("%s has not written %q", p.o.Name, text)
	})
}

// Eventually asks until there is no error; after too long the test fails with
// the last one.
func Eventually(t testing.TB, within time.Duration, ask func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %v", within, err)
		}
		time.Sleep(20 * time.Millisecond) // the other side is another process: there is nothing to wait on
	}
}

// Result is what a command left.
type Result struct {
	Code           int
	Stdout, Stderr string
	Took           time.Duration
}

// Run runs a command to its end, a little more than Patience at most.
func Run(t testing.TB, o Options) Result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), o.Path, o.Args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = append(os.Environ(), o.Env...), o.Dir, &stdout, &stderr
	cmd.SysProcAttr = procs.Attributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s %q: %v", o.Path, o.Args, err)
	}
	const limit = Patience + Patience/4
	late := time.AfterFunc(limit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	_ = cmd.Wait()
	if !late.Stop() {
		t.Fatalf("%q did not end within %s\nstdout: %s\nstderr: %s", o.Args, limit, &stdout, &stderr)
	}
	return Result{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String(), Took: time.Since(begin)}
}
