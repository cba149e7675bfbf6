package liveness

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/rooted"
)

// Clone returns a Core that goes on independently. It is for small worlds: it takes
// time and memory for every member.
func (c *Core) Clone() *Core {
	n := *c
	n.pools = newPools()
	n.pools.stale, n.pools.changes = c.pools.stale, c.pools.changes
	for id, k := range c.pools.byID {
		n.pools.byID[id] = new(*k)
	}
	n.members = make(map[rooted.MemberID]*member, len(c.members))
	n.timers = make(timers, len(c.timers))
	n.tolls = tolls{}
	n.ripe = slices.Clone(c.ripe)
	for id, m := range c.members {
		q := new(*m)
		q.failures, q.past = slices.Clone(m.failures), slices.Clone(m.past)
		q.class = n.pools.classes[m.class.key]
		if q.class == nil {
			q.class = &class{key: m.class.key, members: m.class.members}
			n.pools.classes[q.class.key] = q.class
		}
		n.members[id] = q
		if q.place >= 0 {
			n.timers[q.place] = timer{c.timers[q.place].at, q}
		}
	}
	stale := n.pools.stale
	n.pools.refresh()
	n.pools.stale = stale
	return &n
}

// AppendFingerprint appends what tells Cores apart that may act differently from now
// on: all but counters and the numbers of what was asked. Moments are told relative to
// now, and those further away than the horizon not from each other.
func (c *Core) AppendFingerprint(dst []byte, now clock.Instant, horizon time.Duration) []byte {
	f := fingerprint{dst: dst, now: now, horizon: horizon}
	f.flag(c.holding)
	f.number(uint64(c.era))
	f.at(c.began)
	f.at(c.roundAt)
	f.at(c.forgotten)
	f.number(uint64(c.passed))
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		m := c.members[id]
		f.member(m, c.pools.changes)
		if f.flag(m.place >= 0); m.place >= 0 {
			f.at(c.timers[m.place].at)
		}
	}
	return f.dst
}

type fingerprint struct {
	dst     []byte
	now     clock.Instant
	horizon time.Duration
}

func (f *fingerprint) number(n uint64) { f.dst = binary.AppendUvarint(f.dst, n) }

func (f *fingerprint) flag(b bool) {
	if b {
		f.number(1)
	} else {
		f.number(0)
	}
}

// at appends a moment; 0, which is none, is told from all others.
func (f *fingerprint) at(i clock.Instant) {
	if i == 0 {
		f.number(0)
		return
	}
	f.dst = binary.AppendVarint(f.dst, 1+int64(f.horizon)+int64(min(max(i.Sub(f.now), -f.horizon), f.horizon)))
}

func (f *fingerprint) text(s string) {
	f.number(uint64(len(s)))
	f.dst = append(f.dst, s...)
}

func (f *fingerprint) member(m *member, changes uint64) {
	f.text(string(m.id))
	f.text(m.class.key)
	f.number(uint64(m.state))
	f.flag(m.judged)
	f.flag(m.explained)
	f.number(uint64(m.held))
	for _, i := range [...]clock.Instant{m.known, m.heard, m.vanished, m.doubted, m.wondered, m.told, m.toldByAll, m.recovered, m.forgotten} {
		f.at(i)
	}
	f.number(uint64(len(m.failures)))
	for _, i := range m.failures {
		f.at(i)
	}
	f.number(uint64(len(m.past)))
	for i := range m.past {
		f.life(&m.past[i], changes)
	}
	f.life(&m.life, changes)
}

func (f *fingerprint) life(l *life, changes uint64) {
	f.flag(l.fences == changes)
	f.number(l.incarnation)
	f.text(l.address)
	f.number(uint64(l.stream))
	f.number(uint64(l.signals))
	f.flag(l.untold)
	f.flag(l.sure)
	f.number(uint64(l.refused))
	f.number(uint64(l.tries))
	f.number(uint64(l.found))
	for _, i := range [...]clock.Instant{l.answered, l.formerly(changes), l.broke, l.elsewhere, l.open, l.asked, l.next, l.foundAt} {
		f.at(i)
	}
}
