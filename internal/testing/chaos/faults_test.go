package chaos

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
)

// active is a fault that has begun.
type active struct {
	// victims are the members it is about.
	victims []int
	// seen says why it has not fired yet, where that takes what others do meanwhile; nil:
	// it fires when it begins, or when it ends.
	seen func() error
	// end ends it and brings back whatever it took away.
	end func()
	// fired says why it did not happen, after its end; nil: it happened.
	fired func() error
	// skipped says why this machine cannot have it.
	skipped string
}

// down is a fault that took members away: they are started at its end.
func (r *run) down(members []int, fired func() error) *active {
	return &active{victims: members, fired: fired, end: func() {
		for _, m := range members {
			r.c.start(m, nil)
		}
	}}
}

func (r *run) killNow(members ...int) *active {
	alive := 0
	for _, m := range members {
		if r.c.Process(m).Running() {
			alive++
		}
		r.c.kill(m)
	}
	return r.down(members, func() error {
		if alive != len(members) {
			return fmt.Errorf("%d of %d processes were there to kill", alive, len(members))
		}
		return nil
	})
}

// both are two members by their roles.
func (r *run) both(one, other string) []int {
	a, b := r.c.pair(one, other)
	return []int{a, b}
}

func beginKill(r *run, f fault) *active     { return r.killNow(r.c.find(f.target)) }
func beginKillBoth(r *run, _ fault) *active { return r.killNow(r.both("leader", "holder")...) }
func beginKillAll(r *run, _ fault) *active  { return r.killNow(0, 1, 2, 3, 4) }

// beginOrderly stops a process as an operator does.
func beginOrderly(r *run, f fault) *active {
	m := r.c.find(f.target)
	p := r.c.Process(m)
	p.Signal(syscall.SIGTERM)
	code := p.Wait(patience)
	r.c.left(m)
	return r.down([]int{m}, func() error {
		if code != 0 {
			r.t.Errorf("%s: exit status %d after SIGTERM", place(m), code)
		}
		return nil
	})
}

func (r *run) pauseNow(members ...int) *active {
	a := &active{victims: members}
	stopped := 0
	for _, m := range members {
		p := r.c.Process(m)
		p.Signal(syscall.SIGSTOP)
		// The signal is on its way when the call returns.
		proctest.Eventually(r.t, patience, func() error {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
			if err != nil {
				return err
			}
			if at := bytes.LastIndexByte(raw, ')'); at < 0 || !strings.HasPrefix(string(raw[at:]), ") T") {
				return fmt.Errorf("%s has not stopped", place(m))
			}
			stopped++
			return nil
		})
	}
	a.end = func() {
		for _, m := range members {
			r.c.Process(m).Signal(syscall.SIGCONT)
		}
	}
	a.fired = func() error {
		if stopped != len(members) {
			return fmt.Errorf("%d of %d processes stopped", stopped, len(members))
		}
		return nil
	}
	return a
}

func beginPause(r *run, f fault) *active { return r.pauseNow(r.c.find(f.target)) }
func beginPauseBoth(r *run, _ fault) *active {
	return r.pauseNow(r.both("leader", "holder")...)
}

// beginTwin starts a second process with a coordinator's id: it ends and says why, and the first one
// goes on.
func beginTwin(r *run, f fault) *active {
	m := r.c.find(f.target)
	first := r.c.Process(m)
	args := r.c.commandLine(m)
	addrs := proctest.Addrs(r.t, 2)
	for i, a := range args {
		switch a {
		case "-addr":
			args[i+1] = addrs[0]
		case "-metrics-addr":
			args[i+1] = addrs[1]
		case "-advertise-addr":
			args[i+1] = addrs[0]
		}
	}
	twin := proctest.Start(r.t, r.c.Options("twin-of-"+place(m), args...))
	code := twin.Wait(patience)
	return &active{end: func() {}, fired: func() error {
		if code != 1 || !strings.Contains(twin.Log(), "another coordinator process runs under this id") {
			r.t.Errorf("the second process of %s: exit status %d:\n%s", place(m), code, twin.Tail())
		}
		if !first.Running() {
			r.t.Errorf("the first process of %s ended too:\n%s", place(m), first.Tail())
		}
		return nil
	}}
}

// beginBlockedLog restarts a process with a log that nobody reads.
func beginBlockedLog(r *run, f fault) *active {
	m := r.c.find(f.target)
	r.c.kill(m)
	out, in, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := in.SetWriteDeadline(time.Now().Add(50 * ms)); err != nil {
		r.t.Fatal(err)
	}
	if n, err := in.Write(make([]byte, 1<<22)); err == nil {
		r.t.Fatalf("the pipe took %d bytes and is not full", n)
	}
	r.c.start(m, in)
	err = r.healthyWithin(m, patience)
	return &active{victims: []int{m}, end: func() {
		_ = out.Close()
		_ = in.Close()
		r.c.kill(m)
		r.c.start(m, nil)
	}, fired: func() error {
		if err != nil {
			r.t.Errorf("%s with a log that nobody reads: %v", place(m), err)
		}
		return nil
	}}
}
