package coordinator

import (
	"cmp"
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/clock"
	rootclient "github.com/nokv/nokv/meta/root/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

const (
	// reachFresh is how long what the root peers answered is good for who asks about
	// them, reachTimeout how long they may take.
	reachFresh   = 500 * time.Millisecond
	reachTimeout = 250 * time.Millisecond
	// reachEvery is the time between looks that nobody asked for: the root client
	// learns from them of peers that are new.
	reachEvery = 30 * time.Second
)

// reachability says which root peers answer.
type reachability struct {
	ask   func(context.Context) []rootclient.PeerStatus
	clock clock.Clock
	log   hclog.Logger
	// turn is held by the one who asks the peers; the rest wait for the answer.
	turn chan struct{}
	// Owned by who holds turn.
	asked   bool
	askedAt clock.Instant
	last    []*coordinatorv1.RootEndpoint
	// warned is what was said of a peer that is not the one it should be.
	warned map[uint64]string
}

func newReachability(ask func(context.Context) []rootclient.PeerStatus, clk clock.Clock, log hclog.Logger) *reachability {
	return &reachability{ask: ask, clock: clk, log: log, turn: make(chan struct{}, 1), warned: map[uint64]string{}}
}

func (r *reachability) watch(ctx context.Context) {
	ticker := time.NewTicker(reachEvery)
	defer ticker.Stop()
	for {
		r.endpoints(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// endpoints asks the root peers, or takes an answer that is fresh. Nil: ctx ended
// before it was this caller's turn.
func (r *reachability) endpoints(ctx context.Context) []*coordinatorv1.RootEndpoint {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-r.turn }()
	if r.asked && r.clock.Now().Sub(r.askedAt) < reachFresh {
		return r.last
	}
	// Not the caller's own deadline: the answer is for others too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reachTimeout)
	defer cancel()
	r.last = nil
	for _, p := range r.ask(ctx) {
		r.last = append(r.last, &coordinatorv1.RootEndpoint{
			NodeId: p.NodeID, Address: p.Address, Reachable: p.Err == nil,
			Leader: p.Err == nil && p.Status.GetLeaderId() == p.NodeID, Problem: r.problem(p),
			DiskLow: cmp.Or(p.Status.GetNoRoom(), p.Status.GetDiskLow()),
			Channel: p.Status.GetChannel(), CertificateEndsUnixSeconds: p.Status.GetCertificateEndsUnixSeconds(),
		})
	}
	r.asked, r.askedAt = true, r.clock.Now()
	return r.last
}

// problem is what is wrong with a peer that answers: it is of another cluster, or
// another peer. It is logged when it is new.
func (r *reachability) problem(p rootclient.PeerStatus) string {
	if p.Err == nil || p.Status == nil {
		return ""
	}
	problem := p.Err.Error()
	if r.warned[p.NodeID] != problem {
		r.warned[p.NodeID] = problem
		r.log.Warn("a root peer of the list is not what it should be: correct -root-peer", "peer", p.NodeID, "address", p.Address, "err", problem)
	}
	return problem
}
