package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/router"
)

// routeByRouter looks keys up, which members of this process have, as a program does that
// has a router.
func (c *Config) routeByRouter(ctx context.Context, cl *client.Client) (work, func(), error) {
	p, err := makePoints(ctx, cl, c, 4)
	if err != nil {
		return nil, nil, err
	}
	if err := claimAll(ctx, p, c.Regions); err != nil {
		p.end(ctx)
		return nil, nil, err
	}
	r, err := router.New(router.Config{Client: cl, Keyspaces: []string{p.name}, MaxRegions: c.Regions + 2})
	if err != nil {
		p.end(ctx)
		return nil, nil, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	end := func() { stop(); <-ended; p.end(ctx) }
	most, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.Wait(most); err != nil {
		end()
		return nil, nil, fmt.Errorf("router: %w", err)
	}
	keys := sampleOf(c.Regions)
	return func(ctx context.Context, worker int) (uint64, error) {
		for i := range cachedLookups {
			if _, err := r.Resolve(ctx, keys[(worker*31+i)%len(keys)], router.Options{}); err != nil {
				return 0, err
			}
		}
		return cachedLookups, nil
	}, end, nil
}
