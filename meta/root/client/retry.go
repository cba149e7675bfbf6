package client

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// verdict is what to do after an attempt.
type verdict int

const (
	answered  verdict = iota // nothing to repeat
	refused                  // final: repeating would give the same answer
	elsewhere                // another peer may answer; at once, the first round
	later                    // the same peer may answer in a while
)

// judge decides about the outcome of an attempt at p and notes what it says about
// the leader. It does not look at the caller's context.
func (c *Client) judge(p *peer, err error) verdict {
	if err == nil {
		if c.said.Load() != nil {
			c.said.Store(nil)
		}
		if c.leader.current.Load() != p.id {
			c.leader.learn(p.id)
			c.log.Info("root leader found", "peer", p.id, "address", p.address)
		}
		return answered
	}
	detail := reason.From(err)
	if detail == nil && c.cfg.TLS.Usable() != nil {
		return refused
	}
	if detail == nil {
		v := judgeCode(status.Code(err))
		if v != later {
			c.leader.failed(p.id)
			c.unreached(p)
		}
		return v
	}
	switch detail.GetReason() {
	case rootv1.Reason_REASON_NOT_LEADER:
		c.redirect(p, detail)
		return elsewhere
	case rootv1.Reason_REASON_OUTCOME_UNKNOWN, rootv1.Reason_REASON_ROOT_UNAVAILABLE:
		c.leader.failed(p.id)
		said := reason.FromGRPC(err)
		c.said.Store(&said)
		return elsewhere
	case rootv1.Reason_REASON_OVERLOADED:
		return later
	case rootv1.Reason_REASON_CLUSTER_MISMATCH:
		c.leader.failed(p.id)
	}
	return refused
}

// barred is that the own certificate has ended, where err is a connection's: no peer
// answers until there is another one.
func (c *Client) barred(err error) error {
	if reason.From(err) != nil {
		return nil
	}
	return c.cfg.TLS.Usable()
}

// judgeCode decides about a status that carries no reason of ours: it comes
// from gRPC itself, between here and the peer.
func judgeCode(code codes.Code) verdict {
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.Internal, codes.Unknown:
		return elsewhere
	case codes.ResourceExhausted:
		return later
	}
	return refused
}

// redirect follows the hint of a peer that does not lead.
func (c *Client) redirect(p *peer, detail *rootv1.ErrorDetail) {
	hint := detail.GetLeaderId()
	known := c.peers.learn(hint, detail.GetLeaderAddress())
	if known && hint != p.id {
		c.leader.learn(hint)
		return
	}
	c.leader.failed(p.id)
	if known {
		c.moved(p) // Another peer has its address by now, and says where it leads.
	}
}

// unreached has a peer that is not reached where it is listed tried where others say
// that it is, and the other way round.
func (c *Client) unreached(p *peer) (turned bool) { return !p.reached() && c.moved(p) }

func (c *Client) moved(p *peer) (turned bool) {
	to, turned := c.peers.turn(p)
	if turned {
		c.log.Warn("root peer is not reached at its address and is tried at another one that was given or heard: correct -root-peer at the next start",
			"peer", p.id, "address", p.address, "elsewhere", to)
	}
	return turned
}

// spacing spaces attempts: peers are tried without a wait until each had its turn,
// then the wait doubles from MinBackoff to MaxBackoff, with jitter.
type spacing struct {
	tries int
	wait  time.Duration
}

func (p *spacing) reset() { *p = spacing{} }

// next waits as the verdict asks and reports whether ctx still runs.
func (c *Client) next(ctx context.Context, p *spacing, v verdict) bool {
	p.tries++
	if v == elsewhere && p.tries < c.leader.count() {
		return ctx.Err() == nil
	}
	p.tries = 0
	p.wait = min(max(2*p.wait, c.cfg.MinBackoff), c.cfg.MaxBackoff)
	known := c.leader.learned()
	if v != elsewhere || c.leader.current.Load() != 0 {
		known = nil // Only news of a leader that is missing cuts the wait short.
	}
	return sleep(ctx, jitter(p.wait), known)
}

// jitter returns between half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// sleep waits for d, or until wake, and reports whether ctx still runs.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// onLeader calls the leader, wherever it is, until there is an answer, a final
// refusal, or the end of ctx. changes says that an attempt without an answer may
// have changed something.
func (c *Client) onLeader(ctx context.Context, changes bool, call func(context.Context, *peer, uint64) error) error {
	var p spacing
	sent := false
	for {
		target, err := c.peers.get(c.leader.target())
		if err != nil {
			return err
		}
		asked, err := c.try(ctx, target, call)
		sent = sent || (changes && asked && mayHaveHappened(err))
		if err != nil && reason.From(err) == nil && ctx.Err() != nil {
			return unanswered(context.Cause(ctx), sent, c.lastWords()) // Says nothing about the peer.
		}
		v := c.judge(target, err)
		if v == answered {
			return nil
		}
		if v == refused {
			if own := c.barred(err); own != nil {
				return unanswered(own, sent, nil)
			}
			return reason.FromGRPC(err)
		}
		if !c.next(ctx, &p, v) {
			return unanswered(context.Cause(ctx), sent, cmp.Or(c.lastWords(), err))
		}
	}
}

// try makes one attempt at p within AttemptTimeout; asked says that call was
// reached.
func (c *Client) try(ctx context.Context, p *peer, call func(context.Context, *peer, uint64) error) (asked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
	defer cancel()
	a := c.leader.begin(p.id, cancel)
	defer c.leader.end(a)
	a.waits()
	if err := c.identify(ctx, p); err != nil {
		return false, err
	}
	return true, call(ctx, p, c.cluster.Load())
}

// mayHaveHappened says that a failed attempt may have reached the root's log.
// gRPC reports a call that never left as Unavailable like one that was lost on
// its way, so both count.
func mayHaveHappened(err error) bool {
	if errors.Is(err, ErrClosed) {
		return false
	}
	switch detail := reason.From(err); detail.GetReason() {
	case rootv1.Reason_REASON_UNSPECIFIED:
		return err != nil && judgeCode(status.Code(err)) == elsewhere
	case rootv1.Reason_REASON_OUTCOME_UNKNOWN:
		return true
	}
	return false
}
