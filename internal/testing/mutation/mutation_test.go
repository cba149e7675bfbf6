package mutation

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/testing/testreport"
)

var mutate = flag.Bool("mutate", false, "break each rule in turn and insist that a test fails; takes minutes")

const root = "../../.."

// Each mutation has its place, and each rule a mutation.
func TestMutationsApply(t *testing.T) {
	for rule := 1; rule <= 9; rule++ {
		if !slices.ContainsFunc(mutations, func(m mutation) bool { return m.rule == rule }) {
			t.Errorf("rule %d is not broken by any mutation", rule)
		}
	}
	for _, m := range mutations {
		m.broken(t)
	}
}

// broken is the file as the mutation leaves it.
func (m *mutation) broken(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(data), m.old); n != 1 {
		t.Errorf("rule %d, %s: %s has %q %d times, want once: say where that is now", m.rule, m.name, m.file, m.old, n)
	}
	return strings.Replace(string(data), m.old, m.new, 1)
}

func TestEachMutationIsNoticed(t *testing.T) {
	if !*mutate {
		t.Skip("takes minutes: run it with -mutate")
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			overlay := m.overlay(t)
			for _, pkg := range m.by {
				out, err := run(overlay, pkg)
				if strings.Contains(out, "[build failed]") {
					t.Fatalf("%s does not compile:\n%s", m.file, out)
				}
				if err != nil {
					testreport.Linef(t, "rule %d, %s: noticed by %s %s", m.rule, m.name, strings.TrimPrefix(pkg, "./"), failed(out))
					return
				}
			}
			t.Errorf("rule %d: no test of %v notices it", m.rule, m.by)
		})
	}
}

// overlay writes the broken file beside the sources, for the compiler alone.
func (m *mutation) overlay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.go")
	if err := os.WriteFile(broken, []byte(m.broken(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	original, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: broken}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(name, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// run runs the tests of a package. A panic and a test that never ends count as
// failures, as they do for who runs them.
func run(overlay, pkg string) (string, error) {
	cmd := exec.Command("go", "test", "-failfast", "-timeout", "2m", "-vet", "off", "-overlay", overlay, pkg)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return "[build failed] " + err.Error(), err
	}
	return string(out), err
}

var failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^panic: (.*)$`)

// failed is the test that failed first.
func failed(out string) string {
	m := failure.FindStringSubmatch(out)
	switch {
	case m == nil:
		return "(by its end)"
	case m[1] != "":
		return m[1]
	default:
		return "panic: " + m[2]
	}
}
