package liveness

import (
	"maps"
	"slices"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/rooted"
)

// Health is what is observed of a member; what is rooted is its state.
type Health uint8

// Healths, numbered as MemberHealth on the wire.
const (
	Unknown Health = iota
	// Discovered: registered, and not heard of here yet.
	Discovered
	Live
	// Suspected: it gets nothing new, and keeps what it has.
	Suspected
	// Held: it would be failed, but a guard holds the verdict.
	Held
)

// String is the health's name, as it is shown.
func (h Health) String() string {
	return [...]string{"unknown", "discovered", "live", "suspected", "held"}[h]
}

// Standing is what is thought of a member.
type Standing struct {
	Incarnation uint64
	Health      Health
	Signals     Signals
	// Guard holds the verdict, if Health is Held.
	Guard Guard
	// Connected: it has a stream here. Heard is when its last frame came; 0: never.
	Connected bool
	Heard     clock.Instant
	// Leaving: it said that it will.
	Leaving bool
	// DampedUntil: it failed too often, and gets nothing new before. Settling: it recovered
	// lately, and nothing is moved back to it, to even out, before.
	DampedUntil, SettlingUntil clock.Instant
	// RestsUntil: it could not acquire what another member could, and gets nothing of that
	// keyspace before that anybody else may have. The planner says so, not the detector.
	RestsUntil clock.Instant
}

// Takes reports whether a member may get something new.
func (s Standing) Takes(now clock.Instant) bool {
	return s.Health == Live && !s.Leaving && now >= s.DampedUntil
}

// Damped reports whether a member would be one that Takes, had it not failed too often.
func (s Standing) Damped(now clock.Instant) bool {
	return s.Health == Live && !s.Leaving && now < s.DampedUntil
}

// Standing says what is thought of a member.
func (c *Core) Standing(id rooted.MemberID) Standing {
	m := c.members[id]
	if m == nil {
		return Standing{}
	}
	s := Standing{
		Incarnation: m.incarnation, Health: Live, Signals: m.signals, Guard: m.held, Connected: m.stream != 0, Heard: m.heard,
		Leaving: m.signals&(Goodbye|Gone) != 0, DampedUntil: m.dampedUntil(),
	}
	if m.recovered != 0 {
		s.SettlingUntil = m.recovered.Add(m.class.noMoveBack)
	}
	switch {
	case m.held != NotHeld:
		s.Health = Held
	case m.vanished != 0 || m.doubted != 0 || m.judged || m.signals&(StreamClosed|TakesNothing) != 0 || m.proven():
		s.Health = Suspected
	case m.heard == 0:
		s.Health = Discovered
	}
	return s
}

// Hold is a guard that holds verdicts.
type Hold struct {
	Guard   Guard
	Members []rooted.MemberID
}

// Holds are the guards that hold verdicts, with the members that they save, by id. It
// looks at every member.
func (c *Core) Holds() []Hold {
	by := map[Guard][]rooted.MemberID{}
	for id, m := range c.members {
		if m.held != NotHeld {
			by[m.held] = append(by[m.held], id)
		}
	}
	var holds []Hold
	for _, g := range slices.Sorted(maps.Keys(by)) {
		slices.Sort(by[g])
		holds = append(holds, Hold{Guard: g, Members: by[g]})
	}
	return holds
}

// Counters returns what was counted.
func (c *Core) Counters() Counters { return c.count }
