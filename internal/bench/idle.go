package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/mtls"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// IdleConfig says what is released while callers look routes up.
type IdleConfig struct {
	// Regions become idle at once, beside Standing ones of points that stay.
	Regions, Standing int
	// Members of this process have them, Callers look Standing ones up.
	Members, Callers int
	// Steady is measured before.
	Steady time.Duration
	// TLS are the certificates of callers; nil: none.
	TLS *mtls.Source
	// Progress is told what takes long.
	Progress io.Writer
}

// IdleResult is what `nokv bench idle -o json` prints. The field names stay.
type IdleResult struct {
	Regions  int `json:"regions"`
	Standing int `json:"standing"`
	// ClaimSeconds is how long all of them took to be made.
	ClaimSeconds float64 `json:"claim_seconds"`
	// Seconds from when the first one was due to the last one's removal, and so many a second.
	Seconds float64 `json:"seconds"`
	PerSec  float64 `json:"per_s"`
	// Routes before, and while regions were released; P99Ratio of the two.
	Before   RouteFigures `json:"before"`
	During   RouteFigures `json:"during"`
	P99Ratio float64      `json:"p99_ratio"`
}

// RouteFigures are lookups, in microseconds.
type RouteFigures struct {
	Ops    uint64  `json:"ops"`
	Errors uint64  `json:"errors"`
	P50Us  float64 `json:"p50_us"`
	P99Us  float64 `json:"p99_us"`
	MaxUs  float64 `json:"max_us"`
}

// Validate says what is wrong with c.
func (c *IdleConfig) Validate() error {
	switch {
	case c.Regions < 1 || c.Regions > 1_000_000:
		return fmt.Errorf("regions %d: want 1 to 1,000,000", c.Regions)
	case c.Standing < 1 || c.Standing > 10_000_000:
		return fmt.Errorf("standing %d: want 1 to 10,000,000", c.Standing)
	case c.Members < 1 || c.Members > MaxBenchMembers:
		return fmt.Errorf("members %d: want 1 to %d", c.Members, MaxBenchMembers)
	case c.Callers < 1 || c.Callers > 100_000 || c.Steady <= 0:
		return errors.New("want 1 to 100,000 callers and a duration above 0")
	}
	return nil
}

// idleTime is how long regions of the bench are not used before they are released.
const idleTime = 2 * time.Second // two reports of members, which is the least that is allowed

// Idle measures how long it takes to release regions that nobody uses.
func Idle(ctx context.Context, cl *client.Client, c IdleConfig) (*IdleResult, error) {
	own := &Config{TLS: c.TLS, Progress: c.Progress}
	standing, err := makePoints(ctx, cl, own, c.Members)
	if err != nil {
		return nil, err
	}
	defer standing.end(ctx)
	p, err := makePoints(ctx, cl, own, c.Members)
	if err != nil {
		return nil, err
	}
	defer p.end(ctx)
	out := &IdleResult{Regions: c.Regions, Standing: c.Standing}
	began := time.Now()
	if err := errors.Join(claimAll(ctx, standing, c.Standing), claimAll(ctx, p, c.Regions)); err != nil {
		return nil, err
	}
	out.ClaimSeconds = time.Since(began).Seconds()
	routes := func(ctx context.Context) RouteFigures { return lookUp(ctx, cl, standing.name, c.Standing, c.Callers) }
	steady, stop := context.WithTimeout(ctx, c.Steady)
	out.Before = routes(steady)
	stop()

	s := proto.CloneOf(p.keyspace.GetSettings())
	s.Cadence = &rootv1.Cadence{IdleEvictMillis: uint64(idleTime.Milliseconds()), IdleScanMillis: 100}
	if _, err := cl.UpdateKeyspace(ctx, p.name, p.keyspace.GetVersion(), s); err != nil {
		return nil, err
	}
	due := time.Now().Add(idleTime)
	during, stop := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() { out.During = routes(during) })
	err = p.gone(ctx)
	out.Seconds = time.Since(due).Seconds()
	stop()
	looking.Wait()
	if err != nil {
		return nil, err
	}
	out.PerSec = float64(c.Regions) / out.Seconds
	if out.Before.P99Us > 0 {
		out.P99Ratio = out.During.P99Us / out.Before.P99Us
	}
	return out, nil
}

// claimers is how many claim at once what a bench needs.
const claimers = 256

// claimAll claims keys until there are n.
func claimAll(ctx context.Context, p *points, n int) error {
	var next, done atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for range claimers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				if _, err := p.cl.Claim(ctx, p.name, Key(i)); err != nil {
					failed.Store(&err)
					return
				}
				if at := done.Add(1); at%50_000 == 0 {
					fmt.Fprintf(p.c.Progress, "claimed %d of %d\n", at, n)
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return fmt.Errorf("claim: %w", *err)
	}
	return nil
}

// lookUp looks random keys up until ctx ends.
func lookUp(ctx context.Context, cl *client.Client, keyspace string, n, callers int) RouteFigures {
	var histogram rpcstats.Histogram
	var ops, failed atomic.Uint64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			var own rpcstats.Histogram
			for ctx.Err() == nil {
				began := time.Now()
				_, err := cl.GetRegionByKey(ctx, Key(rand.IntN(n)), client.In(keyspace))
				switch {
				case err == nil:
					own.Observe(time.Since(began))
					ops.Add(1)
				case ctx.Err() == nil:
					failed.Add(1)
				}
			}
			histogram.Merge(&own)
		})
	}
	all.Wait()
	s := histogram.Summary()
	return RouteFigures{Ops: ops.Load(), Errors: failed.Load(), P50Us: s.P50Us, P99Us: s.P99Us, MaxUs: s.MaxUs}
}

// gone returns when no region is left.
func (p *points) gone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		k, err := p.cl.GetKeyspace(ctx, p.name)
		if err != nil {
			return err
		}
		if k.GetRegions() == 0 {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%d regions are left: %w", k.GetRegions(), ctx.Err())
		}
	}
}
