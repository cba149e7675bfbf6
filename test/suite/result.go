package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/test/hermetic"
)

// event is a line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
	// ImportPath is of what could not be built, FailedBuild of the package that fails for it.
	ImportPath, FailedBuild string
}

// ends says whether a test or a package has ended.
func (e event) ends() bool { return e.Action == "pass" || e.Action == "fail" || e.Action == "skip" }

// result is what one run found.
type result struct {
	folder  string
	options *options
	took    time.Duration
	// passes and skips count tests, without their parts.
	passes  int
	skipped []test
	failed  []test
	// seconds that the tests of packages took, by import path.
	seconds map[string]float64
	// output of what has not passed, by package and test; of a build by its import path.
	output map[[2]string]*strings.Builder
	// failing are the tests that failed, and those above them; running have begun and not ended; begun is how many
	// tests of a package have.
	failing, running map[[2]string]bool
	begun            map[string]int
	// checks failed beside the tests.
	checks []failure
	// left are processes and files that tests left behind.
	left []string
	// report is what long tests say they did.
	report []string
}

// test is one that failed or was skipped; an empty name is the package as a whole.
type test struct{ pkg, name, why string }

// failure is a check that failed.
type failure struct{ name, why, again string }

func (r *result) take(e event) {
	if r.output == nil {
		r.output, r.seconds, r.begun = make(map[[2]string]*strings.Builder), make(map[string]float64), make(map[string]int)
		r.failing, r.running = make(map[[2]string]bool), make(map[[2]string]bool)
	}
	key := [2]string{cmp.Or(e.Package, e.ImportPath), e.Test}
	switch {
	case e.Test != "" && e.Action == "run":
		r.running[key] = true
		r.begun[e.Package]++
	case e.Test != "" && e.ends():
		delete(r.running, key)
	}
	switch {
	case e.Output != "":
		if r.output[key] == nil {
			r.output[key] = new(strings.Builder)
		}
		r.output[key].WriteString(e.Output)
	case e.ends() && e.Test == "":
		r.seconds[e.Package] = e.Elapsed
		r.failUnended(e.Package)
		if e.Action == "fail" {
			r.fail(e)
		}
	case e.Action == "pass":
		if !strings.Contains(e.Test, "/") {
			r.passes++
		}
		delete(r.output, key)
	case e.Action == "skip":
		r.skipped = append(r.skipped, test{e.Package, e.Test, reasons(r.text(key), 1)})
	case e.Action == "fail":
		r.fail(e)
	}
}

// failUnended notes the tests of a package that has ended which have not: of a process that was ended or that
// ended itself. The parts come first, which say most.
func (r *result) failUnended(pkg string) {
	var names []string
	for key := range r.running {
		if key[0] == pkg {
			names = append(names, key[1])
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(strings.Count(b, "/")-strings.Count(a, "/"), strings.Compare(a, b))
	})
	for _, name := range names {
		r.output[[2]string{pkg, name}] = cmp.Or(r.output[[2]string{pkg, name}], new(strings.Builder))
		r.output[[2]string{pkg, name}].WriteString("\n    the test did not end\n")
		r.fail(event{Package: pkg, Test: name})
	}
}

// fail notes a failed test, but for one of which a part failed, and a failed package without a
// failed test.
func (r *result) fail(e event) {
	key := [2]string{e.Package, e.Test}
	for name := range parents(e.Test) {
		r.failing[[2]string{e.Package, name}] = true
	}
	text := r.text(key)
	if r.failing[key] && (e.Test != "" || !saysMore(text)) {
		return
	}
	r.failing[key] = true
	if e.FailedBuild != "" {
		text = r.text([2]string{e.FailedBuild, ""}) + text
	}
	r.failed = append(r.failed, test{e.Package, e.Test, text})
}

// frame are the lines that a package's output has whatever it is.
var frame = regexp.MustCompile(`^(?:FAIL|PASS|ok|exit status|coverage:|===|---|\s|$)`)

// saysMore says whether a package's own output has more than that a test failed.
func saysMore(output string) bool {
	for line := range strings.Lines(output) {
		if !frame.MatchString(line) {
			return true
		}
	}
	return false
}

// parents are the tests that a test is a part of, and its package, "".
func parents(name string) map[string]bool {
	above := make(map[string]bool)
	for name != "" {
		i := strings.LastIndex(name, "/")
		name = name[:max(0, i)]
		above[name] = true
	}
	return above
}

func (r *result) text(key [2]string) string {
	if b := r.output[key]; b != nil {
		return b.String()
	}
	return ""
}

// finish adds packages that never ended, because the go command itself was ended, or failed, and those of
// which nothing ran.
func (r *result) finish(packages []pkg, err error, stderr string) {
	all := r.options.run == "" && len(r.options.ofGoTest) == 0
	for _, p := range packages {
		if _, ok := r.seconds[p.path]; !ok {
			r.failed = append(r.failed, test{p.path, "", fmt.Sprintf("the tests did not end: go test: %v\n%s", err, stderr)})
		} else if all && p.tests > 0 && r.begun[p.path] == 0 && !r.failing[[2]string{p.path, ""}] {
			r.failed = append(r.failed, test{p.path, "", "no test ran: its process ended itself before, with status 0"})
		}
	}
	if len(r.begun) == 0 && len(r.failed) == 0 {
		r.failed = append(r.failed, test{module, "", "no test ran: none is called so"})
	}
	if err != nil && len(r.failed) == 0 {
		r.failed = append(r.failed, test{module, "", fmt.Sprintf("go test: %v\n%s", err, stderr)})
	}
}

