package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/test/hermetic"
)

func TestParse(t *testing.T) {
	o, err := parse([]string{"--long", "--repeat", "20", "--load", "2", "./router", "--", "-race", "-v"}, io.Discard)
	if err != nil || !o.long || o.repeat != 20 || o.load != 2 || o.checks || o.deadline != 12*time.Hour ||
		!slices.Equal(o.packages, []string{"./router"}) || !slices.Equal(o.ofGoTest, []string{"-race", "-v"}) {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err = parse(nil, io.Discard); err != nil || !o.checks || o.repeat != 1 || !slices.Equal(o.packages, []string{"./..."}) {
		t.Errorf("without arguments: %+v, %v", o, err)
	}
	for _, args := range []string{"--repeat 0", "--load -1", "./router -race", "--nonsense"} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%s: no error", args)
		}
	}
	var help strings.Builder
	if _, err := parse([]string{"--help"}, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "-repeat N") {
		t.Errorf("--help: %v\n%s", err, &help)
	}
}

// stream is what a run of `go test -json` says, in short.
func stream(t *testing.T, lines string) *result {
	t.Helper()
	r := &result{folder: t.TempDir(), options: &options{}}
	for line := range strings.Lines(lines) {
		action, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		name, output, _ := strings.Cut(rest, " ")
		e := event{Action: action, Package: module + "/p", Test: name, Elapsed: 1}
		if name == "-" {
			e.Test = ""
		}
		if output != "" {
			e.Output = output + "\n"
		}
		r.take(e)
	}
	return r
}

func TestWhatFailedIsSaidWithItsReasonAndCommand(t *testing.T) {
	r := stream(t, `run TestA
run TestA/x_(1)
output TestA/x_(1)     a_test.go:12: got 1, want 2
output TestA/x_(1)         line two
output TestA/x_(1)     a_test.go:13: the log of c1: a line that says nothing
fail TestA/x_(1)
fail TestA
run TestB
output TestB     b_test.go:7: repeat: go test ./p -run TestB -seed 17
fail TestB
run TestR
output TestR     r_test.go:7: [rapid] failed after 3 tests: To reproduce, specify -run="TestR" -rapid.seed=42
fail TestR
run TestC
pass TestC
run TestC/part
pass TestC/part
run TestS
output TestS     s_test.go:7: SKIPPED: no PostgreSQL
skip TestS
output - FAIL
fail -
`)
	r.finish([]pkg{{path: module + "/p"}}, errors.New("exit status 1"), "")
	r.report = []string{"explorer: 7 worlds"}
	var out strings.Builder
	r.print(&out)
	for _, want := range []string{
		"  explorer: 7 worlds\n",
		"  p TestS: s_test.go:7: SKIPPED: no PostgreSQL\n",
		"\n  p TestA/x_(1)\n    a_test.go:12: got 1, want 2\n    line two\n", "again: go test ./p -count=1 -run '^TestA$/^x_\\(1\\)$'\n",
		"again: go test ./p -run TestB -seed 17\n",
		"again: go test ./p -count=1 -rapid.seed=42 -run '^TestR$'\n",
		"output.json\n", "\n1 passed, 3 failed, 1 skipped\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("printed:\n%s", &out)
	}
	if r.passed() || !strings.HasSuffix(out.String(), "1 passed, 3 failed, 1 skipped\n") {
		t.Error("the last line is not the count, or a run that failed has passed")
	}
	out.Reset()
	printTable(&out, []*result{r, stream(t, "run TestB\nfail TestB\nfail -\n"), stream(t, "pass -\n")})
	if !strings.Contains(out.String(), "3 runs, 2 of them failed") || !strings.Contains(out.String(), "\n   2  p TestB\n   1  p TestA/x_(1)\n   1  p TestR\n") {
		t.Errorf("the table of three runs:\n%s", &out)
	}
}

