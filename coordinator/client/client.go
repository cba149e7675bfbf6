package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/identity"
)

// Client talks to the coordinators of one cluster. Its methods may be called
// by any number of goroutines.
type Client struct {
	cfg    Config
	log    hclog.Logger
	ends   *endpoints
	count  counters
	hedges allowance

	// Highest era seen, the cluster pinned, and the newest index of its log seen.
	era, cluster, index atomic.Uint64
	identities          *identity.Source

	// tenureTTL is the ttl of the Tenure as last told, in nanoseconds.
	tenureTTL atomic.Int64

	tso     *runs
	ids     *runs
	publish *publisher
	routes  *pipe[keysRequest, keysReply]
	lookups *lookups
	claims  *claimers

	// ctx ends with Close.
	ctx    context.Context
	cancel context.CancelFunc
	mu     sync.Mutex // guards closed against enter
	closed bool
	wg     sync.WaitGroup
}

// New makes a Client. It connects when it is first used.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	c := &Client{cfg: cfg, log: cfg.Logger, identities: identity.NewSource()}
	c.cluster.Store(cfg.ClusterID)
	var err error
	if c.ends, err = newEndpoints(cfg, c.ClusterID); err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.tso = newTimestamps(c)
	c.ids = newIDs(c)
	c.publish = newPublisher(c)
	c.routes = newRouteStream(c)
	c.lookups = &lookups{c: c, kinds: map[lookupKind]*lookupQueue{}}
	c.claims = &claimers{c: c, kinds: map[claimKind]*claimQueue{}}
	c.tenureTTL.Store(int64(guessedTTL))
	if cfg.DiscoverEvery > 0 {
		c.spawn(c.discover)
	}
	if cfg.TLS != nil {
		c.spawn(func() { c.keepRevoked(cfg.TLS) })
	}
	return c, nil
}

// Close ends every call in flight with ErrClosed, closes the connections and
// returns when nothing that the Client started is left. It may be called
// again.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.ends.close()
	c.wg.Wait()
	return nil
}

// enter begins work that Close waits for; false after Close.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.wg.Add(1)
	}
	return !c.closed
}

func (c *Client) leave() { c.wg.Done() }

// spawn runs f on a goroutine that Close waits for; f returns when c.ctx ends.
func (c *Client) spawn(f func()) bool {
	if !c.enter() {
		return false
	}
	go func() {
		defer c.leave()
		f()
	}()
	return true
}

// discover looks for other coordinators until Close.
func (c *Client) discover() {
	tick := time.NewTicker(c.cfg.DiscoverEvery)
	defer tick.Stop()
	for {
		if err := c.Discover(c.ctx); err != nil && c.ctx.Err() == nil {
			c.log.Debug("no list of coordinators", "err", err)
		}
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
	}
}

// Stats are counts since New.
type Stats struct {
	// Retries counts tries after the first of a call.
	Retries uint64
	// Hedges counts questions asked because a coordinator was silent.
	Hedges uint64
	// Redirects counts moves to a Tenure holder that a refusal named.
	Redirects uint64
	// LowerEras counts replies discarded because their era was below the highest one seen.
	LowerEras uint64
	// OrderViolations counts timestamp replies discarded because they were not
	// above an earlier one. Any is a defect of the cluster.
	OrderViolations uint64
	// OtherClusters counts calls that another cluster refused, and its answers, which are discarded.
	OtherClusters uint64
	// TsoRequests, AllocIDRequests and PublishRequests count requests sent for
	// merged callers; the Callers counts say for how many calls.
	TsoRequests, AllocIDRequests, PublishRequests uint64
	TsoCallers, AllocIDCallers, PublishCallers    uint64
	// ClaimRequests and ClaimCallers are the same of Claim.
	ClaimRequests, ClaimCallers uint64
	// StreamBreaks counts streams for timestamps, routes and publishing that ended in an error.
	StreamBreaks uint64
	// WatchResumes counts watches continued after a break, WatchRestarts those
	// that had to begin with a snapshot again.
	WatchResumes, WatchRestarts uint64
	// CacheSkipped counts regions that a route cache had no room for.
	CacheSkipped uint64
	// Era is the highest era seen.
	Era uint64
	// ClusterID is the cluster pinned; 0 before the first answer.
	ClusterID uint64
}

// counters are what Stats is read from.
type counters struct {
	retries, hedges, redirects                    atomic.Uint64
	lowerEras, orderViolations, otherClusters     atomic.Uint64
	tsoRequests, allocIDRequests, publishRequests atomic.Uint64
	tsoCallers, allocIDCallers, publishCallers    atomic.Uint64
	claimRequests, claimCallers                   atomic.Uint64
	streamBreaks, watchResumes, watchRestarts     atomic.Uint64
	cacheSkipped                                  atomic.Uint64
}

// Stats returns the counts so far.
func (c *Client) Stats() Stats {
	n := &c.count
	return Stats{
		Retries: n.retries.Load(), Hedges: n.hedges.Load(), Redirects: n.redirects.Load(),
		LowerEras: n.lowerEras.Load(), OrderViolations: n.orderViolations.Load(), OtherClusters: n.otherClusters.Load(),
		TsoRequests: n.tsoRequests.Load(), AllocIDRequests: n.allocIDRequests.Load(), PublishRequests: n.publishRequests.Load(),
		TsoCallers: n.tsoCallers.Load(), AllocIDCallers: n.allocIDCallers.Load(), PublishCallers: n.publishCallers.Load(),
		ClaimRequests: n.claimRequests.Load(), ClaimCallers: n.claimCallers.Load(),
		StreamBreaks: n.streamBreaks.Load(), WatchResumes: n.watchResumes.Load(), WatchRestarts: n.watchRestarts.Load(),
		CacheSkipped: n.cacheSkipped.Load(), Era: c.era.Load(), ClusterID: c.cluster.Load(),
	}
}
