// Package turns has what costs processor time done few at a time, so that everything
// else finds a processor soon, however many ask for it at once.
//
// It promises: (1) no more than the limit are at it; (2) callers who wait have their turns
// one after another, however many calls each has; (3) nobody waits beyond the context; (4) who
// finds nobody at it pays one lock.
package turns

import (
	"context"
	"runtime"
	"sync"

	"github.com/nokv/nokv/internal/places"
)

// Turns are the turns of one kind of work. Make them with New.
type Turns struct {
	mu sync.Mutex
	// Guarded by mu. free are the turns that nobody has; while there is one nobody waits.
	free    int
	queues  map[places.Caller][]*turn
	callers []places.Caller // of queues, in the order of their turns
}

// turn is one that somebody waits for.
type turn struct {
	come chan struct{}
	has  bool // guarded by Turns.mu
	gone bool // nobody waits; guarded by Turns.mu
}

// New makes so many turns; 0: for half of the processors.
func New(limit int) *Turns {
	if limit == 0 {
		limit = max(1, runtime.GOMAXPROCS(0)/2)
	}
	return &Turns{free: limit, queues: map[places.Caller][]*turn{}}
}

// Take waits for a turn of the caller of a gRPC method, as long as ctx lasts. Pass must
// follow when it returns nil.
func (t *Turns) Take(ctx context.Context) error {
	who := places.Of(ctx)
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	mine := &turn{come: make(chan struct{})}
	if len(t.queues[who]) == 0 {
		t.callers = append(t.callers, who)
	}
	t.queues[who] = append(t.queues[who], mine)
	t.mu.Unlock()
	select {
	case <-mine.come:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine.gone = true; mine.has {
		t.passLocked()
	}
	return ctx.Err()
}

// Pass ends a turn.
func (t *Turns) Pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passLocked()
}

func (t *Turns) passLocked() {
	for len(t.callers) > 0 {
		who := t.callers[0]
		queue := t.queues[who]
		next := queue[0]
		queue[0] = nil
		if t.callers, queue = t.callers[1:], queue[1:]; len(queue) > 0 {
			t.callers, t.queues[who] = append(t.callers, who), queue
		} else {
			delete(t.queues, who)
		}
		if !next.gone {
			next.has = true
			close(next.come)
			return
		}
	}
	t.free++
}