// Nothing passes that did not run: a package that cannot be built, one that panics, one that never ends,
// a go command that fails without a word.
func TestWhatDidNotRunHasFailed(t *testing.T) {
	build := &result{options: &options{}}
	for _, line := range []string{
		`{"ImportPath":"p [p.test]","Action":"build-output","Output":"./a.go:3:1: undefined: x\n"}`,
		`{"ImportPath":"p [p.test]","Action":"build-fail"}`,
		`{"Action":"fail","Package":"github.com/nokv/nokv/p","FailedBuild":"p [p.test]"}`,
	} {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		build.take(e)
	}
	for name, row := range map[string]struct {
		r    *result
		want string
	}{
		"build":    {build, "undefined: x"},
		"panic":    {stream(t, "run TestA\noutput TestA panic: gone\nfail TestA\nfail -\n"), "panic: gone"},
		"TestMain": {stream(t, "output - the database is not there\nfail -\n"), "the database is not there"},
		"silence":  {stream(t, ""), "did not end"},
	} {
		row.r.finish([]pkg{{path: module + "/p"}}, errors.New("exit status 1"), "")
		if row.r.passed() || len(row.r.failed) != 1 || !strings.Contains(reasons(row.r.failed[0].why, maxReasons), row.want) {
			t.Errorf("%s: %+v", name, row.r.failed)
		}
	}
	// A process that ends itself with status 0, before or in a test, and a pattern that none has.
	for name, row := range map[string]struct {
		lines, run string
		want       string
	}{
		"before": {"pass -\n", "", "no test ran"},
		"in":     {"run TestA\npass TestA\nrun TestB\noutput TestB     b_test.go:1: and then\npass -\n", "", "and then"},
		"none":   {"pass -\n", "Nothing", "none is called so"},
	} {
		r := stream(t, row.lines)
		r.options.run = row.run
		r.finish([]pkg{{path: module + "/p", tests: 2}}, nil, "")
		if r.passed() || len(r.failed) != 1 || !strings.Contains(r.failed[0].why, row.want) {
			t.Errorf("ends itself %s: %+v", name, r.failed)
		}
	}
	// What has not ended with its process is named, with what it said, beside what failed before; and what the
	// package says itself.
	hang := stream(t, "run TestA\noutput TestA     a_test.go:1: first\nfail TestA\nrun TestB\nrun TestB/x\noutput TestB/x panic: test timed out after 5s\noutput - goroutines leaked\noutput - FAIL\nfail -\n")
	hang.finish([]pkg{{path: module + "/p", tests: 2}}, errors.New("exit status 1"), "")
	var names []string
	for _, f := range hang.failed {
		names = append(names, f.name+": "+strings.ReplaceAll(reasons(f.why, maxReasons), "\n", "; "))
	}
	if want := []string{"TestA: a_test.go:1: first", "TestB/x: panic: test timed out after 5s; ; the test did not end", ": goroutines leaked"}; !slices.Equal(names[:min(2, len(names))], want[:2]) || len(names) != 3 || !strings.Contains(names[2], "goroutines leaked") {
		t.Errorf("failed: %q, want %q", names, want)
	}
	quiet := stream(t, "run TestA\npass TestA\npass -\n")
	quiet.finish([]pkg{{path: module + "/p"}}, errors.New("exit status 2"), "no space left on device")
	if quiet.passed() || !strings.Contains(quiet.failed[0].why, "no space") {
		t.Errorf("a go command that fails behind its packages: %+v", quiet.failed)
	}
}

func TestOnlyStandardOutputIsAFinding(t *testing.T) {
	for script, want := range map[string]string{
		"echo go: downloading golang.org/x/tools >&2": "",
		"echo; echo ' '":                  "",
		"echo a.go; echo progress >&2":    "a.go",
		"echo a.go:1: unused; exit 1":     "a.go:1: unused",
		"echo no such module >&2; exit 1": "no such module",
		"kill -9 $$":                      "killed",
	} {
		err := findings(exec.Command("/bin/sh", "-c", script), false)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", script, err, want)
		}
	}
	if err := findings(exec.Command(filepath.Join(t.TempDir(), "missing")), false); err == nil {
		t.Error("a tool that cannot be started has found nothing")
	}
	if err := findings(exec.Command("/bin/sh", "-c", "echo fuzz: elapsed"), true); err != nil {
		t.Errorf("what a quiet check prints is a finding: %v", err)
	}
	for _, c := range checks {
		if c.run(canceled(t)) == nil {
			t.Errorf("%s, which was not run, has passed", c.name)
		}
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, []pkg{{path: module + "/a", weight: 30}, {path: module + "/b", weight: 10}})
	p.begun = time.Now().Add(-time.Minute)
	p.take(event{Action: "start", Package: module + "/b"})
	p.take(event{Action: "run", Package: module + "/b", Test: "TestSlow"})
	p.tellRunning()
	if out.Len() != 0 {
		t.Errorf("it tells at once: %s", &out)
	}
	p.told = time.Now().Add(-silence)
	p.tellRunning()
	p.take(event{Action: "fail", Package: module + "/a", Elapsed: 2})
	p.take(event{Action: "pass", Package: module + "/b", Test: "TestSlow"})
	p.take(event{Action: "pass", Package: module + "/b", Elapsed: 1})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "running: b TestSlow (0 s)") || !strings.Contains(lines[1], "[  1 of 2] FAILED    2.0 s  a") ||
		!strings.Contains(lines[1], "about 20s left") || !strings.Contains(lines[2], "[  2 of 2] ok") || strings.Contains(lines[2], "left") {
		t.Errorf("told:\n%s", &out)
	}
}

func TestDurations(t *testing.T) {
	dir := t.TempDir()
	d := readDurations(dir)
	if d.weight("a", 2*bytesPerSecond) != 2 {
		t.Errorf("without a measurement the weight is %v", d.weight("a", 2*bytesPerSecond))
	}
	if err := d.add(&result{seconds: map[string]float64{"a": 7}}, dir); err != nil {
		t.Fatal(err)
	}
	if again := readDurations(dir); again.weight("a", 1) != 7 {
		t.Errorf("read again: %v", again)
	}
	if err := os.WriteFile(filepath.Join(dir, "durations.json"), []byte("torn"), 0o644); err != nil {
		t.Fatal(err)
	}
	if d := readDurations(dir); len(d) != 0 {
		t.Errorf("of a torn file: %v", d)
	}
}

