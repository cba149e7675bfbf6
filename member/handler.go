package member

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/nokv/nokv/internal/held"
	"github.com/nokv/nokv/rooted"
)

// Handler is the application. What it may rely on is promises 3 and 4 of the package.
// A context ends after Config.HandlerTimeout, or when the call is not wanted any more.
type Handler interface {
	// Acquire gets ready to serve a region from its Frontier on. After an error nothing
	// of it is left, and it is asked again. Behind a Release for a move that was given up
	// it comes at the same epoch as before.
	Acquire(ctx context.Context, r Region) error
	// Release lets go of a region: every request that was let in has returned. What it
	// returns, MaxFrontierBytes at most, is exactly how far the region got; the next owner
	// starts there. After an error the region is held as before. Its context ends also when
	// the move was given up: what it returns then counts all the same.
	Release(ctx context.Context, r Region) (frontier []byte, err error)
}

// Evicter is a Handler that is told when a region was given to another member without
// being released: after a verdict that this process has failed, or by an operator.
// Requests may still run, and find their state gone: they look, and end with an error. Without it Release is called, behind the last of them, and what
// that returns is of no use to anybody.
type Evicter interface {
	Evict(ctx context.Context, r Region) error
}

// Preparer is a Handler that gets ready for a region while its owner still serves it.
type Preparer interface {
	// Prepare fetches what can be fetched from the owner. Acquire follows, or Abandon.
	Prepare(ctx context.Context, r Region, from Peer) error
	// Abandon drops what was prepared: the move was given up.
	Abandon(ctx context.Context, r Region) error
}

// Merger is a Handler that can make one region of two neighbours. Without it they are merged
// only if they got equally far.
type Merger interface {
	// Merge is asked when both have been released, at their Frontier. What it returns is
	// how far both together got; Acquire of the whole follows, from there. If the merge is
	// given up, each is acquired again from its own.
	Merge(ctx context.Context, left, right Region) (frontier []byte, err error)
}

// Checkpointer is a Handler that can say how far it got while it serves.
type Checkpointer interface {
	// Checkpoint makes durable what there is, and returns up to where.
	Checkpoint(ctx context.Context, r Region) (frontier []byte, err error)
}

// IdleReleaser is a Handler that knows whether anybody uses a region.
type IdleReleaser interface {
	// Idle says whether the region may be released; Release follows then. Without it a
	// region may be that no Do used for the time that the keyspace says.
	Idle(ctx context.Context, r Region) (bool, error)
}

// LeaderTransferrer is a Handler whose regions are replication groups of their own.
type LeaderTransferrer interface {
	// TransferLeader lets a member lead the region's group.
	TransferLeader(ctx context.Context, r Region, to rooted.MemberID) error
}

// Stopper is a Handler that is told when nobody confirms this process, so that it
// serves nothing of a keyspace, and keeps what it has.
type Stopper interface {
	Stopped(ctx context.Context, keyspace string)
	Resumed(ctx context.Context, keyspace string)
}

// task is a call to the Handler that is under way.
type task struct {
	cancel context.CancelFunc
}

// start makes a call. The caller holds m.mu.
func (m *Member) startLocked(h Handler, call held.Call) {
	if call.Kind == held.Cancel {
		if t := m.tasks[call.ID]; t != nil {
			t.cancel()
		}
		return
	}
	ctx, cancel := context.WithTimeout(m.handling, m.cfg.HandlerTimeout)
	t := &task{cancel: cancel}
	m.tasks[call.ID] = t
	core := m.core
	late := time.AfterFunc(m.cfg.HandlerTimeout, func() { m.overdue(core, call) })
	m.running.Add(1)
	go func() {
		defer m.running.Done()
		res := m.call(ctx, h, call)
		late.Stop()
		cancel()
		m.mu.Lock()
		if m.tasks[call.ID] == t { // it is of the incarnation under way
			delete(m.tasks, call.ID)
		}
		why := core.Done(call.ID, res, m.cfg.clock.Now())
		m.mu.Unlock()
		if why != "" {
			m.failing.Warn(m.log, call.Kind.String()+" failed", "a call to the application failed", "call", call.Kind.String(), "region", regionID(call), "err", why)
		}
		m.kick()
	}()
}

