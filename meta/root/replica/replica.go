package replica

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/internal/why"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// Replica runs a Core: it makes ticks, waits for work, tells the time, writes
// checkpoints in the background and answers callers.
type Replica struct {
	cfg   Config
	log   *timedLog
	clock clock.Clock
	core  *Core
	box   *mailbox

	view atomic.Pointer[View]
	// turned is when the last Turn ended that did not take too long, or else when Run
	// began; 0: it has not.
	turned atomic.Int64
	// changed is nil while nobody waits.
	changed atomic.Pointer[chan struct{}]
	// mu guards a change of stall, which is closed while the peer stands still.
	mu      sync.Mutex
	stall   atomic.Pointer[chan struct{}]
	stopped chan struct{}

	applied rpcstats.Histogram

	// overseer fires when no tick has put it off for about an election timeout.
	overseer *time.Timer

	// The loop's alone: turnBegun is when the Turn under way began, ticked the moment
	// up to which ticks were counted. ticker fires at armed, when the next ones are to
	// be counted at the latest; 0: it has.
	turnBegun, ticked, armed clock.Instant
	ticker                   *time.Timer
}

// New makes a replica over an open log. It reads the newest checkpoint and
// starts nothing: call Run. A zero Config.Seed is drawn from crypto/rand.
func New(cfg Config, log Log, clk clock.Clock) (*Replica, error) {
	cfg = cfg.withDefaults()
	if cfg.Seed == 0 {
		var seed [8]byte
		rand.Read(seed[:])
		cfg.Seed = binary.BigEndian.Uint64(seed[:])
	}
	st, err := LoadState(log)
	if err != nil {
		return nil, err
	}
	r := &Replica{clock: clk, box: newMailbox(clk), stopped: make(chan struct{})}
	r.log = &timedLog{Log: log, clock: clk}
	cfg.Overdue = r.overdue
	cfg.Applying = r.timeApply
	if r.core, err = NewCore(cfg, r.log, st); err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	r.cfg = cfg
	r.stall.Store(new(make(chan struct{})))
	// The first Turn may replay much: who looks meanwhile sees the log that is there,
	// and not one that was wiped.
	r.core.changed = true
	v := r.core.nextView()
	v.LeaderlessSince = clk.Now()
	r.view.Store(v)
	r.core.changed = true
	return r, nil
}

// timeApply implements Config.Applying.
func (r *Replica) timeApply() func() {
	start := r.clock.Now()
	return func() { r.applied.Observe(r.clock.Now().Sub(start)) }
}

// Latencies returns how long durable appends to the log took, and applying the
// committed entries of a Turn, since the start.
func (r *Replica) Latencies() (sync, apply rpcstats.Latency) {
	return r.log.synced.Summary(), r.applied.Summary()
}

// View returns the newest view; never nil. It is of the present: what a peer knew that
// stood still, in a Turn or between two, it does not say to be so.
func (r *Replica) View() *View {
	since, still := r.standsStill() // Before the view: a newer one takes nothing from an older one.
	v := r.view.Load()
	if still {
		return v.StalledSince(since)
	}
	return v
}

// standsStill says that no Turn has ended for about an election timeout, and since
// when. A tick comes in time for others to hear of it.
func (r *Replica) standsStill() (since clock.Instant, still bool) {
	since = clock.Instant(r.turned.Load())
	return since, since != 0 && r.clock.Now().Sub(since) >= r.stallAfter()
}

func (r *Replica) stallAfter() time.Duration { return r.cfg.electionTimeout() - r.cfg.Tick }

// Changed returns a channel that is closed when a newer View than the one of
// this moment is published. Call it before View.
func (r *Replica) Changed() <-chan struct{} {
	for {
		if c := r.changed.Load(); c != nil {
			return *c
		}
		r.changed.CompareAndSwap(nil, new(make(chan struct{})))
	}
}

// Propose commits commands and returns what became of each. Errors are
// *reason.Error: NOT_LEADER with the leader's id, OVERLOADED, INVALID_REQUEST,
// CLOCK_BOUND, ROOT_UNAVAILABLE: nothing changed; OUTCOME_UNKNOWN: nobody
// knows, also when ctx ends first.
func (r *Replica) Propose(ctx context.Context, commands []*rootv1.Command) ([]*rootv1.CommandResult, error) {
	p, err := NewProposal(commands)
	if err != nil {
		return nil, err
	}
	if err := r.call(ctx, p); err != nil {
		return nil, err
	}
	results := make([]*rootv1.CommandResult, len(p.Results))
	for i := range p.Results {
		results[i] = p.Results[i].Proto()
	}
	return results, nil
}