func TestWhatIsLeftBehindIsFound(t *testing.T) {
	dir := t.TempDir()
	if left := leftFiles(dir); len(left) != 0 {
		t.Errorf("an empty folder has %v", left)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if left := leftFiles(dir); len(left) != 1 || !strings.HasSuffix(left[0], `: "x"`) {
		t.Errorf("a folder with a file has %v", left)
	}
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("SKIPPED: only Linux tells the environment of processes")
	}
	run := "of " + t.Name()
	p, err := procs.Start(procs.Options{Name: "sleep", Path: "/bin/sleep", Args: []string{"300"}, Env: []string{hermetic.Run + "=" + run}, Log: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if left := leftProcesses(run+"0", 0); len(left) != 0 {
		t.Errorf("of another run: %v", left)
	}
	if left := leftProcesses(run, 0); len(left) != 1 || !strings.HasSuffix(left[0], "/bin/sleep 300") {
		t.Errorf("left behind: %v", left)
	}
	if _, err := p.Wait(time.Minute); err != nil {
		t.Errorf("what was left behind still runs: %v", err)
	}
}

func TestTheListOfPackages(t *testing.T) {
	o := &options{packages: []string{"../../internal/cow", "../hermetic", "../size"}}
	packages, err := o.list(t.Context(), durations{module + "/test/hermetic": 1e6})
	if err != nil || len(packages) != 2 {
		t.Fatalf("packages with tests: %v, %v, want 2", packages, err)
	}
	if k := packages[0]; k.path != module+"/test/hermetic" || k.weight != 1e6 {
		t.Errorf("the longest package is not the first: %v", packages)
	}
	if k := packages[1]; !slices.Equal(k.fuzz, []string{"FuzzIndex"}) || k.weight <= 0 {
		t.Errorf("%+v", k)
	}
	for _, p := range []string{"../size", "../nowhere"} {
		if packages, err := (&options{packages: []string{p}}).list(t.Context(), nil); err == nil {
			t.Errorf("%s has no tests, and is run: %v", p, packages)
		}
	}
}

func TestSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x_test.go")
	code := "package x\n\nimport \"" + module + "/test/size\"\n\nvar (\n\tseeds = size.Int(\"seeds\", 1_00, 5*1000, \"how many\")\n\tall = size.Bool(\"all\", \"do all\")\n\tlong = size.Long()\n)\n"
	if err := os.WriteFile(path, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	found, err := sizesOf(module+"/x", path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := writeSizes(&out, found); err != nil {
		t.Fatal(err)
	}
	want := "PACKAGE  FLAG    SHORT  LONG      WHAT\nx        -seeds  1_00   5 * 1000  how many\nx        -all    no     yes       do all\n"
	if out.String() != want {
		t.Errorf("printed:\n%s\nwant:\n%s", &out, want)
	}
}

// What is printed to repeat a test is one command of a shell.
func TestAgainIsACommand(t *testing.T) {
	r := &result{options: &options{long: true, deadline: 12 * time.Hour, ofGoTest: []string{"-race", "-tags", "a b"}}}
	got := r.again(test{module + "/p", "TestX/a_client's_removal_$(x)", ""})
	if want := `NOKV_TEST_LONG=1 go test ./p -count=1 -timeout 12h0m0s -run '^TestX$/^a_client'\''s_removal_\$\(x\)$' -race -tags 'a b'`; got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
	if got := r.again(test{module + "/p", "TestX", "x_test.go:1: repeat: go test ./p -seed 7"}); got != "NOKV_TEST_LONG=1 go test ./p -seed 7" {
		t.Error(got)
	}
	for _, c := range checks {
		out, err := exec.Command("/bin/sh", "-c", "go() { for w; do echo \"$w\"; done; }; "+c.again()).Output()
		if err != nil || c.mend == "" && !strings.HasSuffix("\n"+string(out), "\n"+strings.Join(c.words, "\n")+"\n") {
			t.Errorf("%s: a shell makes %q of %s: %v", c.name, out, c.again(), err)
		}
	}
}

func TestOneRunAtATime(t *testing.T) {
	o := &options{folder: t.TempDir()}
	unlock, err := o.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.lock(); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("a second run: %v", err)
	}
	unlock()
	if unlock, err = o.lock(); err != nil {
		t.Errorf("behind the first: %v", err)
	}
	unlock()
}

// A run that is interrupted ends what the go command has started.
func TestInterruptedEndsAll(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte("#!/bin/sh\ntrap '' INT\nsleep 1000 &\necho begins\nwait; wait\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	c := goCommand(ctx)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("begins\n"))); err != nil {
		t.Fatal(err)
	}
	cancel()
	_, _ = io.ReadAll(out) // ends with the last process that has it
	if c.Wait() == nil {
		t.Error("an interrupted command has ended well")
	}
}
