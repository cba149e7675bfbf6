package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/takeover"
	"github.com/nokv/nokv/internal/takeover/experiment"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
)

// Two kills of the holder, with everything that the command can write.
func TestBenchFailoverKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tmp, svg, record := filepath.Join(dir, "tmp"), filepath.Join(dir, "a.svg"), filepath.Join(dir, "calls")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	// Whoever tests is told nothing by how busy the machine is.
	args := []string{
		"bench", "failover", "--kill", "holder", "--rounds", "2", "--duration", "2s", "--clients", "2", "--timeout", "60s", "--max-reply-interval", "60s",
		"--history", record, "--svg", svg, "-o", "json",
	}
	r := proctest.Run(t, proctest.Options{Name: "nokv", Path: nokvPath(t), Env: append(nokvEnv(t), "TMPDIR="+tmp), Args: args})
	if r.Code != 0 {
		t.Fatalf("exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	var out experiment.Report
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		t.Fatalf("%v\n%s", err, r.Stdout)
	}
	if out.Action != "kill" || out.Victim != "holder" || out.Rounds != 2 || len(out.Each) != 2 || out.Violations != 0 || out.FailedCalls != 0 {
		t.Errorf("%+v", out)
	}
	if !(0 < out.P50Ms && out.P50Ms <= out.P99Ms && out.P99Ms == out.MaxMs) || out.Gaps["tso"].MaxMs != out.MaxMs || len(out.Gaps) != 3 {
		t.Errorf("gaps: %+v", out)
	}
	var parts []string
	for _, p := range out.Parts {
		parts = append(parts, p.Part)
	}
	for _, part := range []string{"before", "death", "detection", "wait", "commit", "confirm", "client"} {
		if !slices.Contains(parts, part) {
			t.Errorf("the gaps are made of %s, not of %s: is a log line missing?", parts, part)
		}
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

// A holder and a leader that hang are replaced, and find that out when they go on.
func TestBenchFailoverHang(t *testing.T) {
	t.Parallel()
	for victim, want := range map[string][]string{"holder": {"before", "wait", "commit", "confirm", "client"}, "leader": {"before", "election", "client"}} {
		r := proctest.Run(t, proctest.Options{Name: "nokv", Path: nokvPath(t), Env: nokvEnv(t), Args: []string{
			"bench", "failover", "--tls", "--hang", victim, "--rounds", "2", "--duration", "2s", "--clients", "2", "--timeout", "60s", "--max-reply-interval", "60s", "-o", "json",
		}})
		if r.Code != 0 {
			t.Fatalf("exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		var out experiment.Report
		if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
			t.Fatalf("%v\n%s", err, r.Stdout)
		}
		if out.Action != "hang" || out.Victim != victim || len(out.Each) != 2 || out.Violations != 0 || !(0 < out.P50Ms && out.P50Ms <= out.MaxMs) {
			t.Errorf("%+v", out)
		}
		var parts []string
		for _, p := range out.Parts {
			parts = append(parts, p.Part)
		}
		for _, part := range want {
			if !slices.Contains(parts, part) {
				t.Errorf("the gaps are made of %s, not of %s: is a log line missing?", parts, part)
			}
		}
		testreport.Linef(t, "bench failover: 2 hangs of %s, %d calls, longest gaps %.0f and %.0f ms, 0 violations, %s", victim, out.Calls, out.P50Ms, out.MaxMs, r.Took.Round(time.Millisecond))
	}
}

// What is done is said by one flag.
func TestFailoverActions(t *testing.T) {
	for _, c := range []struct {
		kill, hang string
		action     takeover.Action
		victim     takeover.Victim
	}{
		{"", "", takeover.Kill, takeover.Holder},
		{"both", "", takeover.Kill, takeover.Both},
		{"restart", "", takeover.Restart, ""},
		{"", "leader", takeover.Hang, takeover.Leader},
	} {
		if action, victim := failoverAction(c.kill, c.hang); action != c.action || victim != c.victim {
			t.Errorf("--kill %q --hang %q: %s of %s", c.kill, c.hang, action, victim)
		}
	}
	for _, args := range [][]string{{"--hang", "restart"}, {"--kill", "me"}, {"--kill", "holder", "--hang", "holder"}} {
		if code := run(t.Context(), append([]string{"bench", "failover"}, args...), &env{stdout: io.Discard, stderr: io.Discard}); code != exitUsage {
			t.Errorf("%q: exit status %d", args, code)
		}
	}
}

// A table has a line for what is broken.
func TestFailoverTableShowsWhatIsBroken(t *testing.T) {
	var b bytes.Buffer
	out := &experiment.Report{Victim: "both", Rounds: 3, P99Ms: 12.5, Violations: 1, Broken: []string{"Tso order: x"}}
	if err := (&env{stdout: &b, output: "table"}).print(out, func(w *tabwriter.Writer) { failoverTable(out, w) }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"both", "12.5", "# BROKEN: Tso order: x"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
