package client

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// leaderTracker remembers who leads. It is a hint: a wrong one costs a redirect.
type leaderTracker struct {
	current atomic.Uint64 // node id believed to lead; 0: unknown. Written under mu

	mu       sync.Mutex // guards what follows
	ids      []uint64   // every known peer, in order of node id
	next     int        // index in ids of the peer to try while nobody is known to lead
	attempts map[*attempt]struct{}
	changed  chan struct{} // closed when a leader becomes known
}

// attempt is one request, or one stream of requests, that waits for one peer.
type attempt struct {
	peer uint64
	// since is when it began to wait, in Unix nanoseconds; 0 while it does not.
	since  atomic.Int64
	cancel func()
}

func newLeaderTracker(ids []uint64) *leaderTracker {
	return &leaderTracker{ids: ids, attempts: map[*attempt]struct{}{}, changed: make(chan struct{})}
}

// target is the peer to ask: who leads, or else whose turn it is.
func (t *leaderTracker) target() uint64 {
	if id := t.current.Load(); id != 0 {
		return id
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ids[t.next%len(t.ids)]
}

// learn records that id leads.
func (t *leaderTracker) learn(id uint64) {
	if t.current.Load() == id {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setLocked(id)
}

func (t *leaderTracker) setLocked(id uint64) {
	t.current.Store(id)
	if !slices.Contains(t.ids, id) {
		t.ids = append(t.ids, id)
		slices.Sort(t.ids)
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// failed records that id does not lead or does not answer; somebody else is next.
func (t *leaderTracker) failed(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current.Load() == id {
		t.current.Store(0)
	} else if t.ids[t.next%len(t.ids)] != id {
		return // The turn has passed on already.
	}
	t.next = slices.Index(t.ids, id) + 1
}

// observe is told by a tail who leads. It fills a gap, and it ends attempts that
// have waited longer than patience for a peer that seems to lead no more.
func (t *leaderTracker) observe(id uint64, patience time.Duration) {
	current := t.current.Load()
	if id == 0 || id == current {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.ids, id) {
		return // Its address is not known.
	}
	late := time.Now().Add(-patience).UnixNano()
	stuck := false
	for a := range t.attempts {
		if since := a.since.Load(); a.peer != id && since != 0 && since < late {
			a.cancel()
			stuck = true
		}
	}
	if stuck || current == 0 {
		t.setLocked(id)
	}
}

// begin registers an attempt that cancel ends.
func (t *leaderTracker) begin(peer uint64, cancel func()) *attempt {
	a := &attempt{peer: peer, cancel: cancel}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempts[a] = struct{}{}
	return a
}

func (t *leaderTracker) end(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.attempts, a)
}

// waits says that an answer is awaited from now on.
func (a *attempt) waits() { a.since.Store(time.Now().UnixNano()) }

// rests says that nothing is awaited.
func (a *attempt) rests() { a.since.Store(0) }

// learned is closed when a leader becomes known, or known again.
func (t *leaderTracker) learned() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

func (t *leaderTracker) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.ids)
}
