package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/takeover"
	"github.com/nokv/nokv/internal/takeover/experiment"
)

func benchFailover() *command {
	return &command{
		name: "failover", args: "--kill holder|leader|both|restart|member|member+holder+leader | --hang holder|leader|both|member [flags]",
		summary: "take processes of a cluster of its own away, and measure how long callers wait",
		long: `
Starts three root peers and coordinators as processes on free loopback ports, puts
a constant load of timestamps, ids and routes on them, and ends the Tenure holder,
the root leader or both with kill -9, again and again. --hang stops them instead
(SIGSTOP), so that their connections stay, and lets them go on (SIGCONT) when
others have taken over. --kill restart asks the holder and
the leader in turn to end (SIGTERM), and starts them again. A round's figure is the
longest time that any client went without a timestamp, from then until all is
healthy again. Whatever was given out twice or out of order is a violation, and
makes the exit status 1. The processes and their data are gone at the end.

With a member among the victims the cluster has demo members too, and callers whose
caches of routes follow. All --regions are the victim's when it is taken away; a round's
figure is the time until others serve the last of them and the last caller knows. A
region that two processes acquire at one epoch is a violation. --callers, --fence-ttl,
--members, --preset, --probe and --regions are for these; --clients, --history,
--max-reply-interval, --timeout and --tls for the others.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			var o experiment.Config
			var m experiment.MemberConfig
			kill := f.String("kill", "", "whom to end: `holder, leader, both, restart, member or member+holder+leader` (default holder)")
			hang := f.String("hang", "", "whom to stop for a while instead: `holder, leader, both or member`")
			fence := hostingFlags(f, &m.Hosting, 1000)
			f.BoolVar(&m.Probe, "probe", true, "members' own addresses are asked when their streams break; false: death is known by silence")
			f.IntVar(&o.Rounds, "rounds", 10, "how often, 1 to 10,000")
			ttl := f.duration("tenure-ttl", tenure.DefaultTTL, "see nokv coordinator --help")
			duration := f.duration("duration", time.Second, "steady load before each round: `time`")
			f.IntVar(&o.Clients, "clients", 4, "clients, each with connections of its own, 1 to 64")
			f.IntVar(&o.Coordinators, "coordinators", 2, "how many coordinators, 2 to 16")
			timeout := f.duration("timeout", time.Second, "deadline of each call: `time`")
			interval := f.duration("max-reply-interval", 10*time.Millisecond, "least load before an action, in `time` between two replies of a client")
			f.BoolVar(&o.TLS, "tls", false, "give every process a certificate")
			calls := f.String("history", "", "write every call to this `file`, a line of JSON each")
			svg := f.String("svg", "", "draw the round with the median gap to this `file`")
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				if *kill != "" && *hang != "" {
					return usagef("--kill and --hang exclude each other")
				}
				o.Action, o.Victim = failoverAction(*kill, *hang)
				if err := fits(f, isMember(o.Victim)); err != nil {
					return err
				}
				if isMember(o.Victim) {
					m.Action, m.Victim, m.Rounds, m.Coordinators, m.TTL, m.Steady, m.FenceTTL = o.Action, o.Victim, o.Rounds, o.Coordinators, *ttl, *duration, *fence
					return memberFailover(ctx, e, m, *svg)
				}
				o.TTL, o.Steady, o.Timeout, o.MaxReplyInterval, o.KeepCalls = *ttl, *duration, *timeout, *interval, *svg != ""
				if err := o.Validate(); err != nil {
					return usagef("%s", err)
				}
				return failover(ctx, e, o, *calls, *svg)
			}
		},
	}
}

// ofMembers are the flags of bench failover that are about members, ofHolders those about
// who holds the Tenure, and its callers.
var (
	ofMembers = []string{"members", "regions", "preset", "callers", "fence-ttl", "probe"}
	ofHolders = []string{"clients", "timeout", "max-reply-interval", "tls", "history"}
)

// fits refuses flags that the experiment has no use for.
func fits(f *flags, members bool) (err error) {
	others, when := ofMembers, "a member is taken away"
	if members {
		others, when = ofHolders, "no member is taken away"
	}
	f.Visit(func(given *flag.Flag) {
		if slices.Contains(others, given.Name) {
			err = usagef("--%s is for runs in which %s", given.Name, when)
		}
	})
	return err
}

// failoverAction is what the flags ask for.
func failoverAction(kill, hang string) (takeover.Action, takeover.Victim) {
	switch {
	case hang != "":
		return takeover.Hang, takeover.Victim(hang)
	case kill == string(takeover.Restart):
		return takeover.Restart, ""
	case kill == "":
		return takeover.Kill, takeover.Holder
	}
	return takeover.Kill, takeover.Victim(kill)
}

// failover runs the rounds and prints what they were.
func failover(ctx context.Context, e *env, o experiment.Config, calls, svg string) (err error) {
	if o.Dir, err = os.MkdirTemp("", "nokv-failover-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.Dir)
	if o.NoKV, err = os.Executable(); err != nil {
		return err
	}
	e.tuneGC()
	o.Progress, o.Verbose = e.stderr, isTerminal(e.stderr)
	x, err := experiment.Open(o)
	if err != nil {
		return err
	}
	defer x.Close()
	out, err := x.Run(ctx)
	if err := ended(ctx, err); err != nil {
		return err
	}
	if calls != "" {
		if err := writeHistory(calls, x.Calls()); err != nil {
			return fmt.Errorf("write %s: %w", calls, err)
		}
	}
	if svg != "" {
		if err := os.WriteFile(svg, x.Draw(), 0o644); err != nil {
			return err
		}
	}
	return e.judged(out, func(w *tabwriter.Writer) { failoverTable(out, w) }, out.Violations)
}

// ended is how an experiment ended: a person who interrupts it wants no other reason.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// judged prints what an experiment saw; a promise that was broken in it is an error.
func (e *env) judged(out any, table func(*tabwriter.Writer), violations int) error {
	if err := e.print(out, table); err != nil {
		return err
	}
	if violations > 0 {
		return errPromise
	}
	return nil
}

func writeHistory(path string, calls []history.Call) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := history.NewWriter(file)
	for _, c := range calls {
		if err := w.Write(c); err != nil {
			return err
		}
	}
	return w.Flush()
}

// isTerminal says whether a person is likely to read w as it is written.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func failoverTable(out *experiment.Report, w *tabwriter.Writer) {
	row(w, "ACTION", "VICTIM", "ROUNDS", "P50 MS", "P99 MS", "MAX MS", "VIOLATIONS", "CALLS", "FAILED")
	row(w, out.Action, out.Victim, out.Rounds, out.P50Ms, out.P99Ms, out.MaxMs, out.Violations, out.Calls, out.FailedCalls)
	row(w)
	row(w, "LONGEST GAP OF", "P50 MS", "P99 MS", "MAX MS")
	for _, op := range []string{history.OpTSO, history.OpID, history.OpRoute} {
		g := out.Gaps[op]
		row(w, op, g.P50Ms, g.P99Ms, g.MaxMs)
	}
	row(w, "tso before it", out.Steady.P50Ms, out.Steady.P99Ms, out.Steady.MaxMs)
	row(w)
	row(w, "PART OF THE GAP", "VICTIM", "P50 MS", "MAX MS")
	for _, p := range out.Parts {
		row(w, p.Part, p.Victim, p.P50Ms, p.MaxMs)
	}
	for _, text := range out.Errors {
		row(w, fmt.Sprintf("# failed: %s", text))
	}
	for _, b := range out.Broken {
		row(w, fmt.Sprintf("# BROKEN: %s", b))
	}
}
