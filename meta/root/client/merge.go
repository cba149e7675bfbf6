package client

import (
	"context"
	"sync"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// merger lets callers that ask the same share one request. Callers gather in an
// open group per key; a worker takes a group, which closes it, and only then
// sends its request. Who comes later gathers in the next group.
type merger[K comparable, V any] struct {
	call  func(context.Context, K) (V, error)
	limit int
	ready chan struct{} // a level: there may be an open group

	mu      sync.Mutex // guards what follows, and the groups' own fields
	open    map[K]*group[V]
	order   []K // keys of open, oldest first
	waiting int
	closed  bool
}

// group is callers that share a request.
type group[V any] struct {
	done   chan struct{} // closed when value and err are set
	value  V
	err    error
	size   int    // callers that still wait
	cancel func() // ends the request; nil while there is none
}

func newMerger[K comparable, V any](limit int, call func(context.Context, K) (V, error)) *merger[K, V] {
	return &merger[K, V]{call: call, limit: limit, ready: make(chan struct{}, 1), open: map[K]*group[V]{}}
}

// do joins the open group of a key and waits for its answer.
func (m *merger[K, V]) do(ctx context.Context, key K) (V, error) {
	var zero V
	if err := ctx.Err(); err != nil {
		return zero, unanswered(context.Cause(ctx), false, nil)
	}
	g, err := m.join(key)
	if err != nil {
		return zero, err
	}
	select {
	case <-g.done:
		m.leave(key, g)
		return g.value, g.err
	case <-ctx.Done():
		m.leave(key, g)
		return zero, unanswered(context.Cause(ctx), false, nil)
	}
}

func (m *merger[K, V]) join(key K) (*group[V], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	if m.waiting >= m.limit {
		return nil, reason.New(rootv1.Reason_REASON_OVERLOADED, "%d callers wait for the root already", m.waiting)
	}
	m.waiting++
	g, ok := m.open[key]
	if !ok {
		g = &group[V]{done: make(chan struct{})}
		m.open[key] = g
		m.order = append(m.order, key)
		m.signal()
	}
	g.size++
	return g, nil
}

// leave is called by each caller once. The last one ends a request that nobody
// waits for any more.
func (m *merger[K, V]) leave(key K, g *group[V]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting--
	g.size--
	if g.size == 0 && g.cancel != nil {
		g.cancel()
	}
}

func (m *merger[K, V]) signal() {
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// run takes groups one after the other until ctx ends. Several may run at once:
// that many requests are in flight.
func (m *merger[K, V]) run(ctx context.Context) {
	for ctx.Err() == nil {
		key, g, callCtx := m.take(ctx)
		if g == nil {
			select {
			case <-m.ready:
			case <-ctx.Done():
			}
			continue
		}
		value, err := m.call(callCtx, key)
		if err != nil && ctx.Err() != nil {
			err = ErrClosed
		}
		g.cancel()
		g.value, g.err = value, err
		close(g.done)
	}
}

// take closes the oldest open group that still has callers.
func (m *merger[K, V]) take(ctx context.Context) (key K, g *group[V], callCtx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.order) > 0 {
		key, m.order = m.order[0], m.order[1:]
		g = m.open[key]
		delete(m.open, key)
		if g.size == 0 {
			close(g.done) // Everyone left; whoever comes now makes a new group.
			continue
		}
		if len(m.order) > 0 {
			m.signal() // Another worker may take the next one.
		}
		callCtx, g.cancel = context.WithCancel(ctx)
		return key, g, callCtx
	}
	m.order = nil
	return key, nil, nil
}

// close fails the open groups. Groups that a worker has taken end with its ctx.
func (m *merger[K, V]) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, g := range m.open {
		g.err = ErrClosed
		close(g.done)
	}
	m.open, m.order = map[K]*group[V]{}, nil
}