// ReadIndex returns a position that a linearizable read must reach; View has
// reached it. It works on every peer. ROOT_UNAVAILABLE: no quorum answered
// until ctx ended.
func (r *Replica) ReadIndex(ctx context.Context) (state.Token, error) {
	read := NewRead()
	if err := r.call(ctx, read); err != nil {
		read.Abandon()
		return state.Token{}, err
	}
	return read.Token, nil
}

// Claim asks for the next era on behalf of a coordinator, with windows to begin
// it with.
func (r *Replica) Claim(ctx context.Context, claim *rootv1.TenureClaimed, windows ...*rootv1.FirstWindow) (*rootv1.ClaimTenureResponse, error) {
	c, err := NewClaim(claim, windows...)
	if err != nil {
		return nil, err
	}
	c.Actor = principal.FromContext(ctx).Actor()
	if err := r.call(ctx, c); err != nil {
		return nil, err
	}
	return c.Response, nil
}

// Confirm says whether an era is still the active one. It writes nothing.
func (r *Replica) Confirm(ctx context.Context, request *rootv1.ConfirmTenureRequest) (*rootv1.ConfirmTenureResponse, error) {
	c := NewConfirm(request)
	if err := r.call(ctx, c); err != nil {
		c.Abandon()
		return nil, err
	}
	return c.Response, nil
}

// TransferLeadership hands leadership to peer to, 0 for the most advanced one,
// and returns who leads then.
func (r *Replica) TransferLeadership(ctx context.Context, to uint64) (uint64, error) {
	t := NewTransfer(to)
	if err := r.call(ctx, t); err != nil {
		return 0, err
	}
	return t.Leader, nil
}

// Reshape takes one step of a replacement; see NewReshape and the type Reshape.
func (r *Replica) Reshape(ctx context.Context, e *rootv1.Event, force bool) (*rootv1.CommandResult, error) {
	s, err := NewReshape(e, force)
	if err != nil {
		return nil, err
	}
	s.Actor, s.Why = principal.FromContext(ctx).Actor(), why.Of(ctx)
	if detail := state.CheckCommand(s.command()); detail != nil {
		return nil, &reason.Error{Detail: detail}
	}
	if err := r.call(ctx, s); err != nil {
		return nil, err
	}
	return s.Result.Proto(), nil
}

// whyStill is why a peer that stands still answers nothing.
const whyStill = "this peer stands still: its disk or machine stalls"

// call hands a request to the loop and waits for its answer, for the end of
// ctx, of Run, or of patience with the Turn under way.
func (r *Replica) call(ctx context.Context, request Request) error {
	stall := *r.stall.Load()
	if isClosed(stall) {
		return errUnavailable(whyStill)
	}
	if err := r.box.request(request); err != nil {
		return err
	}
	select {
	case <-request.answered():
		return request.Refusal()
	case <-ctx.Done():
		return unanswered(request, "the deadline passed")
	case <-stall:
		return unanswered(request, whyStill)
	case <-r.stopped:
	}
	select {
	case <-request.answered():
		return request.Refusal()
	default:
		return unanswered(request, "this peer stopped")
	}
}

// unanswered is the error for a request that somebody may still act upon.
func unanswered(request Request, why string) error {
	switch request.(type) {
	case *Proposal, *Claim, *Reshape:
		return errUnknown(why)
	}
	return errUnavailable(why)
}

// Deliver hands over a message of another peer. A MsgSnap is delivered after its
// checkpoint was received and verified, as Received makes it.
func (r *Replica) Deliver(m *raftpb.Message) { r.box.message(m) }

// PeerRefused says that a peer's machine refuses connections to its port.
func (r *Replica) PeerRefused(id uint64) { r.box.event(Event{Kind: PeerRefused, Peer: id}) }

// PeerUnreachable says that a message to a peer was lost.
func (r *Replica) PeerUnreachable(id uint64) { r.box.event(Event{Kind: PeerUnreachable, Peer: id}) }

// PeerStateHash says what a peer told of its state.
func (r *Replica) PeerStateHash(id, index, hash uint64) {
	r.box.event(Event{Kind: PeerStateHash, Peer: id, Index: index, Hash: hash})
}

// SnapshotDelivered says how sending a checkpoint to a peer ended. Every
// MsgSnap must come to that, or the peer is sent nothing more.
func (r *Replica) SnapshotDelivered(id uint64, ok bool) {
	kind := SnapshotDelivered
	if !ok {
		kind = SnapshotFailed
	}
	r.box.event(Event{Kind: kind, Peer: id})
}
