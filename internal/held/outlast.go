package held

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/clock"
)

// busy reports whether admitted work of a region goes on, with its right or without.
func (r *region) busy() bool { return r.gate.busy() || r.left.busy() }

// outlast waits for admitted work of a region that is to be let go, or was lost. Work that goes
// on for Config.Grace loses its right, and its contexts end; work that goes on for Config.Deaf
// behind that is waited for no longer: true. Otherwise one request that never ends would keep
// its region from everybody. Each is a quarter of the move's deadline at most: a move that is
// given up before would be begun again and again, and never be done. Pins keep their own grace.
func (c *Core) outlast(r *region, now clock.Instant) bool {
	switch {
	case c.cfg.Grace == 0 || now < r.waitsUntil:
		return false
	case r.waitsUntil == 0:
		c.waitUntil(r, now.Add(c.grace(r)))
		return false
	case r.gate.busy():
		r.left = r.gate
		r.gate = r.left.successor()
		r.left.expire()
		c.counts.Expired++
		r.set(c, &r.err, fmt.Sprintf("requests have not ended for %v", c.grace(r)))
		c.waitUntil(r, now.Add(r.quarter(c.cfg.Deaf)))
		return false
	default:
		r.left, r.waitsUntil = nil, 0
		return true
	}
}

func (c *Core) grace(r *region) time.Duration { return max(r.quarter(c.cfg.Grace), c.cfg.Pinned) }

// quarter is a time within a quarter of the deadline of a region's move.
func (r *region) quarter(d time.Duration) time.Duration {
	if r.shown != nil && r.shown.deadline > 0 {
		return min(d, r.shown.deadline/4)
	}
	return d
}

func (c *Core) waitUntil(r *region, at clock.Instant) {
	r.waitsUntil = at
	c.timers.push(timer{at, r.id})
}

// successor is a gate as closed as this one, which no work is behind.
func (g *gate) successor() *gate {
	n := &gate{}
	n.state.Store(g.state.Load() &^ gateCount)
	return n
}

// expire ends the right of what was admitted, and its contexts.
func (g *gate) expire() {
	g.end()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expired = true
	for _, tell := range g.over {
		tell()
	}
	g.over = nil
}

// OnOver has tell called, once, when the work should have ended long ago, and its right has; at
// once if that is so. tell must not block, nor call what is of the Core. stop takes it back.
func (g *Grant) OnOver(tell func()) (stop func()) {
	at := g.gate
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.expired {
		tell()
		return func() {}
	}
	if at.over == nil {
		at.over = map[*Grant]func(){}
	}
	at.over[g] = tell
	return func() {
		at.mu.Lock()
		defer at.mu.Unlock()
		delete(at.over, g)
	}
}
