package member

import (
	"context"
	"sync"

	"github.com/nokv/nokv/internal/held"
)

// requestContext is the context of a request, which ends also when the request has outlasted
// its right. Most requests end before they ask whether it has: only the first Done makes a
// context that can end by itself.
type requestContext struct {
	context.Context
	grant *held.Grant

	mu sync.Mutex
	// Guarded by mu: own is Context that ends with the right, too; release lets go of both.
	own     context.Context
	release func()
}

// Done implements context.Context.
func (c *requestContext) Done() <-chan struct{} { return c.whole().Done() }

// Err implements context.Context.
func (c *requestContext) Err() error { return c.whole().Err() }

// Value implements context.Context: contexts that are made of this one find the one that ends.
func (c *requestContext) Value(key any) any {
	c.mu.Lock()
	own := c.own
	c.mu.Unlock()
	if own != nil {
		return own.Value(key)
	}
	return c.Context.Value(key)
}

func (c *requestContext) whole() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		own, cancel := context.WithCancel(c.Context)
		stop := c.grant.OnOver(cancel)
		c.own, c.release = own, func() {
			stop()
			cancel()
		}
	}
	return c.own
}

// end is called when the request has returned.
func (c *requestContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.own == nil:
		c.own = c.Context // who asks from here on asks too late
	case c.release != nil:
		c.release()
	}
}
