package client

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
)

// defaultBlock is how many ids an IDSource fetches at a time by default.
const defaultBlock = 10_000

// IDSource hands out ids one by one, from blocks that it fetches ahead. Any
// number of goroutines may use it. Its ids are not in order across processes, nor
// those of other sources; no id is ever given twice.
type IDSource struct {
	c     *Client
	size  uint64
	block atomic.Pointer[idBlock]

	mu sync.Mutex
	// Guarded by mu.
	ahead  *idBlock // fetched, and not begun
	fetch  *idFetch // under way; nil: none is
	closed bool
}

// idBlock is a run of ids. next counts those handed out, and callers that came
// in vain.
type idBlock struct {
	IDs
	next atomic.Uint64
}

// idFetch is a block under way; err is set before done is closed.
type idFetch struct {
	done chan struct{}
	err  error
}

// IDs makes a source of single ids that fetches size of them at a time, and the
// next block when half of one is used. 0 means 10,000; more than MaxIDCount
// means MaxIDCount. Close it to learn which ids were fetched and not used; what
// is not closed loses them, which harms nobody.
func (c *Client) IDs(size uint64) *IDSource {
	if size == 0 {
		size = defaultBlock
	}
	s := &IDSource{c: c, size: min(size, MaxIDCount)}
	s.block.Store(&idBlock{})
	return s
}

// Next returns an id that was never given to anybody else. It waits, within ctx
// and DefaultTimeout, only when no block is there.
func (s *IDSource) Next(ctx context.Context) (uint64, error) {
	for {
		b := s.block.Load()
		if i := b.next.Add(1) - 1; i < b.Count {
			if i == b.Count/2 {
				s.mu.Lock()
				s.fetchLocked()
				s.mu.Unlock()
			}
			return b.First + i, nil
		}
		if err := s.turn(ctx, b); err != nil {
			return 0, err
		}
	}
}

// turn goes on from a block that is used up to the next one, waiting for it.
func (s *IDSource) turn(ctx context.Context, used *idBlock) error {
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return &Error{Op: "AllocID", Cause: ErrClosed}
	case s.block.Load() != used:
		s.mu.Unlock()
		return nil
	case s.ahead != nil:
		s.block.Store(s.ahead)
		s.ahead = nil
		s.mu.Unlock()
		return nil
	}
	f := s.fetchLocked()
	s.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return waited("AllocID", ctx.Err(), s.c.ids.pipe.seen.Load())
	}
}

// fetchLocked fetches a block, unless there is one ahead or under way. It
// returns the fetch that brings it.
func (s *IDSource) fetchLocked() *idFetch {
	if s.fetch != nil || s.ahead != nil || s.closed {
		return s.fetch
	}
	f := &idFetch{done: make(chan struct{})}
	s.fetch = f
	get := func() {
		ids, err := s.c.AllocID(context.Background(), s.size) // within DefaultTimeout, or until Close of the Client
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.err = err; err == nil {
			s.ahead = &idBlock{IDs: ids}
		}
		s.fetch = nil
		close(f.done)
	}
	if !s.c.spawn(get) {
		s.fetch, f.err = nil, &Error{Op: "AllocID", Cause: ErrClosed}
		close(f.done)
	}
	return f
}

// Close ends the source and returns the ids that it fetched and did not hand
// out. It waits for a block under way, within DefaultTimeout.
func (s *IDSource) Close() (unused []IDs) {
	s.mu.Lock()
	s.closed = true
	f := s.fetch
	s.mu.Unlock()
	if f != nil {
		<-f.done
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range []*idBlock{s.block.Load(), s.ahead} {
		if b == nil {
			continue
		}
		// Whoever comes later finds nothing left.
		if given := b.next.Swap(math.MaxUint64 / 2); given < b.Count {
			unused = append(unused, IDs{First: b.First + given, Count: b.Count - given, Era: b.Era})
		}
	}
	s.ahead = nil
	return unused
}
