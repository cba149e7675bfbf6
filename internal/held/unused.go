package held

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
)

const (
	// looksPerIdle is how often within the time of a keyspace a region is looked at: what
	// nobody uses is known as that after so much more at the latest.
	looksPerIdle = 4
	leastLook    = 10 * time.Millisecond
	// maxLooks bounds the regions that one Tick looks at.
	maxLooks = 4096
)

// idleAfter is how long nobody has to use a region for it to count as unused; 0: none does.
func (c *Core) idleAfter(r *region) time.Duration {
	if k := c.keyspaceOf(r); k != nil {
		return k.now.Load().Idle
	}
	return 0
}

func lookEvery(idle time.Duration) time.Duration { return max(idle/looksPerIdle, leastLook) }

// watchUse has a region looked at that is served from now on, if its keyspace says so.
func (c *Core) watchUse(r *region, now clock.Instant) {
	if c.idleAfter(r) == 0 || r.gate == nil {
		return
	}
	r.gate.used.Store(false)
	r.quiet, r.unused = now, false
	c.lookBy(r, now)
}

// lookBy has a region looked at as soon as its keyspace says from now on, or before.
func (c *Core) lookBy(r *region, now clock.Instant) {
	if at := now.Add(lookEvery(c.idleAfter(r))); r.lookAt == 0 || at < r.lookAt {
		r.lookAt = at
		c.looks.push(timer{at, r.id})
	}
}

// watchAll has all regions that are served looked at as their keyspaces say now.
func (c *Core) watchAll(now clock.Instant) {
	for _, id := range c.ids() {
		switch r := c.regions[id]; {
		case r.phase != phaseServing || c.idleAfter(r) == 0:
		case r.lookAt == 0:
			c.watchUse(r, now)
		default:
			c.lookBy(r, now)
		}
	}
}

// lookAtUse looks at regions whose time has come.
func (c *Core) lookAtUse(now clock.Instant) {
	for n := 0; n < maxLooks && len(c.looks) > 0 && c.looks[0].at <= now; n++ {
		t := c.looks.pop()
		r := c.regions[t.region]
		if r == nil || r.lookAt != t.at {
			continue // it is gone, or is looked at before
		}
		r.lookAt = 0
		idle := c.idleAfter(r)
		if idle == 0 || r.phase != phaseServing {
			continue
		}
		if r.gate.used.Swap(false) || r.gate.busy() {
			r.quiet = now
		}
		if unused := now.Sub(r.quiet) >= idle; unused != r.unused {
			r.unused = unused
			c.mark(r, false)
		}
		c.lookBy(r, now)
	}
	if len(c.looks) == 0 {
		c.looks = nil
	}
}

// inUse reports whether somebody uses a region that is asked for because nobody does.
func (c *Core) inUse(r *region) bool {
	return c.idleAfter(r) > 0 && (!r.unused || r.gate.used.Load() || r.gate.busy())
}

// keeps notes that the application does not let a region go that nobody uses: that counts as
// use, so that it is asked as seldom as about any other.
func (c *Core) keeps(r *region, kind CallKind, now clock.Instant) {
	r.idle = false
	if (kind == Idle || kind == Release) && r.unused {
		r.quiet, r.unused = now, false
		c.mark(r, false)
	}
}

// idleMillis is what a report says of how long nobody has used a region: what is released
// says so only if that is why.
func (c *Core) idleMillis(r *region) uint64 {
	switch {
	case r.phase == phaseReleased && !r.idle, r.phase != phaseReleased && c.idleAfter(r) > 0 && !r.unused:
		return 0
	case r.phase == phaseReleased || r.unused:
		return uint64(max(c.saying.Sub(r.quiet).Milliseconds(), 1))
	case r.stats != nil:
		return uint64(r.stats.Idle.Milliseconds())
	}
	return 0
}
