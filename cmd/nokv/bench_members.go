package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/takeover"
	"github.com/nokv/nokv/internal/takeover/experiment"
)

// hostingFlags are those of benches that run members.
func hostingFlags(f *flags, o *experiment.Hosting, regions int) (fenceTTL *time.Duration) {
	f.IntVar(&o.Members, "members", 4, "members, a process each, 2 to 64")
	f.IntVar(&o.Regions, "regions", regions, "regions that the victim has, 1 to 100,000")
	f.IntVar(&o.Readers, "callers", 2, "callers with a cache of routes, 1 to 64")
	f.StringVar(&o.Preset, "preset", "games", "`preset` of the keyspace, as of keyspace create; exclusive, with points or ranges")
	return f.duration("fence-ttl", 0, "a fence of this ttl: `time`; 0: the preset's fence")
}

// inFolder runs an experiment with members in a folder of its own.
func inFolder(e *env, name string, o *experiment.Hosting, run func() error) (err error) {
	if o.Dir, err = os.MkdirTemp("", "nokv-"+name+"-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.Dir)
	if o.NoKV, err = os.Executable(); err != nil {
		return err
	}
	e.tuneGC()
	o.Progress, o.Verbose = e.stderr, isTerminal(e.stderr)
	return run()
}

var errPromise = errors.New("a promise was broken; see above")

// memberFailover runs the rounds of members and prints what they were.
func memberFailover(ctx context.Context, e *env, o experiment.MemberConfig, svg string) error {
	if err := o.Validate(); err != nil {
		return usagef("%s", err)
	}
	return inFolder(e, "failover", &o.Hosting, func() error {
		x, err := experiment.OpenMembers(o)
		if err != nil {
			return err
		}
		defer x.Close()
		out, err := x.Run(ctx)
		if err := ended(ctx, err); err != nil {
			return err
		}
		if svg != "" {
			if err := os.WriteFile(svg, x.Draw(), 0o644); err != nil {
				return err
			}
		}
		return e.judged(out, func(w *tabwriter.Writer) { memberTable(out, w) }, out.Violations)
	})
}

func memberTable(out *experiment.MemberReport, w *tabwriter.Writer) {
	row(w, "ACTION", "VICTIM", "ROUNDS", "REGIONS", "P50 MS", "P99 MS", "MAX MS", "VIOLATIONS", "GRANT ENTRIES")
	row(w, out.Action, out.Victim, out.Rounds, out.Regions, out.P50Ms, out.P99Ms, out.MaxMs, out.Violations, out.GrantEntries)
	row(w)
	row(w, "UNTIL", "P50 MS", "P99 MS", "MAX MS")
	for _, q := range []struct {
		name string
		experiment.Quantiles
	}{{"verdict is rooted", out.Rooted}, {"last region granted", out.Granted}, {"last region served", out.Told}, {"last caller knows", out.Learned}} {
		row(w, q.name, q.P50Ms, q.P99Ms, q.MaxMs)
	}
	row(w)
	row(w, "PART", "P50 MS", "MAX MS")
	for _, p := range out.Parts {
		row(w, p.Part, p.P50Ms, p.MaxMs)
	}
	row(w)
	row(w, "PROCESSOR TIME A REGION", "ROOT US", "COORDINATOR US", "MEMBER US")
	row(w, "", fmt.Sprintf("%.1f", out.RootUs), fmt.Sprintf("%.1f", out.CoordinatorUs), fmt.Sprintf("%.1f", out.MemberUs))
	for _, b := range out.Broken {
		row(w, fmt.Sprintf("# BROKEN: %s", b))
	}
}

// isMember says whether members are to be taken away.
func isMember(v takeover.Victim) bool { return v == takeover.Member || v == takeover.All }

func benchMove() *command {
	return &command{
		name: "move", args: "[flags]", summary: "drain members of a cluster of its own, and measure what callers notice",
		long: `
Starts three root peers, two coordinators and demo members as processes on free
loopback ports, gives one member all regions, has callers ask for them, with one retry
each, and other callers change other regions, and drains the member, again and again.
A region that somebody serves before another one has let go of it is a violation, and
makes the exit status 1; so does one that two processes acquire at one epoch. The
processes and their data are gone at the end.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			var o experiment.DrainConfig
			fence := hostingFlags(f, &o.Hosting, 1000)
			f.IntVar(&o.Rounds, "rounds", 3, "how often, 1 to 1,000")
			f.IntVar(&o.Rate, "rate", 2000, "requests a second, 0 to 100,000")
			f.IntVar(&o.Commits, "commits", 4, "callers that change other regions, 0 to 1,000")
			f.IntVar(&o.InFlight, "in-flight", 0, "moves under way from one member, and to one, at most 4,096; 0: the preset's")
			f.IntVar(&o.Coordinators, "coordinators", 2, "how many coordinators, 1 to 16")
			duration := f.duration("duration", time.Second, "load before each drain: `time`")
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				o.Steady, o.FenceTTL, o.Probe, o.TTL = *duration, *fence, true, tenure.DefaultTTL
				if err := o.Validate(); err != nil {
					return usagef("%s", err)
				}
				return inFolder(e, "move", &o.Hosting, func() error { return move(ctx, e, o) })
			}
		},
	}
}

func move(ctx context.Context, e *env, o experiment.DrainConfig) error {
	x, err := experiment.OpenDrain(o)
	if err != nil {
		return err
	}
	defer x.Close()
	out, err := x.Run(ctx)
	if err := ended(ctx, err); err != nil {
		return err
	}
	return e.judged(out, func(w *tabwriter.Writer) { moveTable(out, w) }, out.Violations)
}

func moveTable(out *experiment.DrainReport, w *tabwriter.Writer) {
	row(w, "DRAINS", "REGIONS", "P50 MS", "MAX MS", "VIOLATIONS", "ENTRIES", "PLANS IN", "READY IN", "GRANTS IN")
	row(w, out.Rounds, out.Regions, out.DrainMs.P50Ms, out.DrainMs.MaxMs, out.Violations, out.Entries, out.Planned, out.Readied, out.Completed)
	row(w)
	row(w, "CALLS", "IN DRAINS", "FAILED", "RETRIED", "P50 MS BEFORE", "P99 MS BEFORE", "P50 MS", "P99 MS", "MAX MS")
	for _, c := range []struct {
		name string
		*experiment.Compared
	}{{"requests", out.Requests}, {"changes of others", out.Commits}} {
		if c.Compared != nil {
			row(w, c.name, c.Calls, c.Failed, c.Retried, c.Before.P50Ms, c.Before.P99Ms, c.During.P50Ms, c.During.P99Ms, c.During.MaxMs)
		}
	}
	if out.Added != nil {
		row(w)
		row(w, "ADDED TO A REQUEST", "P50 MS", "P99 MS", "MAX MS")
		row(w, "", out.Added.P50Ms, out.Added.P99Ms, out.Added.MaxMs)
	}
	row(w)
	row(w, "PROCESSOR TIME A REGION", "ROOT US", "COORDINATOR US", "MEMBER US")
	row(w, "", fmt.Sprintf("%.1f", out.RootUs), fmt.Sprintf("%.1f", out.CoordinatorUs), fmt.Sprintf("%.1f", out.MemberUs))
	for _, c := range []*experiment.Compared{out.Requests, out.Commits} {
		if c != nil && c.Failed > 0 {
			row(w, fmt.Sprintf("# failed: %s", c.Error))
		}
	}
	for _, b := range out.Broken {
		row(w, fmt.Sprintf("# BROKEN: %s", b))
	}
}

func benchHeartbeat() *command {
	return &command{
		name: "heartbeat", args: "[flags]", summary: "have many members report to a cluster of its own",
		long: `
Starts three root peers and two coordinators as processes on free loopback ports,
registers members with regions, opens a stream for each to the Tenure holder, and has
them send frames. The members are streams of this process, which takes its share of the
machine. Memory is what the system says that the coordinator has resident. What a
report and a region with one take is of its heap, by what is alive behind a collection.

With --interval 0 a member sends the next frame as soon as the one before is answered,
with a report of each region; otherwise frames report what has changed. --kill ends that
coordinator at the end: the members open streams to the other one, with complete
reports, while a caller looks routes up.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			var o experiment.HeartbeatConfig
			f.IntVar(&o.Members, "members", 64, "members, 1 to 20,000")
			f.IntVar(&o.Regions, "regions", 1000, "regions of each")
			f.IntVar(&o.PerConnection, "per-connection", 1, "members that share a connection")
			f.Float64Var(&o.Changed, "changed", 0, "`share` of the regions that a frame says something new of, 0 to 1")
			interval := f.duration("interval", 0, "`time` between two frames of a member")
			duration := f.duration("duration", 5*time.Second, "measured `time`")
			f.BoolVar(&o.Kill, "kill", false, "end the coordinator that has the streams, at the end")
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				o.Interval, o.Duration = *interval, *duration
				if err := o.Validate(); err != nil {
					return usagef("%s", err)
				}
				var h experiment.Hosting
				return inFolder(e, "heartbeat", &h, func() error {
					o.NoKV, o.Dir = h.NoKV, h.Dir
					return heartbeat(ctx, e, o)
				})
			}
		},
	}
}

