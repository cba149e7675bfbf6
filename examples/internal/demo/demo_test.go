package demo

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/testing/proctest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "example" { // this program, as an example of the test
		os.Exit(Main(func(ctx context.Context) error {
			d, err := Start(ctx, os.Stdout)
			if err != nil {
				return err
			}
			defer d.Stop()
			<-ctx.Done()
			return nil
		}))
	}
	os.Exit(proctest.Main(m))
}

// example runs one until it has said each of some words, each of which is answered with a signal to its whole group.
func example(t *testing.T, env string, signals map[string]syscall.Signal) (said string, err error) {
	t.Helper()
	c := exec.Command(os.Args[0], "example")
	c.Env, c.SysProcAttr = append(os.Environ(), env), procs.Attributes()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said += lines.Text() + "\n"
		for word, s := range signals {
			if strings.Contains(lines.Text(), word) {
				if err := syscall.Kill(-c.Process.Pid, s); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return said, c.Wait()
}

// script is a program that stands in for one that an example starts.
func script(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A second Ctrl-C ends the wait for a cluster that does not end, and leaves nothing either. A terminal that is
// closed is Ctrl-C.
func TestASecondCtrlCLeavesNothing(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			tmp := t.TempDir()
			t.Setenv("TMPDIR", tmp)
			nokv := script(t, "nokv", `trap 'echo is asked to end >&2' TERM; echo '{"coordinators": ["h:1"]}'; while :; do sleep 0.1; done`)
			said, err := example(t, "NOKV="+nokv, map[string]syscall.Signal{"a cluster runs": s, "is asked to end": s})
			if err != nil || !strings.Contains(said, "is asked to end") {
				t.Errorf("it ends with %v, and says %s", err, said)
			}
			if !strings.Contains(said, "files are in "+tmp) {
				t.Errorf("it does not say what kill -9 leaves: %s", said)
			}
			empty(t, tmp)
		})
	}
}

// An example that nobody reads any more, as behind head, or tee at Ctrl-C, ends and leaves nothing.
func TestAnExampleThatNobodyReadsLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	c := exec.Command(os.Args[0], "example")
	c.Env = append(os.Environ(), "NOKV="+script(t, "nokv", `echo '{"coordinators": ["h:1"]}'; trap 'exit 0' TERM; while :; do echo here >&2; sleep 0.1; done`))
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	empty(t, tmp)
}

// Ctrl-C while nokv is built ends the compilers with it, and leaves none of their files.
func TestCtrlCEndsTheBuild(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Setenv("NOKV", "")
	pipe := filepath.Join(t.TempDir(), "pipe") // is at its end when nobody writes there any more
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	tool := script(t, "go", `exec 3> `+pipe+`; mkdir "${GOTMPDIR:-$TMPDIR}/go-build1"; (echo compiles >&3; sleep 60; echo went on >&3) & wait`)
	t.Setenv("PATH", filepath.Dir(tool)+string(os.PathListSeparator)+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Start(ctx, io.Discard)
		ended <- err
	}()
	compiler, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	defer compiler.Close()
	from := bufio.NewReader(compiler)
	if _, err := from.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	empty(t, tmp)
	if said, err := io.ReadAll(from); err != nil || len(said) > 0 {
		t.Errorf("the compiler %s: %v", said, err)
	}
}

// What is no nokv is told, with what to do.
func TestWhatIsNoNoKVIsTold(t *testing.T) {
	for name, row := range map[string]struct{ nokv, why string }{
		"not there":          {filepath.Join(t.TempDir(), "nokv"), "no such file"},
		"no program":         {t.TempDir(), "permission denied"},
		"ends":               {script(t, "nokv", ""), "it ended: exit status 0"},
		"fails":              {script(t, "nokv", "exit 3"), "it ended: exit status 3"},
		"says something":     {script(t, "nokv", "echo hello; exec sleep 60"), "invalid character"},
		"names nobody":       {script(t, "nokv", "echo '{}'; exec sleep 60"), "it names no coordinator"},
		"says half and ends": {script(t, "nokv", "printf '{'"), "it ended: exit status 0"},
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			t.Setenv("TMPDIR", tmp)
			t.Setenv("NOKV", row.nokv)
			_, err := Start(t.Context(), io.Discard)
			if err == nil || !strings.Contains(err.Error(), row.nokv+" dev: ") || !strings.Contains(err.Error(), row.why) || !strings.Contains(err.Error(), "environment variable NOKV") {
				t.Errorf("it says %v, want %q", err, row.why)
			}
			empty(t, tmp)
		})
	}
}

