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

// lookPast probes an incarnation that the root has ended: a proof that everybody confirms spares its
// successors the wait for its fence.
func (c *Core) lookPast(m *member, l *life, b *Batch, now clock.Instant) clock.Instant {
	c.conclude(m, l, now)
	if l.untold && l.over() {
		b.Ended = append(b.Ended, l.incarnation)
	}
	l.untold = false
	if !c.holding || l.over() || l.address == "" || !m.class.probe || l.tries >= maxTries && l.asked == 0 && l.found == 0 || now >= c.allFree(l) {
		return never
	}
	return c.probeLife(m, l, b, now)
}

// probeLife probes an incarnation when it is time. Others are asked at the moment when the
// probe begins whose result may be a proof: what they heard until then is in their answers. They are
// asked again while one of them does not answer.
func (c *Core) probeLife(m *member, l *life, b *Batch, now clock.Instant) clock.Instant {
	next := c.probeAddress(m, l, b, now)
	at := l.decisive()
	switch again := m.told.Add(c.s.AskTime); {
	case at == 0:
	case m.told < at || l.found != 0 && now >= again:
		next = min(next, c.ask(m, b, now))
	case l.found != 0:
		next = min(next, again)
		if !l.proven() {
			next = min(next, c.firstFree(l))
		}
	}
	return next
}

// decisive is when the probe began that is, or may become, a proof; 0: there is none.
func (l *life) decisive() clock.Instant {
	switch {
	case l.found != 0:
		return l.foundAt
	case l.refused > 0:
		return l.asked
	}
	return 0
}

func (c *Core) probeAddress(m *member, l *life, b *Batch, now clock.Instant) clock.Instant {
	if l.found != 0 {
		return never
	}
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
	l.asked, l.refused, l.found, l.next = 0, 0, 0, now.Add(wait)
	if l.tries < maxTries {
		l.tries++
	}
}

// probeAnew has probes begin at once, and what they found before count no more.
func (l *life) probeAnew() { l.refused, l.found, l.next, l.tries = 0, 0, 0, 0 }

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
		l.finds(ProbeOther)
	case r == Refused && l.stream == 0:
		c.refusedOnce(l, now)
	case r == AnsweredSame:
		l.signals |= ProbeAnswered
		l.missed(now)
	default:
		l.signals |= ProbeSilent
		l.missed(now)
	}
	c.conclude(m, l, now)
	c.timers.soon(m, now)
}

// refusedOnce counts a refusal: the second is a proof, if nobody contradicts it.
func (c *Core) refusedOnce(l *life, now clock.Instant) {
	if l.refused++; l.refused >= 2 {
		l.finds(ProbeRefused)
		return
	}
	l.asked, l.next = 0, now.Add(min(c.s.ProbeGap, maxProbeGap))
}

// finds notes what the probe under way found.
func (l *life) finds(proof Signals) { l.found, l.foundAt, l.asked = proof, l.asked, 0 }

// conclude makes a proof of what a probe found, when others have been asked since it began. An
// address that is not the member's own refuses also while the member lives: so it is no proof while
// a stream of the incarnation is open elsewhere. Was it heard elsewhere after its stream here broke,
// but has no stream any more, then what was found may be older than that: the address is asked again.
// One that could not be asked may hear it: then it is a proof when what it owns in one of its keyspaces
// may be granted elsewhere in any case, and spares no fence: those of its other keyspaces, and of what
// was taken from it, run on. What was found is kept until all have answered.
func (c *Core) conclude(m *member, l *life, now clock.Instant) {
	switch {
	case l.found == 0 || m.told < l.foundAt:
	case l.open >= m.told:
		l.missed(now)
	case l.elsewhere > l.broke:
		l.broke = now
		l.missed(now)
		l.next = min(l.next, now.Add(again))
	case m.toldByAll < l.foundAt && (l.proven() || now < c.firstFree(l)):
	default:
		l.signals = l.signals&^HeardElsewhere | l.found
		if l.sure, l.untold = m.toldByAll >= l.foundAt, true; l.sure {
			l.found = 0
		}
	}
}

// maxProbeGap bounds the time between two refusals that count.
const maxProbeGap = 50 * time.Millisecond
