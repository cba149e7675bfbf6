package mutation

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/test/hermetic"
	"github.com/nokv/nokv/test/size"
)

var (
	mutate = size.Bool("mutate", "break each rule in turn and insist that a test fails; takes an hour or two")
	times  = flag.Int("baseline", 3, "how often the unchanged tests of a package must pass before it may notice anything")
)

const root = "../../.."

// Each mutation has its place, and each rule a mutation.
func TestMutationsApply(t *testing.T) {
	for rule := 1; rule <= rules; rule++ {
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
		t.Skip("of the long form: ./scripts/test.sh --long, or -mutate")
	}
	trusted := baseline{run: run, times: *times}
	for _, m := range mutations {
		t.Run(fmt.Sprintf("rule %d, %s", m.rule, m.name), func(t *testing.T) {
			overlay := m.overlay(t)
			for _, pkg := range m.by {
				if err := trusted.check(pkg); err != nil {
					t.Fatal(err)
				}
				out, err := run(1, "-overlay", overlay, pkg)
				if strings.Contains(out, "[build failed]") {
					t.Fatalf("%s does not compile:\n%s", m.file, out)
				}
				if strings.Contains(out, timedOut) {
					t.Fatalf("rule %d, %s: nothing of %s notices it but a test that never ends: make one notice it in seconds\n%s", m.rule, m.name, pkg, out)
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

// baseline knows which packages pass as they are: the failure of another one
// says nothing of a mutation.
type baseline struct {
	run     func(count int, args ...string) (string, error)
	times   int
	results map[string]error
}

// check runs the unchanged tests of a package, the first time that it is asked.
func (b *baseline) check(pkg string) error {
	err, ok := b.results[pkg]
	if ok {
		return err
	}
	if out, failure := b.run(b.times, pkg); failure != nil {
		err = fmt.Errorf("%s does not pass %d times in a row as it is, %s failed: what it notices does not count\n%s", pkg, b.times, failed(out), out)
	}
	if b.results == nil {
		b.results = make(map[string]error)
	}
	b.results[pkg] = err
	return err
}

// A flaky package is found out, once, and does not speak for others.
func TestFlakyPackagesDoNotCount(t *testing.T) {
	ran := make(map[string]int)
	b := baseline{times: 3, run: func(count int, args ...string) (string, error) {
		pkg := args[0]
		ran[pkg] += count
		if pkg == "./flaky" && ran[pkg] >= 2 {
			return "--- FAIL: TestNowAndThen (0.00s)\nFAIL", errors.New("exit status 1")
		}
		return "ok", nil
	}}
	for range 2 {
		if err := b.check("./sound"); err != nil {
			t.Errorf("sound: %v", err)
		}
		if err := b.check("./flaky"); err == nil || !strings.Contains(err.Error(), "TestNowAndThen failed") {
			t.Errorf("flaky: %v", err)
		}
	}
	if ran["./sound"] != 3 || ran["./flaky"] != 3 {
		t.Errorf("ran %v, want each package three times", ran)
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

// timedOut is what a test says that never ends: it would keep who runs it waiting,
// and does not say what is wrong.
const timedOut = "panic: test timed out after"

// run runs the tests of a package so many times. A panic counts as a failure, as
// it does for who runs them.
func run(count int, args ...string) (string, error) {
	within := time.Duration(count) * 2 * time.Minute
	cmd := exec.Command("go", append([]string{"test", "-failfast", "-vet", "off", "-count", strconv.Itoa(count), "-timeout", within.String()}, args...)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), hermetic.Long+"=") // the short form has to notice
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
