package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/test/size"
)

// pauseFor is several ttls and election timeouts.
var pauseFor = size.Duration("pause", 1500*time.Millisecond, 3*time.Second, "stop a process for so long in TestPauses")

// TestPauses stops the holder of the Tenure and the root's leader in the middle
// of their work, as a suspended machine does, and lets them go on: they must
// find out that they are no longer in charge before they answer.
func TestPauses(t *testing.T) {
	t.Parallel()
	for _, ttl := range []string{"200ms", "0s"} {
		t.Run("ttl "+ttl, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2)
			c.CoordinatorFlags = []string{"-tenure-ttl", ttl}
			c.StartAll()
			c.WaitHealthy(recoverWithin)
			l := startLoad(t, c.CoordinatorAddrs)
			l.waitProgress(lowLoad, recoverWithin, "before any pause")
			for _, role := range []struct {
				name string
				find func(*testing.T, *cluster) int
			}{{"the holder", holderOf}, {"the root leader", leaderOf}} {
				victim := c.Process(role.find(t, c))
				victim.Signal(syscall.SIGSTOP)
				begin := time.Now()
				served := l.waitProgress(lowLoad, recoverWithin, "while "+role.name+" is stopped")
				if rest := *pauseFor - time.Since(begin); rest > 0 {
					time.Sleep(rest) // the pause itself
				}
				victim.Signal(syscall.SIGCONT)
				l.waitProgress(lowLoad, recoverWithin, "after the pause of "+role.name)
				testreport.Linef(t, "real processes: %s stopped for %s under load, tenure-ttl %s: served again after %s", role.name, *pauseFor, ttl, served.Round(time.Millisecond))
			}
			c.WaitHealthy(recoverWithin)
			l.finish()
			ctx, cancel := context.WithTimeout(t.Context(), recoverWithin)
			defer cancel()
			judge(ctx, t, c, l)
		})
	}
}

// holderOf finds the coordinator that holds the Tenure.
func holderOf(t *testing.T, c *cluster) int {
	t.Helper()
	found := 0
	proctest.Eventually(t, recoverWithin, func() error {
		var s statusOutput
		r := c.Run("status", "-o", "json", "--coordinator-addr", c.Coordinators())
		if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil {
			return fmt.Errorf("status: %w: %s", err, r.Stderr)
		}
		for i := c.Roots(); i < c.Size(); i++ {
			if c.Name(i) == "coordinator-"+s.Holder {
				found = i
				return nil
			}
		}
		return fmt.Errorf("held by %q", s.Holder)
	})
	return found
}

// leaderOf finds the root peer that leads.
func leaderOf(t *testing.T, c *cluster) int {
	t.Helper()
	found := 0
	proctest.Eventually(t, recoverWithin, func() error {
		for i, p := range rootStatusOf(t, c) {
			if p.Role == "leader" {
				found = i
				return nil
			}
		}
		return fmt.Errorf("no root peer leads")
	})
	return found
}

// TestLogsThatNobodyReads has every process write its log into a pipe that is
// full from the beginning.
func TestLogsThatNobodyReads(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	for i := range c.Size() {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		raw, err := w.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Write(func(fd uintptr) bool {
			for err == nil {
				_, err = syscall.Write(int(fd), make([]byte, 4096))
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(err, syscall.EAGAIN) {
			t.Fatalf("the pipe is not full: %v", err)
		}
		c.StartWithStderr(i, w)
	}
	c.WaitHealthy(recoverWithin)
	l := startLoad(t, c.CoordinatorAddrs)
	l.waitProgress(50, recoverWithin, "with logs that nobody reads")
	c.Kill(leaderOf(t, c)) // makes everybody log
	l.waitProgress(50, recoverWithin, "with logs that nobody reads, after a kill")
	l.finish()
	for i := c.Size() - 1; i >= 0; i-- {
		if !c.Process(i).Running() {
			continue
		}
		c.stop(i)
	}
}

// longTTL is a ttl of the Tenure that outlasts what a busy machine stands still: an
// era that ends by itself skips ids.
const longTTL = "30s"

// TestOrderlyStops stops and starts everything as an operator would: every era retires with its
// exact frontier, and the next one begins there. Ids are skipped only where the answer to a claim
// came too late, and the first window with it: one window, by its size.
func TestOrderlyStops(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.CoordinatorFlags = []string{"-tenure-ttl", longTTL}
	next := uint64(1)
	take := func(when string) {
		t.Helper()
		r := c.Run("id", "--count", "3", "-o", "json", "--timeout", recoverWithin.String(), "--coordinator-addr", c.Coordinators())
		var id idOutput
		if err := json.Unmarshal([]byte(r.Stdout), &id); err != nil {
			t.Fatalf("%s: %v %s", when, err, r.Stderr)
		}
		if id.First != next && id.First != next+idalloc.DefaultWindow {
			t.Errorf("%s: ids begin with %d, want %d, or a window above", when, id.First, next)
		}
		next = id.First + id.Count
	}
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	take("at first")

	holder := holderOf(t, c)
	c.stop(holder)
	take("after the holder stopped")
	c.Start(holder)

	leader := leaderOf(t, c)
	c.stop(leader)
	take("after the root leader stopped")
	c.Start(leader)
	c.WaitHealthy(recoverWithin)

	c.StopAll()
	for i := range c.Roots() {
		if r := c.Run("root", "verify", c.Workdir(i)); r.Code != 0 {
			t.Errorf("verify after an orderly stop: exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	}
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	take("after everything was stopped in order")
	sameState(t, c)
	var history witnessOutput
	r := c.Run("witness", "-o", "json", "--coordinator-addr", c.Coordinators())
	if err := json.Unmarshal([]byte(r.Stdout), &history); err != nil || len(history.Eras) < 3 {
		t.Fatalf("witness: %v %s%s", err, r.Stdout, r.Stderr)
	}
	for i, e := range history.Eras[1:] { // the newest comes first
		// One that was given to a process which was ending already has served nothing of its first window of
		// timestamps, which begins at the clock.
		unused := e.Consumed == e.Inherited
		if then := history.Eras[i].Inherited; !e.Exact || then.AllocID != e.Consumed.AllocID || then.TSO < e.Consumed.TSO || then.TSO > e.Consumed.TSO && !unused {
			t.Errorf("era %d ended at %+v, exactly: %t; the next one begins at %+v", e.Era, e.Consumed, e.Exact, then)
		}
	}
}
