package liveness

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
)

// probeNext probes a suspected member when it is time, and says when to look again.
func (c *Core) probeNext(m *member, b *Batch, now clock.Instant) clock.Instant {
	if !c.probed(m) {
		return never
	}
	return c.probeLife(m, &m.life, b, now)
}

// lookPast probes an incarnation that the root has ended: a proof spares its
// successors the wait for its fence.
func (c *Core) lookPast(m *member, l *life, b *Batch, now clock.Instant) clock.Instant {
	if l.untold && l.proven() {
		b.Ended = append(b.Ended, l.incarnation)
	}
	l.untold = false
	if !c.holding || l.proven() || l.address == "" || !m.class.probe || l.tries >= maxTries && l.asked == 0 || c.longestFence(l) == (Fence{}) {
		return never
	}
	return c.probeLife(m, l, b, now)
}

func (c *Core) probeLife(m *member, l *life, b *Batch, now clock.Instant) clock.Instant {
	if l.asked != 0 && now < l.asked.Add(probeTime) {
		return l.asked.Add(probeTime)
	}
	if l.asked != 0 {
		l.missed(now)
	}
	if now < l.next {
		return l.next
	}
	c.probes++
	c.count.Probes++
	l.probe, l.asked = c.probes, now
	b.Probes = append(b.Probes, Probe{Member: m.id, Incarnation: l.incarnation, Address: l.address, Number: l.probe})
	return now.Add(probeTime)
}

// missed notes a probe without a proof.
func (l *life) missed(now clock.Instant) {
	wait := min(probeAgainLeast<<min(l.tries, 10), probeAgainMost)
	l.asked, l.refused, l.next = 0, 0, now.Add(wait)
	if l.tries < maxTries {
		l.tries++
	}
}

// Probed tells what came of a probe. One that was begun before the member's stream
// was opened, or for whose result nobody waits any more, says nothing.
func (c *Core) Probed(p Probe, r ProbeResult, now clock.Instant) {
	m, l := c.own(p.Member, p.Incarnation)
	if l == nil || l.probe != p.Number || l.asked == 0 {
		return
	}
	l.signals &^= ProbeSilent | ProbeAnswered
	switch {
	case r == AnsweredOther:
		l.signals |= ProbeOther
		l.asked = 0
	case r == Refused && l.stream == 0:
		c.refusedOnce(l, now)
	case r == AnsweredSame:
		l.signals |= ProbeAnswered
		l.missed(now)
	default:
		l.signals |= ProbeSilent
		l.missed(now)
	}
	l.untold = l.proven()
	c.timers.soon(m, now)
}

// refusedOnce counts a refusal: the second is a proof.
func (c *Core) refusedOnce(l *life, now clock.Instant) {
	l.refused++
	l.asked = 0
	if l.refused >= 2 {
		l.signals |= ProbeRefused
		return
	}
	l.next = now.Add(min(c.s.ProbeGap, maxProbeGap))
}

// maxProbeGap bounds the time between two refusals that count.
const maxProbeGap = 50 * time.Millisecond
