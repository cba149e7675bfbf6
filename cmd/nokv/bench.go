package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/bench"
	"github.com/nokv/nokv/mtls/principal"
)

func benchCommand() *command {
	return &command{
		name: "bench", summary: "measure a running cluster",
		children: []*command{
			benchWorkload("publish", "root region descriptors, one a caller at a time"),
			benchWorkload("watches", "publish while many watch"),
			benchWorkload("claim", "claim new keys, beside publish"),
			benchWorkload("route", "look regions up"),
			benchWorkload("id", "allocate ids"),
			benchWorkload("tso", "get timestamps"),
			benchIdle(), benchFailover(), benchMove(), benchHeartbeat(), benchPlacement(), benchEcho(),
		},
	}
}

func benchWorkload(name, summary string) *command {
	return &command{
		name: name, args: "[flags]", summary: summary,
		long: benchHelp[name],
		setup: func(f *flags) func(context.Context, *env, []string) error {
			o := bench.Config{Workload: name}
			duration, warmup := f.duration("duration", 5*time.Second, "measured `time`"), f.duration("warmup", time.Second, "`time` before that, not measured")
			f.IntVar(&o.Concurrency, "concurrency", 64, "callers at once")
			f.IntVar(&o.Batch, "batch", 1, "keys or values a call")
			metrics := f.String("metrics-addr", "", "also show what these `addresses` say, host:port[,host:port...]")
			switch name {
			case "route":
				f.StringVar(&o.Mode, "mode", "unary", "`unary, batch, strong, bounded, cache or router`")
				f.IntVar(&o.Regions, "regions", 10_000, "regions to make and look up")
				f.StringVar(&o.Against, "against", "", "`echo, etcd=HOST:PORT or redis=HOST:PORT`: a bare gRPC echo of the same size on this machine, linearizable gets of etcd, or the two reads of a registry in Redis, instead of NoKV")
			case "publish":
				f.StringVar(&o.Against, "against", "", "`etcd=HOST:PORT`: puts of the same size to etcd instead of NoKV")
			case "watches":
				f.IntVar(&o.Watches.Count, "watches", 1000, "watches, all at the first coordinator")
				f.IntVar(&o.Watches.Connections, "connections", 10, "connections that they share")
				f.IntVar(&o.Watches.Slow, "slow", 10, "one in so many reads one message a second; 0: none")
				f.BoolVar(&o.Watches.Routers, "routers", false, "each watch keeps the view of a router, which shows a change when it has come; none is slow")
				f.IntVar(&o.Watches.Rate, "rate", 500, "changes a second; 0: as many as the callers get done")
			case "claim":
				f.IntVar(&o.Members, "members", 4, "members of this process that get them")
			case "id":
				f.StringVar(&o.Against, "against", "", "`pd=HOST:PORT`: ids of PD instead of NoKV")
			case "tso":
				f.StringVar(&o.Against, "against", "", "`pd=HOST:PORT`: timestamps of PD, merged onto one stream, instead of NoKV")
				f.StringVar(&o.Mode, "mode", "merged", "`merged or single`: callers share one client, or each has its own connection")
			}
			cl := f.client()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				o.Duration, o.Warmup, o.Progress = *duration, *warmup, e.stderr
				if *metrics != "" {
					var err error
					if o.Metrics, err = splitAddrs("--metrics-addr", *metrics); err != nil {
						return err
					}
				}
				return runBench(ctx, e, o, cl)
			}
		},
	}
}

var benchHelp = map[string]string{
	"publish": `
Each caller roots newer and newer descriptors of a region of its own in keyspace
"bench-publish". Compare: --against etcd=HOST:PORT.`,
	"route": `
Looks up random keys of keyspace "bench-route", which is made when it is missing.
--mode batch sends --batch keys a call on a stream; ops counts keys. --mode router has
members of this process claim them in a keyspace that is removed at the end, and looks
them up by a router.`,
	"watches": `
Each caller roots descriptors as in bench publish, at --rate a second together, while
--watches streams watch them. Latencies are the publishers'; the second line is how
long behind the answer to the publisher a change was with the watches that read.`,
	"claim": `
Each caller claims key after key that nobody has touched, in a keyspace of points that is
made for it, and removed at the end with all its regions. Before that, publish is measured
under the same callers, for as long.`,
	"id":  `Callers share one client, which merges their calls.`,
	"tso": `Callers share one client, which merges their calls. With --batch N each call asks for N timestamps.`,
}

