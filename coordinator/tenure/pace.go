package tenure

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A ttl that is short for the machine makes authority change hands though nobody has
// failed: confirmations come late, the era lapses, and a standby finds it expired. How
// late they come is known to the holder alone, so it is the holder that asks for another
// ttl, before the era lapses if it can: confirmations that take half the ttl are a warning.
// It gives the era up and claims over it: the root leader need not wait for a process
// that has stopped serving by itself, and the next era, of the same holder, has the ttl
// that the claim says. A holder that lives and whose era was taken learns the same from that,
// and says so in its next claim. Who takes over later keeps the multiple of its own setting.
const (
	// lateWithin is the time in which a second slow confirmation makes the ttl grow. One
	// alone is an election of the root, or a process that stood still.
	lateWithin = 10 * time.Second
	// ttlStep is by how much the ttl grows, and shrinks.
	ttlStep = 4
	// calmFor is how long confirmations must have come in a quarter of a smaller ttl
	// before the ttl shrinks to that.
	calmFor = 10 * time.Minute
)

// pace is how confirmations came in the era held.
type pace struct {
	// slowAt is when one came last that took half the ttl, or behind the end of the one before it; 0:
	// none did.
	slowAt clock.Instant
	// slowest took longest from its sending to its answer, of those since.
	slowest time.Duration
	since   clock.Instant
}

// paced notes that a confirmation came, and whether the one before it had run out by then.
// Two that were under way together are slow together, and count once; the one that is sent when they
// come is late because of them.
func (c *Core) paced(f flight, late bool, now clock.Instant) {
	p := &c.holding.pace
	took := now.Sub(f.sentAt)
	p.slowest = max(p.slowest, took)
	slow := took >= c.holding.ttl/2
	switch {
	case !late && !slow, f.sentAt < p.slowAt, !slow && f.sentAt == p.slowAt:
		return
	case !late && p.slowAt != 0 && f.sentAt < p.slowAt.Add(c.holding.ttl):
		return // of one burst, in which nothing lapsed
	}
	again := p.slowAt != 0 && now.Sub(p.slowAt) <= lateWithin
	*p = pace{slowAt: now, since: now}
	if again {
		c.claimAgain(c.holding.ttl*ttlStep, now)
	}
}

// calmAt is when the ttl may shrink.
func (c *Core) calmAt() clock.Instant {
	if h := &c.holding; c.phase == Holding && h.era != 0 && h.ttl > c.s.TTL && c.s.TTL > 0 {
		return h.pace.since.Add(calmFor)
	}
	return never
}

func (c *Core) maybeShrink(now clock.Instant) {
	if now < c.calmAt() {
		return
	}
	p, less := &c.holding.pace, c.bounded(c.holding.ttl/ttlStep)
	calm := p.slowest <= less/4
	*p = pace{since: now}
	if calm {
		c.claimAgain(less, now)
	}
}

// claimAgain ends the era held and claims the next one with another ttl.
func (c *Core) claimAgain(ttl time.Duration, now clock.Instant) {
	if ttl = c.bounded(ttl); c.phase != Holding || ttl == c.holding.ttl {
		return
	}
	c.ttl = ttl
	c.end(now)
	c.Tick(now)
}

// bounded is a ttl within the bounds of this coordinator and of the cluster, in whole
// milliseconds. Without a setting, which trusts no clock, there is none.
func (c *Core) bounded(ttl time.Duration) time.Duration {
	most := c.s.MostTTL
	if c.mostTTL > 0 {
		most = min(most, c.mostTTL)
	}
	if c.s.TTL == 0 {
		return 0
	}
	return max(min(ttl, most), c.s.TTL).Truncate(time.Millisecond)
}

// claimTTL is what a claim asks for now.
func (c *Core) claimTTL(now clock.Instant) time.Duration {
	if c.takenAt != 0 && now.Sub(c.takenAt) < calmFor {
		return max(c.ttl, c.bounded(c.takenTTL*ttlStep))
	}
	return c.ttl
}

// outpaced notes that the era of the newest Tenure known, which was this process's, was taken by
// another coordinator though this process lives and nobody asked the era to end.
func (c *Core) outpaced(next *rootv1.Tenure, now clock.Instant) {
	if t := c.tenure; c.mine(t) && !t.GetRetired() && t.GetEnd() == nil && next.GetHolderId() != c.s.ID {
		c.takenAt, c.takenTTL = now, ttlOf(t)
	}
}

// grownAs is this coordinator's setting, grown as the ttl of a Tenure has.
func (c *Core) grownAs(t *rootv1.Tenure) time.Duration {
	least := t.GetLeastTtlMillis()
	if least == 0 || c.s.TTL == 0 {
		return c.s.TTL
	}
	times := min(t.GetTtlMillis()/least, uint64(MaxTTL/c.s.TTL)) // the product stays below 2 MaxTTL
	return c.bounded(c.s.TTL * time.Duration(times))
}
