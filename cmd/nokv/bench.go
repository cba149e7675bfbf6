package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/rpcstats"
)

func benchCommand() *command {
	return &command{
		name: "bench", summary: "measure a running cluster",
		children: []*command{
			benchWorkload("publish", "root region descriptors, one a caller at a time", preparePublish),
			benchWorkload("route", "look regions up", prepareRoute),
			benchWorkload("id", "allocate ids", prepareID),
			benchWorkload("tso", "get timestamps", prepareTSO),
			benchFailover(),
		},
	}
}

// benchOutput is what `nokv bench -o json` prints. The field names stay.
type benchOutput struct {
	// Ops counts what was asked for and answered: calls, or keys and values
	// where a call carries several. Errors counts failed calls.
	Ops       uint64  `json:"ops"`
	Errors    uint64  `json:"errors"`
	OpsPerSec float64 `json:"ops_per_s"`
	// Latencies of calls as the caller sees them, in microseconds.
	P50Us  float64 `json:"p50_us"`
	P99Us  float64 `json:"p99_us"`
	P999Us float64 `json:"p999_us"`
	MaxUs  float64 `json:"max_us"`
	// Seconds is the measured time; the warm-up is not in it.
	Seconds float64 `json:"seconds"`
	// Server has latencies of unary calls as the servers saw them since they
	// started, by metrics address and method.
	Server map[string]map[string]rpcstats.Latency `json:"server,omitempty"`
}

// benchOptions are the flags that all workloads share.
type benchOptions struct {
	duration, warmup        *time.Duration
	concurrency, batch, reg *int
	mode, against, metrics  *string
	client                  *clientFlags
}

// work is one call of one worker; it returns how many operations it was.
type work func(ctx context.Context, worker int) (uint64, error)

// prepare readies a workload and says how to end it.
type prepare func(ctx context.Context, e *env, o *benchOptions, cl *client.Client) (work, func(), error)

