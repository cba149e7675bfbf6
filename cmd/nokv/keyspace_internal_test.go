package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/settings"
	"github.com/nokv/nokv/meta/root/state"
)

// A keyspace that exists with other settings is told by what is different.
func TestC62SettingsThatDiffer(t *testing.T) {
	is, _ := state.Preset("games")
	asked, _ := state.Preset("games")
	asked.Liveness.DeadAfterMillis, asked.Liveness.Probe = 3000, false
	if got, want := differs(is, asked), "liveness-dead-after is 5s, asked 3s; liveness-probe is true, asked -"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	other, _ := state.Preset("kv")
	if got := differs(is, other); len(got) > 400 || got[:32] != "the layout is points, asked rang" {
		t.Errorf("another preset: %s", got)
	}
}

// Settings are shown with their price without a cluster, all or those of a name.
func TestA43SettingsAreShownWithTheirPrice(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
		n    int
	}{
		{nil, []string{"liveness-interval", "start-hold"}, len(settings.All())},
		{[]string{"liveness"}, []string{"liveness-interval", "liveness-probe"}, 5},
		{[]string{"guards-flap", "ownership-fence"}, []string{"guards-flap-failures", "guards-flap-window", "ownership-fence"}, 3},
	} {
		code, stdout, stderr := runHere(t, append([]string{"keyspace", "settings", "-o", "json"}, c.args...)...)
		var all []guideOutput
		if err := json.Unmarshal([]byte(stdout), &all); err != nil || code != exitOK || len(all) != c.n {
			t.Fatalf("%q: exit status %d, %d settings, %v\n%s", c.args, code, len(all), err, stderr)
		}
		for _, name := range c.want {
			i := slices.IndexFunc(all, func(x guideOutput) bool { return x.Setting == name })
			if i < 0 || all[i].Default == "" || all[i].What == "" || all[i].Lower == "" || all[i].Higher == "" {
				t.Errorf("%q: %s is %+v", c.args, name, all)
			}
		}
	}
	if _, stdout, _ := runHere(t, "keyspace", "settings", "liveness-dead"); !strings.Contains(stdout, "default 10 intervals, at least 100ms") {
		t.Errorf("it says\n%s", stdout)
	}
	if code, _, stderr := runHere(t, "keyspace", "settings", "dead-after"); code != exitUsage || !strings.Contains(stderr, "no setting begins with") {
		t.Errorf("exit status %d, %s", code, stderr)
	}
}
