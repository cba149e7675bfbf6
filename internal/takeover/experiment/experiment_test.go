package experiment

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/takeover"
	"github.com/nokv/nokv/internal/testing/proctest"
)

// What is measured must have happened to whom it was meant for.
func TestMovedTellsTheWrongVictim(t *testing.T) {
	before := authority{holder: 3, leader: 0, era: 4, term: 2}
	for _, c := range []struct {
		v         takeover.Victim
		era, term uint64
		ok        bool
	}{
		{takeover.Holder, 5, 2, true},
		{takeover.Holder, 4, 3, false},
		{takeover.Leader, 4, 3, true},
		{takeover.Leader, 5, 2, false},
		{takeover.Both, 5, 3, true},
		{takeover.Both, 5, 2, false},
		{takeover.Both, 4, 3, false},
	} {
		if err := moved(c.v, before, authority{era: c.era, term: c.term}); (err == nil) != c.ok {
			t.Errorf("%s, era %d, term %d: %v", c.v, c.era, c.term, err)
		}
	}
}

// A kill of an idle cluster shows nothing, of whatever kind the calls are.
func TestTooLittleLoadIsNoFigure(t *testing.T) {
	calls := func(n map[string]int) *takeover.Round {
		r := &takeover.Round{At: 2 * time.Second}
		for op, n := range n {
			for i := range n {
				at := int64(time.Second) + int64(i)*int64(time.Second)/int64(n)
				r.Calls = append(r.Calls, history.Call{Client: "client-1", Op: op, CallNS: at, ReturnNS: at})
			}
		}
		return r
	}
	if steady, err := enough(calls(map[string]int{"tso": 500, "id": 100, "route": 100}), time.Second, 10*time.Millisecond); err != nil || steady != 2*time.Millisecond {
		t.Errorf("longest gap %v, %v", steady, err)
	}
	for low := range map[string]bool{"tso": true, "id": true, "route": true} {
		n := map[string]int{"tso": 500, "id": 100, "route": 100}
		n[low] = 99
		if _, err := enough(calls(n), time.Second, 10*time.Millisecond); err == nil || !strings.Contains(err.Error(), "99 replies of kind "+low) {
			t.Errorf("%v", err)
		}
	}
	if _, err := enough(calls(nil), time.Second, 10*time.Millisecond); err == nil {
		t.Error("no load at all passed")
	}
}

// A victim that was gone before, or that did not end as it was told to, is an error.
func TestVictimMustEndAsMeant(t *testing.T) {
	dir := t.TempDir()
	start := func(script string) *cluster {
		t.Helper()
		ready := filepath.Join(dir, strconv.Itoa(rand.Int()))
		p, err := procs.Start(procs.Options{Name: "sh", Path: "/bin/sh", Args: []string{"-c", script, "sh", ready}, Log: filepath.Join(dir, "log")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		proctest.Eventually(t, 10*time.Second, func() error { _, err := os.Stat(ready); return err })
		return &cluster{Layout: &procs.Layout{}, processes: []*procs.Process{p}}
	}
	const waits = `: >"$1"; while :; do sleep 0.05; done`
	if err := start(waits).strike([]int{0}, takeover.Kill); err != nil {
		t.Errorf("a killed process: %v", err)
	}
	if err := start(`trap "exit 0" TERM; `+waits).strike([]int{0}, takeover.Restart); err != nil {
		t.Errorf("a process that ends when asked: %v", err)
	}
	if err := start(`trap "exit 3" TERM; `+waits).strike([]int{0}, takeover.Restart); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a process that fails when asked to end: %v", err)
	}
	gone := start(`: >"$1"`)
	<-gone.processes[0].Ended()
	if err := gone.strike([]int{0}, takeover.Kill); err == nil || !strings.Contains(err.Error(), "before its time") {
		t.Errorf("a process that was gone: %v", err)
	}
}
