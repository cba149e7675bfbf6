package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// method is a unary call of the service.
type method[Q, R any] func(coordinatorv1.CoordinatorClient, context.Context, *Q, ...grpc.CallOption) (*R, error)

// operation is what the retry rules must know of a call.
type operation struct {
	name string
	// authority: only the Tenure holder answers.
	authority bool
	// towardsHolder: any coordinator answers, the holder best.
	towardsHolder bool
	// changes: the call changes something, so it must name its cluster.
	changes bool
	// seen is where what coordinators said last is left for callers that wait
	// for each other; nil: nowhere.
	seen *atomic.Pointer[Error]
}

// do makes a unary call, moving from coordinator to coordinator until one
// helps or the context ends.
func do[Q, R any](ctx context.Context, c *Client, op operation, req *Q, m method[Q, R]) (*R, error) {
	if err := sendable(op.name, req); err != nil {
		return nil, err
	}
	return doAfter(ctx, c, op, errElsewhere{}, req, m)
}

// doAfter is do for a request that is sendable, when a coordinator may have said
// something already.
func doAfter[Q, R any](ctx context.Context, c *Client, op operation, before errElsewhere, req *Q, m method[Q, R]) (*R, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var w walk
	w.reset(c, op)
	if before.by != nil {
		if err := w.failed(ctx, before.by, before.said); err != nil {
			return nil, err
		}
	}
	for {
		if cause := w.over(ctx); cause != nil {
			return nil, w.trail.fail(op.name, cause)
		}
		e := w.next()
		reply, by, err := hedged(ctx, c, op, &w, e, req, m)
		if err == nil {
			w.succeeded(by)
			if !op.changes {
				c.hedges.earn()
			}
			return reply, nil
		}
		if err := w.failed(ctx, by, err); err != nil {
			return nil, err
		}
	}
}

// bound gives a context its deadline.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.DefaultTimeout)
}

// once is one try at one coordinator.
func once[Q, R any](ctx context.Context, c *Client, op operation, e *endpoint, req *Q, m method[Q, R]) (*R, error) {
	if op.changes || op.authority {
		if err := c.nameCluster(ctx, e); err != nil {
			return nil, err
		}
	}
	reply, err := m(e.rpc, ctx, req)
	if err != nil {
		return nil, err
	}
	if err := c.accept(e, reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// change makes a unary call that changes something. ask makes its request with
// the identity by which every repetition is recognised. When the root has
// forgotten too much to tell whether the command is a repetition, and it was sent
// only once, it is asked for again under a new identity.
func change[Q, R any](ctx context.Context, c *Client, name string, ask func(*rootv1.CommandIdentity) *Q, m method[Q, R]) (*R, error) {
	if err := sendable(name, ask(nil)); err != nil {
		return nil, err
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	if err := c.learnCluster(ctx, name); err != nil {
		return nil, err
	}
	for {
		var open atomic.Int64 // tries that may have arrived and were not judged
		once := func(rpc coordinatorv1.CoordinatorClient, ctx context.Context, req *Q, opts ...grpc.CallOption) (*R, error) {
			open.Add(1)
			reply, err := m(rpc, ctx, req, opts...)
			if judged(err) {
				open.Add(-1)
			}
			return reply, err
		}
		req := ask(c.identities.Next(c.index.Load()))
		reply, err := doAfter(ctx, c, operation{name: name, changes: true}, errElsewhere{}, req, once)
		if !forgotten(err) || open.Load() > 0 {
			return reply, err
		}
	}
}

// learnCluster asks for the cluster, and how far its log is, when no answer has
// told yet: the identity of the first change needs both.
func (c *Client) learnCluster(ctx context.Context, name string) error {
	if c.cluster.Load() != 0 && c.index.Load() != 0 {
		return nil
	}
	_, err := do(ctx, c, operation{name: name}, &coordinatorv1.StatusRequest{Brief: true}, coordinatorv1.CoordinatorClient.Status)
	return err
}

// judged says whether a try's error tells that the try did nothing.
func judged(err error) bool {
	d := reason.From(err)
	return d != nil && (d.GetReason() != rootv1.Reason_REASON_OUTCOME_UNKNOWN || tooOld(d))
}

// tooOld says whether the root refused a command because it has forgotten
// commands that came after it was first sent. Any other unknown outcome names no
// position.
func tooOld(d *rootv1.ErrorDetail) bool {
	return d.GetReason() == rootv1.Reason_REASON_OUTCOME_UNKNOWN && d.GetCurrentToken() != nil
}

// forgotten is tooOld for the error of a call.
func forgotten(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Cause == errRefused && tooOld(e.Detail)
}

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
	meant := c.cluster.Load()
	if id == 0 || meant == id || meant == 0 && c.cluster.CompareAndSwap(0, id) {
		return nil
	}
	if meant = c.cluster.Load(); meant == id { // another answer was first
		return nil
	}
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
