package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/clusterid"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
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

// sawIndex notes positions that are committed.
func (c *Client) sawIndex(tokens ...*rootv1.RootToken) {
	for _, t := range tokens {
		for old := c.index.Load(); t.GetIndex() > old && !c.index.CompareAndSwap(old, t.GetIndex()); {
			old = c.index.Load()
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
	if id == 0 || c.cluster.Load() == id || c.cluster.CompareAndSwap(0, id) {
		return nil
	}
	meant := c.cluster.Load()
	return refused(&rootv1.ErrorDetail{
		Reason: rootv1.Reason_REASON_CLUSTER_MISMATCH, ClusterId: id,
		Message: fmt.Sprintf("%s serves cluster %s, and this client is for %s", e.address, clusterid.String(id), clusterid.String(meant)),
	})
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
		c.sawIndex(d.GetCurrentRootToken(), d.GetServedRootToken())
		if status, ok := reply.(*coordinatorv1.StatusResponse); ok && status.GetTenure() != nil {
			c.tenureTTL.Store(int64(time.Duration(min(status.GetTenure().GetTtlMillis(), 3_600_000)) * time.Millisecond))
		}
	case interface{ GetToken() *rootv1.RootToken }:
		c.sawIndex(r.GetToken())
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

// nameCluster makes sure that a call can name its cluster: a client that has
// heard no answer yet asks e for its cluster first.
func (c *Client) nameCluster(ctx context.Context, e *endpoint) error {
	if c.cluster.Load() != 0 {
		return nil
	}
	// A stream's context has no deadline, and coordinators want one.
	ctx, cancel := context.WithTimeout(ctx, c.cfg.TryTimeout)
	defer cancel()
	status, err := e.rpc.Status(ctx, &coordinatorv1.StatusRequest{Brief: true})
	if err != nil {
		return err
	}
	if err := c.accept(e, status); err != nil {
		return err
	}
	if c.cluster.Load() == 0 {
		return fmt.Errorf("%w: it has not heard of its cluster yet", errUnfit)
	}
	return nil
}