func runBench(ctx context.Context, e *env, o bench.Config, flags *clientFlags) error {
	if err := o.Validate(); err != nil {
		return usagef("%s", err)
	}
	if *flags.timeout == 0 {
		return usagef("timeout 0: want more")
	}
	callCtx := ctx
	if flags.flags.given("timeout") { // otherwise it is for each call
		if *flags.timeout <= o.Warmup+o.Duration {
			return usagef("timeout %v: want more than --warmup and --duration together, %v", *flags.timeout, o.Warmup+o.Duration)
		}
		var cancel context.CancelFunc
		callCtx, cancel = context.WithTimeout(ctx, *flags.timeout)
		defer cancel()
	}
	t, err := flags.ends.resolve(e.logger(*flags.verbose))
	if err != nil {
		return err
	}
	if o.Against == "" {
		if err := t.letsIn(callCtx, principal.Coordinator, patience); err != nil {
			return err
		}
	}
	o.TLS = t.certs
	cl, err := client.New(client.Config{Endpoints: t.addrs, TLS: t.certs, DefaultTimeout: *flags.timeout, Logger: e.logger(*flags.verbose)})
	if err != nil {
		return usagef("%s", err)
	}
	defer cl.Close()
	e.tuneGC()
	out, err := bench.Run(callCtx, cl, o)
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case errors.Is(err, context.DeadlineExceeded) && callCtx.Err() != nil:
		return fmt.Errorf("not measured within --timeout %v: leave it out, or give more time: %w", *flags.timeout, err)
	case err != nil:
		return err
	}
	if err := e.print(out, func(w *tabwriter.Writer) { benchTable(out, w) }); err != nil {
		return err
	}
	return nothingDone(out)
}

// nothingDone is the error of a run without an operation that succeeded; nil: there are some.
func nothingDone(out *bench.Result) error {
	switch {
	case out.Ops > 0:
		return nil
	case out.LastErr == nil:
		return errors.New("nothing was done in the time: give more, --duration")
	default:
		return fmt.Errorf("nothing succeeded: %d errors, the last one: %w", out.Errors, out.LastErr)
	}
}

func benchTable(m *bench.Result, w *tabwriter.Writer) {
	row(w, "OPS", "ERRORS", "OPS/S", "P50 US", "P99 US", "P99.9 US", "MAX US", "SECONDS", "OPS/CPU S")
	row(w, m.Ops, m.Errors, fmt.Sprintf("%.0f", m.OpsPerSec), fmt.Sprintf("%.0f", m.P50Us), fmt.Sprintf("%.0f", m.P99Us),
		fmt.Sprintf("%.0f", m.P999Us), fmt.Sprintf("%.0f", m.MaxUs), m.Seconds, fmt.Sprintf("%.0f", m.OpsPerCPU))
	if m.Errors > 0 {
		row(w, "# last error: ", m.LastErr)
	}
	if a := m.Watches; a != nil {
		row(w, fmt.Sprintf("# watches: open after %.1f s, %d messages, %d MB, %d cut; a change came after p50 %.1f ms, p99 %.1f ms, max %.1f ms",
			a.OpenSeconds, a.Messages, a.Bytes>>20, a.Cut, a.P50Ms, a.P99Ms, a.MaxMs))
	}
	if b := m.Against; b != nil {
		row(w, fmt.Sprintf("# %s by the same callers: %.0f a second, p50 %.0f us, p99 %.0f us; this p99 is %.2f times that one", b.What, b.OpsPerSec, b.P50Us, b.P99Us, b.P99Ratio))
	}
	for addr, methods := range m.Server {
		for method, l := range methods {
			row(w, fmt.Sprintf("# server %s %s: %d calls since it started, p50 %.0f us, p99 %.0f us, p99.9 %.0f us, max %.0f us",
				addr, method, l.Count, l.P50Us, l.P99Us, l.P999Us, l.MaxUs))
		}
	}
}

func benchEcho() *command {
	return &command{
		name: "echo", summary: "serve a bare gRPC echo, the other side of `bench route --against echo`",
		long: `
Prints its address, host:port, and answers until standard input ends.`,
		setup: func(*flags) func(context.Context, *env, []string) error {
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				e.tuneGC() // as the servers do
				lis, err := listen("echo", "127.0.0.1:0")
				if err != nil {
					return err
				}
				fmt.Fprintln(e.stdout, lis.Addr())
				ctx, stop := context.WithCancel(ctx)
				go func() { // ends with the process: nothing ends a read of standard input
					defer stop()
					_, _ = io.Copy(io.Discard, os.Stdin)
				}()
				return bench.ServeEcho(ctx, lis)
			}
		},
	}
}
