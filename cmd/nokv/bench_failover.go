package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/takeover"
)

func benchFailover() *command {
	return &command{
		name: "failover", args: "--kill holder|leader|both|restart [flags]", summary: "kill processes of a cluster of its own, and measure how long callers wait",
		long: `
Starts three root peers and coordinators as processes on free loopback ports, puts
a constant load of timestamps, ids and routes on them, and ends the Tenure holder,
the root leader or both with kill -9, again and again. restart asks the holder and
the leader in turn to end (SIGTERM), and starts them again. A round's figure is the
longest time that any client went without a timestamp, from the kill until all is
healthy again. Whatever was given out twice or out of order is a violation, and
makes the exit status 1. The processes and their data are gone at the end.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			o := &failoverOptions{
				kill:         f.String("kill", "holder", "whom to end: `holder, leader, both or restart`"),
				rounds:       f.Int("rounds", 10, "how often, 1 to 10,000"),
				ttl:          f.duration("tenure-ttl", tenure.DefaultTTL, "see nokv coordinator --help"),
				duration:     f.duration("duration", time.Second, "steady load before each kill: `time`"),
				clients:      f.Int("clients", 4, "clients, each with connections of its own, 1 to 64"),
				coordinators: f.Int("coordinators", 2, "how many coordinators, 2 to 16"),
				timeout:      f.duration("timeout", time.Second, "deadline of each call: `time`"),
				history:      f.String("history", "", "write every call to this `file`, a line of JSON each"),
				svg:          f.String("svg", "", "draw the round with the median gap to this `file`"),
			}
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				if err := o.check(); err != nil {
					return err
				}
				return failover(ctx, e, o)
			}
		},
	}
}

// failoverOptions are the flags of `nokv bench failover`.
type failoverOptions struct {
	kill, history, svg            *string
	rounds, clients, coordinators *int
	ttl, duration, timeout        *time.Duration
}

// killRestart is the value of --kill that is no victim.
const killRestart = "restart"

// leastDuration leaves time to see that there is load.
const leastDuration = 200 * time.Millisecond

func (o *failoverOptions) check() error {
	switch *o.kill {
	case string(takeover.Holder), string(takeover.Leader), string(takeover.Both), killRestart:
	default:
		return usagef("kill %q: use holder, leader, both or restart", *o.kill)
	}
	switch {
	case *o.rounds < 1 || *o.rounds > 10_000:
		return usagef("rounds %d: want 1 to 10,000", *o.rounds)
	case *o.clients < 1 || *o.clients > 64:
		return usagef("clients %d: want 1 to 64", *o.clients)
	case *o.coordinators < 2 || *o.coordinators > 16:
		return usagef("coordinators %d: want 2 to 16, because one must take over", *o.coordinators)
	case *o.ttl%time.Millisecond != 0 || *o.ttl > tenure.MaxTTL:
		return usagef("tenure-ttl %s: want whole milliseconds, an hour at most", *o.ttl)
	case *o.duration < leastDuration:
		return usagef("duration %s: want %s or more", *o.duration, leastDuration)
	case *o.timeout <= 0:
		return usagef("timeout %s: want more", *o.timeout)
	}
	return nil
}

// victim of a round, and whether it is asked to end instead of killed.
func (o *failoverOptions) victim(round int) (v takeover.Victim, orderly bool) {
	if *o.kill != killRestart {
		return takeover.Victim(*o.kill), false
	}
	if round%2 == 0 {
		return takeover.Holder, true
	}
	return takeover.Leader, true
}

// failoverOutput is what `nokv bench failover -o json` prints. The field names stay.
type failoverOutput struct {
	// Victim is what --kill said.
	Victim string `json:"victim"`
	Rounds int    `json:"rounds"`
	// The longest time without a timestamp of any client, over the rounds.
	P50Ms float64 `json:"p50_ms"`
	P99Ms float64 `json:"p99_ms"`
	MaxMs float64 `json:"max_ms"`
	// Violations counts broken promises; each is described in Broken.
	Violations int      `json:"violations"`
	Broken     []string `json:"broken,omitempty"`

	TenureTTLMs float64 `json:"tenure_ttl_ms"`
	// Gaps are the same by kind of call: tso, id and route. Steady is the
	// longest time without a timestamp before each kill: what the machine does
	// to callers without one.
	Gaps   map[string]gapOutput `json:"gaps"`
	Steady gapOutput            `json:"steady"`
	// Parts are what the gaps of timestamps are made of, in order.
	Parts []partOutput `json:"parts"`
	// Calls and FailedCalls count all calls; one that has no answer within
	// --timeout has failed.
	Calls       int `json:"calls"`
	FailedCalls int `json:"failed_calls"`
	// Errors are what failed calls said, each text once, ten at most.
	Errors []string `json:"errors,omitempty"`
	// Each is a line for each round.
	Each []roundOutput `json:"each"`
}

// gapOutput are quantiles over rounds, in milliseconds.
type gapOutput struct {
	P50Ms float64 `json:"p50_ms"`
	P99Ms float64 `json:"p99_ms"`
	MaxMs float64 `json:"max_ms"`
}

// partOutput is one part of the gaps of one victim.
type partOutput struct {
	Victim string  `json:"victim"`
	Part   string  `json:"part"`
	P50Ms  float64 `json:"p50_ms"`
	MaxMs  float64 `json:"max_ms"`
}

// roundOutput is one round.
type roundOutput struct {
	Victim  string  `json:"victim"`
	Process string  `json:"process"`
	GapMs   float64 `json:"gap_ms"`
	// BeganMs is when the gap began, counted from the kill: above 0 it is not the
	// kill that began it, but what followed.
	BeganMs float64 `json:"began_ms"`
	// Parts in the order in which they happened, in milliseconds.
	Parts []roundPartOutput `json:"parts"`
}

// roundPartOutput is one part of a round's gap.
type roundPartOutput struct {
	Part string  `json:"part"`
	Ms   float64 `json:"ms"`
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func showQuantiles(all []time.Duration) gapOutput {
	q := takeover.Summary(all)
	return gapOutput{ms(q.P50), ms(q.P99), ms(q.Max)}
}

// failover runs the rounds and prints what they were.
func failover(ctx context.Context, e *env, o *failoverOptions) (err error) {
	dir, err := os.MkdirTemp("", "nokv-failover-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tuneGC()
	run, err := newFailoverRun(e, o, dir)
	if err != nil {
		return err
	}
	defer run.close()
	if err := run.all(ctx); err != nil {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return err
	}
	out := run.output()
	if err := run.writeFiles(); err != nil {
		return err
	}
	if err := e.print(out, out.table); err != nil {
		return err
	}
	if out.Violations > 0 {
		return errors.New("a promise was broken; see above")
	}
	return nil
}

// output sums the rounds up.
func (f *failoverRun) output() *failoverOutput {
	out := &failoverOutput{
		Victim: *f.o.kill, Rounds: len(f.rounds), Violations: len(f.broken), Broken: f.broken, TenureTTLMs: ms(*f.o.ttl),
		Gaps: make(map[string]gapOutput), Calls: f.calls, FailedCalls: f.failed, Errors: f.load.errors(),
	}
	var steady []time.Duration
	gaps := make(map[string][]time.Duration)
	parts := newPartSums()
	for _, r := range f.rounds {
		steady = append(steady, r.steady)
		for op, g := range r.gaps {
			gaps[op] = append(gaps[op], g.Length())
		}
		g := r.gaps[history.OpTSO]
		show := roundOutput{Victim: string(r.Victim), Process: r.names(), GapMs: ms(g.Length()), BeganMs: ms(g.From - r.At)}
		for _, p := range r.parts {
			show.Parts = append(show.Parts, roundPartOutput{p.Name, ms(p.Length())})
			parts.add(r.Victim, p)
		}
		out.Each = append(out.Each, show)
	}
	for op, all := range gaps {
		out.Gaps[op] = showQuantiles(all)
	}
	tso := out.Gaps[history.OpTSO]
	out.P50Ms, out.P99Ms, out.MaxMs = tso.P50Ms, tso.P99Ms, tso.MaxMs
	out.Steady, out.Parts = showQuantiles(steady), parts.show()
	return out
}

// partSums collects parts by victim and name, in the order in which they were met.
type partSums struct {
	order []partOutput
	all   map[partOutput][]time.Duration
}

func newPartSums() *partSums { return &partSums{all: make(map[partOutput][]time.Duration)} }

func (s *partSums) add(v takeover.Victim, p takeover.Part) {
	key := partOutput{Victim: string(v), Part: p.Name}
	if _, ok := s.all[key]; !ok {
		s.order = append(s.order, key)
	}
	s.all[key] = append(s.all[key], p.Length())
}

func (s *partSums) show() []partOutput {
	var out []partOutput
	for _, key := range s.order {
		q := takeover.Summary(s.all[key])
		out = append(out, partOutput{key.Victim, key.Part, ms(q.P50), ms(q.Max)})
	}
	return out
}

func (out *failoverOutput) table(w *tabwriter.Writer) {
	row(w, "VICTIM", "ROUNDS", "P50 MS", "P99 MS", "MAX MS", "VIOLATIONS", "CALLS", "FAILED")
	row(w, out.Victim, out.Rounds, out.P50Ms, out.P99Ms, out.MaxMs, out.Violations, out.Calls, out.FailedCalls)
	row(w)
	row(w, "LONGEST GAP OF", "P50 MS", "P99 MS", "MAX MS")
	for _, op := range failoverOps {
		g := out.Gaps[op]
		row(w, op, g.P50Ms, g.P99Ms, g.MaxMs)
	}
	row(w, "tso without a kill", out.Steady.P50Ms, out.Steady.P99Ms, out.Steady.MaxMs)
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
