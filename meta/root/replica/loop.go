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
	r.ticked, r.ticker = r.clock.Now(), time.NewTimer(r.cfg.Tick)
	defer r.ticker.Stop()
	r.overseer = time.NewTimer(r.cfg.electionTimeout())
	defer r.overseer.Stop()
	wg.Go(func() { r.oversee(background) })
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
		if !more {
			r.await(ctx)
		}
	}
}

// await waits until there is something to take, ticks are due, or ctx ends.
func (r *Replica) await(ctx context.Context) {
	if due := r.ticked.Add(time.Duration(r.core.Patience()) * r.cfg.Tick); due != r.armed {
		r.armed = due
		r.ticker.Reset(max(0, due.Sub(clock.Instant(r.turned.Load()))))
	}
	select {
	case <-ctx.Done():
	case <-r.box.wake:
	case <-r.ticker.C:
		r.armed = 0
	}
}

// tick counts the ticks since the last ones. No more than half an election timeout:
// a loop that was late must not take the time it was away for silence of the
// others, whose messages wait.
func (r *Replica) tick(now clock.Instant) int {
	n := max(0, int(now.Sub(r.ticked)/r.cfg.Tick))
	if n > 0 {
		r.ticked = r.ticked.Add(time.Duration(n) * r.cfg.Tick)
		r.overseer.Reset(r.stallAfter())
	}
	return min(n, max(1, r.cfg.ElectionTicks/2))
}

// turn takes one Turn with all that waits.
func (r *Replica) turn(in *Input, tasks chan<- *CheckpointTask) (more bool, err error) {
	r.turnBegun = r.clock.Now()
	*in = r.box.take(*in)
	// After the mailbox: what is in it came before Now.
	in.Now, in.Wall = r.clock.Now(), r.clock.Wall()
	if since := in.MessagesSince; since != 0 {
		in.TicksBefore = r.tick(since)
	}
	in.Ticks = r.tick(in.Now)
	out, err := r.core.Turn(*in)
	if err != nil {
		return false, err
	}
	if out.Checkpoint != nil {
		// One at a time: there is room.
		tasks <- out.Checkpoint
	}
	now := r.clock.Now()
	late := r.overdueAt(now)
	r.endTurn(out.View, now, late)
	for _, request := range out.Done {
		close(request.answered())
	}
	return out.More || late, nil
}

// endTurn publishes the view of a Turn that has ended now, if it has one. The Core
// looks at the time before it does the last things of a Turn: when one of those
// took too long, its view is of before, and nobody may go by it until the next
// Turn, which follows at once. What stands still behind now is noticed by View.
func (r *Replica) endTurn(v *View, now clock.Instant, late bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, still := r.standsStill()
	noted := isClosed(*r.stall.Load())
	if v != nil {
		r.view.Store(v)
	}
	if !late { // Behind the view: nobody sees an older one as of now.
		r.turned.Store(int64(now))
	}
	if v != nil || still || noted {
		r.wakeWatchers()
	}
	switch {
	case late && !noted:
		close(*r.stall.Load())
	case !late && noted:
		r.stall.Store(new(make(chan struct{})))
	}
}

// overdue implements Config.Overdue.
func (r *Replica) overdue() bool { return r.overdueAt(r.clock.Now()) }

func (r *Replica) overdueAt(now clock.Instant) bool {
	return now.Sub(r.turnBegun) > r.cfg.electionTimeout()
}

// oversee notices when no Turn ends.
func (r *Replica) oversee(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.overseer.C:
			r.noteStill()
		}
	}
}

// noteStill notices a peer that stands still: callers are told and watchers look
// again, before others can have elected another leader for long. When it moves
// again ticks put the next look off.
func (r *Replica) noteStill() {
	r.mu.Lock()
	since, still := r.standsStill()
	first := still && !isClosed(*r.stall.Load())
	if first {
		close(*r.stall.Load())
		r.wakeWatchers()
	}
	r.mu.Unlock()
	if first { // Without the lock: who writes the log may stall too.
		r.cfg.Logger.Warn(whyStill, "peer", r.cfg.NodeID)
	}
	if !still {
		r.overseer.Reset(max(r.cfg.Tick, since.Add(r.stallAfter()).Sub(r.clock.Now())))
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// wakeWatchers wakes who waits for a newer view.
func (r *Replica) wakeWatchers() {
	if waited := r.changed.Swap(nil); waited != nil {
		close(*waited)
	}
}

// transferTimeout bounds the leadership transfer when a Replica stops.
const transferTimeout = 500 * time.Millisecond

// handOver gives leadership to another peer before this one stops.
func (r *Replica) handOver(tasks chan<- *CheckpointTask) error {
	if r.View().Role != rootv1.RaftRole_RAFT_ROLE_LEADER || r.core.members.alone() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), transferTimeout)
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
		if !more {
			r.await(ctx)
		}
	}
}

