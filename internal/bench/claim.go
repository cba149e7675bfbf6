package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/emptying"
	"github.com/nokv/nokv/member"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Compared is a workload beside the one that it is measured against.
type Compared struct {
	// What was measured before, and its figures.
	What      string  `json:"what"`
	OpsPerSec float64 `json:"ops_per_s"`
	P50Us     float64 `json:"p50_us"`
	P99Us     float64 `json:"p99_us"`
	// P99Ratio is the p99 of the workload by that.
	P99Ratio float64 `json:"p99_ratio"`
}

// claimed measures publish, then claim, under the same callers.
func (c *Config) claimed(ctx context.Context, cl *client.Client) (*Result, error) {
	before := *c
	before.Workload = "publish"
	name := fmt.Sprintf("bench-claim-publish-%x", time.Now().UnixNano())
	publish, _, err := before.preparePublish(ctx, cl, name)
	if err != nil {
		return nil, err
	}
	defer c.clear(ctx, cl, name)
	base, err := before.measure(ctx, publish)
	if err != nil {
		return nil, err
	}
	p, err := makePoints(ctx, cl, c, c.Members)
	if err != nil {
		return nil, err
	}
	defer p.end(ctx)
	var next atomic.Uint64
	out, err := c.measure(ctx, func(ctx context.Context, _ int) (uint64, error) {
		got, err := cl.Claim(ctx, p.name, Key(int(next.Add(1))))
		if err == nil && !got.Made {
			err = errors.New("a new key had a region already")
		}
		return 1, err
	})
	if err != nil {
		return nil, err
	}
	out.Against = &Compared{What: "publish", OpsPerSec: base.OpsPerSec, P50Us: base.P50Us, P99Us: base.P99Us}
	if base.P99Us > 0 {
		out.Against.P99Ratio = out.P99Us / base.P99Us
	}
	return out, nil
}

// points is a keyspace of points for one run, with members of this process.
type points struct {
	cl       *client.Client
	c        *Config
	name     string
	keyspace *rootv1.Keyspace
	stop     func()
	all      sync.WaitGroup
	members  []*member.Member
	ids      []rooted.MemberID
}

// host is an application that has nothing to do.
type host struct{}

// Acquire implements member.Handler.
func (host) Acquire(context.Context, member.Region) error { return nil }

// Release implements member.Handler.
func (host) Release(context.Context, member.Region) ([]byte, error) { return nil, nil }

// makePoints makes a keyspace and its members, and returns when all of them are heard. Who
// measures calls end.
func makePoints(ctx context.Context, cl *client.Client, c *Config, members int) (*points, error) {
	run := fmt.Sprintf("%x", time.Now().UnixNano())
	p := &points{cl: cl, c: c, name: "bench-claim-" + run}
	made, err := cl.CreateKeyspace(ctx, p.name, "", &rootv1.KeyspaceSettings{
		Layout: &rootv1.Layout{Kind: &rootv1.Layout_Points_{Points: &rootv1.Layout_Points{}}}, Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
		Ownership: &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH},
		Policy:    &rootv1.Policy{Strategy: rootv1.Strategy_STRATEGY_LEAST_LOADED, OnMiss: rootv1.OnMiss_ON_MISS_CLAIM},
	})
	if err != nil {
		return nil, fmt.Errorf("make keyspace %s: %w", p.name, err)
	}
	p.keyspace = made.GetKeyspace()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	for i := range members {
		if err := p.start(running, fmt.Sprintf("bench-%s-%d", run, i)); err != nil {
			p.end(ctx)
			return nil, err
		}
	}
	if err := p.heard(ctx); err != nil {
		p.end(ctx)
		return nil, err
	}
	return p, nil
}

func (p *points) start(ctx context.Context, id string) error {
	m, err := member.New(member.Config{ID: id, Address: "127.0.0.1:1", Keyspaces: []string{p.name}, Client: p.cl})
	if err != nil {
		return err
	}
	p.members, p.ids = append(p.members, m), append(p.ids, rooted.MemberID(id))
	p.all.Go(func() {
		if err := m.Run(ctx, host{}); err != nil {
			fmt.Fprintf(p.c.Progress, "member %s: %v\n", id, err)
		}
	})
	return nil
}

// heard returns when every member has a line to the Tenure's holder, and is taken for live.
func (p *points) heard(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		ready := true
		for _, m := range p.members {
			s := m.Status()
			ready = ready && s.Holder != "" && s.Confirmed > 0
		}
		if ready {
			_, err := p.cl.Claim(ctx, p.name, []byte("first"))
			if !errors.Is(err, client.ErrNoActiveMembers) {
				return err
			}
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("members of %s: not all of them are heard: %w", p.name, ctx.Err())
		}
	}
}

// end removes what the run made, which would be orphaned for ever.
func (p *points) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
	defer cancel()
	p.c.clear(ctx, p.cl, p.name)
	p.stop()
	p.all.Wait()
	for _, id := range p.ids {
		_, _ = p.cl.RemoveMember(ctx, id, 0, "the bench is over")
	}
}

// clear removes a keyspace that a run made, with its regions, or says why not. A claim that
// its caller gave up when time was over may still make one: it is removed with the others.
func (c *Config) clear(ctx context.Context, cl *client.Client, name string) {
	ctx = context.WithoutCancel(ctx)
	x := &emptying.Emptying{Client: cl, Name: name, Progress: c.Progress, Ranges: true, Step: func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 30*time.Second)
	}}
	if _, err := x.Run(0); err != nil {
		fmt.Fprintf(c.Progress, "what is left of keyspace %s: %v\n", name, err)
	}
}
