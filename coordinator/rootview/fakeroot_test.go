package rootview_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// fakeRoot is a root whose faults a test sets.
type fakeRoot struct {
	mu sync.Mutex
	// Guarded by mu.
	log        *rootLog
	moved      chan struct{} // closed and replaced at every change
	first      uint64        // oldest index that is retained
	visible    int           // entries that tails show; -1: all
	commit     uint64        // what tails claim to be committed; 0: the visible end
	leaderless uint64        // milliseconds
	mute       bool          // streams stay open and say nothing
	down       bool
	tails      int
	snapshots  int
	reads      int
	spoil      func([]*rootv1.SnapshotChunk)
	gate       chan struct{} // read indexes wait for it, when set
}

func newFakeRoot(t failer) *fakeRoot {
	return &fakeRoot{log: newRootLog(t), moved: make(chan struct{}), first: 1, visible: -1}
}

// set changes the root and wakes its streams.
func (r *fakeRoot) set(change func(*fakeRoot)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
	close(r.moved)
	r.moved = make(chan struct{})
}

func (r *fakeRoot) commitOne(e *rootv1.Event) (at state.Token) {
	r.set(func(r *fakeRoot) { at = r.log.commit(e) })
	return at
}

func (r *fakeRoot) grow(n int) { r.set(func(r *fakeRoot) { r.log.grow(n) }) }

func (r *fakeRoot) counts() (tails, snapshots, reads int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tails, r.snapshots, r.reads
}

// Tail implements rootview.Root.
func (r *fakeRoot) Tail(ctx context.Context, after state.Token) (rootview.TailStream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tails++
	if r.down {
		return nil, reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "down")
	}
	return &fakeStream{r: r, ctx: ctx, at: int(after.Index), closed: make(chan struct{})}, nil
}

// Snapshot implements rootview.Root.
func (r *fakeRoot) Snapshot(_ context.Context, fn func(*rootv1.SnapshotChunk) error) error {
	r.mu.Lock()
	r.snapshots++
	all := chunks(r.log.t, r.log.last(), 3)
	if r.spoil != nil {
		r.spoil(all)
	}
	r.mu.Unlock()
	for _, c := range all {
		if err := fn(c); err != nil {
			return err
		}
	}
	return nil
}

// ReadIndex implements rootview.ReadIndexer.
func (r *fakeRoot) ReadIndex(ctx context.Context) (state.Token, error) {
	r.mu.Lock()
	r.reads++
	gate := r.gate
	r.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return state.Token{}, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return state.Token{}, errors.New("connection refused")
	}
	return r.log.token(), nil
}

type clockInstant = clock.Instant

type fakeStream struct {
	r      *fakeRoot
	ctx    context.Context
	at     int
	begun  bool
	closed chan struct{}
	once   sync.Once
}

// Close implements rootview.TailStream.
func (s *fakeStream) Close() { s.once.Do(func() { close(s.closed) }) }

// Recv implements rootview.TailStream: entries at once, a sign of life every
// 100 ms.
func (s *fakeStream) Recv() (*rootv1.TailResponse, error) {
	idle := time.NewTimer(100 * time.Millisecond)
	defer idle.Stop()
	due := !s.begun
	for {
		s.r.mu.Lock()
		resp, err := s.next(due)
		moved := s.r.moved
		s.r.mu.Unlock()
		if resp != nil || err != nil {
			s.begun = true
			return resp, err
		}
		select {
		case <-moved:
		case <-idle.C:
			due = true
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		case <-s.closed:
			return nil, errors.New("closed")
		}
	}
}

func (s *fakeStream) next(due bool) (*rootv1.TailResponse, error) {
	end := len(s.r.log.entries)
	if s.r.visible >= 0 {
		end = min(end, s.r.visible)
	}
	switch {
	case s.r.down:
		return nil, errors.New("connection reset")
	case s.r.mute:
		return nil, nil
	case uint64(s.at)+1 < s.r.first:
		return nil, reason.New(rootv1.Reason_REASON_BOOTSTRAP_REQUIRED, "the log begins at %d", s.r.first)
	case s.at >= end && !due:
		return nil, nil
	}
	to := max(s.at, min(end, s.at+10))
	resp := s.r.log.message(s.at, to, end)
	if s.r.commit != 0 {
		resp.CommitIndex = s.r.commit
	}
	resp.LeaderlessMillis = s.r.leaderless
	s.at = to
	return resp, nil
}
