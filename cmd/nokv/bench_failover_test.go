package main

import (
	"bytes"
	"encoding/json"
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
	"github.com/nokv/nokv/internal/testing/testreport"
)

// Two kills of the holder, with everything that the command can write.
func TestBenchFailover(t *testing.T) {
	dir := t.TempDir()
	tmp, svg, record := filepath.Join(dir, "tmp"), filepath.Join(dir, "a.svg"), filepath.Join(dir, "calls")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	// Whoever tests is told nothing by how busy the machine is.
	args := []string{
		"bench", "failover", "--kill", "holder", "--rounds", "2", "--duration", "300ms", "--clients", "2", "--timeout", "10s",
		"--history", record, "--svg", svg, "-o", "json",
	}
	r := proctest.Run(t, proctest.Options{Name: "nokv", Path: nokvPath(t), Env: append(nokvEnv(t), "TMPDIR="+tmp), Args: args})
	if r.Code != 0 {
		t.Fatalf("exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	var out failoverOutput
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		t.Fatalf("%v\n%s", err, r.Stdout)
	}
	if out.Victim != "holder" || out.Rounds != 2 || len(out.Each) != 2 || out.Violations != 0 || out.FailedCalls != 0 {
		t.Errorf("%+v", out)
	}
	if !(0 < out.P50Ms && out.P50Ms <= out.P99Ms && out.P99Ms == out.MaxMs) || out.Gaps["tso"].MaxMs != out.MaxMs || len(out.Gaps) != 3 {
		t.Errorf("gaps: %+v", out)
	}
	var parts []string
	for _, p := range out.Parts {
		parts = append(parts, p.Part)
	}
	if got := strings.Join(parts, " "); got != "before death detection wait commit confirm client" {
		t.Errorf("the gaps are made of %s: is a log line missing?", got)
	}
	f, err := os.Open(record)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if calls, err := history.Read(f); err != nil || len(calls) != out.Calls {
		t.Errorf("%d calls in the history, %d in the output, %v", len(calls), out.Calls, err)
	}
	if picture, err := os.ReadFile(svg); err != nil || !bytes.HasPrefix(picture, []byte("<svg ")) || !bytes.Contains(picture, []byte("kill -9 coordinator-c")) {
		t.Errorf("picture: %v\n%.300s", err, picture)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	testreport.Linef(t, "bench failover: 2 kills of the holder, %d calls, longest gaps %.0f and %.0f ms, 0 violations, %s", out.Calls, out.P50Ms, out.MaxMs, r.Took.Round(time.Millisecond))
}

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
	if steady, err := enough(calls(map[string]int{"tso": 500, "id": 100, "route": 100}), time.Second); err != nil || steady != 2*time.Millisecond {
		t.Errorf("longest gap %v, %v", steady, err)
	}
	for low := range map[string]bool{"tso": true, "id": true, "route": true} {
		n := map[string]int{"tso": 500, "id": 100, "route": 100}
		n[low] = 99
		if _, err := enough(calls(n), time.Second); err == nil || !strings.Contains(err.Error(), "99 replies of kind "+low) {
			t.Errorf("%v", err)
		}
	}
	if _, err := enough(calls(nil), time.Second); err == nil {
		t.Error("no load at all passed")
	}
}

// A victim that was gone before, or that did not end as it was told to, is an error.
func TestVictimMustEndAsMeant(t *testing.T) {
	dir := t.TempDir()
	start := func(script string) *failoverCluster {
		t.Helper()
		ready := filepath.Join(dir, strconv.Itoa(rand.Int()))
		p, err := procs.Start(procs.Options{Name: "sh", Path: "/bin/sh", Args: []string{"-c", script, "sh", ready}, Log: filepath.Join(dir, "log")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		proctest.Eventually(t, 10*time.Second, func() error { _, err := os.Stat(ready); return err })
		return &failoverCluster{Layout: &procs.Layout{}, processes: []*procs.Process{p}}
	}
	const waits = `: >"$1"; while :; do sleep 0.05; done`
	if err := start(waits).end([]int{0}, false); err != nil {
		t.Errorf("a killed process: %v", err)
	}
	if err := start(`trap "exit 0" TERM; `+waits).end([]int{0}, true); err != nil {
		t.Errorf("a process that ends when asked: %v", err)
	}
	if err := start(`trap "exit 3" TERM; `+waits).end([]int{0}, true); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a process that fails when asked to end: %v", err)
	}
	gone := start(`: >"$1"`)
	<-gone.processes[0].Ended()
	if err := gone.end([]int{0}, false); err == nil || !strings.Contains(err.Error(), "before its time") {
		t.Errorf("a process that was gone: %v", err)
	}
}

// A table has a line for what is broken.
func TestFailoverTableShowsWhatIsBroken(t *testing.T) {
	var b bytes.Buffer
	out := &failoverOutput{Victim: "both", Rounds: 3, P99Ms: 12.5, Violations: 1, Broken: []string{"Tso order: x"}}
	if err := (&env{stdout: &b, output: "table"}).print(out, out.table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"both", "12.5", "# BROKEN: Tso order: x"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
