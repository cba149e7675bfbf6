package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// twoEras is the truth of a cluster whose first holder retired.
func twoEras() witness.Truth {
	at := func(index uint64) *rootv1.RootToken { return &rootv1.RootToken{Incarnation: 1, Term: 2, Index: index} }
	const minute = 60_000 << state.TSOLogicalBits
	tso := uint64(1_795_262_400_000) << state.TSOLogicalBits
	first := &rootv1.Handover{
		Era: 1, SuccessorId: "c1", SuccessorIncarnation: 0xa1, Inherited: &rootv1.Frontiers{},
		Stage: rootv1.HandoverStage_HANDOVER_STAGE_CLOSED, OpenedAt: at(3), ConfirmedAt: at(4), ClosedAt: at(5),
	}
	legacy := &rootv1.Legacy{
		Era: 1, HolderId: "c1", HolderIncarnation: 0xa1, Consumed: &rootv1.Frontiers{AllocId: 57, Tso: tso}, Exact: true, EndedAt: at(8),
	}
	legacy.Digest = state.Lineage(legacy, 0)
	second := &rootv1.Handover{
		Era: 2, PredecessorEra: 1, Legacy: legacy, SuccessorId: "c2", SuccessorIncarnation: 0xb2, Inherited: legacy.Consumed,
		Stage: rootv1.HandoverStage_HANDOVER_STAGE_CLOSED, OpenedAt: at(8), ConfirmedAt: at(9), ClosedAt: at(11),
	}
	return witness.Truth{
		Token: rooted.Token{Incarnation: 1, Term: 2, Index: 12}, Cluster: &rootv1.Cluster{ClusterId: 0xc1, Incarnation: 1},
		Handovers: []*rootv1.Handover{first, second},
		Tenure:    &rootv1.Tenure{Era: 2, HolderId: "c2", HolderIncarnation: 0xb2, Inherited: legacy.Consumed, IssuedAt: at(8)},
		Allocators: &rootv1.Allocators{
			IdFence: 157, TsoFence: tso + minute, LastIdWindow: &rootv1.Window{Era: 2, From: 57, To: 157}, LastTsoWindow: &rootv1.Window{Era: 2, From: tso, To: tso + minute},
		},
		Placed: &witness.Placed{
			Assigned: 4, Orphaned: 1, Walked: true, Followed: true, Since: rooted.Token{Incarnation: 1, Term: 2, Index: 2},
			Judged: witness.Judged{Grants: 5, Moved: 1, Asked: 2},
		},
	}
}

