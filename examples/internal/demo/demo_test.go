package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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