func benchWorkload(name, summary string, ready prepare) *command {
	return &command{
		name: name, args: "[flags]", summary: summary,
		long: benchHelp[name],
		setup: func(f *flags) func(context.Context, *env, []string) error {
			o := &benchOptions{
				duration:    f.duration("duration", 5*time.Second, "measured `time`"),
				warmup:      f.duration("warmup", time.Second, "`time` before that, not measured"),
				concurrency: f.Int("concurrency", 64, "callers at once"),
				batch:       f.Int("batch", 1, "keys or values a call"),
				metrics:     f.String("metrics-addr", "", "also show what these `addresses` say, host:port[,host:port...]"),
			}
			o.mode, o.against, o.reg = new(string), new(string), new(int)
			switch name {
			case "route":
				o.mode = f.String("mode", "unary", "`unary, batch, strong, bounded or cache`")
				o.reg = f.Int("regions", 10_000, "regions to make and look up")
				o.against = f.String("against", "", "`echo`: a bare gRPC echo of the same size on this machine instead of NoKV")
			case "publish":
				o.against = f.String("against", "", "`etcd=HOST:PORT`: puts of the same size to etcd instead of NoKV")
			case "tso":
				o.mode = f.String("mode", "merged", "`merged or single`: callers share one client, or each has its own connection")
			}
			o.client = f.client()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return bench(ctx, e, o, ready)
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
--mode batch sends --batch keys a call on a stream; ops counts keys.`,
	"id":  `Callers share one client, which merges their calls.`,
	"tso": `Callers share one client, which merges their calls. With --batch N each call asks for N timestamps.`,
}

func bench(ctx context.Context, e *env, o *benchOptions, ready prepare) error {
	if *o.concurrency < 1 || *o.concurrency > 100_000 {
		return usagef("concurrency %d: want 1 to 100,000", *o.concurrency)
	}
	if *o.batch < 1 || *o.duration <= 0 {
		return usagef("want a batch of 1 or more and a duration above 0")
	}
	if *o.client.timeout == 0 {
		return usagef("timeout 0: want more")
	}
	if *o.metrics != "" {
		if _, err := splitAddrs("--metrics-addr", *o.metrics); err != nil {
			return err
		}
	}
	endpoints, hint, err := coordinators(*o.client.addr)
	if err != nil {
		return err
	}
	if *o.against == "" {
		if err := someoneListens(ctx, endpoints, patience, hint); err != nil {
			return err
		}
	}
	cl, err := client.New(client.Config{Endpoints: endpoints, DefaultTimeout: *o.client.timeout, Logger: cliLogger(*o.client.verbose)})
	if err != nil {
		return usagef("%s", err)
	}
	defer cl.Close()
	tuneGC()
	op, done, err := ready(ctx, e, o, cl)
	if err != nil {
		return err
	}
	defer done()
	out := measure(ctx, o, op)
	if ctx.Err() != nil {
		return errInterrupted
	}
	out.Server = serverLatencies(ctx, *o.metrics)
	if err := e.print(out, out.table); err != nil {
		return err
	}
	if out.Ops == 0 {
		return fmt.Errorf("nothing succeeded: %d errors, the last one: %w", out.Errors, out.lastErr)
	}
	return nil
}

// measured is a benchOutput with what is not printed.
type measured struct {
	benchOutput
	lastErr error
}

// measure runs the workers, and counts what begins after the warm-up and ends
// before the end.
func measure(ctx context.Context, o *benchOptions, op work) measured {
	var (
		histogram   rpcstats.Histogram
		ops, errs   atomic.Uint64
		lastErr     atomic.Value
		workers     sync.WaitGroup
		begin, done = time.Now().Add(*o.warmup), time.Now().Add(*o.warmup + *o.duration)
	)
	for id := range *o.concurrency {
		workers.Go(func() {
			w := worker{id: id, begin: begin, done: done, op: op}
			w.run(ctx)
			ops.Add(w.ops)
			errs.Add(w.errs)
			histogram.Merge(&w.latency)
			if w.lastErr != nil {
				lastErr.Store(fmt.Errorf("%w", w.lastErr))
			}
		})
	}
	workers.Wait()
	s := histogram.Summary()
	m := measured{benchOutput: benchOutput{
		Ops: ops.Load(), Errors: errs.Load(), OpsPerSec: float64(ops.Load()) / o.duration.Seconds(),
		P50Us: s.P50Us, P99Us: s.P99Us, P999Us: s.P999Us, MaxUs: s.MaxUs, Seconds: o.duration.Seconds(),
	}}
	m.lastErr, _ = lastErr.Load().(error)
	return m
}

// worker is one caller. What it counts is its own until it ends, so that
// callers do not wait for each other where real ones would not.
type worker struct {
	id          int
	begin, done time.Time
	op          work
	ops, errs   uint64
	latency     rpcstats.Histogram
	lastErr     error
}

// run calls op again and again. The end of one call is the start of the next.
func (w *worker) run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	end := time.Now()
	for ctx.Err() == nil {
		start := end
		if start.After(w.done) {
			return
		}
		n, err := w.op(ctx, w.id)
		end = time.Now()
		switch {
		case start.Before(w.begin) || end.After(w.done):
		case err != nil:
			w.errs++
			w.lastErr = err
		default:
			w.ops += n
			w.latency.Observe(end.Sub(start))
		}
	}
}

// MarshalJSON implements json.Marshaler.
func (m measured) MarshalJSON() ([]byte, error) { return json.Marshal(m.benchOutput) }

func (m measured) table(w *tabwriter.Writer) {
	row(w, "OPS", "ERRORS", "OPS/S", "P50 US", "P99 US", "P99.9 US", "MAX US", "SECONDS")
	row(w, m.Ops, m.Errors, fmt.Sprintf("%.0f", m.OpsPerSec), fmt.Sprintf("%.0f", m.P50Us), fmt.Sprintf("%.0f", m.P99Us),
		fmt.Sprintf("%.0f", m.P999Us), fmt.Sprintf("%.0f", m.MaxUs), m.Seconds)
	if m.Errors > 0 {
		row(w, "# last error: ", m.lastErr)
	}
	for addr, methods := range m.Server {
		for method, l := range methods {
			row(w, fmt.Sprintf("# server %s %s: %d calls since it started, p50 %.0f us, p99 %.0f us, p99.9 %.0f us, max %.0f us",
				addr, method, l.Count, l.P50Us, l.P99Us, l.P999Us, l.MaxUs))
		}
	}
}

// serverLatencies reads the servers' own view from their metrics addresses.
// One that does not answer is left out: it may be switched off.
func serverLatencies(ctx context.Context, addrs string) map[string]map[string]rpcstats.Latency {
	if addrs == "" {
		return nil
	}
	list, _ := splitAddrs("--metrics-addr", addrs) // checked before the run
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	out := make(map[string]map[string]rpcstats.Latency)
	for _, addr := range list {
		var vars struct {
			NoKV struct {
				RPC map[string]rpcstats.MethodSnapshot `json:"rpc"`
			} `json:"nokv"`
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/debug/vars", nil)
		if err != nil {
			continue
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			continue
		}
		err = json.NewDecoder(resp.Body).Decode(&vars)
		_ = resp.Body.Close()
		for method, s := range vars.NoKV.RPC {
			if err == nil && s.Latency.Count > 0 {
				if out[addr] == nil {
					out[addr] = make(map[string]rpcstats.Latency)
				}
				out[addr][method] = s.Latency
			}
		}
	}
	return out
}
