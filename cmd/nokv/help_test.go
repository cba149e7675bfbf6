package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// eachCommand calls fn for every command with its words behind "nokv".
func eachCommand(c *command, path []string, fn func(c *command, path []string)) {
	for _, child := range c.children {
		childPath := append(path[:len(path):len(path)], child.name)
		fn(child, childPath)
		eachCommand(child, childPath, fn)
	}
}

// runHere runs a command line in this process.
func runHere(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	r := here(t, nil, args...)
	return r.Code, r.Stdout, r.Stderr
}

func TestEveryCommandHasHelp(t *testing.T) {
	eachCommand(commands(), nil, func(c *command, path []string) {
		name := "nokv " + strings.Join(path, " ")
		for _, args := range [][]string{
			append(path[:len(path):len(path)], "-h"), append(path[:len(path):len(path)], "--help"), append([]string{"help"}, path...),
		} {
			code, stdout, stderr := runHere(t, args...)
			if code != exitOK || stderr != "" || !strings.HasPrefix(stdout, name+": "+c.summary) || !strings.Contains(stdout, "Usage: "+name) {
				t.Errorf("nokv %s: exit status %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
			}
			if c.setup == nil {
				continue
			}
			f := newFlags(name, c)
			c.setup(f)
			f.VisitAll(func(x *flag.Flag) {
				if !strings.Contains(stdout, "\n  -"+x.Name) || x.Usage == "" {
					t.Errorf("%s --help does not explain -%s", name, x.Name)
				}
			})
		}
	})
}

func TestUnknownFlagsAndArgumentsAreUsageErrors(t *testing.T) {
	eachCommand(commands(), nil, func(c *command, path []string) {
		wrong := "--no-such-flag"
		if c.setup == nil {
			wrong = "no-such-command"
		}
		code, stdout, stderr := runHere(t, append(path[:len(path):len(path)], wrong)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, "no-such-") {
			t.Errorf("nokv %s %s: exit status %d, want %d\n%s%s", strings.Join(path, " "), wrong, code, exitUsage, stdout, stderr)
		}
		if strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr, " --help)\n") {
			t.Errorf("nokv %s %s: want one line that says where to look, got\n%s", strings.Join(path, " "), wrong, stderr)
		}
		if c.setup == nil {
			return
		}
		most := append(path[:len(path):len(path)], slices.Repeat([]string{"7"}, 9)...)
		if code, stdout, stderr := runHere(t, most...); code != exitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("nokv %s: exit status %d, want %d\n%s%s", strings.Join(most, " "), code, exitUsage, stdout, stderr)
		}
	})
}

// Under -o json every error is one line of JSON on standard error, wherever it
// was found.
func TestErrorsInJSON(t *testing.T) {
	away := nobody(t)
	for _, o := range []struct {
		line   string
		code   int
		reason string
		says   string
	}{
		{"id --count 0 -o json", exitUsage, "usage", "count 0"},
		{"id -o json --no-such-flag", exitUsage, "usage", "no-such-flag"},
		{"id --no-such-flag -o=json", exitUsage, "usage", "no-such-flag"},
		{"nonsense -o json", exitUsage, "usage", "nonsense"},
		{"id --coordinator-addr " + away + " --timeout 50ms -o json", exitUnavailable, "unavailable", away},
		{"root verify /nonexistent -o json", exitRefused, "failed", "/nonexistent"},
		{"coordinator -o json", exitUsage, "usage", "-coordinator-id"},
	} {
		code, stdout, stderr := runHere(t, strings.Fields(o.line)...)
		var out errorOutput
		if err := json.Unmarshal([]byte(stderr), &out); err != nil || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("nokv %s: %v\n%s%s", o.line, err, stdout, stderr)
			continue
		}
		if code != o.code || out.Error.Reason != o.reason || !strings.Contains(out.Error.Message, o.says) {
			t.Errorf("nokv %s: exit status %d, want %d; %s", o.line, code, o.code, stderr)
		}
	}
}

// What a refusal means for a script: nothing was tried, it was refused, or nobody
// answered.
func TestVerdicts(t *testing.T) {
	far := &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_REQUIRED_TOKEN, Message: "the view is at 1.1.5"}
	tries := []client.Try{{Endpoint: "a:1", Times: 2, Said: "required_token: the view is at 1.1.5"}, {Endpoint: "b:1", Times: 1, Said: "no answer"}}
	local := &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_INVALID_REQUEST, Message: "not UTF-8"}
	away := &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_ROOT_UNAVAILABLE, Message: "no quorum"}
	for _, o := range []struct {
		err       error
		code      int
		why, said string
	}{
		{
			&client.Error{Op: "X", Reason: far.Reason, Detail: far, Endpoint: "a:1", Tries: tries, Cause: context.DeadlineExceeded},
			exitRefused, "required_token", "a:1 says required_token: the view is at 1.1.5; b:1 says no answer",
		},
		{
			&client.Error{Op: "X", Reason: far.Reason, Detail: far, Endpoint: "a:1", Tries: tries[:1], Cause: context.DeadlineExceeded},
			exitRefused, "required_token", "a:1 says required_token: the view is at 1.1.5",
		},
		{&client.Error{Op: "X", Reason: local.Reason, Detail: local}, exitUsage, "invalid_request", "invalid_request: not UTF-8"},
		{&client.Error{Op: "X", Reason: local.Reason, Detail: local, Endpoint: "a:1"}, exitRefused, "invalid_request", "invalid_request: not UTF-8"},
		{&client.Error{Op: "X", Reason: away.Reason, Detail: away, Endpoint: "a:1"}, exitUnavailable, "root_unavailable", "root_unavailable: no quorum"},
		{fmt.Errorf("took it: %w", context.DeadlineExceeded), exitUnavailable, "unavailable", "took it: context deadline exceeded"},
		{errors.Join(errors.New("one"), errors.New("two")), exitRefused, "failed", "one; two"},
	} {
		if code, why, said := verdict(o.err); code != o.code || why != o.why || said != o.said {
			t.Errorf("%v: exit status %d, %s, %q", o.err, code, why, said)
		}
	}
}

// fullDisk is where nothing more fits.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// What could not be written is no success.
func TestHelpToAFullDisk(t *testing.T) {
	for _, line := range []string{"--help", "", "id --help", "root --help", "help watch", "version", "version -o json"} {
		var errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(line), &env{stdout: fullDisk{}, stderr: &errs}); code != exitRefused || !strings.Contains(errs.String(), "no space") {
			t.Errorf("nokv %s: exit status %d, %s", line, code, errs.String())
		}
	}
}

func TestFlagsHaveOneOrTwoDashes(t *testing.T) {
	for _, args := range [][]string{{"id", "-count", "0"}, {"id", "--count", "0"}, {"id", "-count=0"}, {"id", "--count=0"}} {
		if code, _, stderr := runHere(t, args...); code != exitUsage || !strings.Contains(stderr, "count 0") {
			t.Errorf("nokv %s: exit status %d, %s", strings.Join(args, " "), code, stderr)
		}
	}
}
