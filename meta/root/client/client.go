// Package client talks to the metadata root: it finds the leader and follows it,
// merges what many callers ask at the same moment, and retries what may be
// retried.
//
// It owns connections and requests that have no answer yet; it remembers nothing
// that matters. It promises:
//
//  1. A command is answered with the root's own judgement or with an error; a
//     rejected result is handed over as it is. Commands are sent again after a
//     lost answer, which the root recognises.
//  2. An error that wraps REASON_OUTCOME_UNKNOWN means that the command may have
//     been applied or may still be. Every other error means that it was not.
//  3. ReadIndex and Confirm answer from a request that was sent after the call
//     began: a caller never shares a request that was already on its way.
//  4. Every call ends with its context. Every queue has a limit; behind it calls
//     fail at once with REASON_OVERLOADED.
//  5. The first answer pins the cluster id; an answer or a refusal from another
//     cluster is REASON_CLUSTER_MISMATCH.
//  6. When the own certificate has ended, calls without an answer fail at once and say so.
//  7. No lock is held while a message is sent or awaited.
//
// How to apply what a Tail brings is left to coordinator/rootview; when a
// confirmation is good is left to coordinator/tenure.
package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// ErrClosed says that the client was closed, or that its Run has ended.
var ErrClosed = errors.New("root client is closed")

// Client is a client of the whole metadata root. Make it with New, start it with
// Run; its methods may be called from any goroutine, also before Run, and then
// wait for it.
type Client struct {
	cfg     Config
	log     hclog.Logger
	cluster atomic.Uint64 // pinned cluster id; 0: not yet

	peers    *peerTable
	leader   *leaderTracker
	propose  *proposer
	reads    *reads
	confirms confirms
	tails    *tailPicker
	said     atomic.Pointer[error] // by a peer that cannot answer; nil: the last one answered

	closeOnce sync.Once
}

// New checks the configuration and returns a client that does nothing yet.
func New(cfg Config) (*Client, error) {
	cfg.setDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, log: cfg.Logger}
	c.cluster.Store(cfg.ClusterID)
	c.peers = newPeerTable(cfg)
	c.leader = newLeaderTracker(c.peers.ids())
	c.propose = newProposer(c)
	c.reads = newReads(cfg.MaxWaiting, c.readIndexOnce, c.lastWords)
	c.confirms.c = c
	c.tails = newTailPicker()
	return c, nil
}

// Run sends what callers queue until ctx ends. It then fails what is left with
// ErrClosed, closes every connection, and returns nil.
func (c *Client) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	workers.Go(func() { c.propose.run(ctx) })
	for range c.cfg.PipelinedReads {
		workers.Go(func() { c.reads.run(ctx) })
	}
	workers.Wait()
	c.Close()
	return nil
}

// Close ends every call with ErrClosed and closes every connection. Run does
// the same when its context ends; Close is for a client that never ran.
func (c *Client) Close() {
	c.closeOnce.Do(func() {
		c.propose.close()
		c.reads.close()
		c.confirms.close()
		c.peers.close()
	})
}

// ClusterID is the cluster that the client is pinned to; 0 before the first
// answer.
func (c *Client) ClusterID() uint64 { return c.cluster.Load() }

// Propose has commands judged by the root and returns one result each, in order.
// Each is judged on its own; they may be judged at different positions.
// Errors: promise 2 and 4 of the package, REASON_INVALID_REQUEST when the
// commands do not fit a request.
func (c *Client) Propose(ctx context.Context, commands ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	return c.propose.propose(ctx, commands)
}

// ReadIndex returns a position that a linearizable read must reach: every
// command that was acknowledged before the call is at or below it.
func (c *Client) ReadIndex(ctx context.Context) (state.Token, error) {
	return c.reads.do(ctx)
}

func (c *Client) readIndexOnce(ctx context.Context) (token state.Token, err error) {
	err = c.onLeader(ctx, false, func(ctx context.Context, p *peer, cluster uint64) error {
		resp, err := p.root.ReadIndex(ctx, &rootv1.ReadIndexRequest{ClusterId: cluster})
		token = state.TokenFromProto(resp.GetToken())
		return err
	})
	return token, err
}

// Confirm asks the root leader whether an era is the active one, each call with
// a request of its own. ClusterId of the request is filled in.
func (c *Client) Confirm(ctx context.Context, req *rootv1.ConfirmTenureRequest) (out *rootv1.ConfirmTenureResponse, err error) {
	if out := c.confirms.ask(ctx, req); out != nil {
		return out, nil
	}
	err = c.onLeader(ctx, false, func(ctx context.Context, p *peer, cluster uint64) error {
		out, err = p.root.ConfirmTenure(ctx, confirmRequest(req, cluster))
		return err
	})
	return out, err
}

