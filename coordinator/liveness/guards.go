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
	// HeldByMassFailure: more of a keyspace's members than it allows vanished together.
	HeldByMassFailure
	// HeldByBudget: the round has had its verdicts.
	HeldByBudget
)

// String is the guard's name, as it is shown.
func (g Guard) String() string { return [...]string{"", "mass_failure_hold", "verdict_budget"}[g] }

// Reason is a sentence for people.
func (g Guard) Reason() string {
	return [...]string{
		"", "more members of a keyspace vanished together than it lets fail without proof of death", "there were enough verdicts without proof for now",
	}[g]
}

// toll is how many members of a class there are to be lost, and when those that look
// gone, or were failed since, vanished: in order.
type toll struct {
	members  int
	vanished []clock.Instant
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
		if m.vanished == 0 && (!m.accepting() || m.heard == 0 && m.elsewhere == 0) {
			continue
		}
		t := c.tolls.byClass[m.class]
		if t == nil {
			t = &toll{}
			c.tolls.byClass[m.class] = t
		}
		t.members++
		if m.vanished != 0 && m.signals&Goodbye == 0 {
			t.vanished = append(t.vanished, m.vanished)
		}
	}
	for _, t := range c.tolls.byClass {
		slices.Sort(t.vanished)
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

func (t *toll) all() int {
	if t == nil {
		return 0
	}
	return t.members
}

// guard says what holds a verdict without proof.
func (c *Core) guard(m *member, now clock.Instant) Guard {
	c.countTolls(now)
	held := func(k *pool) bool { return c.massive(k, m.vanished) }
	if m.class.key != "" && slices.ContainsFunc(m.class.pools, held) {
		return HeldByMassFailure
	}
	if m.class.key == "" && (c.pools.common != nil && held(c.pools.common) || slices.ContainsFunc(c.pools.named, held)) {
		return HeldByMassFailure
	}
	return NotHeld
}

// massive reports whether too many of the members that take a keyspace's regions
// vanished around a moment.
func (c *Core) massive(k *pool, at clock.Instant) bool {
	every := c.tolls.byClass[c.pools.classes[""]]
	members, vanished := every.all(), every.around(at, k.massWindow)
	for _, cl := range k.named {
		t := c.tolls.byClass[cl]
		members += t.all()
		vanished += t.around(at, k.massWindow)
	}
	return uint64(vanished)*1000 > k.massPermille*uint64(members)
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
