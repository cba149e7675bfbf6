package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/takeover/experiment"
	"github.com/nokv/nokv/internal/testing/proctest"
)

// benchJSON runs a bench with a cluster of its own, reads what it prints, and checks that
// nothing is left behind.
func benchJSON(t *testing.T, to any, args ...string) {
	t.Helper()
	tmp := t.TempDir()
	r := proctest.Run(t, proctest.Options{Name: "nokv", Path: nokvPath(t), Env: append(nokvEnv(t), "TMPDIR="+tmp), Args: append(append([]string{"bench"}, args...), "-o", "json")})
	if r.Code != 0 {
		t.Fatalf("exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if err := json.Unmarshal([]byte(r.Stdout), to); err != nil {
		t.Fatalf("%v\n%s", err, r.Stdout)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestC23BenchFailoverMember(t *testing.T) {
	t.Parallel()
	svg := filepath.Join(t.TempDir(), "a.svg")
	var out experiment.MemberReport
	benchJSON(t, &out, "failover", "--kill", "member", "--rounds", "2", "--regions", "30", "--members", "3", "--duration", "1s", "--svg", svg)
	if out.Action != "kill" || out.Victim != "member" || len(out.Each) != 2 || out.Violations != 0 || out.GrantEntries < 1 {
		t.Errorf("%+v", out)
	}
	// A member may hear of a grant before the bench, which follows the log by itself, does:
	// only what one observer saw has an order.
	if !(0 < out.Rooted.P50Ms && out.Rooted.MaxMs <= out.Granted.MaxMs && 0 < out.Told.P50Ms && out.Told.MaxMs <= out.MaxMs && 0 < out.Learned.P50Ms && out.Learned.MaxMs <= out.MaxMs) {
		t.Errorf("out of order: %+v", out)
	}
	if len(out.Parts) != 6 {
		t.Errorf("it is made of %v: is a log line missing?", out.Parts)
	}
	if raw, err := os.ReadFile(svg); err != nil || !strings.Contains(string(raw), "30 regions served elsewhere") {
		t.Errorf("the picture: %v\n%s", err, raw)
	}
}

func TestBenchMove(t *testing.T) {
	t.Parallel()
	var out experiment.DrainReport
	benchJSON(t, &out, "move", "--rounds", "2", "--regions", "20", "--members", "2", "--rate", "50", "--commits", "1", "--duration", "2s")
	if out.Rounds != 2 || out.Violations != 0 || out.Completed < 1 || out.Planned < 1 {
		t.Errorf("%+v", out)
	}
	if out.Requests == nil || out.Requests.Failed != 0 || out.Added == nil || out.Commits == nil || out.Commits.Failed != 0 {
		t.Errorf("requests %+v, others %+v", out.Requests, out.Commits)
	}
}

func TestBenchHeartbeat(t *testing.T) {
	t.Parallel()
	var out experiment.HeartbeatReport
	benchJSON(t, &out, "heartbeat", "--members", "4", "--regions", "30", "--changed", "0.5", "--duration", "2s", "--kill")
	if out.Regions != 120 || out.Frames == 0 || out.Reports < 20*out.Frames || out.Refused != 0 || out.BackMs <= 0 || out.Routes == nil {
		t.Errorf("%+v", out)
	}
}

func TestBenchMembersRefuse(t *testing.T) {
	for words, args := range map[string]string{ // what is wrong, and the command
		"reported":    "failover --kill member --preset kv",
		"members 1":   "move --members 1",
		"regions 0":   "heartbeat --regions 0",
		"takes over":  "failover --kill member+holder+leader --coordinators 1",
		"no argument": "move now",
	} {
		r := here(t, nil, append([]string{"bench"}, strings.Fields(args)...)...)
		if r.Code != exitUsage {
			t.Errorf("%s (%s): exit status %d\n%s", args, words, r.Code, r.Stderr)
		}
	}
}
