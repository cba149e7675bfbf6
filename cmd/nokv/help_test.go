package main

import (
	"bytes"
	"flag"
	"strings"
	"testing"
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
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &env{stdout: &out, stderr: &errs})
	return code, out.String(), errs.String()
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
		if c.setup != nil && strings.Count(strings.TrimSpace(stderr), "\n") != 1 {
			t.Errorf("nokv %s %s: want one line and where to look, got\n%s", strings.Join(path, " "), wrong, stderr)
		}
	})
}

func TestFlagsHaveOneOrTwoDashes(t *testing.T) {
	for _, args := range [][]string{{"id", "-count", "0"}, {"id", "--count", "0"}, {"id", "-count=0"}, {"id", "--count=0"}} {
		if code, _, stderr := runHere(t, args...); code != exitUsage || !strings.Contains(stderr, "count 0") {
			t.Errorf("nokv %s: exit status %d, %s", strings.Join(args, " "), code, stderr)
		}
	}
}
