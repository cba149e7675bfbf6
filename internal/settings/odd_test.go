package settings_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/settings"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Every setting with the least there is, the most, and nonsense: what is taken is what is
// meant, and what is refused is refused by the setting's name, with what to do.
func TestA30C62EverySettingOfNonsense(t *testing.T) {
	// least and most are what is taken; one below and one above are not. "": there is no such
	// bound beside that of the type.
	bounds := map[string]struct{ below, least, most, above string }{
		"ownership-max-owners":              {"", "1", "16", "17"},
		"ownership-min-owners":              {"", "1", "1", "2"},
		"ownership-ttl":                     {"99ms", "100ms", "8784h", "8785h"},
		"liveness-interval":                 {"99ms", "100ms", "8784h", "8785h"},
		"liveness-suspect-after":            {"99ms", "100ms", "8784h", "8785h"},
		"liveness-dead-after":               {"99ms", "1s", "8784h", "8785h"},
		"policy-ring-vnodes":                {"", "1", "4096", "4097"},
		"policy-rebalance-mean-permille":    {"999", "1000", "18446744073709551615", ""},
		"policy-rebalance-interval":         {"99ms", "100ms", "8784h", "1000000h"},
		"policy-rebalance-cooldown":         {"", "1ms", "8784h", "8785h"},
		"policy-rebalance-reserve-permille": {"", "1", "1000", "1001"},
		"policy-rebalance-settle":           {"", "1ms", "8784h", "8785h"},
		"policy-rebalance-in-flight":        {"", "1", "4096", "4097"},
		"policy-rebalance-round-permille":   {"", "1", "500", "1001"},
		"policy-rebalance-hour-permille":    {"49", "50", "1000", "1001"},
		"policy-rebalance-spacing":          {"", "1ms", "8784h", "8785h"},
		"policy-rebalance-backoff":          {"", "1ms", "8784h", "8785h"},
		"policy-rebalance-load-max-age":     {"99ms", "100ms", "8784h", "8785h"},
		"policy-rebalance-quiet":            {"", "1ms", "8784h", "8785h"},
		"policy-rebalance-cut":              {"", "1ms", "8784h", "8785h"},
		"policy-hook-url":                   {"::::", "http://a", "https://a.example:1/b", "ftp://a"},
		"policy-hook-timeout":               {"9ms", "10ms", "1m0s", "1m1s"},
		"policy-spread":                     {"a=b=c", "z", "zone", strings.Repeat("z", 256)},
		"cadence-checkpoint-interval":       {"99ms", "100ms", "8784h", "8785h"},
		"cadence-idle-evict":                {"1ms", "2s", "8784h", "8785h"},
		"cadence-idle-scan":                 {"99ms", "100ms", "8784h", "8785h"},
		"moves-prepare-max":                 {"", "1ms", "1m0s", "1m1s"},
		"moves-deadline":                    {"99ms", "10s", "8784h", "8785h"},
		"moves-hold-requests":               {"", "1ms", "8784h", "8785h"},
		"moves-in-flight":                   {"", "1", "4096", "4097"},
		"guards-mass-permille":              {"", "1", "1000", "1001"},
		"guards-mass-window":                {"99ms", "100ms", "8784h", "8785h"},
		"guards-flap-failures":              {"", "1", "1000", "1001"},
		"guards-flap-window":                {"99ms", "100ms", "8784h", "8785h"},
		"guards-mass-hold":                  {"", "1ms", "8784h", "8785h"},
		"guards-no-move-back":               {"", "1ms", "8784h", "8785h"},
		"scaling-up-permille":               {"300", "301", "1000", "1001"},
		"scaling-down-permille":             {"", "1", "799", "800"},
		"scaling-spacing":                   {"", "1ms", "8784h", "8785h"},
		"scaling-min-members":               {"", "1", "131072", "131073"},
		"scaling-max-members":               {"1", "2", "131072", "131073"},
		"scaling-hook-url":                  {"::::", "http://a", "https://a.example:1/b", "ftp://a"},
		"scaling-hook-timeout":              {"9ms", "10ms", "1m0s", "1m1s"},
		"start-members":                     {"", "1", "131072", "131073"},
		"start-hold":                        {"", "1ms", "24h", "24h1m"},
	}
	const all = "18446744073709551615"
	for _, name := range []string{"policy-rebalance-absolute-limit", "policy-rebalance-min-gap", "policy-rebalance-max-moves", "limits-max-regions", "limits-max-regions-per-member", "limits-max-keys-per-region"} {
		bounds[name] = struct{ below, least, most, above string }{"", "1", all, ""}
	}
	judge := func(s *settings.Setting, text string) string {
		k := state.DefaultSettings()
		k.Placement, k.Preset = rootv1.Placement_PLACEMENT_ASSIGNED, ""
		k.Liveness = nil
		if k.Policy == nil {
			k.Policy = &rootv1.Policy{}
		}
		k.Policy.Rebalance = &rootv1.Rebalance{}
		if strings.HasPrefix(s.Name, "liveness-") {
			k.Ownership = &rootv1.Ownership{}
		}
		if err := s.Set(k, text); err != nil {
			return err.Error()
		}
		e := &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "k", Settings: k}}}
		return state.CheckCommand(&rootv1.Command{Events: []*rootv1.Event{e}}).GetMessage()
	}
	for _, s := range settings.All() {
		b, bounded := bounds[s.Name]
		if !bounded {
			if len(s.Choices) == 0 {
				t.Errorf("%s has no row here", s.Name)
			}
			for _, text := range []string{"nonsense", "-1", "TRUE"} {
				if d := judge(&s, text); !strings.Contains(d, "want ") {
					t.Errorf("%s %q: %q", s.Name, text, d)
				}
			}
			continue
		}
		for _, text := range []string{b.least, b.most, "", "0"} {
			if d := judge(&s, text); d != "" && !(text == "0" && s.Takes == "text") {
				t.Errorf("%s %q is refused: %s", s.Name, text, d)
			}
		}
		for _, text := range []string{b.below, b.above} {
			if d := judge(&s, text); text != "" && d == "" {
				t.Errorf("%s %q is taken", s.Name, text)
			} else if text != "" && !strings.Contains(d, s.Name) {
				t.Errorf("%s %q is refused without its name: %s", s.Name, text, d)
			}
		}
		if s.Takes != "text" {
			for _, text := range []string{"nonsense", "-1", "-1s", "1e9", "1.5", "1us", "99999999999999999999"} {
				if d := judge(&s, text); !strings.Contains(d, "want ") {
					t.Errorf("%s %q: %q", s.Name, text, d)
				}
			}
		}
	}
}

// What is refused is named as a flag is, with a unit that people read.
func TestC62RefusedSettingsAreNamed(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"policy-rebalance-interval", "1000000h", "policy-rebalance-interval is 1000000 h, at most 366 days are allowed"},
		{"policy-rebalance-mean-permille", "900", "1200 is a fifth more than that"},
		{"policy-spread", "a=b=c", "want one such as zone"},
		{"cadence-idle-evict", "1ms", "cadence-idle-evict is 1 ms, at least 1 s is allowed"},
		{"cadence-idle-evict", "1500ms", "members report once in 1 s what is in use: make it 2 s or more"},
	} {
		for _, s := range settings.All() {
			if s.Name != c.name {
				continue
			}
			k, _ := state.Preset("games")
			k.Liveness.IntervalMillis = 1000
			if err := s.Set(k, c.text); err != nil {
				t.Fatal(err)
			}
			e := &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{Name: "k", Settings: k}}}
			if d := state.CheckCommand(&rootv1.Command{Events: []*rootv1.Event{e}}).GetMessage(); !strings.Contains(d, c.want) {
				t.Errorf("%s %q: %q, want %q", c.name, c.text, d, c.want)
			}
		}
	}
}
