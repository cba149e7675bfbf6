// Command nokv is the NoKV control plane: root peers, coordinators, and the
// tools to use and inspect them. One file per command; this package wires and
// prints, the work is elsewhere.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sort"
	"strings"
	"syscall"
)

// Exit statuses, the same for every command.
const (
	exitOK = 0
	// exitRefused: the request was understood and refused, or the work failed.
	exitRefused = 1
	// exitUsage: the command line is wrong; nothing was tried.
	exitUsage = 2
	// exitUnavailable: nobody answered in time; the outcome of a change may be unknown.
	exitUnavailable = 3
	// exitInterrupted: ended by a signal.
	exitInterrupted = 130
)

// command is one verb of the table. One with children and setup is run when the
// next word names none of them.
type command struct {
	name     string
	args     string
	summary  string
	long     string
	children []*command
	// setup declares flags and returns what to run with the remaining arguments.
	setup func(f *flags) func(ctx context.Context, e *env, args []string) error
}

// env is what a command may touch of its process.
type env struct {
	stdout, stderr io.Writer
	// output is "table" or "json".
	output string
}

func commands() *command {
	return &command{
		name:    "nokv",
		summary: "the control plane for sharded, stateful systems",
		children: []*command{
			devCommand(), metaRootCommand(), coordinatorCommand(),
			statusCommand(), witnessCommand(), keyspaceCommand(), regionCommand(), transitionCommand(), memberCommand(), idCommand(), tsoCommand(), watchCommand(),
			rootCommand(), configCommand(), benchCommand(), versionCommand(),
		},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	code := run(ctx, os.Args[1:], &env{stdout: os.Stdout, stderr: os.Stderr})
	stop()
	os.Exit(code)
}

// run finds the command, parses its flags, runs it and turns its error into an exit status.
func run(ctx context.Context, args []string, e *env) int {
	if len(args) > 1 && args[0] == "help" {
		args = append(args[1:len(args):len(args)], "--help")
	}
	cmd, path, rest := find(commands(), args)
	if cmd.setup == nil {
		return usageOfGroup(cmd, path, rest, e)
	}
	f := newFlags(path, cmd)
	work := cmd.setup(f)
	positional, err := f.parse(rest)
	switch {
	case errors.Is(err, errHelp):
		f.usage(e.stdout)
		return exitOK
	case err != nil:
		return report(e, path, &usageError{err.Error()})
	}
	e.output = f.output
	return report(e, path, work(ctx, e, positional))
}

func find(cmd *command, args []string) (*command, string, []string) {
	path := cmd.name
	for len(args) > 0 {
		i := 0
		for i < len(cmd.children) && cmd.children[i].name != args[0] {
			i++
		}
		if i == len(cmd.children) {
			break
		}
		cmd, args = cmd.children[i], args[1:]
		path += " " + cmd.name
	}
	return cmd, path, args
}

func usageOfGroup(cmd *command, path string, rest []string, e *env) int {
	if len(rest) > 0 && !isHelp(rest[0]) {
		return report(e, path, usagef("there is no command %q%s", rest[0], nearest(cmd, rest[0])))
	}
	out := e.stdout
	fmt.Fprintf(out, "%s: %s\n\nUsage: %s <command> [flags]\n\nCommands:\n", path, cmd.summary, path)
	for _, c := range cmd.children {
		fmt.Fprintf(out, "  %-12s %s\n", c.name, c.summary)
	}
	fmt.Fprintf(out, "\n%s <command> --help says more. Flags are written -x or --x.\n", path)
	fmt.Fprint(out, "Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 nobody answered, 130 interrupted.\n")
	return exitOK
}

func isHelp(s string) bool { return s == "help" || s == "-h" || s == "-help" || s == "--help" }

// nearest suggests a command that starts alike.
func nearest(cmd *command, word string) string {
	var names []string
	for _, c := range cmd.children {
		if word != "" && strings.HasPrefix(c.name, word[:1]) {
			names = append(names, c.name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	sort.Strings(names)
	return ". Did you mean " + strings.Join(names, " or ") + "?"
}

// usageError is a wrong command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

func report(e *env, path string, err error) int {
	if err == nil {
		return exitOK
	}
	var usage *usageError
	switch {
	case errors.As(err, &usage):
		fmt.Fprintf(e.stderr, "%s: %s\nSee %s --help.\n", path, usage.text, path)
		return exitUsage
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case unavailable(err):
		fmt.Fprintf(e.stderr, "%s: %s\n", path, explain(err))
		return exitUnavailable
	}
	fmt.Fprintf(e.stderr, "%s: %s\n", path, explain(err))
	return exitRefused
}