func regionID(call held.Call) rooted.RegionID {
	if call.Region == nil {
		return 0
	}
	return call.Region.ID
}

// overdue reports a call that does not return, and lets others have its worker.
func (m *Member) overdue(core *held.Core, call held.Call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !core.Overdue(call.ID, fmt.Sprintf("%s has not returned for %v", call.Kind, m.cfg.HandlerTimeout)) {
		return
	}
	m.failing.Warn(m.log, call.Kind.String()+" is late", "a call to the application does not return", "call", call.Kind.String(), "region", regionID(call))
	m.kick()
}

var (
	errNoCheckpoints = errors.New("the application makes no checkpoints")
	errNoMerges      = errors.New("the application cannot merge regions that got differently far")
	errNoLeaders     = errors.New("the application has no leaders to transfer")
)

// call asks the application.
func (m *Member) call(ctx context.Context, h Handler, c held.Call) (res held.Result) {
	defer func() {
		if p := recover(); p != nil {
			res = held.Result{Err: fmt.Sprintf("%s panicked: %v", c.Kind, p)}
			m.log.Error("the application panicked", "call", c.Kind.String(), "region", regionID(c), "err", p, "stack", string(debug.Stack()))
		}
	}()
	if m.cfg.Killed != nil && m.cfg.Killed() {
		return held.Result{}
	}
	var r Region
	if c.Region != nil {
		r = regionOf(c.Region, c.Keyspace, nil)
	}
	var frontier []byte
	var err error
	switch c.Kind {
	case held.Acquire:
		err = h.Acquire(ctx, r)
	case held.Release:
		frontier, err = h.Release(ctx, r)
	case held.Evict:
		if e, ok := h.(Evicter); ok {
			err = e.Evict(ctx, r)
		} else {
			_, err = h.Release(ctx, r)
		}
	case held.Merge:
		switch j, ok := h.(Merger); {
		case ok:
			frontier, err = j.Merge(ctx, r, regionOf(c.Right, c.Keyspace, nil))
		case r.Frontier != c.Right.Frontier:
			err = errNoMerges
		default:
			frontier = []byte(r.Frontier)
		}
	case held.Prepare:
		if p, ok := h.(Preparer); ok {
			err = p.Prepare(ctx, r, Peer{ID: c.Peer.Member, Incarnation: c.Peer.Incarnation, Address: c.Peer.Address, Epoch: c.Peer.Epoch})
		}
	case held.Abandon:
		if p, ok := h.(Preparer); ok {
			err = p.Abandon(ctx, r)
		}
	case held.Checkpoint:
		if k, ok := h.(Checkpointer); ok {
			frontier, err = k.Checkpoint(ctx, r)
		} else {
			err = errNoCheckpoints
		}
	case held.Idle:
		if i, ok := h.(IdleReleaser); ok {
			res.Idle, err = i.Idle(ctx, r)
		} else {
			res.Idle = c.Keyspace.Idle > 0 // by what Do has seen
		}
	case held.TransferLeader:
		if l, ok := h.(LeaderTransferrer); ok {
			err = l.TransferLeader(ctx, r, c.Peer.Member)
		} else {
			err = errNoLeaders
		}
	case held.Stop:
		if s, ok := h.(Stopper); ok {
			s.Stopped(ctx, c.Keyspace.Name)
		}
	case held.Resume:
		if s, ok := h.(Stopper); ok {
			s.Resumed(ctx, c.Keyspace.Name)
		}
	}
	if err != nil {
		text := err.Error()
		if text == "" {
			text = "it failed without a word"
		}
		return held.Result{Err: text}
	}
	res.Frontier = string(frontier)
	return res
}
