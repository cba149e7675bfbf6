package settings_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/settings"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// After a preset changed: go test ./internal/settings -run TestDocsHaveThePresets -rewrite, and read the diff.
var rewrite = flag.Bool("rewrite", false, "write the table of docs/presets.md")

// docs/presets.md has what counts in each preset, and no other numbers in its table.
func TestDocsHaveThePresets(t *testing.T) {
	const path, begin, end = "../../docs/presets.md", "| setting |", "\n\n"
	names := []string{"tenants", "games", "actors", "partitions", "kv"}
	var table strings.Builder
	table.WriteString("| setting | " + strings.Join(names, " | ") + " |\n|---" + strings.Repeat("|---", len(names)) + "|")
	for _, s := range settings.All() {
		row, some := "\n| `"+s.Name+"` |", false
		for _, name := range names {
			preset, ok := state.Preset(name)
			if !ok {
				t.Fatalf("there is no preset %s", name)
			}
			text := s.Counts(preset)
			some = some || s.Text(preset) != "" || s.Name == "start-hold"
			row += " " + text + " |"
		}
		if some {
			table.WriteString(row)
		}
	}
	documented(t, path, begin, end, table.String())
}

// documented has a table of a document be what it is to be.
func documented(t *testing.T, path, begin, end, table string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(raw), begin)
	if !found {
		t.Fatalf("%s has no table that begins with %q", path, begin)
	}
	_, after, found := strings.Cut(rest, end)
	if !found {
		t.Fatalf("%s ends in its table", path)
	}
	want := before + table + end + after
	if want == string(raw) {
		return
	}
	if !*rewrite {
		t.Fatalf("%s has another table; run with -rewrite. Want\n%s", path, table)
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// docs/presets.md has every setting with what counts where nothing is set, the least that it may
// be, what it says, and what less and more of it cost.
func TestA43EverySettingHasItsPrice(t *testing.T) {
	var table strings.Builder
	table.WriteString("| every setting | default | least | what it says | less, or the first word, costs | more, or the others, cost |\n|---|---|---|---|---|---|")
	for _, s := range settings.All() {
		g := s.Guide()
		if g.What == "" || g.Lower == "" || g.Higher == "" {
			t.Errorf("%s has no guide, or half of one: %+v", s.Name, g)
		}
		if s.Default() == "" {
			t.Errorf("%s: nobody says what counts where it is not set", s.Name)
		}
		for _, text := range []string{g.What, g.Unset, g.Lower, g.Higher} {
			if strings.ContainsAny(text, "|\n") {
				t.Errorf("%s: %q does not fit in a table", s.Name, text)
			}
		}
		table.WriteString("\n| `" + s.Name + "` | " + s.Default() + " | " + s.Least() + " | " + g.What + " | " + g.Lower + " | " + g.Higher + " |")
	}
	documented(t, "../../docs/presets.md", "| every setting |", "\n\n", table.String())
}

// What a guide says that counts is what counts: a value of its own, where there is one.
func TestA43DefaultsAreWhatCounts(t *testing.T) {
	counts := 0
	for _, s := range settings.All() {
		k := &rootv1.KeyspaceSettings{Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Policy: &rootv1.Policy{Rebalance: &rootv1.Rebalance{}}}
		want := s.Counts(k)
		if s.Name == "placement" || s.Takes == "true or false" || want == "" {
			continue
		}
		said := s.Default()
		if n, ok := strings.CutSuffix(said, " intervals"); ok { // of a second
			said = n + "s"
		}
		if counts++; said != want {
			t.Errorf("%s: %q is said to count, %q does", s.Name, s.Default(), want)
		}
		if s.Least() == "" {
			continue
		}
		if err := s.Set(k, s.Least()); err != nil {
			t.Errorf("%s: the least is %q: %v", s.Name, s.Least(), err)
		}
	}
	if counts < 20 {
		t.Errorf("%d settings have a value that counts", counts)
	}
}
