package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
	"google.golang.org/grpc"
)

// TestScripts runs command lines and compares what a user sees.
// After a change: go test ./cmd/nokv -run TestScripts -rewrite, and read the diff.
//
//	nokv            each line is a command line; standard output, standard
//	                error behind "! ", the exit status when it is not 0
//	fields          the names and kinds of everything in the JSON of the last line
//	pick=a,b        these values of it
//	settles         of a view, which follows: the lines are run until they say this
//
// offline.txt and cert.txt run without a cluster, the others with a `nokv dev` of
// their own, found without flags; no era of it ends by itself on a busy machine. That
// of access.txt and tls.txt has certificates; there $DIR is the folder of the test, $TLS and $ROOT are
// a coordinator and a root peer, $PLAIN is a server without certificates. At $NOBODY
// and $NOBODY2 nobody listens.
func TestScripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/script/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel() // much of it is waiting
			s := &script{env: nokvEnv(t), dir: t.TempDir(), words: []string{"$NOBODY2", nobody(t), "$NOBODY", nobody(t)}}
			dev := func(flags ...string) {
				startDev(t, s.env, filepath.Join(s.dir, "dev"), append(flags, "--tenure-ttl", longTTL)...)
			}
			switch filepath.Base(file) {
			case "offline.txt":
			case "cert.txt":
				s.cwd = s.dir // it writes
			case "access.txt":
				dev("--tls")
			case "tls.txt":
				s.strangers(t)
				dev("--tls")
				found := readDevFile(filepath.Join(s.dir, "dev", "dev.json"))
				s.words = append(s.words, "$DIR", s.dir, "$TLS", found.Coordinators[0], "$ROOT", found.RootPeers[0])
			default:
				dev()
			}
			datadriven.RunTest(t, file, s.run)
		})
	}
}

type script struct {
	env []string
	dir string
	cwd string // of commands that write, which are processes; empty: this package's
	// words of command lines and what stands for them, in turn.
	words []string
	// repeats counts the refusals that were told again.
	repeats int
}

// strangers makes what does not belong to the cluster of the script.
func (s *script) strangers(t *testing.T) {
	t.Helper()
	other, err := ca.New("other", time.Now(), ca.DefaultAuthorityLife)
	if err != nil {
		t.Fatal(err)
	}
	past, err := ca.New("dev", time.Now().Add(-72*time.Hour), ca.DefaultAuthorityLife)
	if err != nil {
		t.Fatal(err)
	}
	for dir, of := range map[string]struct {
		by   *ca.Authority
		when time.Time
	}{"stranger": {other, time.Now()}, "ended": {past, time.Now().Add(-72 * time.Hour)}} {
		pair, err := of.by.Issue(ca.Request{Role: principal.Operator, Name: "ann", Life: 24 * time.Hour}, of.when)
		if err == nil {
			err = pair.Save(filepath.Join(s.dir, dir))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	plain := grpc.NewServer()
	go func() { _ = plain.Serve(lis) }() // until it is stopped
	t.Cleanup(plain.Stop)
	s.words = append(s.words, "$PLAIN", lis.Addr().String())
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	if !d.HasArg("settles") || rewriting() {
		return s.lines(t, d)
	}
	for end := time.Now().Add(proctest.Patience); ; time.Sleep(20 * time.Millisecond) {
		got := strings.TrimSuffix(s.lines(t, d), "\n") + "\n"
		if got == d.Expected || time.Now().After(end) {
			return got
		}
	}
}

// rewriting says whether the scripts are made anew.
func rewriting() bool {
	f := flag.Lookup("rewrite")
	return f != nil && f.Value.String() == "true"
}

// repeated is the end of a refusal whose first answer was lost on a busy machine: the
// command was sent again and is told the reason alone, which was the first answer's.
const repeated = "the command was refused so when it first came"

// mostRepeats is how many first answers of a script may be lost: a server that tells every
// refusal as one that came before is wrong.
const mostRepeats = 3

// sameRefusal is what is expected where the answer is one that was repeated, of the same
// command for the same reason; both answers are right.
func (s *script) sameRefusal(answer, expected string) string {
	head, _, found := strings.Cut(answer, repeated)
	if !found {
		return answer
	}
	if s.repeats++; s.repeats > mostRepeats {
		return answer
	}
	for line := range strings.Lines(expected) {
		if strings.HasPrefix(line, head) {
			return line
		}
	}
	return answer
}

func (s *script) lines(t *testing.T, d *datadriven.TestData) string {
	var out strings.Builder
	var last proctest.Result
	for line := range strings.Lines(d.Input) {
		args := splitLine(t, strings.TrimSpace(strings.NewReplacer(s.words...).Replace(line)))
		if s.cwd == "" {
			last = here(t, s.env, args...)
		} else {
			last = proctest.Run(t, proctest.Options{Name: "nokv", Path: nokvPath(t), Env: s.env, Dir: s.cwd, Args: args})
		}
		if d.Cmd != "nokv" {
			continue
		}
		out.WriteString(s.scrub(last.Stdout, line))
		for text := range strings.Lines(last.Stderr) {
			out.WriteString(s.sameRefusal("! "+s.scrub(text, line), d.Expected))
		}
		if last.Code != 0 {
			fmt.Fprintf(&out, "[exit %d]\n", last.Code)
		}
	}
	if d.Cmd == "nokv" {
		return out.String()
	}
	var v any
	if err := json.Unmarshal([]byte(last.Stdout), &v); err != nil {
		return fmt.Sprintf("not one JSON value: %v\n%s\n%s", err, last.Stdout, last.Stderr) // a view may come to have one
	}
	var wanted []string
	for _, arg := range d.CmdArgs {
		if arg.Key == "pick" {
			wanted = arg.Vals
		}
	}
	var fields []string
	walkFields(v, "", wanted, &fields)
	slices.Sort(fields)
	return strings.Join(slices.Compact(fields), "\n")
}

// walkFields lists the paths in v with the kinds of their values; with wanted,
// only those, with their values.
func walkFields(v any, path string, wanted []string, out *[]string) {
	if wanted == nil || slices.Contains(wanted, path) {
		switch {
		case path == "":
		case wanted != nil:
			raw, _ := json.Marshal(v)
			*out = append(*out, path+" "+string(raw))
			return
		default:
			*out = append(*out, path+" "+kindOfJSON(v))
		}
	}
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			walkFields(inner, strings.TrimPrefix(path+"."+name, "."), wanted, out)
		}
	case []any:
		for _, inner := range v {
			walkFields(inner, path+"[]", wanted, out)
		}
	}
}

