package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// C-48: an operator reshapes a keyspace that never evens out by itself: nokv plan shows what
// would be done, changes nothing, and begins it when it is asked to; a coordinator that is not the
// holder is no hindrance.
func TestC48PlanAndApply(t *testing.T) {
	t.Parallel()
	h := startForWorkers(t)
	h.come()
	h.must("keyspace", "create", "still", "--layout", "slots", "--slots", "20", "--liveness-interval", "200ms")
	h.eventually(func(context.Context) error { return h.hosts(20, 0) })
	h.come()

	plan := func(args ...string) (out planOutput) {
		t.Helper()
		text := h.must(append([]string{"plan", "still", "-o", "json"}, args...)...)
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return out
	}
	svg := filepath.Join(t.TempDir(), "plan.svg")
	var shown planOutput
	h.eventually(func(context.Context) error { // nobody is given anything before the holder heard it
		shown = plan("--svg", svg)
		if i := slices.IndexFunc(shown.Keyspaces[0].Members, func(m plannedMemberOutput) bool { return m.Note != "" }); i >= 0 || len(shown.Keyspaces[0].Members) != 2 {
			return fmt.Errorf("the members are %+v", shown.Keyspaces[0].Members)
		}
		return nil
	})
	if len(shown.Operations) != 10 || shown.PlanID == "" || shown.Keyspaces[0].EvensOut || shown.Keyspaces[0].BeforePermille != 2000 || shown.Keyspaces[0].AfterPermille != 1000 {
		t.Fatalf("the plan is %+v", shown)
	}
	if raw, err := os.ReadFile(svg); err != nil || !strings.Contains(string(raw), "plan of still") {
		t.Errorf("the picture: %v, %s", err, raw)
	}
	if imagined := plan("--with-member", "x,capacity=2,zone=b"); imagined.PlanID != "" || len(imagined.Keyspaces[0].Members) != 3 {
		t.Errorf("with one more: %+v", imagined)
	}
	if err := h.hosts(20, 0); err != nil {
		t.Errorf("after it was shown: %v", err)
	}
	if text := h.must("plan", "--apply", "--id", shown.PlanID, "--why", "ticket 7"); !strings.Contains(text, "begun: 10 changes") {
		t.Errorf("applied: %s", text)
	}
	h.eventually(func(context.Context) error {
		if a, b := len(h.held(0)), len(h.held(1)); a != 10 || b != 10 {
			return fmt.Errorf("the workers have %d and %d regions", a, b)
		}
		return nil
	})
	if again := plan("--apply"); again.Applied != nil || len(again.Operations) != 0 {
		t.Errorf("when it is even: %+v", again)
	}
	if events := h.Run(append([]string{"events"}, h.RootFlags()...)...).Stdout; !strings.Contains(events, "has more regions than others") || !strings.Contains(events, `why "ticket 7"`) {
		t.Errorf("the events are\n%s", events)
	}
	if table := h.must("plan", "still", "--history"); !strings.Contains(table, "operator") || !strings.Contains(table, "20") {
		t.Errorf("what was is\n%s", table)
	}
}

// Words that nobody can mean are refused before anybody is asked.
func TestPlanWords(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	unknown := write("unknown.json", `{"policy": {"rebalanse": {}}}`)
	fine := write("fine.json", `{"policy": {"rebalance": {"meanPermille": "1100"}}}`)
	for _, c := range []struct {
		line, want string
		code       int
	}{
		{"plan a b", "name one keyspace", exitUsage},
		{"plan ks --apply --with-member x", "register members", exitUsage},
		{"plan ks --apply --policy " + fine, "nokv keyspace update", exitUsage},
		{"plan ks --policy " + unknown, `unknown field "rebalanse"`, exitUsage},
		{"plan --policy " + fine, "name it", exitUsage},
		{"plan ks --policy " + filepath.Join(dir, "none"), "no such file", exitUsage},
		{"plan ks --with-member ,capacity=1", "want an id", exitUsage},
		{"plan ks --with-member x,capacity=0", "1 or more", exitUsage},
		{"plan ks --with-member x,zone", "LABEL=VALUE", exitUsage},
		{"plan --id X", "--id is for --apply", exitUsage},
		{"plan ks --apply --id X", "as it is", exitUsage},
		{"plan ks --why x", "--why is for --apply", exitUsage},
		{"plan --history", "name it", exitUsage},
	} {
		wantRefused(t, c.line, c.code, c.want)
	}
}