// A command of nokv that Ctrl-C ended says that, and not how it was ended.
func TestACommandIsEndedWithTheDemo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	d := &Demo{nokv: "sleep"}
	ended := make(chan error, 1)
	go func() {
		_, err := d.NoKV(ctx, "60")
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it says %v", err)
	}
}

// What Ctrl-C ended is no failure.
func TestWhatWasEndedIsNoFailure(t *testing.T) {
	for said, row := range map[string]struct {
		err    error
		status int
	}{
		"done":                    {nil, 0},
		"ended":                   {fmt.Errorf("open: %w", context.Canceled), 0},
		"ended in a call":         {fmt.Errorf("open: %w", status.Error(codes.Canceled, "context canceled")), 0},
		"a call took too long":    {status.Error(codes.DeadlineExceeded, "late"), 1},
		"something that is wrong": {errors.New("wrong"), 1},
	} {
		if got := Main(func(context.Context) error { return row.err }); got != row.status {
			t.Errorf("%s: exit status %d, want %d", said, got, row.status)
		}
	}
}

// A demo ends however much its cluster prints, of which it reads the first object alone, if that is one.
func TestStopEndsAClusterThatPrintsMore(t *testing.T) {
	for said, fails := range map[string]bool{`{"coordinators": ["h:1"]}`: false, `{"coordinators": []}`: true, "no object": true} {
		t.Run(said, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			t.Setenv("NOKV", script(t, "nokv", `trap 'head -c 1000000 /dev/zero; exit 0' TERM; echo '`+said+`'; while :; do sleep 0.1; done`))
			stopped := make(chan error, 1)
			go func() {
				d, err := Start(t.Context(), io.Discard)
				if err == nil {
					d.Stop()
				}
				stopped <- err
			}()
			select {
			case err := <-stopped:
				if (err != nil) != fails {
					t.Error(err)
				}
			case <-time.After(3 * endWithin):
				t.Fatal("Stop does not return")
			}
		})
	}
}

// What ends by itself is told, and what Stop ends is not.
func TestAProcessThatEndsIsTold(t *testing.T) {
	for name, row := range map[string]struct {
		script string
		want   string
	}{
		"ended":                       {"exit 3", "p        has ended: exit status 3\n"},
		"killed":                      {"kill -9 $$", "p        has ended: signal: killed\n"},
		"after a line of any length":  {"head -c 100000 /dev/zero | tr '\\0' x; echo; exit 4", "p        has ended: exit status 4\n"},
		"after a line without an end": {"printf half; exit 5", "p        has ended: exit status 5\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var said strings.Builder
			d := &Demo{out: &lines{w: &said}, Dir: t.TempDir()}
			p, err := d.spawn(t.Context(), "p", "sh", nil, "-c", row.script)
			if err != nil {
				t.Fatal(err)
			}
			<-p.Ended()
			<-d.ClusterEnded() // the first one is the cluster
			d.out.mu.Lock()
			defer d.out.mu.Unlock()
			if !strings.Contains(said.String(), row.want) {
				t.Errorf("it says %.200q, want %q", said.String(), row.want)
			}
		})
	}
	var said strings.Builder
	d := &Demo{out: &lines{w: &said}, Dir: t.TempDir()}
	for range 2 {
		if _, err := d.spawn(t.Context(), "p", "sleep", nil, "60"); err != nil {
			t.Fatal(err)
		}
	}
	d.Stop()
	if said.String() != "" {
		t.Errorf("behind Stop it says %q", said.String())
	}
}

// Flags are judged once, in words that say what to do.
func TestFlagsAreJudged(t *testing.T) {
	for args, want := range map[string]string{
		"":               "<nil>",
		"--n 3":          "<nil>",
		"one":            "<nil>",
		"one two":        `"two" is one word too many: example --help names the flags`,
		"--n x":          `invalid value "x" for flag -n: parse error: example --help names the flags`,
		"--no":           "flag provided but not defined: -no: example --help names the flags",
		"--help":         "flag: help requested",
		"one --help two": `"--help" is one word too many: example --help names the flags`,
	} {
		f := flag.NewFlagSet("example", flag.ContinueOnError)
		f.Int("n", 0, "a number")
		if err := Parse(f, strings.Fields(args), 1); fmt.Sprint(err) != want {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
	if got := Main(func(context.Context) error { return flag.ErrHelp }); got != 0 {
		t.Errorf("help is exit status %d", got)
	}
}