// Claim proposes to begin an era. The answer is the root's: applied, rejected,
// or rejected with the time to wait because the predecessor may be active. The
// windows are rooted with the era, all or none: the result's events say which.
func (c *Client) Claim(ctx context.Context, claim *rootv1.TenureClaimed, windows ...*rootv1.FirstWindow) (out *rootv1.ClaimTenureResponse, err error) {
	err = c.onLeader(ctx, true, func(ctx context.Context, p *peer, cluster uint64) error {
		out, err = p.root.ClaimTenure(ctx, &rootv1.ClaimTenureRequest{Claim: claim, ClusterId: cluster, Windows: windows})
		return err
	})
	return out, err
}

// Transfer asks the leader to hand over to a node, 0 for the most advanced one,
// and returns the leader afterwards.
func (c *Client) Transfer(ctx context.Context, node uint64) (leader uint64, err error) {
	err = c.onLeader(ctx, true, func(ctx context.Context, p *peer, cluster uint64) error {
		resp, err := p.root.TransferLeadership(ctx, &rootv1.TransferLeadershipRequest{NodeId: node, ClusterId: cluster})
		leader = resp.GetLeaderId()
		return err
	})
	if err == nil && leader != 0 {
		c.leader.learn(leader)
	}
	return leader, err
}

// Replace takes the next step of the replacement of a root peer, and tells how far
// it is; the caller asks again until it is done or cancelled. A refusal with
// retry_after_millis may pass by itself. ClusterId of the request is filled in.
func (c *Client) Replace(ctx context.Context, req *rootv1.ReplacePeerRequest) (out *rootv1.ReplacePeerResponse, err error) {
	err = c.onLeader(ctx, true, func(ctx context.Context, p *peer, cluster uint64) error {
		out, err = p.root.ReplacePeer(ctx, &rootv1.ReplacePeerRequest{
			ClusterId: cluster, Lost: req.GetLost(), With: req.GetWith(), Force: req.GetForce(), Cancel: req.GetCancel(),
		})
		return err
	})
	return out, err
}

// Raise raises the feature level to what every process understands, or says who
// does not. ClusterId of the request is filled in.
func (c *Client) Raise(ctx context.Context, req *rootv1.RaiseFeatureLevelRequest) (out *rootv1.RaiseFeatureLevelResponse, err error) {
	err = c.onLeader(ctx, true, func(ctx context.Context, p *peer, cluster uint64) error {
		out, err = p.root.RaiseFeatureLevel(ctx, &rootv1.RaiseFeatureLevelRequest{ClusterId: cluster, To: req.GetTo(), DryRun: req.GetDryRun()})
		return err
	})
	return out, err
}

// pin remembers the first cluster id that is seen and refuses any other one.
func (c *Client) pin(p *peer, cluster uint64) error {
	if cluster == 0 || c.cluster.CompareAndSwap(0, cluster) {
		return nil
	}
	if pinned := c.cluster.Load(); pinned != cluster {
		return reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH,
			"root peer %d at %s belongs to cluster %016x, this client to cluster %016x", p.id, p.address, cluster, pinned)
	}
	return nil
}

// identify pins the cluster by asking p, when nothing is pinned yet.
func (c *Client) identify(ctx context.Context, p *peer) error {
	if c.cluster.Load() != 0 {
		return nil
	}
	// The context may be a stream's, without a deadline; peers want one.
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
	defer cancel()
	status, err := p.root.Status(ctx, &rootv1.StatusRequest{})
	if err != nil {
		return err
	}
	if status.GetClusterId() == 0 {
		return reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "root peer %d at %s has no cluster yet", p.id, p.address)
	}
	return c.pin(p, status.GetClusterId())
}

// lastWords is what a peer that could not answer said lately, for callers whose time is
// over while another one is asked; nil: nothing.
func (c *Client) lastWords() error {
	if said := c.said.Load(); said != nil {
		return *said
	}
	return nil
}

// unanswered is the error of a call whose context ended, or whose client closed,
// before there was an answer.
func unanswered(ended error, sent bool, last error) error {
	r, what := rootv1.Reason_REASON_ROOT_UNAVAILABLE, "no root leader answered"
	if sent {
		r, what = rootv1.Reason_REASON_OUTCOME_UNKNOWN, "sent to the root, not answered"
	}
	if last != nil {
		what = fmt.Sprintf("%s; last: %v", what, last)
	}
	return fmt.Errorf("%w: %w", reason.New(r, "%s", what), ended)
}
