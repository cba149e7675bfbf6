package state_test

import (
	"math"
	"strings"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Settings of scaling and of hooks that contradict each other are refused by the name of the
// field, and what is new is of the level that older software does not have.
func TestC31C32C58C59C60ScalingIsJudgedAtTheDoor(t *testing.T) {
	for _, c := range []struct {
		scaling *rootv1.Scaling
		want    string
	}{
		{&rootv1.Scaling{}, ""},
		{&rootv1.Scaling{Enabled: true, UpPermille: 1000, DownPermille: 999, MinMembers: 1, MaxMembers: 1, HookUrl: "https://a/b", HookTimeoutMillis: 60_000}, ""},
		{&rootv1.Scaling{MinMembers: 11}, ""},
		{&rootv1.Scaling{UpPermille: 1001}, "scaling-up-permille is 1001"},
		{&rootv1.Scaling{UpPermille: 300}, "scaling-down-permille is 300 and scaling-up-permille 300"},
		{&rootv1.Scaling{DownPermille: 900}, "scaling-down-permille is 900 and scaling-up-permille 800"},
		{&rootv1.Scaling{MaxMembers: 1}, "scaling-min-members is 2, above scaling-max-members 1"},
		{&rootv1.Scaling{MaxMembers: math.MaxUint64}, "scaling-max-members is"},
		{&rootv1.Scaling{SpacingMillis: math.MaxUint64}, "scaling-spacing is"},
		{&rootv1.Scaling{HookTimeoutMillis: 60_001}, "scaling-hook-timeout is 60001 ms"},
		{&rootv1.Scaling{HookUrl: "http://"}, "scaling-hook-url is"},
		{&rootv1.Scaling{HookUrl: "https://" + strings.Repeat("a", 600)}, "scaling-hook-url has"},
	} {
		s := state.DefaultSettings()
		s.Scaling = c.scaling
		d := state.CheckCommand(settingsCommand(s))
		if (d == nil) != (c.want == "") || d != nil && (d.GetReason() != rootv1.Reason_REASON_INVALID_REQUEST || !strings.Contains(d.GetMessage(), c.want)) {
			t.Errorf("%v: %v, want %q", c.scaling, d, c.want)
		}
	}
	s := state.DefaultSettings()
	s.Policy.HookFallback = rootv1.Strategy_STRATEGY_RING
	if d := state.CheckCommand(settingsCommand(s)); d != nil {
		t.Errorf("a fallback: %v", d)
	}
	s.Policy.HookFallback = rootv1.Strategy_STRATEGY_HOOK
	if d := state.CheckCommand(settingsCommand(s)); !strings.Contains(d.GetMessage(), "hook-fallback") {
		t.Errorf("a hook that falls back on itself: %v", d)
	}
	s = state.DefaultSettings()
	s.Policy.HookTimeoutMillis = 60_001
	if d := state.CheckCommand(settingsCommand(s)); !strings.Contains(d.GetMessage(), "policy-hook-timeout is 60001 ms") {
		t.Errorf("a hook that is waited for too long: %v", d)
	}
}
