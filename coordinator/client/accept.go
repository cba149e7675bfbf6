package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
)

// errUnfit is an answer that is not believed; it is asked for again elsewhere.
var errUnfit = errors.New("unfit answer")

// Era returns the highest era seen in any reply; 0 before the first.
func (c *Client) Era() rooted.Era { return rooted.Era(c.era.Load()) }

// ClusterID returns the cluster that this client talks to; 0 before the first answer.
func (c *Client) ClusterID() uint64 { return c.cluster.Load() }

// sawEra raises the floor.
func (c *Client) sawEra(era uint64) {
	for {
		old := c.era.Load()
		if era <= old || c.era.CompareAndSwap(old, era) {
			return
		}
	}
}

// checkEra is Silence: what an era below the floor has made is not used.
func (c *Client) checkEra(era uint64) error {
	c.sawEra(era)
	if floor := c.era.Load(); era < floor {
		c.count.lowerEras.Add(1)
		return fmt.Errorf("%w: era %d is over, %d was seen", errUnfit, era, floor)
	}
	return nil
}

// checkCluster pins the first cluster that answers and refuses others.
func (c *Client) checkCluster(e *endpoint, id uint64) error {
	if id == 0 {
		return nil
	}
	if c.cluster.Load() != id && !c.cluster.CompareAndSwap(0, id) {
		c.count.otherClusters.Add(1)
		e.checked.Store(false)
		return fmt.Errorf("%w: cluster %016x, and this client is for %016x", errUnfit, id, c.cluster.Load())
	}
	e.checked.Store(true)
	return nil
}

// accept judges a reply by what it says about itself.
func (c *Client) accept(e *endpoint, reply any) error {
	switch r := reply.(type) {
	case *coordinatorv1.StoreHeartbeatResponse:
		c.sawEra(r.GetEra())
	case interface {
		GetDisclosure() *coordinatorv1.Disclosure
	}:
		d := r.GetDisclosure()
		if err := c.checkCluster(e, d.GetClusterId()); err != nil {
			return err
		}
		c.sawEra(d.GetEra())
	}
	return nil
}

// acceptRun judges ids and timestamps: of this cluster, and of no era that is over.
func (c *Client) acceptRun(e *endpoint, r *runReply) error {
	if r.cluster == 0 {
		return fmt.Errorf("%w: it names no cluster", errUnfit)
	}
	if err := c.checkCluster(e, r.cluster); err != nil {
		return err
	}
	if err := c.checkEra(r.era); err != nil {
		return err
	}
	e.era.Store(r.era)
	return nil
}

// check asks e for its cluster before anything is asked of it whose reply
// does not name the cluster. It costs a round trip once, and again after e
// was unreachable.
func (c *Client) check(ctx context.Context, e *endpoint) error {
	if e.checked.Load() {
		return nil
	}
	// A stream's context has no deadline, and coordinators want one.
	ctx, cancel := context.WithTimeout(ctx, c.cfg.TryTimeout)
	defer cancel()
	status, err := e.rpc.Status(ctx, &coordinatorv1.StatusRequest{})
	if err != nil {
		return err
	}
	return c.checkStatus(e, status)
}

// checkStatus checks of which cluster e is, and learns the Tenure's ttl.
func (c *Client) checkStatus(e *endpoint, status *coordinatorv1.StatusResponse) error {
	id := status.GetCluster().GetClusterId()
	if id == 0 {
		id = status.GetDisclosure().GetClusterId()
	}
	if t := status.GetTenure(); t != nil {
		c.tenureTTL.Store(int64(time.Duration(min(t.GetTtlMillis(), 3_600_000)) * time.Millisecond))
	}
	return c.checkCluster(e, id)
}