func (r *result) passed() bool { return len(r.failed)+len(r.checks)+len(r.left) == 0 }

var (
	// telling are lines that say why a test failed.
	telling = regexp.MustCompile(`^\s+[\w.-]+\.go:\d+: |^panic: |^fatal error: |DATA RACE|^\S+\.go:\d+:\d+: |did not end|^got:|^\s+\[rapid\]`)
	// seeds are lines that say how to repeat a run by chance.
	seeds = regexp.MustCompile(`repeat: (go test .*)$|(-rapid\.(?:failfile|seed)=\S+)`)
)

// maxOfOne bounds the lines of one message.
const maxOfOne = 6

// reasons are the first lines of an output that say why, at most n: those that are known to, and the ones
// that go on behind them.
func reasons(output string, n int) string {
	var lines []string
	more := 0
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		switch {
		case telling.MatchString(line):
			more = maxOfOne
		case strings.HasPrefix(line, "=== ") || strings.HasPrefix(strings.TrimSpace(line), "--- "):
			more = 0
		}
		if more > 0 {
			lines = append(lines, shorten(strings.TrimSpace(line), 600))
			more--
		}
	}
	if len(lines) == 0 { // nothing is known of its shape: the end says most
		for line := range strings.Lines(output) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
				lines = append(lines, shorten(line, 600))
			}
		}
		lines = lines[max(0, len(lines)-n):]
	}
	return strings.Join(lines[:min(len(lines), n)], "\n")
}

func shorten(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + " ..."
	}
	return s
}

// again is the command that repeats a test alone.
func (r *result) again(f test) string {
	words := []string{"go", "test", "./" + short(f.pkg), "-count=1"}
	if r.options.long {
		words = append([]string{hermetic.Long + "=1"}, append(words, "-timeout", r.options.deadline.String())...)
	}
	for line := range strings.Lines(f.why) {
		m := seeds.FindStringSubmatch(strings.TrimSpace(line))
		if m != nil && m[1] != "" { // the test says itself how
			return strings.Join(append(slices.DeleteFunc(words, func(w string) bool { return !strings.HasPrefix(w, hermetic.Long) }), m[1]), " ")
		}
		if m != nil {
			words = append(words, m[2])
			break
		}
	}
	if f.name != "" {
		var parts []string
		for part := range strings.SplitSeq(f.name, "/") {
			parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
		}
		words = append(words, "-run", quoted(strings.Join(parts, "/")))
	}
	for _, w := range r.options.ofGoTest {
		words = append(words, quoted(w))
	}
	return strings.Join(words, " ")
}

var plain = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// quoted is a word as a shell reads it.
func quoted(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// maxReasons bounds the lines that say why one test failed.
const maxReasons = 12

// print says how a run ended; what failed comes last.
func (r *result) print(w io.Writer) {
	if len(r.report) > 0 {
		fmt.Fprintf(w, "\nwhat the long tests did:\n")
		for _, line := range r.report {
			fmt.Fprintf(w, "  %s\n", line)
		}
	}
	if len(r.skipped) > 0 {
		fmt.Fprintf(w, "\nskipped, and so not shown here:\n")
		for _, s := range r.skipped {
			fmt.Fprintf(w, "  %s %s: %s\n", short(s.pkg), s.name, s.why)
		}
	}
	if !r.passed() {
		fmt.Fprintf(w, "\nwhat failed:\n")
	}
	for _, f := range r.checks {
		fmt.Fprintf(w, "\n  %s\n%s\n    again: %s\n", f.name, indent(f.why), f.again)
	}
	for _, line := range r.left {
		fmt.Fprintf(w, "\n  %s\n", line)
	}
	for _, f := range r.failed {
		fmt.Fprintf(w, "\n  %s %s\n%s\n    again: %s\n", short(f.pkg), f.name, indent(reasons(f.why, maxReasons)), r.again(f))
	}
	if !r.passed() {
		fmt.Fprintf(w, "\nall output: %s", filepath.Join(r.folder, "output.json"))
		if logs := filepath.Join(r.folder, "logs"); exists(logs) {
			fmt.Fprintf(w, "\nlogs of processes: %s", logs)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\n%d packages in %s\n", len(r.seconds), r.took.Round(time.Second))
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", r.passes, len(r.failed)+len(r.checks)+len(r.left), len(r.skipped))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }

var digits = regexp.MustCompile(`\d+`)

// printTable says of several runs how many failed, and how often each test did.
func printTable(w io.Writer, runs []*result) {
	if len(runs) == 0 {
		return
	}
	counts, bad := make(map[string]int), 0
	var took []time.Duration
	for _, r := range runs {
		took = append(took, r.took)
		if !r.passed() {
			bad++
		}
		for _, f := range r.failed {
			counts[short(f.pkg)+" "+f.name]++
		}
		for _, f := range r.checks {
			counts[f.name]++
		}
		for _, line := range r.left {
			counts[digits.ReplaceAllString(line, "N")]++ // names of temporary files differ
		}
	}
	slices.Sort(took)
	fmt.Fprintf(w, "\n%d runs, %d of them failed; %s by the median, %s at most\n", len(runs), bad, took[len(took)/2].Round(time.Second), took[len(took)-1].Round(time.Second))
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], strings.Compare(a, b)) })
	for _, name := range names {
		fmt.Fprintf(w, "%4d  %s\n", counts[name], name)
	}
}
