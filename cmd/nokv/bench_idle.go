package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/bench"
)

func benchIdle() *command {
	return &command{
		name: "idle", args: "[flags]", summary: "have many regions released that nobody uses",
		long: `
Claims --regions keys in a keyspace of points, and --standing in another one, for members
of this process. Then it says of the first keyspace that what nobody uses for a second is
released, and waits until all of it is gone, while --callers look keys of the other one
up. Both keyspaces are removed at the end.

Example:
  nokv bench idle --regions 100000 --standing 900000`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			var o bench.IdleConfig
			f.IntVar(&o.Regions, "regions", 10_000, "regions that are released, 1 to 1,000,000")
			f.IntVar(&o.Standing, "standing", 10_000, "regions that stay, 1 to 10,000,000")
			f.IntVar(&o.Members, "members", 4, "members of this process, of each keyspace")
			f.IntVar(&o.Callers, "callers", 8, "callers that look keys up")
			duration := f.duration("duration", 3*time.Second, "`time` that routes are measured before")
			cl := f.client()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				o.Steady, o.Progress = *duration, e.stderr
				if err := o.Validate(); err != nil {
					return usagef("%s", err)
				}
				return runBenchIdle(ctx, e, o, cl)
			}
		},
	}
}

func runBenchIdle(ctx context.Context, e *env, o bench.IdleConfig, flags *clientFlags) error {
	t, err := flags.ends.resolve(e.logger(*flags.verbose))
	if err != nil {
		return err
	}
	o.TLS = t.certs
	cl, err := client.New(client.Config{Endpoints: t.addrs, TLS: t.certs, DefaultTimeout: *flags.timeout, Logger: e.logger(*flags.verbose)})
	if err != nil {
		return usagef("%s", err)
	}
	defer cl.Close()
	e.tuneGC()
	out, err := bench.Idle(ctx, cl, o)
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err != nil {
		return err
	}
	return e.print(out, func(w *tabwriter.Writer) {
		row(w, "RELEASED", "STANDING", "SECONDS", "A SECOND", "CLAIMED IN S")
		row(w, out.Regions, out.Standing, fmt.Sprintf("%.2f", out.Seconds), fmt.Sprintf("%.0f", out.PerSec), fmt.Sprintf("%.1f", out.ClaimSeconds))
		row(w)
		row(w, "ROUTES", "OPS", "ERRORS", "P50 US", "P99 US", "MAX US")
		for _, x := range []struct {
			when string
			bench.RouteFigures
		}{{"before", out.Before}, {"meanwhile", out.During}} {
			row(w, x.when, x.Ops, x.Errors, fmt.Sprintf("%.0f", x.P50Us), fmt.Sprintf("%.0f", x.P99Us), fmt.Sprintf("%.0f", x.MaxUs))
		}
		row(w, fmt.Sprintf("# p99 of routes is %.2f times what it was", out.P99Ratio))
	})
}
