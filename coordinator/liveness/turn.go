package liveness

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/rooted"
)

// MaxBatch bounds each list of a Batch.
const MaxBatch = 1024

// maxLooks bounds the members that one Turn looks at.
const maxLooks = 8192

// Batch is what a Core wants done.
type Batch struct {
	Probes []Probe
	// Question is to be put to every other coordinator, if it has members.
	Question Question
	// Verdicts are to be rooted, each in a command of its own: FAILED, of this
	// incarnation. From here on nobody confirms it.
	Verdicts []Verdict
	// Withheld are verdicts that a guard for the members begins to hold.
	Withheld []Withheld
	// Ended are incarnations that the root has ended, and that were proven dead since:
	// their fences have not to be waited for.
	Ended []uint64
}

// Withheld is a verdict that is due and not passed.
type Withheld struct {
	Member      rooted.MemberID
	Incarnation uint64
	By          Guard
}

// Probe asks to connect to a member's own address, and to report by Probed.
type Probe struct {
	Member      rooted.MemberID
	Incarnation uint64
	Address     string
	Number      uint64
}

// ProbeResult is what came of a Probe.
type ProbeResult uint8

// Results of a probe.
const (
	// NoAnswer: a timeout, a reset, no route, or a connection on which nothing is said.
	NoAnswer ProbeResult = iota
	// Refused: the connection was refused.
	Refused
	// AnsweredOther: another incarnation answered, or what is no probe of ours.
	AnsweredOther
	// AnsweredSame: the incarnation answered.
	AnsweredSame
)

// Question asks when other coordinators last heard members; Told answers.
type Question struct {
	Number  uint64
	Members []rooted.MemberID
}

// Word is what another coordinator says of a member.
type Word struct {
	Member      rooted.MemberID
	Incarnation uint64
	// Age is how long ago its last frame was when the coordinator answered. Connected: its
	// stream there was open.
	Age       time.Duration
	Connected bool
}

// Verdict is that an incarnation has failed.
type Verdict struct {
	Member      rooted.MemberID
	Incarnation uint64
	Signals     Signals
	// Proven: no guard and no fence was waited for.
	Proven bool
	// Silence is how long nobody has heard it, as far as is known.
	Silence time.Duration
}

// Reason is a sentence for people.
func (v Verdict) Reason() string {
	switch {
	case v.Signals&Gone != 0:
		return "it has stopped serving and said so"
	case v.Signals&ProcessEnded != 0:
		return "its process has ended"
	case v.Signals&ProbeOther != 0:
		return "somebody else answers at its own address"
	case v.Signals&ProbeRefused != 0:
		return "its own address refuses connections"
	case v.Signals&TakesNothing != 0:
		return "it takes nothing that it is shown"
	default:
		return fmt.Sprintf("no coordinator has heard it for %v", v.Silence.Round(time.Millisecond))
	}
}

// Pacing.
const (
	// again is when what was held or refused is looked at once more.
	again = time.Second
	// settling is for how long at least a new holder hears members before it passes a verdict
	// by silence: they find it meanwhile.
	settling = time.Second
	// fresh is by how much more than AskTime an answer of the others may be old when a
	// verdict is passed.
	fresh = time.Second
	// probeTime is how long a probe is waited for.
	probeTime = 2 * time.Second
	// Probes without proof are repeated, at twice the time each, up to so long. They begin
	// anew when a stream ends, and with a new suspicion.
	probeAgainLeast = 50 * time.Millisecond
	probeAgainMost  = 10 * time.Second
	// maxTries bounds the probes of an incarnation that the root has ended.
	maxTries = 12
)

// Due is when Turn is to be called; a moment that never comes for nothing to do.
func (c *Core) Due() clock.Instant {
	switch {
	case c.pools.stale:
		return 0
	case len(c.timers) == 0:
		return never
	}
	return c.timers[0].at
}

// Turn looks at the members whose time has come, and says what is to be done. When
// there is more than one Batch has room for, Due is past.
func (c *Core) Turn(now clock.Instant) Batch {
	if c.pools.stale {
		c.pools.refresh()
		c.tolls = tolls{}
		for _, m := range c.members {
			c.timers.soon(m, now)
		}
	}
	if now.Sub(c.roundAt) >= c.s.Round {
		c.roundAt, c.passed = now, 0
	}
	var b Batch
	for looks := 0; len(c.timers) > 0 && c.timers[0].at <= now && !b.full() && looks < maxLooks; looks++ {
		m := c.timers[0].m
		c.timers.set(m, c.look(m, &b, now))
	}
	if len(b.Question.Members) > 0 {
		c.count.Questions++
	}
	return b
}

