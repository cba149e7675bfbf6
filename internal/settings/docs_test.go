package settings_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/settings"
	"github.com/nokv/nokv/meta/root/state"
)

// After a preset changed: go test ./internal/settings -run TestDocsHaveThePresets -rewrite, and read the diff.
var rewrite = flag.Bool("rewrite", false, "write the table of docs/presets.md")

// docs/presets.md has what counts in each preset, and no other numbers in its table.
func TestDocsHaveThePresets(t *testing.T) {
	const path, begin, end = "../../docs/presets.md", "| setting |", "\n\n"
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
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
	before, rest, found := strings.Cut(string(raw), begin)
	if !found {
		t.Fatalf("%s has no table that begins with %q", path, begin)
	}
	_, after, found := strings.Cut(rest, end)
	if !found {
		t.Fatalf("%s ends in its table", path)
	}
	want := before + table.String() + end + after
	if want == string(raw) {
		return
	}
	if !*rewrite {
		t.Fatalf("%s is of other presets; run with -rewrite. Want\n%s", path, table.String())
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
