package coordinator

import (
	"context"
	"time"

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
	// turn is held by the one who asks the peers; the rest wait for the answer.
	turn chan struct{}
	// Owned by who holds turn.
	asked   bool
	askedAt clock.Instant
	last    []*coordinatorv1.RootEndpoint
}

func newReachability(ask func(context.Context) []rootclient.PeerStatus, clk clock.Clock) *reachability {
	return &reachability{ask: ask, clock: clk, turn: make(chan struct{}, 1)}
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
			Leader: p.Status != nil && p.Status.LeaderId == p.NodeID,
		})
	}
	r.asked, r.askedAt = true, r.clock.Now()
	return r.last
}
