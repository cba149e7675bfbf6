package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/internal/settings"
)

var settingName = regexp.MustCompile(`\b(?:ownership|liveness|policy|cadence|moves|guards|start|limits)-[a-z-]+[a-z]`)

// Whatever a plan does not do has a sentence that says what it waits for, and what that names
// are settings that there are.
func TestC54NotDoneIsExplained(t *testing.T) {
	var names []string
	for _, s := range settings.All() {
		names = append(names, s.Name)
	}
	all := placement.Whys()
	if len(all) != len(notDoneFor) {
		t.Errorf("there are %d reasons and %d sentences", len(all), len(notDoneFor))
	}
	named := 0
	for _, why := range all {
		text := notDoneFor[why.String()]
		if text == "" {
			t.Errorf("%s has no sentence", why)
		}
		for _, name := range settingName.FindAllString(text, -1) {
			if named++; !slices.Contains(names, name) {
				t.Errorf("%s names %s, which is no setting", why, name)
			}
		}
	}
	if named < 15 {
		t.Errorf("%d settings are named", named)
	}
}

// A plan that waits says for what, by which setting, and for how long.
func TestC54APlanNamesTheSettingItRestsBy(t *testing.T) {
	out := planOutput{Refusals: []plannedRefusalOutput{
		{Why: "cooling_down", Keyspace: "k", Member: "m1", AfterMillis: 41_000},
		{Why: "joined", Keyspace: "k", Member: "m2", AfterMillis: 9_000},
		{Why: "joined", Keyspace: "k", Member: "m3", AfterMillis: 9_000},
	}}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	(&planFlags{rows: 20}).table(w, &out)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cooling_down", "41s", "policy-rebalance-cooldown", "9s", "policy-rebalance-settle"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("it does not say %s:\n%s", want, text.String())
		}
	}
	if n := strings.Count(text.String(), "policy-rebalance-settle"); n != 1 {
		t.Errorf("a word is explained %d times", n)
	}
}