// stop lets go of everybody who still waits.
func (r *Replica) stop() {
	r.box.close()
	close(r.stopped)
}

func (r *Replica) writeCheckpoints(ctx context.Context, tasks <-chan *CheckpointTask) {
	for {
		select {
		case <-ctx.Done():
			return
		case task := <-tasks:
			r.cfg.Logger.Info("writing checkpoint", "peer", r.cfg.NodeID, "index", task.Meta.Index)
			begun := r.clock.Now()
			limit := throttle{ctx: ctx}
			done := task.Write(r.log, limit.wait)
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

// mailbox collects what happens between Turns. Putting never blocks.
type mailbox struct {
	// wake holds a token when there is something to take.
	wake chan struct{}

	// mu guards the rest.
	mu     sync.Mutex
	closed bool
	in     Input
	bytes  int
	clock  clock.Clock
}

const (
	// maxMailboxRequests and maxMailboxMessages bound what waits for the next
	// Turn. Raft repeats messages that are dropped.
	maxMailboxRequests = 65_536
	maxMailboxMessages = 8192
	maxMailboxBytes    = 64 << 20
	maxMailboxEvents   = 1024
)

func newMailbox(clk clock.Clock) *mailbox { return &mailbox{wake: make(chan struct{}, 1), clock: clk} }

func (b *mailbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// request puts a request: REASON_OVERLOADED when too many wait,
// REASON_ROOT_UNAVAILABLE when nobody will take it.
func (b *mailbox) request(r Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errUnavailable("this peer has stopped")
	}
	if len(b.in.Requests) >= maxMailboxRequests {
		return errOverloaded("requests", maxMailboxRequests)
	}
	b.in.Requests = append(b.in.Requests, r)
	if len(b.in.Requests) == 1 {
		b.signal()
	}
	return nil
}

func (b *mailbox) message(m *raftpb.Message) {
	size := payload(m.GetEntries())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.in.Messages) >= maxMailboxMessages || (b.bytes > 0 && b.bytes+size > maxMailboxBytes) {
		return
	}
	b.bytes += size
	b.in.Messages = append(b.in.Messages, m)
	if len(b.in.Messages) == 1 {
		b.in.MessagesSince = b.clock.Now()
		b.signal()
	}
}

func (b *mailbox) event(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Raft waits for the end of every checkpoint it had sent.
	must := e.Kind == SnapshotDelivered || e.Kind == SnapshotFailed
	if b.closed || (len(b.in.Events) >= maxMailboxEvents && !must) {
		return
	}
	b.in.Events = append(b.in.Events, e)
	b.signal()
}

func (b *mailbox) checkpointed(done *Checkpointed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.in.Checkpointed = done
	b.signal()
}

// take empties the mailbox. spare is an Input whose slices may be used again.
// Entries of at most about maxTurnBytes come out at once, because they are
// written at once; the rest stays.
func (b *mailbox) take(spare Input) Input {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.in
	n, size := 0, 0
	for n < len(in.Messages) && size <= maxTurnBytes {
		size += payload(in.Messages[n].GetEntries())
		n++
	}
	b.in = Input{Requests: reuse(spare.Requests), Events: reuse(spare.Events), Messages: reuse(spare.Messages)}
	if n < len(in.Messages) {
		b.in.Messages, b.in.MessagesSince = append(b.in.Messages, in.Messages[n:]...), in.MessagesSince
		clear(in.Messages[n:])
		in.Messages = in.Messages[:n]
		b.signal()
	}
	b.bytes -= size
	return in
}

// close refuses everything from now on and drops what was not taken.
func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.in = true, Input{}
}

// reuse empties a slice for the next Input; a very long one is let go.
func reuse[T any](s []T) []T {
	clear(s)
	if cap(s) > 16_384 {
		return nil
	}
	return s[:0]
}
