package liveness

import (
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
)

// Guard is what holds a verdict that would be passed otherwise.
type Guard uint8

// Guards.
const (
	NotHeld Guard = iota
	// HeldByMassFailure: more of a keyspace's members than it allows fell silent together.
	HeldByMassFailure
	// HeldByBudget: the round has had its verdicts.
	HeldByBudget
)

// String is the guard's name, as it is shown.
func (g Guard) String() string { return [...]string{"", "mass_failure_hold", "verdict_budget"}[g] }

// Reason is a sentence for people.
func (g Guard) Reason() string {
	return [...]string{
		"", "more members of a keyspace fell silent together than it lets fail without proof of death: it is failed when guards-mass-hold is over, or by nokv member fail", "there were enough verdicts without proof for now",
	}[g]
}

// toll is when members of a class that do not look gone were heard last, and when those that fell
// silent without a proof of death, or an operator's word, vanished: in order. The latter may have
// been failed since.
type toll struct {
	heard, vanished []clock.Instant
}

// tolls are those of each class at a moment.
type tolls struct {
	at      clock.Instant
	byClass map[*class]*toll
}

// tollTime is how long counted tolls are used: whoever vanished in it is not due yet.
const tollTime = LeastInterval

// countTolls counts anew when what was counted is old.
func (c *Core) countTolls(now clock.Instant) {
	if c.tolls.byClass != nil && now.Sub(c.tolls.at) < tollTime {
		return
	}
	c.tolls = tolls{at: now, byClass: map[*class]*toll{}}
	for _, m := range c.members {
		silent := m.vanished != 0 && !m.explained && !m.proven() && m.signals&Goodbye == 0
		if !silent && (m.vanished != 0 || !m.accepting() || m.heard == 0 && m.elsewhere == 0) {
			continue
		}
		t := c.tolls.byClass[m.class]
		if t == nil {
			t = &toll{}
			c.tolls.byClass[m.class] = t
		}
		if silent {
			t.vanished = append(t.vanished, m.vanished)
		} else {
			t.heard = append(t.heard, max(m.heard, m.elsewhere))
		}
	}
	for _, t := range c.tolls.byClass {
		slices.Sort(t.vanished)
		slices.Sort(t.heard)
	}
}

// around is how many vanished within a window before or behind a moment.
func (t *toll) around(at clock.Instant, window time.Duration) int {
	if t == nil {
		return 0
	}
	from, _ := slices.BinarySearch(t.vanished, at.Add(-window))
	to, _ := slices.BinarySearch(t.vanished, at.Add(window)+1)
	return to - from
}

// living is how many live behind a moment: they were heard since. Of one that is more patient, and
// was not, it is not known.
func (t *toll) living(at clock.Instant) int {
	if t == nil {
		return 0
	}
	from, _ := slices.BinarySearch(t.heard, at+1)
	return len(t.heard) - from
}

// guard says what holds a verdict without proof.
func (c *Core) guard(m *member, now clock.Instant) Guard {
	c.countTolls(now)
	held := func(k *pool) bool { return now < m.vanished.Add(k.massHold) && c.massive(k, m.vanished) }
	if m.class.key != "" && slices.ContainsFunc(m.class.pools, held) {
		return HeldByMassFailure
	}
	if m.class.key == "" && (c.pools.common != nil && held(c.pools.common) || slices.ContainsFunc(c.pools.named, held)) {
		return HeldByMassFailure
	}
	return NotHeld
}

// massive reports whether, of the members that take a keyspace's regions, too many fell silent
// around a moment: of those and the ones that were heard since. Who was dead by then, by proof or for
// long, is none of them.
func (c *Core) massive(k *pool, at clock.Instant) bool {
	every := c.tolls.byClass[c.pools.classes[""]]
	alive, vanished := every.living(at), every.around(at, k.massWindow)
	for _, cl := range k.named {
		t := c.tolls.byClass[cl]
		alive += t.living(at)
		vanished += t.around(at, k.massWindow)
	}
	return uint64(vanished)*1000 > k.massPermille*uint64(alive+vanished)
}

// dampedUntil is when a member that failed too often gets something again; 0: now.
func (m *member) dampedUntil() clock.Instant {
	n := len(m.failures)
	if !m.class.watched || n < m.class.flapFailures {
		return 0
	}
	last := m.failures[n-1]
	if last.Sub(m.failures[n-m.class.flapFailures]) > m.class.flapWindow {
		return 0
	}
	return last.Add(m.class.flapWindow)
}
