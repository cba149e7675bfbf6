package liveness

import (
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/rooted"
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

// toll is when members that do not look gone were heard last, and when those that fell
// silent without a proof of death, or an operator's word, vanished: in order. The latter may have
// been failed since.
type toll struct {
	heard, vanished []clock.Instant
}

// add counts a member, if it is either.
func (t *toll) add(m *member) {
	silent := m.vanished != 0 && !m.explained && !m.proven() && m.signals&Goodbye == 0
	switch {
	case silent:
		t.vanished = append(t.vanished, m.vanished)
	case m.vanished == 0 && m.accepting() && (m.heard != 0 || m.elsewhere != 0):
		t.heard = append(t.heard, max(m.heard, m.elsewhere))
	}
}

func (t *toll) sort() {
	slices.Sort(t.vanished)
	slices.Sort(t.heard)
}

// tolls are those of each class at a moment.
type tolls struct {
	at      clock.Instant
	byClass map[*class]*toll
	// beyond are those of members that own regions of keyspaces that their records do not name:
	// an operator gave them.
	beyond map[rooted.KeyspaceID]*toll
	// closed are keyspaces of which grants say who may own regions, whole the tolls of those that
	// were asked for.
	closed []*pool
	whole  map[rooted.KeyspaceID]*toll
	// common stands for the other keyspaces that no class names, as strict as the strictest; nil: none.
	common *pool
}

// tollTime is how long counted tolls are used: whoever vanished in it is not due yet.
const tollTime = LeastInterval

// countTolls counts anew when what was counted is old.
func (c *Core) countTolls(now clock.Instant) {
	if c.tolls.byClass != nil && now.Sub(c.tolls.at) < tollTime {
		return
	}
	c.tolls = tolls{at: now, byClass: map[*class]*toll{}, beyond: map[rooted.KeyspaceID]*toll{}, whole: map[rooted.KeyspaceID]*toll{}}
	for _, m := range c.members {
		tollOf(c.tolls.byClass, m.class).add(m)
		if m.class.key != "" {
			var once []*pool
			c.owns(m, func(k *pool) {
				if !m.class.takes(k) && !slices.Contains(once, k) {
					once = append(once, k)
					tollOf(c.tolls.beyond, k.id).add(m)
				}
			})
		}
	}
	for _, t := range c.tolls.byClass {
		t.sort()
	}
	for _, t := range c.tolls.beyond {
		t.sort()
	}
	for _, k := range c.pools.byID {
		switch o := c.tolls.common; {
		case c.owned != nil && c.owned.Closed(k.name):
			c.tolls.closed = append(c.tolls.closed, k)
		case len(k.named) > 0:
		case o == nil:
			c.tolls.common = &pool{massPermille: k.massPermille, massWindow: k.massWindow, massHold: k.massHold}
		default:
			o.massPermille, o.massWindow, o.massHold = min(o.massPermille, k.massPermille), max(o.massWindow, k.massWindow), max(o.massHold, k.massHold)
		}
	}
}

func tollOf[K comparable](all map[K]*toll, of K) *toll {
	if all[of] == nil {
		all[of] = &toll{}
	}
	return all[of]
}

// owns calls fn for the keyspaces that a member owns regions of; for one maybe twice.
func (c *Core) owns(m *member, fn func(k *pool)) {
	if c.owned == nil {
		return
	}
	c.owned.IncarnationKeyspaces(m.incarnation, func(ks rooted.KeyspaceID, _ int) {
		if k := c.pools.byID[ks]; k != nil {
			fn(k)
		}
	})
}

// concerns reports whether a member owns regions of a keyspace, or may.
func (c *Core) concerns(m *member, k *pool) bool {
	yes := m.class.takes(k) && (c.owned == nil || c.owned.Hosts(m.id, k.name))
	if !yes {
		c.owns(m, func(o *pool) { yes = yes || o == k })
	}
	return yes
}

// wholeToll is that of a keyspace of which grants say who may own regions.
func (c *Core) wholeToll(k *pool) *toll {
	t := c.tolls.whole[k.id]
	if t == nil {
		t = &toll{}
		for _, m := range c.members {
			if c.concerns(m, k) {
				t.add(m)
			}
		}
		t.sort()
		c.tolls.whole[k.id] = t
	}
	return t
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

// guard says what holds a verdict without proof: keyspaces of which the member owns regions, or may.
func (c *Core) guard(m *member, now clock.Instant) Guard {
	c.countTolls(now)
	held := func(k *pool) bool { return now < m.vanished.Add(k.massHold) && c.massive(k, m.vanished) }
	own := func(k *pool) bool { return c.concerns(m, k) && held(k) }
	yes := slices.ContainsFunc(m.class.pools, own) || slices.ContainsFunc(c.tolls.closed, own)
	if m.class.key == "" {
		yes = yes || c.tolls.common != nil && held(c.tolls.common) || slices.ContainsFunc(c.pools.named, own)
	}
	for ks := range c.tolls.beyond {
		yes = yes || own(c.pools.byID[ks])
	}
	if yes {
		return HeldByMassFailure
	}
	return NotHeld
}

// massive reports whether, of the members that own regions of a keyspace or may, too many fell silent
// around a moment: of those and the ones that were heard since. Who was dead by then, by proof or for
// long, is none of them.
func (c *Core) massive(k *pool, at clock.Instant) bool {
	alive, vanished := 0, 0
	count := func(t *toll) {
		alive += t.living(at)
		vanished += t.around(at, k.massWindow)
	}
	if slices.Contains(c.tolls.closed, k) {
		count(c.wholeToll(k))
	} else {
		count(c.tolls.byClass[c.pools.classes[""]])
		count(c.tolls.beyond[k.id])
		for _, cl := range k.named {
			count(c.tolls.byClass[cl])
		}
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
