package server

import (
	"context"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc/status"
)

// invariants follows the log by the Witness's rules. What it found it goes on to say
// until the process ends.
type invariants struct {
	views Views
	clock clock.Clock
	// leader is whom callers are told to lead a region at a moment: one for a whole batch or
	// walk, because the system's clock costs more than the look.
	leader func(*state.State, *state.Region, clock.Instant) state.MemberID

	mu sync.Mutex // guards what follows
	// rules have judged what led to at.
	rules *witness.Invariants

	// turn is held by the one who walks; the rest wait for the answer.
	turn chan struct{}
	// Owned by who holds turn. walked is when the last walk ended; 0: there was none.
	walked clock.Instant
	led    uint64
}

// walkEvery is how long the answer of a walk over all regions is good for, from its end: one that takes
// longer is not made over and over again.
const walkEvery = time.Second

func newInvariants(views Views, c clock.Clock, leader func(*state.State, *state.Region, clock.Instant) state.MemberID) *invariants {
	return &invariants{views: views, clock: c, leader: leader, rules: witness.NewInvariants(views.View().State), turn: make(chan struct{}, 1)}
}

// run follows the log until the context ends.
func (n *invariants) run(ctx context.Context) {
	reader := n.jump()
	for {
		batches, err := reader.NextAll(ctx, frameBytes)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // the view took a leap
			reader = n.jump()
			continue
		}
		for i := range batches {
			if batches[i].Snapshot {
				reader = n.jump()
				break
			}
			n.take(&batches[i])
		}
	}
}

// jump goes on behind the newest view: what led there is not judged.
func (n *invariants) jump() *rootview.Reader {
	view := n.views.View()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules.Begin(view.State)
	return n.views.Subscribe(view.Token)
}

// take judges a batch, and whom callers are told to lead the regions that it changed.
func (n *invariants) take(b *rootview.Batch) {
	st, now := n.views.View().State, n.clock.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	b.Entries(n.rules.Entry)
	for i := range b.Changes {
		if c := &b.Changes[i]; c.Kind == state.ChangeRegion && !c.Removed {
			if r := st.Region(c.Region.ID); r != nil {
				if id := n.leader(st, r, now); id != "" {
					n.rules.Leads(b.Token, st, r, id)
				}
			}
		}
	}
}

// found adds what was found so far to what a state counts.
func (n *invariants) found(p *witness.Placed) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules.Found(p)
}

// walk is found with a look at each region of the state besides, unless there was one since
// walkEvery before the caller came. It fails only when the caller's own time is over.
func (n *invariants) walk(ctx context.Context, st *state.State, came clock.Instant, p *witness.Placed) error {
	select {
	case n.turn <- struct{}{}:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	defer func() { <-n.turn }()
	if n.walked == 0 || came.Sub(n.walked) >= walkEvery {
		now := n.clock.Now()
		led, found := witness.Walk(st, func(r *state.Region) state.MemberID { return n.leader(st, r, now) })
		n.walked, n.led = n.clock.Now(), led
		n.mu.Lock()
		n.rules.Keep(found)
		n.mu.Unlock()
	}
	n.found(p)
	p.Walked, p.Led = true, n.led
	return nil
}

// violations are those that the process found.
func (n *invariants) violations() witness.Violations {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rules.Violations()
}

// InvariantViolations are what broke I1 to I5 since the process started.
func (s *Server) InvariantViolations() witness.Violations { return s.invariants.violations() }

func placedProto(p *witness.Placed) *coordinatorv1.Placed {
	return &coordinatorv1.Placed{
		Assigned: p.Assigned, Orphaned: p.Orphaned, Led: p.Led, Since: p.Since.Proto(),
		Grants: p.Judged.Grants, Moved: p.Judged.Moved, Asked: p.Judged.Asked, Violations: p.Violations[:],
	}
}