func heartbeat(ctx context.Context, e *env, o experiment.HeartbeatConfig) error {
	x, err := experiment.OpenHeartbeat(o)
	if err != nil {
		return err
	}
	defer x.Close()
	out, err := x.Run(ctx)
	if err := ended(ctx, err); err != nil {
		return err
	}
	return e.print(out, func(w *tabwriter.Writer) { heartbeatTable(out, w) })
}

func heartbeatTable(out *experiment.HeartbeatReport, w *tabwriter.Writer) {
	whole := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	row(w, "MEMBERS", "REGIONS", "FRAMES/S", "REPORTS/S", "REFUSED", "CORES", "P50 MS", "P99 MS", "MAX MS")
	row(w, out.Members, out.Regions, whole(out.Frames), whole(out.Reports), out.Refused, fmt.Sprintf("%.3f", out.Cores), out.Answers.P50Ms, out.Answers.P99Ms, out.Answers.MaxMs)
	row(w)
	row(w, "COORDINATOR MIB", "WITH STREAMS", "WITH REPORTS", "BYTES A STREAM", "BYTES A REPORT", "BYTES A REGION", "OPEN AFTER MS")
	row(w, whole(out.BeforeMiB), whole(out.StreamsMiB), whole(out.ReportsMiB), whole(out.StreamBytes), whole(out.RegionBytes), whole(out.RegionAllBytes), whole(out.OpenMs))
	if r := out.Routes; r != nil {
		row(w)
		row(w, "BACK AFTER MS", "ROUTES", "FAILED", "P50 MS BEFORE", "P99 MS BEFORE", "P50 MS", "P99 MS", "MAX MS")
		row(w, whole(out.BackMs), r.Calls, r.Failed, r.Before.P50Ms, r.Before.P99Ms, r.During.P50Ms, r.During.P99Ms, r.During.MaxMs)
	}
}