func (b *Batch) full() bool {
	return len(b.Verdicts) >= MaxBatch || len(b.Withheld) >= MaxBatch || len(b.Question.Members) >= MaxBatch || len(b.Ended) > MaxBatch-maxPast-1 || len(b.Probes) > MaxBatch-maxPast-1
}

// TurnBeside is Turn for who cannot root a verdict at once: one without proof is not passed, what others say
// of the member is kept fresh, and behind Resume the next Turn looks at it, as things are then.
func (c *Core) TurnBeside(now clock.Instant) Batch {
	c.beside = true
	defer func() { c.beside = false }()
	return c.Turn(now)
}

// Waits reports whether TurnBeside found verdicts that wait for a Turn.
func (c *Core) Waits() bool { return len(c.ripe) > 0 }

// Resume has the next Turn look at those whose verdicts TurnBeside did not pass.
func (c *Core) Resume(now clock.Instant) {
	for _, id := range c.ripe {
		if m := c.members[id]; m != nil {
			m.ripe = false
			c.timers.soon(m, now)
		}
	}
	c.ripe = nil
}

// look does for a member what is due, and says when to look again.
func (c *Core) look(m *member, b *Batch, now clock.Instant) clock.Instant {
	next := never
	for i := range m.past {
		next = min(next, c.lookPast(m, &m.past[i], b, now))
	}
	c.conclude(m, &m.life, now)
	switch {
	case m.doubted != 0 && m.doubted <= now:
		m.doubted = 0
		m.signals &^= DialFailures
	case m.doubted != 0:
		next = m.doubted
	}
	switch {
	case !m.accepting():
		return min(next, c.lookPast(m, &m.life, b, now))
	case m.judged:
		return next
	case m.proven() && c.holding:
		c.pass(m, b, true, now)
		return next
	case !m.class.watched:
		return next
	}
	silentAt, watched := c.silentAt(m)
	if !watched && c.holding {
		return min(next, now.Add(m.class.suspect)) // it may own something by then
	}
	if !watched {
		return next
	}
	if m.signals&StreamClosed == 0 && now < silentAt {
		return min(next, silentAt)
	}
	c.suspect(m, silentAt, now)
	if !c.holding {
		return next
	}
	return min(next, c.pursue(m, b, now))
}

// silentAt is when silence becomes suspicious. Who has never been heard here is
// watched only by the holder, from when its era began.
func (c *Core) silentAt(m *member) (at clock.Instant, watched bool) {
	switch {
	case m.heard != 0:
		return m.heard.Add(m.class.suspect), true
	case c.holding:
		return max(m.known, c.began).Add(m.class.suspect), c.matters(m)
	default:
		return 0, false
	}
}

// matters reports whether the loss of a member would be one: another coordinator
// hears it, or it owns something that is assigned.
func (c *Core) matters(m *member) bool {
	yes := m.elsewhere != 0 || m.signals&StreamClosed != 0
	if !yes && c.owned != nil {
		c.owned.IncarnationKeyspaces(m.incarnation, func(rooted.KeyspaceID, int) { yes = true })
	}
	return yes
}

// suspect notes that a member looks gone.
func (c *Core) suspect(m *member, silentAt, now clock.Instant) {
	if now >= silentAt {
		m.signals |= Silent
	}
	if m.vanished != 0 {
		return
	}
	c.count.Suspicions++
	if m.vanished = m.heard; m.vanished == 0 {
		m.vanished = max(m.known, c.began)
	}
}

// pursue asks what can be asked about a suspected member, and passes a verdict when
// its time has come.
func (c *Core) pursue(m *member, b *Batch, now clock.Instant) clock.Instant {
	next := c.probeNext(m, b, now)
	if m.told < m.vanished || m.told < c.began {
		next = min(next, c.ask(m, b, now))
	}
	patience := m.class.dead
	if m.signals&StreamClosed != 0 && m.class.closedDead && !c.probed(m) {
		patience = m.class.suspect
	}
	dueAt := max(c.lastHeard(m).Add(patience), c.began.Add(min(patience, settling)))
	dueAt = max(dueAt, c.firstFree(&m.life))
	if now < dueAt {
		return min(next, dueAt)
	}
	if by := c.guard(m, now); by != NotHeld {
		if m.held == NotHeld {
			c.count.Holds++
			b.Withheld = append(b.Withheld, Withheld{m.id, m.incarnation, by})
		}
		m.held = by
		return min(next, now.Add(again))
	}
	m.held = NotHeld
	old := c.s.AskTime + fresh
	if c.beside {
		old = fresh / 2 // so that it is fresh whenever the next Turn comes
	}
	if m.told < dueAt || now.Sub(m.told) > old {
		return min(next, c.ask(m, b, now))
	}
	if c.beside {
		if !m.ripe {
			m.ripe = true
			c.ripe = append(c.ripe, m.id)
		}
		return min(next, now.Add(fresh/2))
	}
	if c.passed >= c.s.VerdictsPerRound {
		m.held = HeldByBudget
		return min(next, c.roundAt.Add(c.s.Round))
	}
	c.passed++
	c.pass(m, b, false, now)
	return never
}

