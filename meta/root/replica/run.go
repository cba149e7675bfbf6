package replica

import (
	"context"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/rpcstats"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// Run drives the peer until ctx ends or it cannot go on. When ctx ends, a
// leader hands over first, and Run returns nil. Any error is final: a
// *PoisonError, a *DivergenceError, a failed write. Run is called once.
func (r *Replica) Run(ctx context.Context) (err error) {
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	tasks := make(chan *CheckpointTask, 1)
	var wg sync.WaitGroup
	// Reverse of the start: the loop has ended, the background ends, callers
	// that nobody answered are told.
	defer r.stop()
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { r.tick(background) })
	wg.Go(func() { r.writeCheckpoints(background, tasks) })
	if err := r.loop(ctx, tasks); err != nil {
		return err
	}
	return r.handOver(tasks)
}

// loop takes Turns until ctx ends.
func (r *Replica) loop(ctx context.Context, tasks chan<- *CheckpointTask) error {
	var in Input
	for {
		more, err := r.turn(&in, tasks)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if more {
			continue
		}
		select {
		case <-ctx.Done():
		case <-r.box.wake:
		}
	}
}

// stoodStill is the number of election timeouts without a Turn after which a
// leader steps down without waiting for raft to notice. A busy machine makes
// shorter gaps.
const stoodStill = 5

// turn takes one Turn with all that waits.
func (r *Replica) turn(in *Input, tasks chan<- *CheckpointTask) (more bool, err error) {
	r.beginTurn()
	*in = r.box.take(*in)
	// After the mailbox: what is in it came before Now.
	in.Now, in.Wall = r.clock.Now(), r.clock.Wall()
	// Ticks come more often than that: the process or the machine stood still,
	// and the others have elected somebody else.
	in.Stalled = r.idleSince != 0 && in.Now.Sub(r.idleSince) > stoodStill*r.cfg.electionTimeout()
	out, err := r.core.Turn(*in)
	if err != nil {
		return false, err
	}
	if out.View != nil {
		r.publish(out.View)
	}
	if out.Checkpoint != nil {
		// One at a time: there is room.
		tasks <- out.Checkpoint
	}
	r.endTurn()
	for _, request := range out.Done {
		close(request.answered())
	}
	r.idleSince = r.clock.Now()
	return out.More, nil
}

// beginTurn and endTurn enclose everything that the loop could wait for.
func (r *Replica) beginTurn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turnBegun = r.clock.Now()
}

func (r *Replica) endTurn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turnBegun = 0
	if !isClosed(*r.stall.Load()) {
		return
	}
	if v := r.view.Load().unstalled; v != nil { // It took long, and yet not too long.
		r.publish(v)
	}
	r.stall.Store(new(make(chan struct{})))
}

// overdue implements Config.Overdue: only the loop changes turnBegun.
func (r *Replica) overdue() bool { return r.clock.Now().Sub(r.turnBegun) > r.cfg.electionTimeout() }

// judgeTurn notices a Turn that does not end: callers are told and the view says
// so, before others can have elected another leader for long. Called every tick.
func (r *Replica) judgeTurn() {
	if r.noteStall() { // Without the lock: who writes the log may stall too.
		r.cfg.Logger.Warn(standsStill, "peer", r.cfg.NodeID)
	}
}

// noteStall reports whether the Turn under way begins to be one that stalls.
func (r *Replica) noteStall() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.turnBegun == 0 || r.clock.Now().Sub(r.turnBegun) < r.cfg.electionTimeout()-r.cfg.Tick || isClosed(*r.stall.Load()) {
		return false
	}
	v := r.view.Load()
	if !r.view.CompareAndSwap(v, v.StalledSince(r.turnBegun)) {
		return false // It is about to end.
	}
	r.wakeWatchers()
	close(*r.stall.Load())
	return true
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// publish makes v the view and wakes who waits for a newer one.
func (r *Replica) publish(v *View) {
	r.view.Store(v)
	r.wakeWatchers()
}

func (r *Replica) wakeWatchers() {
	if waited := r.changed.Swap(nil); waited != nil {
		close(*waited)
	}
}

// handOver gives leadership to another peer before this one stops. It tries
// for TransferTimeout.
func (r *Replica) handOver(tasks chan<- *CheckpointTask) error {
	if r.View().Role != rootv1.RaftRole_RAFT_ROLE_LEADER || r.core.members.alone() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.TransferTimeout)
	defer cancel()
	t := NewTransfer(0)
	if r.box.request(t) != nil {
		return nil
	}
	var in Input
	for {
		more, err := r.turn(&in, tasks)
		if err != nil {
			return err
		}
		select {
		case <-t.done:
			return nil
		case <-ctx.Done():
			return nil
		default:
		}
		if more {
			continue
		}
		select {
		case <-ctx.Done():
		case <-r.box.wake:
		}
	}
}

// stop lets go of everybody who still waits.
func (r *Replica) stop() {
	r.box.close()
	close(r.stopped)
}

func (r *Replica) tick(ctx context.Context) {
	ticker := time.NewTicker(r.cfg.Tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			r.box.tick(max(1, r.cfg.ElectionTicks/2))
			r.judgeTurn()
		}
	}
}

func (r *Replica) writeCheckpoints(ctx context.Context, tasks <-chan *CheckpointTask) {
	for {
		select {
		case <-ctx.Done():
			return
		case task := <-tasks:
			r.cfg.Logger.Info("writing checkpoint", "peer", r.cfg.NodeID, "index", task.Meta.Index)
			begun := r.clock.Now()
			spread := pace{ctx: ctx}
			done := task.Write(r.log, spread.check)
			if done.Err == nil {
				r.cfg.Logger.Info("checkpoint written", "peer", r.cfg.NodeID, "index", task.Meta.Index, "took", r.clock.Now().Sub(begun))
			}
			r.box.checkpointed(done)
		}
	}
}

// timedLog measures Append.
type timedLog struct {
	Log
	clock clock.Clock
	// synced has the durable appends, one fdatasync each.
	synced rpcstats.Histogram
}

// Append implements Log.
func (l *timedLog) Append(hs *raftpb.HardState, entries []*raftpb.Entry, sync bool) error {
	start := l.clock.Now()
	err := l.Log.Append(hs, entries, sync)
	if sync {
		l.synced.Observe(l.clock.Now().Sub(start))
	}
	return err
}