func kindOfJSON(v any) string {
	switch v.(type) {
	case map[string]any:
		return "object"
	case []any:
		return "list"
	case string:
		return "text"
	case bool:
		return "yes or no"
	}
	return "number"
}

var scrubs = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z`), "TIME"},
	{regexp.MustCompile(`([0-9]{4}-[0-9]{2}-[0-9]{2} )?[0-9:]{8}\.[0-9]{3} `), "TIME "},
	{regexp.MustCompile(`the log's end, [0-9]+`), "the log's end, INDEX"},
	{regexp.MustCompile(`the era is [0-9]+`), "the era is ERA"},      // a busy machine may have had a takeover
	{regexp.MustCompile(`(?m) 1\.1 +- +[0-9]+$`), " 1.1 - REVISION"}, // of a new region without owners: the log's index
	{regexp.MustCompile(`left, after [0-9.]+(ms|µs|s)`), "left, after SOME TIME"},
	{regexp.MustCompile(`127\.0\.0\.1:[0-9]+`), "ADDR"},
	{regexp.MustCompile(`\b[0-9]+[./][0-9]+[./][0-9]+\b`), "TOKEN"},
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "HASH"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "FINGERPRINT"},
	{regexp.MustCompile(`\bserial +[0-9a-f]{20,40}\b`), "serial NUMBER"},
	{regexp.MustCompile(`\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]+Z`), "TIME"},
	{regexp.MustCompile(`[0-9.]+(ms|µs|s) since`), "SOME TIME since"},
	{regexp.MustCompile(` +`), " "},
	{regexp.MustCompile(` +\n`), "\n"},
}

// scrub takes out what differs from run to run, unless it is what the command
// line says.
func (s *script) scrub(text, line string) string {
	text = strings.ReplaceAll(text, s.dir, "DIR")
	for i := 0; i < len(s.words); i += 2 { // which of them it is stays to be seen
		if strings.HasPrefix(s.words[i], "$NOBODY") {
			text = strings.ReplaceAll(text, s.words[i+1], s.words[i])
		}
	}
	for _, scrub := range scrubs {
		text = scrub.pattern.ReplaceAllStringFunc(text, func(match string) string {
			if strings.TrimSpace(match) != "" && strings.Contains(line, match) {
				return match
			}
			return scrub.with
		})
	}
	return text
}

// splitLine cuts a command line at spaces; 'single quotes' keep them.
func splitLine(t *testing.T, line string) []string {
	t.Helper()
	var args []string
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		var arg string
		if rest, quoted := strings.CutPrefix(line, "'"); quoted {
			var ok bool
			if arg, line, ok = strings.Cut(rest, "'"); !ok {
				t.Fatalf("a quote is not closed: %s", rest)
			}
		} else {
			arg, line, _ = strings.Cut(line, " ")
		}
		args = append(args, arg)
	}
	if len(args) == 0 || args[0] != "nokv" {
		t.Fatalf("a command line begins with nokv: %q", args)
	}
	return args[1:]
}

// startDev starts `nokv dev` and waits until it says that it runs.
func startDev(t *testing.T, env []string, workdir string, flags ...string) *proctest.Process {
	t.Helper()
	args := []string{"dev"}
	if workdir != "" {
		args = append(args, "--workdir", workdir)
	}
	p := proctest.Start(t, proctest.Options{Name: "dev", Path: nokvPath(t), Env: env, Args: append(args, flags...)})
	p.WaitLog("NoKV is running", recoverWithin)
	p.WaitLog("region get banana", recoverWithin)
	return p
}