func table(t *testing.T, o *witnessOutput) string {
	t.Helper()
	var out bytes.Buffer
	if err := (&env{stdout: &out}).print(o, o.table); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// What a person reads: the state of things first, then what shows it.
func TestWitnessTable(t *testing.T) {
	truth := twoEras()
	p := &proof{report: witness.Judge(truth), source: "coordinator c1", freshness: "linearizable"}
	want := `c2 holds era 2 since log position 1.2.8, timestamps after 2026-11-21T12:00:00.000 UTC. All five guarantees hold.
Judged at token 1.2.12 from coordinator c1: linearizable.

GUARANTEE    VERDICT  WHAT SHOWS IT
Primacy      holds    eras 1 to 2, none skipped, one holder each; active: era 2 only
Inheritance  holds    era 2 starts above id 57, timestamp 470617266585600000; era 1 consumed 57, 470617266585600000; 1 handover covers what came before
Silence      holds    last id window (57, 157] of era 2, last timestamp window (470617266585600000, 470617282314240000] of era 2: nothing was given to an ended era; replies are judged with --history
Finality     holds    2 of 2 handovers closed, none open
Placement    holds    3 regions have owners that may act, 1 orphaned; behind 1.2.2: 5 grants, none to a member that was not up; 1 let go of, 2 taken at once as somebody asked

ERA  HOLDER  PROCESS           BEGAN AT  CONFIRMED  CLOSED  ENDED          IDS ABOVE  IDS UP TO  TIMESTAMPS ABOVE         TIMESTAMPS UP TO
2    c2      00000000000000b2  1.2.8     1.2.9      1.2.11  active         57         <= 157     2026-11-21T12:00:00.000  <= 2026-11-21T12:01:00.000
1    c1      00000000000000a1  1.2.3     1.2.4      1.2.5   retired 1.2.8  0          57         -                        2026-11-21T12:00:00.000

BEGAN, CONFIRMED, CLOSED: the handover's stages, as positions in the root's log. ABOVE: what the era inherited, it served nothing up to there.
UP TO: how far it may have served; <= is the rooted fence, an upper bound. Timestamps are shown as the time they tell, UTC; -o json has the numbers.
`
	if got := table(t, p.output()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	truth.Handovers[1].Inherited = &rootv1.Frontiers{AllocId: 56, Tso: truth.Handovers[1].Inherited.Tso}
	truth.Tenure.Inherited = truth.Handovers[1].Inherited
	p.report = witness.Judge(truth)
	got := table(t, p.output())
	for _, want := range []string{
		"BROKEN: Inheritance. c2 holds era 2 since",
		"Inheritance  BROKEN   era 2 starts above id 56, era 1 consumed 57",
		"successor_incomplete  Inheritance  2    1.2.8     era 2 starts above id 56, era 1 consumed 57",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}

	truth = twoEras()
	truth.Unknown = "no root quorum answers"
	p.report = witness.Judge(truth)
	got = table(t, p.output())
	for _, want := range []string{"CANNOT TELL whether the guarantees hold. Last known: c2 holds era 2", "Primacy      CANNOT TELL  no root quorum answers"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// A history is judged against the eras that the truth has, and what it does not
// have is not taken to be right.
func TestWitnessJudgesHistories(t *testing.T) {
	good := []history.Call{
		{Op: history.OpID, CallNS: 1, ReturnNS: 2, First: 50, Count: 8, Era: 1, Holder: "c1", Incarnation: 0xa1},
		{Op: history.OpID, CallNS: 3, ReturnNS: 4, First: 58, Count: 2, Era: 2, Holder: "c2", Incarnation: 0xb2},
		{Op: history.OpRoute, CallNS: 3, ReturnNS: 4},
	}
	for name, c := range map[string]struct {
		calls   func([]history.Call) []history.Call
		live    bool
		verdict string
		says    string
	}{
		"right":                 {func(h []history.Call) []history.Call { return h }, true, "holds", "The recorded history agrees: 3 calls"},
		"empty":                 {func([]history.Call) []history.Call { return nil }, true, "cannot tell", "no reply with ids"},
		"id twice":              {func(h []history.Call) []history.Call { return append(h, h[1]) }, true, "broken", "AllocID      BROKEN"},
		"above what c2 began":   {func(h []history.Call) []history.Call { h[0].Count = 9; return h }, true, "broken", "era 1 served 58, its successor inherited 57"},
		"another's era":         {func(h []history.Call) []history.Call { h[1].Holder = "c1"; return h }, true, "broken", "which is c2's"},
		"late reply":            {func(h []history.Call) []history.Call { h[0].CallNS, h[0].ReturnNS = 5, 6; return h }, true, "broken", "Silence      BROKEN"},
		"an era of nobody":      {func(h []history.Call) []history.Call { h[1].Era = 3; return h }, true, "broken", "by era 3, the log has 2"},
		"an era behind the log": {func(h []history.Call) []history.Call { h[1].Era = 3; return h }, false, "cannot tell", "1 of 2 replies are of eras that this truth does not have: it has eras 1 to 2"},
	} {
		t.Run(name, func(t *testing.T) {
			truth := twoEras()
			p := &proof{report: witness.Judge(truth), tenures: truth.Tenures(), ends: c.live}
			out := p.output()
			out.judge(p, c.calls(append([]history.Call(nil), good...)))
			if got := table(t, out); out.Verdict != c.verdict || !strings.Contains(got, c.says) {
				t.Errorf("%s, want %s and %q:\n%s", out.Verdict, c.verdict, c.says, got)
			}
		})
	}
}

// witnessHolds asks the Witness of a cluster until it sees that all holds: what a
// handover that it meets half way comes to, only the next look tells.
func witnessHolds(t *testing.T, c *cluster, args ...string) {
	t.Helper()
	proctest.Eventually(t, recoverWithin, func() error {
		r := c.Run(append([]string{"witness"}, args...)...)
		if strings.Contains(r.Stdout, "BROKEN") {
			t.Fatalf("nokv witness: exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		if r.Code != exitOK || r.Stderr != "" {
			return fmt.Errorf("nokv witness: exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		return nil
	})
}

// The command on a real cluster: live by coordinator and by root peer, after a
// kill, and offline on the folders that it left.
func TestWitnessOfAKilledCluster(t *testing.T) {
	t.Parallel()
	env, dir := nokvEnv(t), filepath.Join(t.TempDir(), "dev")
	ask := func(want int, args ...string) witnessOutput {
		t.Helper()
		r := here(t, env, append([]string{"witness", "-o", "json"}, args...)...)
		var out witnessOutput
		if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil && r.Stdout != "" {
			t.Fatal(err)
		}
		// A busy machine may change holders at any time: whether a handover that
		// was met half way is closed in time, only the next look tells.
		halfWay := r.Code == exitUnavailable && len(out.Guarantees) == 5 && out.Guarantees[3].Verdict == "cannot tell" && out.Guarantees[0].Verdict == "holds"
		if r.Code != want && !(want == exitOK && halfWay) {
			t.Fatalf("witness %q: exit status %d, want %d\n%s%s", args, r.Code, want, r.Stdout, r.Stderr)
		}
		return out
	}
	var calls []history.Call
	began := time.Now()
	takeIDs := func() {
		t.Helper()
		call := history.Call{Client: "test", Op: history.OpID, CallNS: int64(time.Since(began))}
		r := here(t, env, "id", "--count", "10", "-o", "json")
		var out idOutput
		if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
			t.Fatalf("%v\n%s%s", err, r.Stdout, r.Stderr)
		}
		call.ReturnNS, call.First, call.Count, call.Era = int64(time.Since(began)), out.First, out.Count, out.Era
		calls = append(calls, call)
	}
	file := filepath.Join(t.TempDir(), "history")
	record := func(calls []history.Call) {
		t.Helper()
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		w := history.NewWriter(f)
		for _, c := range calls {
			if err := w.Write(c); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}

	dev := startDev(t, env, dir)
	takeIDs()
	if r := here(t, env, "witness", "--workdir", filepath.Join(dir, "meta-root-1")); r.Code != exitRefused || !strings.Contains(r.Stderr, "is in use by another process") {
		t.Errorf("a workdir in use: exit status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	dev.Signal(syscall.SIGKILL)
	dev.Wait(recoverWithin)
	dev = startDev(t, env, dir)
	takeIDs()
	record(calls)
	live := ask(exitOK, "--history", file)
	if len(live.Eras) < 2 || live.Eras[0].Era < 2 || live.Disclosure == nil || live.History.Grants != 2 {
		t.Errorf("%+v", live)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "dev.json"))
	if err != nil {
		t.Fatal(err)
	}
	var where devFile
	if err := json.Unmarshal(raw, &where); err != nil {
		t.Fatal(err)
	}
	if byRoot := ask(exitOK, "--root-peer", "1="+where.RootPeers[0], "--root-peer", "2="+where.RootPeers[1], "--root-peer", "3="+where.RootPeers[2]); len(byRoot.Eras) < 2 {
		t.Errorf("%+v", byRoot)
	}
	dev.Signal(syscall.SIGINT)
	dev.Wait(recoverWithin)

	var entries uint64
	var most string // the folder that knows most to be committed
	for _, name := range []string{"meta-root-1", "meta-root-2", "meta-root-3"} {
		offline := ask(exitOK, "--workdir", filepath.Join(dir, name))
		if offline.Audit == nil || offline.Audit.Entries == 0 || offline.Audit.FromToken != "" || offline.Guarantees[0].Verdict != "holds" {
			t.Errorf("%+v", offline)
		}
		if offline.Audit.Entries > entries {
			entries, most = offline.Audit.Entries, filepath.Join(dir, name)
		}
	}
	ask(exitOK, "--workdir", most, "--history", file)
	calls[1].First = calls[0].First
	record(calls)
	ask(exitRefused, "--workdir", most, "--history", file)
	ask(exitUnavailable) // nobody is there any more
}
