package main

import (
	"testing"

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