// lastHeard is from when on a member is silent: what this coordinator heard itself counts across
// eras, so that changes of authority start no clock anew. One that never spoke here is
// waited for from when the era began: members find the holder then. What others hear counts
// for as long as death takes, and no longer: a member that the holder does not hear,
// by none of the ways through others, cannot be confirmed and let go of nothing.
func (c *Core) lastHeard(m *member) clock.Instant {
	here := max(m.heard, m.known, m.class.awake)
	if m.heard == 0 {
		here = max(here, c.began)
	}
	return max(here, min(m.elsewhere, here.Add(m.class.dead)))
}

// probed reports whether the member's address is asked when its stream breaks.
func (c *Core) probed(m *member) bool { return m.class.probe && m.address != "" }

// allFree is when regions of all of the incarnation's keyspaces may be granted elsewhere without a
// proof: no fence of theirs is left to spare.
func (c *Core) allFree(l *life) (at clock.Instant) {
	if c.owned != nil {
		c.owned.IncarnationKeyspaces(l.incarnation, func(ks rooted.KeyspaceID, _ int) {
			if k := c.pools.byID[ks]; k != nil && k.fence != (Fence{}) {
				at = max(at, c.lifeEnds(l, k.fence))
			}
		})
	}
	return at
}

// firstFree is when regions of one of the incarnation's keyspaces may be granted elsewhere, if not by
// its verdict: those of the others wait for their own fences behind it.
func (c *Core) firstFree(l *life) clock.Instant {
	at := never
	if c.owned != nil {
		c.owned.IncarnationKeyspaces(l.incarnation, func(ks rooted.KeyspaceID, _ int) {
			switch k := c.pools.byID[ks]; {
			case k == nil:
			case k.fence == (Fence{}):
				at = 0
			default:
				at = min(at, c.lifeEnds(l, k.fence))
			}
		})
	}
	if at == never {
		return 0 // it owns nothing
	}
	return at
}

func (c *Core) pass(m *member, b *Batch, proven bool, now clock.Instant) {
	m.judged, m.held = true, NotHeld
	m.tries = 0 // a proof spares those that wait for its fences
	c.count.Verdicts++
	if proven {
		c.count.Proven++
	}
	b.Verdicts = append(b.Verdicts, Verdict{
		Member: m.id, Incarnation: m.incarnation, Signals: m.signals, Proven: proven,
		Silence: now.Sub(max(m.heard, m.elsewhere, m.known)),
	})
}

// ask puts a question about the member, unless one is open, and says when it ends.
func (c *Core) ask(m *member, b *Batch, now clock.Instant) clock.Instant {
	if m.wondered != 0 && now < m.wondered.Add(c.s.AskTime) {
		return m.wondered.Add(c.s.AskTime)
	}
	if m.wondered != 0 {
		c.othersAnswered(m, false, now)
		return now
	}
	if len(b.Question.Members) == 0 {
		c.questions++
		b.Question.Number = c.questions
	}
	b.Question.Members = append(b.Question.Members, m.id)
	m.question, m.wondered = b.Question.Number, now
	return now.Add(c.s.AskTime)
}

// Told answers a question. byAll: every other coordinator has answered; else one that may hear
// members could not be asked. Words of a question that is over count too.
func (c *Core) Told(q Question, words []Word, byAll bool, now clock.Instant) {
	for _, w := range words {
		m, l := c.own(w.Member, w.Incarnation)
		if l == nil {
			continue
		}
		l.elsewhere = max(l.elsewhere, now.Add(-w.Age))
		if w.Connected {
			l.open = now
		}
		if l == &m.life && m.class.watched && w.Age < m.class.suspect && m.vanished != 0 {
			m.signals |= HeardElsewhere
		}
	}
	for _, id := range q.Members {
		if m := c.members[id]; m != nil && m.question == q.Number && m.wondered != 0 {
			c.othersAnswered(m, byAll, now)
			if now.Sub(m.elsewhere) >= m.class.suspect {
				m.signals &^= HeardElsewhere
			}
			c.timers.soon(m, now)
		}
	}
}

// othersAnswered notes that those who were asked about the member have answered, all of them or
// those who could be asked.
func (c *Core) othersAnswered(m *member, all bool, now clock.Instant) {
	if all {
		m.toldByAll = m.wondered
	}
	m.told, m.wondered, m.question = m.wondered, 0, 0
	c.conclude(m, &m.life, now)
	for i := range m.past {
		c.conclude(m, &m.past[i], now)
	}
}
