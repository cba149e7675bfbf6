package client

import (
	"context"
	"sync"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// reads lets callers of ReadIndex share requests. Callers gather in the open
// group; a worker takes it, which closes it, and only then sends its request.
// Who comes later gathers in the next group.
type reads struct {
	call  func(context.Context) (state.Token, error)
	said  func() error // see Client.lastWords
	limit int
	ready chan struct{} // a level: there may be an open group

	mu      sync.Mutex // guards what follows, and the groups' own fields
	open    *group     // nil: there is none
	waiting int
	closed  bool
}

// group is callers that share a request.
type group struct {
	done   chan struct{} // closed when token and err are set
	token  state.Token
	err    error
	size   int    // callers that still wait
	cancel func() // ends the request; nil while there is none
}

func newReads(limit int, call func(context.Context) (state.Token, error), said func() error) *reads {
	return &reads{call: call, said: said, limit: limit, ready: make(chan struct{}, 1)}
}

// do joins the open group and waits for its answer.
func (m *reads) do(ctx context.Context) (state.Token, error) {
	if err := ctx.Err(); err != nil {
		return state.Token{}, unanswered(context.Cause(ctx), false, m.said())
	}
	g, err := m.join()
	if err != nil {
		return state.Token{}, err
	}
	defer m.leave(g)
	select {
	case <-g.done:
		return g.token, g.err
	case <-ctx.Done():
		return state.Token{}, unanswered(context.Cause(ctx), false, m.said())
	}
}

func (m *reads) join() (*group, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	if m.waiting >= m.limit {
		return nil, reason.New(rootv1.Reason_REASON_OVERLOADED, "%d callers wait for the root already", m.waiting)
	}
	m.waiting++
	if m.open == nil {
		m.open = &group{done: make(chan struct{})}
		m.signal()
	}
	m.open.size++
	return m.open, nil
}

// leave is called by each caller once. The last one ends a request that nobody
// waits for any more.
func (m *reads) leave(g *group) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting--
	g.size--
	if g.size == 0 && g.cancel != nil {
		g.cancel()
	}
}

func (m *reads) signal() {
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// run takes groups one after the other until ctx ends. Several may run at once:
// that many requests are in flight.
func (m *reads) run(ctx context.Context) {
	for ctx.Err() == nil {
		g, callCtx := m.take(ctx)
		if g == nil {
			select {
			case <-m.ready:
			case <-ctx.Done():
			}
			continue
		}
		token, err := m.call(callCtx)
		if err != nil && ctx.Err() != nil {
			err = ErrClosed
		}
		g.cancel()
		g.token, g.err = token, err
		close(g.done)
	}
}

// take closes the open group, if it still has callers.
func (m *reads) take(ctx context.Context) (g *group, callCtx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g, m.open = m.open, nil
	if g == nil || g.size == 0 {
		return nil, nil // Everyone left; whoever comes now makes a new group.
	}
	callCtx, g.cancel = context.WithCancel(ctx)
	return g, callCtx
}

// close fails the open group. Groups that a worker has taken end with its ctx.
func (m *reads) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.open != nil {
		m.open.err = ErrClosed
		close(m.open.done)
		m.open = nil
	}
}
