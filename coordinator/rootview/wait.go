package rootview

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// waiter waits for the view to reach a position. Its channel is closed once,
// by whoever takes it off the list or finds that it need not go on it.
type waiter struct {
	at    state.Token
	ready chan struct{}
	place int // in the heap; -1 when it is not in it
}

// waitList holds the waiters, the lowest position first, so that a new View
// costs what it wakes and no more.
type waitList struct {
	limit int

	mu   sync.Mutex
	heap waitHeap // guarded by mu
}

// add puts a waiter on the list unless the view has reached its position. The
// view is looked at under the lock: either this sees the new View, or the new
// View's wake sees the waiter.
func (l *waitList) add(f *Follower, w *waiter) (waiting bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.View().Token.Compare(w.at) >= 0 {
		return false, nil
	}
	if len(l.heap) >= l.limit {
		return false, overloaded(len(l.heap))
	}
	heap.Push(&l.heap, w)
	return true, nil
}

func overloaded(limit int) error {
	e := reason.New(rootv1.Reason_REASON_OVERLOADED, "%d requests wait for the view to advance; try again later", limit)
	e.Detail.Limit = uint64(limit)
	return e
}

func (l *waitList) remove(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.place >= 0 {
		heap.Remove(&l.heap, w.place)
	}
}

// wake ends the wait of everyone whose position is reached.
func (l *waitList) wake(reached state.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.heap) > 0 && l.heap[0].at.Compare(reached) <= 0 {
		close(heap.Pop(&l.heap).(*waiter).ready)
	}
}

type waitHeap []*waiter

func (h waitHeap) Len() int           { return len(h) }
func (h waitHeap) Less(i, j int) bool { return h[i].at.Compare(h[j].at) < 0 }
func (h waitHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *waitHeap) Push(x any) {
	w := x.(*waiter)
	w.place = len(*h)
	*h = append(*h, w)
}

// Pop implements heap.Interface.
func (h *waitHeap) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	w.place = -1
	return w
}

// WaitFor waits until the view has reached a position and returns it. When the
// context's deadline comes first (or is about to: the refusal still has to
// reach the caller) it refuses with REASON_REQUIRED_TOKEN, saying how far the
// view is; with REASON_CLUSTER_MISMATCH when the position is of another
// incarnation of the cluster, and with REASON_OVERLOADED when too many wait.
func (f *Follower) WaitFor(ctx context.Context, at state.Token) (*View, error) {
	if v := f.View(); v.Token.Compare(at) >= 0 {
		return v, sameLog(v, at)
	}
	ctx, cancel := f.replyInTime(ctx)
	defer cancel()
	return f.waitFor(ctx, at)
}

func (f *Follower) waitFor(ctx context.Context, at state.Token) (*View, error) {
	if v := f.View(); v.Loaded() && v.Token.Compare(at) < 0 {
		if err := sameLog(v, at); err != nil {
			return nil, err
		}
	}
	if err := f.await(ctx, at); err != nil {
		return nil, err
	}
	v := f.View()
	return v, sameLog(v, at)
}

// await blocks until the view is at or behind a position.
func (f *Follower) await(ctx context.Context, at state.Token) error {
	w := &waiter{at: at, ready: make(chan struct{}), place: -1}
	waiting, err := f.waiters.add(f, w)
	if err != nil || !waiting {
		return err
	}
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		f.waiters.remove(w)
		return f.notReached(ctx, at)
	}
}

func (f *Follower) notReached(ctx context.Context, at state.Token) error {
	if ctx.Err() == context.Canceled {
		return context.Cause(ctx)
	}
	v := f.View()
	e := reason.New(rootv1.Reason_REASON_REQUIRED_TOKEN, "the view is at %s, %s was asked for", v.Token, at)
	return f.withLag(e, v)
}

// sameLog says whether a position can be one of the log that the view follows:
// of the same incarnation, and not of a later term at an index passed already.
func sameLog(v *View, at state.Token) error {
	if at.Index == 0 {
		return nil // before everything
	}
	if at.Incarnation == v.Token.Incarnation && (at.Index > v.Token.Index || at.Term <= v.Token.Term) {
		return nil
	}
	e := reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH, "token %s is of another cluster, or of another incarnation of this one; the view is at %s", at, v.Token)
	e.Detail.CurrentToken = v.token
	return e
}

// withLag adds to a refusal how far behind the view is, as far as is known.
func (f *Follower) withLag(e *reason.Error, v *View) error {
	now := f.cfg.Clock.Now()
	e.Detail.CurrentToken, e.Detail.RootLag = v.token, v.Lag()
	if age, ok := v.Age(now); ok {
		e.Detail.Message += "; " + age.Round(time.Millisecond).String() + " since it was level with the root"
	} else {
		e.Detail.Message += "; it was never level with the root"
	}
	if v.Mode(now) == coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE {
		e.Detail.Message += ", and the root is unavailable"
	}
	return e
}

// replyInTime ends a little before the context does: a refusal that comes with
// the deadline reaches nobody.
func (f *Follower) replyInTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(f.cfg.ReplyMargin, time.Until(deadline)/8)))
}
