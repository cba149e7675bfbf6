// Command nokv is the NoKV control plane: root peers, coordinators, and the
// tools to use and inspect them. One file per command; this package wires and
// prints, the work is elsewhere.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/sidecar"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/grpclog"
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
	// getenv reads a variable of the process's environment; nil: none is set.
	getenv func(name string) string
	// output is "table" or "json", also for errors.
	output string
	// said is the command line, which errors repeat.
	said []string
}

// variable is one of the process's environment; empty when it is not set.
func (e *env) variable(name string) string {
	if e.getenv == nil {
		return ""
	}
	return e.getenv(name)
}

func commands() *command {
	return &command{
		name:    "nokv",
		summary: "the control plane for sharded, stateful systems",
		children: []*command{
			devCommand(), metaRootCommand(), coordinatorCommand(), workerCommand(), sidecarCommand(), proxyCommand(), serveCommand(),
			statusCommand(), planCommand(), eventsCommand(), witnessCommand(), tenureCommand(), keyspaceCommand(), regionCommand(), transitionCommand(), memberCommand(), accessCommand(), tokenCommand(), pinCommand(), idCommand(), tsoCommand(), watchCommand(),
			rootCommand(), certCommand(), configCommand(), benchCommand(), versionCommand(),
		},
	}
}

func main() {
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" { // what a caller has to know is in the error that it gets
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	}
	log.SetOutput(io.Discard) // lines of libraries: ours go through hclog
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	code := run(ctx, os.Args[1:], &env{stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv})
	stop()
	os.Exit(code)
}

// run finds the command, parses its flags, runs it and turns its error into an exit status.
func run(ctx context.Context, args []string, e *env) int {
	if len(args) > 1 && args[0] == "help" {
		args = append(args[1:len(args):len(args)], "--help")
	}
	e.said = args
	if wantsJSON(args) { // also of an error that is found before the flag is
		e.output = "json"
	}
	cmd, path, rest := find(commands(), args)
	if cmd.setup == nil {
		return report(e, path, usageOfGroup(cmd, path, rest, e.stdout))
	}
	f := newFlags(path, cmd)
	f.env = e
	work := cmd.setup(f)
	positional, err := f.parse(rest)
	switch {
	case errors.Is(err, errHelp):
		return report(e, path, f.usage(e.stdout))
	case err != nil:
		return report(e, path, &usageError{err.Error()})
	}
	e.output = f.output
	return report(e, path, work(ctx, e, positional))
}

// wantsJSON says whether a command line has -o json.
func wantsJSON(args []string) bool {
	for i, arg := range args {
		switch {
		case arg == "--":
			return false
		case arg == "-o=json" || arg == "--o=json":
			return true
		case (arg == "-o" || arg == "--o") && i+1 < len(args) && args[i+1] == "json":
			return true
		}
	}
	return false
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

func usageOfGroup(cmd *command, path string, rest []string, w io.Writer) error {
	if len(rest) > 0 && !isHelp(rest[0]) {
		if strings.HasPrefix(rest[0], "-") {
			return usagef("a command comes first, and %s and other flags behind it", rest[0])
		}
		var names []string
		for _, c := range cmd.children {
			names = append(names, c.name)
		}
		return usagef("there is no command %q%s", rest[0], suggest(rest[0], names))
	}
	out := new(bytes.Buffer)
	fmt.Fprintf(out, "%s: %s\n\nUsage: %s <command> [flags]\n\nCommands:\n", path, cmd.summary, path)
	for _, c := range cmd.children {
		fmt.Fprintf(out, "  %-12s %s\n", c.name, c.summary)
	}
	fmt.Fprintf(out, "\n%s <command> --help says more. Flags are written -x or --x.\n", path)
	fmt.Fprint(out, "Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 nobody answered, 130 interrupted.\n")
	_, err := out.WriteTo(w)
	return err
}

func isHelp(s string) bool { return s == "help" || s == "-h" || s == "-help" || s == "--help" }

// usageError is a wrong command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// errorOutput is every error under -o json. The field names stay.
type errorOutput struct {
	Error struct {
		// Reason is a reason of the wire, or usage, unavailable or failed.
		Reason  string `json:"reason"`
		Message string `json:"message"`
	} `json:"error"`
}

// report prints an error in one line and returns the exit status that it means.
func report(e *env, path string, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errInterrupted) {
		return exitInterrupted
	}
	code, why, said := verdict(err)
	said = bounded(said, e.said)
	if e.output == "json" {
		var out errorOutput
		out.Error.Reason, out.Error.Message = why, strings.TrimPrefix(said, why+": ")
		enc := json.NewEncoder(e.stderr)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(out) // there is nowhere left to say that it failed
		return code
	}
	hint := ""
	if code == exitUsage {
		hint = " (see " + path + " --help)"
	}
	fmt.Fprintf(e.stderr, "%s: %s%s\n", path, said, hint)
	return code
}

// verdict is an error as exit status, word and sentence.
func verdict(err error) (code int, why, said string) {
	if usage, ok := errors.AsType[*usageError](err); ok {
		return exitUsage, "usage", usage.text
	}
	if ended, ok := errors.AsType[*sidecar.Ended](err); ok {
		return ended.Code, "process_ended", ended.Why
	}
	code, why = exitRefused, "failed"
	if unavailable(err) {
		code, why = exitUnavailable, "unavailable"
	}
	if r := reasonOf(err); r != rootv1.Reason_REASON_UNSPECIFIED {
		why = reason.Name(r)
	}
	if ce, ok := errors.AsType[*client.Error](err); ok && errors.Is(err, client.ErrInvalidRequest) && ce.Endpoint == "" {
		code = exitUsage // refused by the client: nothing was tried
	}
	return code, why, explain(err)
}
