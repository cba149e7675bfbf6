// Package bench measures a cluster under callers of which each asks again as
// soon as it is answered.
//
// It owns the workloads of `nokv bench`, what they ask for, and the other sides
// of comparisons: a bare gRPC echo, an etcd, a Redis. It promises: (1) only what begins
// after the warm-up and ends before the end is counted; (2) callers share
// nothing while they are measured; (3) what a workload makes for itself, it
// makes in keyspaces of its own. Flags, and printing, are the caller's.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// Config says what is measured.
type Config struct {
	// Workload is publish, watches, claim, route, id or tso.
	Workload string
	// Duration is measured; Warmup comes before it.
	Duration, Warmup time.Duration
	// Concurrency is how many callers there are, Batch how many keys or values a
	// call asks for. Regions are made and looked up by route.
	Concurrency, Batch, Regions int
	// Mode is a variant of a workload; Against is measured instead of NoKV: "echo",
	// "redis=HOST:PORT" or "etcd=HOST:PORT[,HOST:PORT...]". "": the usual one.
	Mode, Against string
	// Metrics are addresses whose view is added to the result.
	Metrics []string
	// TLS are the certificates of callers; nil: none.
	TLS *mtls.Source
	// Progress is told what takes long before it is measured.
	Progress io.Writer
	// Watches are open while watches is measured.
	Watches Watches
	// Members of this process take what claim claims.
	Members int

	audience *audience
	pace     func(context.Context) // before each call; nil: none
	// others is the time of processors that another system has used; nil: it is not known.
	others func() time.Duration
}

// Result is what `nokv bench -o json` prints. The field names stay.
type Result struct {
	// Ops counts what was asked for and answered: calls, or keys and values
	// where a call carries several. Errors counts failed calls, and those without an
	// answer.
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
	// OpsPerCPU is how many a second of processor time of this process, and of the system
	// that it is measured against where that says.
	OpsPerCPU float64 `json:"ops_per_cpu_s"`
	// Server has latencies of requests as the servers saw them since they
	// started, by metrics address and method.
	Server map[string]map[string]rpcstats.Latency `json:"server,omitempty"`
	// Watches is what the watches of workload watches got.
	Watches *Arrivals `json:"watches,omitempty"`
	// Against is what claim is measured beside.
	Against *Compared `json:"against,omitempty"`
	// LastErr is that of a failed call; nil: none failed.
	LastErr error `json:"-"`
}

// modes of each workload; the first is the usual one.
var modes = map[string][]string{
	"publish": {""},
	"watches": {""},
	"route":   {"unary", "batch", "strong", "bounded", "cache", "router"},
	"claim":   {""},
	"id":      {""},
	"tso":     {"merged", "single"},
}

// Run prepares the workload, and measures it by a client that is the caller's. It
// fails with a *mtls.Refusal as soon as no call can be made any more, and when ctx
// ends too early to measure; calls that wait longer than that are errors.
func Run(ctx context.Context, cl *client.Client, c Config) (*Result, error) {
	if c.Workload == "claim" {
		out, err := c.claimed(ctx, cl)
		if err == nil {
			out.Server = c.serverLatencies(ctx)
		}
		return out, err
	}
	op, done, err := c.prepare(ctx, cl)
	if err != nil {
		return nil, err
	}
	defer done()
	begun := time.Now()
	out, err := c.measure(ctx, op)
	var arrivals *Arrivals
	if c.audience != nil {
		arrivals = c.audience.end(begun.Add(c.Warmup), begun.Add(c.Warmup+c.Duration))
	}
	if err != nil {
		return nil, err
	}
	out.Watches = arrivals
	out.Server = c.serverLatencies(ctx)
	return out, nil
}

// measure runs the workers, and counts what begins after the warm-up and ends
// before the end.
func (c *Config) measure(ctx context.Context, op work) (*Result, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var (
		histogram   rpcstats.Histogram
		ops, errs   atomic.Uint64
		lastErr     atomic.Value
		workers     sync.WaitGroup
		begin, done = time.Now().Add(c.Warmup), time.Now().Add(c.Warmup + c.Duration)
	)
	for id := range c.Concurrency {
		workers.Go(func() {
			w := worker{id: id, begin: begin, done: done, op: op, pace: c.pace}
			w.run(ctx, stop)
			ops.Add(w.ops)
			errs.Add(w.errs)
			histogram.Merge(&w.latency)
			if w.lastErr != nil {
				lastErr.Store(fmt.Errorf("%w", w.lastErr))
			}
		})
	}
	var spent time.Duration
	workers.Go(func() {
		pause(ctx, time.Until(begin))
		before := c.processor()
		pause(ctx, time.Until(done))
		spent = c.processor() - before
	})
	workers.Wait()
	if err := context.Cause(ctx); err != nil && time.Now().Before(done) {
		return nil, err
	}
	s := histogram.Summary()
	r := &Result{
		Ops: ops.Load(), Errors: errs.Load(), OpsPerSec: float64(ops.Load()) / c.Duration.Seconds(),
		P50Us: s.P50Us, P99Us: s.P99Us, P999Us: s.P999Us, MaxUs: s.MaxUs, Seconds: c.Duration.Seconds(),
	}
	if spent > 0 {
		r.OpsPerCPU = float64(r.Ops) / spent.Seconds()
	}
	r.LastErr, _ = lastErr.Load().(error)
	return r, nil
}

// processor is the time of processors that was used until now.
func (c *Config) processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	spent := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	if c.others != nil {
		spent += c.others()
	}
	return spent
}

// worker is one caller. What it counts is its own until it ends, so that
// callers do not wait for each other where real ones would not.
type worker struct {
	id          int
	begin, done time.Time
	op          work
	pace        func(context.Context)
	ops, errs   uint64
	latency     rpcstats.Histogram
	lastErr     error
}

// run calls op again and again. The end of one call is the start of the next. A
// call that fails counts from the warm-up on, however late it began or ended: what
// hangs must not look like what was not asked.
func (w *worker) run(ctx context.Context, giveUp context.CancelCauseFunc) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	end := time.Now()
	for ctx.Err() == nil {
		start := end
		if w.pace != nil {
			w.pace(ctx)
			start = time.Now()
		}
		if !start.Before(w.done) {
			return
		}
		n, err := w.op(ctx, w.id)
		end = time.Now()
		switch {
		case err != nil:
			if end.After(w.begin) {
				w.errs++
				w.lastErr = err
			}
			if refused, ok := errors.AsType[*mtls.Refusal](err); ok {
				giveUp(refused)
			}
		case start.Before(w.begin) || end.After(w.done):
		default:
			w.ops += n
			w.latency.Observe(end.Sub(start))
		}
	}
}

// serverLatencies reads the servers' own view from their metrics addresses.
// One that does not answer is left out: it may be switched off.
func (c *Config) serverLatencies(ctx context.Context) map[string]map[string]rpcstats.Latency {
	if len(c.Metrics) == 0 {
		return nil
	}
	web := &http.Client{Transport: c.TLS.Transport(mtls.Peer{Role: principal.Root}, mtls.Peer{Role: principal.Coordinator})}
	defer web.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	out := make(map[string]map[string]rpcstats.Latency)
	for _, addr := range c.Metrics {
		var vars struct {
			NoKV struct {
				RPC map[string]rpcstats.MethodSnapshot `json:"rpc"`
			} `json:"nokv"`
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.TLS.Scheme()+"://"+addr+"/debug/vars", nil)
		if err != nil {
			continue
		}
		resp, err := web.Do(req)
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
