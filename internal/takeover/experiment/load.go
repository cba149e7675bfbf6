package experiment

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/bench"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/mtls"
)

// The load: every client has callers of each kind, who
// ask at a fixed rate, so that a client has a timestamp about each millisecond
// and the machine has room for the cluster.

// ops are the kinds of calls, in the order of output.
var ops = []string{history.OpTSO, history.OpID, history.OpRoute}

// callInterval is the time between two calls of a caller.
const callInterval = 4 * time.Millisecond

// callersOf is how many callers of a kind a client has.
var callersOf = map[string]int{history.OpTSO: 4, history.OpID: 2, history.OpRoute: 2}

const (
	keyspace = "bench-failover"
	regions  = 100
)

// recordedCall is a call without pointers: there are many, and the collector
// must not look at each.
type recordedCall struct {
	call, ret  int64 // nanoseconds since the start
	first, era uint64
	failed     bool
}

// caller is one caller and what it saw.
type caller struct {
	client, op string
	do         func(context.Context) (first, era uint64, err error)
	// lastReply is when its newest success came, nanoseconds since the start.
	lastReply atomic.Int64

	mu sync.Mutex
	// Guarded by mu.
	calls []recordedCall
	// errs are those of failed calls, in order.
	errs []error
}

// load is all callers.
type load struct {
	start   time.Time
	timeout time.Duration
	clients []*client.Client
	callers []*caller
	stop    context.CancelFunc
	running sync.WaitGroup
}

// newLoad makes clients; each has an order of endpoints of its own.
func newLoad(start time.Time, endpoints []string, certs *mtls.Source, clients int, timeout time.Duration) (*load, error) {
	l := &load{start: start, timeout: timeout, stop: func() {}}
	for i := range clients {
		at := i % len(endpoints)
		cl, err := client.New(client.Config{Endpoints: slices.Concat(endpoints[at:], endpoints[:at]), TLS: certs})
		if err != nil {
			l.close()
			return nil, err
		}
		l.clients = append(l.clients, cl)
		for _, op := range ops {
			for range callersOf[op] {
				l.callers = append(l.callers, &caller{client: fmt.Sprintf("client-%d", i+1), op: op, do: doOf(cl, op)})
			}
		}
	}
	return l, nil
}

func doOf(cl *client.Client, op string) func(context.Context) (first, era uint64, err error) {
	switch op {
	case history.OpTSO:
		return func(ctx context.Context) (uint64, uint64, error) {
			r, err := cl.Tso(ctx, 1)
			return uint64(r.First), uint64(r.Era), err
		}
	case history.OpID:
		return func(ctx context.Context) (uint64, uint64, error) {
			r, err := cl.AllocID(ctx, 1)
			return r.First, uint64(r.Era), err
		}
	}
	in := client.In(keyspace)
	return func(ctx context.Context) (uint64, uint64, error) {
		_, err := cl.GetRegionByKey(ctx, bench.Key(rand.IntN(regions)), in)
		return 0, 0, err
	}
}

// run starts the callers; close ends them.
func (l *load) run(ctx context.Context) {
	ctx, l.stop = context.WithCancel(ctx)
	for i, c := range l.callers {
		l.running.Go(func() {
			first := time.Duration(i) * callInterval / time.Duration(len(l.callers))
			c.run(ctx, l.start, first, l.timeout)
		})
	}
}

func (l *load) close() {
	l.stop()
	l.running.Wait()
	for _, cl := range l.clients {
		_ = cl.Close()
	}
	l.clients = nil
}

// run calls at a fixed rate. A call that took longer than that delays the
// next one: nothing is caught up on.
func (c *caller) run(ctx context.Context, start time.Time, wait, timeout time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for next := time.Now().Add(wait); ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		c.one(ctx, start, timeout)
		now := time.Now()
		if next = next.Add(callInterval); next.Before(now) {
			next = now
		}
		timer.Reset(next.Sub(now))
	}
}

// one makes one call and records it.
func (c *caller) one(ctx context.Context, start time.Time, timeout time.Duration) {
	callCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r := recordedCall{call: int64(time.Since(start))}
	var err error
	r.first, r.era, err = c.do(callCtx)
	r.ret, r.failed = int64(time.Since(start)), err != nil
	if r.failed && ctx.Err() != nil {
		return // the end of the run cut it off
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, r)
	if r.failed {
		c.errs = append(c.errs, err)
	} else {
		c.lastReply.Store(r.ret)
	}
}

// lastErr is the error of the last call that failed; nil: none did.
func (c *caller) lastErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.errs) == 0 {
		return nil
	}
	return c.errs[len(c.errs)-1]
}

// since returns the calls that ended at a moment or later.
func (c *caller) since(at time.Duration) []recordedCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, _ := slices.BinarySearchFunc(c.calls, int64(at), func(r recordedCall, at int64) int { return cmp.Compare(r.ret, at) })
	return slices.Clone(c.calls[i:])
}

// recorded are the calls of all callers that ended at a moment or later.
func (l *load) recorded(at time.Duration) []history.Call {
	var out []history.Call
	wall := l.start.UnixMilli()
	for _, c := range l.callers {
		for _, r := range c.since(at) {
			h := history.Call{Client: c.client, Op: c.op, CallNS: r.call, ReturnNS: r.ret, WallMS: uint64(wall + r.ret/int64(time.Millisecond))}
			switch {
			case r.failed:
				h.Err = "failed"
			case c.op != history.OpRoute:
				h.First, h.Count, h.Era = r.first, 1, r.era
			}
			out = append(out, h)
		}
	}
	return out
}

// silent names a caller without a reply since a moment, and its last error.
func (l *load) silent(since time.Duration) error {
	for _, c := range l.callers {
		if c.lastReply.Load() > int64(since) {
			continue
		}
		err := c.lastErr()
		if err == nil {
			return fmt.Errorf("a caller of %s at %s has no reply", c.op, c.client)
		}
		return fmt.Errorf("a caller of %s at %s has no reply; its last error: %w", c.op, c.client, err)
	}
	return nil
}

// errors are what failed calls said, each text once.
func (l *load) errors() []string {
	var out []string
	for _, c := range l.callers {
		c.mu.Lock()
		for _, err := range c.errs {
			if text := c.op + ": " + err.Error(); len(out) < maxErrorsShown && !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
		c.mu.Unlock()
	}
	return out
}

// maxErrorsShown bounds the texts of failed calls.
const maxErrorsShown = 10

// orderViolations is what the clients themselves found out of order.
func (l *load) orderViolations() (n uint64) {
	for _, cl := range l.clients {
		n += cl.Stats().OrderViolations
	}
	return n
}
