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

// tolls are those at a moment.
type tolls struct {
	at clock.Instant
	// by are those of members that may own regions of keyspaces with the same hosts, by the classes of the
	// members, as far as they were asked for.
	by map[string]map[*class]*toll
	// beyond are those of members that own regions of keyspaces that they may own none of: an operator gave
	// them, or a grant was taken back.
	beyond map[rooted.KeyspaceID]*toll
	// common stands for the keyspaces with the same hosts that no class names, as strict as the strictest.
	common map[string]*pool
}

// tollTime is how long counted tolls are used: whoever vanished in it is not due yet.
const tollTime = LeastInterval

// countTolls counts anew when what was counted is old.
func (c *Core) countTolls(now clock.Instant) {
	if c.tolls.by != nil && now.Sub(c.tolls.at) < tollTime {
		return
	}
	c.tolls = tolls{at: now, by: map[string]map[*class]*toll{}, beyond: map[rooted.KeyspaceID]*toll{}, common: map[string]*pool{}}
	closed := false
	for _, k := range c.pools.byID {
		if k.hosts = ""; c.owned != nil {
			k.hosts = c.owned.HostedBy(k.name)
		}
		closed = closed || k.hosts != ""
		switch o := c.tolls.common[k.hosts]; {
		case len(k.named) > 0:
		case o == nil:
			c.tolls.common[k.hosts] = &pool{name: k.name, hosts: k.hosts, massPermille: k.massPermille, massWindow: k.massWindow, massHold: k.massHold}
		default:
			o.massPermille, o.massWindow, o.massHold = min(o.massPermille, k.massPermille), max(o.massWindow, k.massWindow), max(o.massHold, k.massHold)
		}
	}
	for _, m := range c.members {
		if m.class.key == "" && !closed {
			continue
		}
		may, once := c.mayOwn(m), map[*pool]bool{}
		c.owns(m, func(k *pool) {
			if !may(k) && !once[k] {
				once[k] = true
				tollOf(c.tolls.beyond, k.id).add(m)
			}
		})
	}
	for _, t := range c.tolls.beyond {
		t.sort()
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

// mayOwn says of which keyspaces a member may own regions, by its record and by grants.
func (c *Core) mayOwn(m *member) func(k *pool) bool {
	hosts := map[string]bool{"": true}
	return func(k *pool) bool {
		yes, known := hosts[k.hosts]
		if !known {
			yes = c.owned.Hosts(m.id, k.name)
			hosts[k.hosts] = yes
		}
		return yes && m.class.takes(k)
	}
}

// tollsOf are those of members that may own regions of a keyspace by grants, by class.
func (c *Core) tollsOf(k *pool) map[*class]*toll {
	of := c.tolls.by[k.hosts]
	if of != nil {
		return of
	}
	of = map[*class]*toll{}
	for _, m := range c.members {
		if k.hosts == "" || c.owned.Hosts(m.id, k.name) {
			tollOf(of, m.class).add(m)
		}
	}
	for _, t := range of {
		t.sort()
	}
	c.tolls.by[k.hosts] = of
	return of
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
	may := c.mayOwn(m)
	own := func(k *pool) bool { return may(k) && held(k) }
	yes := slices.ContainsFunc(m.class.pools, own)
	if m.class.key == "" {
		yes = yes || slices.ContainsFunc(c.pools.named, own)
		for _, k := range c.tolls.common {
			yes = yes || own(k)
		}
	}
	for ks := range c.tolls.beyond {
		yes = yes || own(c.pools.byID[ks])
	}
	if len(c.tolls.beyond) > 0 {
		c.owns(m, func(k *pool) { yes = yes || held(k) })
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
	of := c.tollsOf(k)
	count(of[c.pools.classes[""]])
	count(c.tolls.beyond[k.id])
	for _, cl := range k.named {
		count(of[cl])
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
