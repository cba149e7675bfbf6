package held

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/rooted"
	"github.com/tidwall/btree"
)

// Clone is a Core, with a Table of its own, that goes on from where this one is.
func (c *Core) Clone() *Core {
	n, _ := c.CloneWith(nil)
	return n
}

// CloneWith is Clone, and the rights that were admitted here as they are there.
func (c *Core) CloneWith(admitted []*Grant) (*Core, []*Grant) {
	n := *c
	gates := map[*gate]*gate{nil: nil}
	n.table = newTable()
	n.table.confirmed.Store(c.table.confirmed.Load())
	n.table.retired.Store(c.table.retired.Load())
	n.table.hold.Store(c.table.hold.Load())
	c.table.mu.Lock()
	n.table.past, n.table.order = maps.Clone(c.table.past), slices.Clone(c.table.order)
	for id, gone := range c.table.gone {
		n.table.gone[id] = gone.Copy()
	}
	c.table.mu.Unlock()
	n.queue, n.cancels, n.timers, n.calls = c.queue.clone(), slices.Clone(c.cancels), slices.Clone(c.timers), maps.Clone(c.calls)
	n.looks = slices.Clone(c.looks)
	n.answers.replies, n.answers.order = maps.Clone(c.answers.replies), slices.Clone(c.answers.order)
	n.keyspaces = make(map[rooted.KeyspaceID]*keyspace, len(c.keyspaces))
	for id, k := range c.keyspaces {
		copied := &keyspace{call: k.call, stopped: k.stopped, told: k.told, shorter: k.shorter, longer: k.longer, longerFrom: k.longerFrom, exact: map[string]*Grant{}, ranges: btree.NewMap[string, *Grant](0)}
		copied.now.Store(k.now.Load())
		n.keyspaces[id] = copied
	}
	n.name()
	for i, s := range c.streams {
		if s == nil {
			continue
		}
		copied := *s
		copied.hashes = maps.Clone(s.hashes)
		copied.parts, copied.ended = slices.Clone(s.parts), slices.Clone(s.ended)
		copied.sent, copied.todo, copied.dirty, copied.replies = slices.Clone(s.sent), slices.Clone(s.todo), slices.Clone(s.dirty), slices.Clone(s.replies)
		n.streams[i] = &copied
	}
	n.regions = make(map[rooted.RegionID]*region, len(c.regions))
	for id, r := range c.regions {
		copied := *r
		copied.gate, copied.left = r.gate.clone(gates), r.left.clone(gates)
		n.regions[id] = &copied
		n.publish(&copied, n.want(&copied))
	}
	grants := make([]*Grant, len(admitted))
	for i, g := range admitted {
		grants[i] = &Grant{Region: g.Region, space: n.keyspaces[g.space.now.Load().ID], gate: g.gate.clone(gates)}
	}
	return &n, grants
}

// clone is a gate with the same count, and the same one whenever it is asked for.
func (g *gate) clone(known map[*gate]*gate) *gate {
	if n, ok := known[g]; ok {
		return n
	}
	n := &gate{}
	n.state.Store(g.state.Load())
	n.used.Store(g.used.Load())
	known[g] = n
	return n
}

// AppendFingerprint appends what tells this Core from others: two of one fingerprint
// admit, ask and say the same from now on, whatever happens to both, but for the numbers
// of frames and calls. Times are told as ages, where it matters how long ago they were;
// frames are counted back from the newest.
func (c *Core) AppendFingerprint(b []byte, now clock.Instant) []byte {
	word := func(v ...uint64) {
		for _, x := range v {
			b = binary.AppendUvarint(b, x)
		}
	}
	text := func(v ...string) {
		for _, x := range v {
			b = append(binary.AppendUvarint(b, uint64(len(x))), x...)
		}
	}
	token := func(t rooted.Token) { word(t.Incarnation, t.Index) }
	epoch := func(e rooted.Epoch) { word(e.Version, e.ConfVersion) }
	flag := func(v ...bool) {
		for _, x := range v {
			if x {
				word(1)
			} else {
				word(0)
			}
		}
	}
	age := func(at clock.Instant, matters time.Duration) {
		if at == 0 {
			word(0)
		} else {
			word(uint64(min(now.Sub(at), matters)) + 1)
		}
	}
	ttl := time.Duration(0)
	for _, k := range c.keyspaces {
		ttl = max(ttl, k.now.Load().TTL, k.longer)
	}
	if len(c.keyspaces) == 0 { // any ttl may come
		ttl = math.MaxInt64 - 1
	}
	token(c.obeyed)
	word(c.era)
	flag(c.stopping, c.over, c.goodbye != nil && c.goodbye.gone, c.goodbye != nil)
	age(clock.Instant(c.table.confirmed.Load()), ttl)
	for _, id := range c.spaces() {
		k, t := c.keyspaces[id], c.keyspaces[id].now.Load()
		word(uint64(id), uint64(t.TTL), uint64(k.shorter), uint64(k.longer))
		if k.longer != 0 {
			age(k.longerFrom, ttl)
		}
		flag(t.Shared, k.stopped, k.told, k.call != 0)
	}
	word(uint64(len(c.regions)))
	for _, id := range c.ids() {
		r := c.regions[id]
		word(uint64(id), uint64(r.phase), uint64(r.kindNow()), uint64(min(r.tries, 1)))
		flag(r.at != nil, r.shown != nil, r.cancelled, r.idle, r.fronted, r.command != nil, r.err != "", r.joined, r.evicted, r.hung)
		text(r.frontier, r.transition, r.whole)
		if r.at != nil {
			epoch(r.at.Epoch)
			text(r.at.Frontier)
		}
		if r.gate != nil {
			word(r.gate.state.Load())
		}
		if r.left != nil {
			word(r.left.state.Load())
		}
		if r.waitsUntil > now {
			word(uint64(r.waitsUntil.Sub(now)))
		}
		if c.idleAfter(r) > 0 {
			flag(r.unused, r.gate != nil && r.gate.used.Load())
			age(r.quiet, c.idleAfter(r))
		}
		if s := r.shown; s != nil {
			epoch(s.region.Epoch)
			word(uint64(s.role), s.peer.Incarnation, uint64(s.left), uint64(s.right))
			flag(s.releaseNow)
			text(s.transition, s.region.Frontier, string(s.peer.Member))
		}
		if r.retryAt > now {
			word(uint64(r.retryAt.Sub(now)))
		}
		word(uint64(r.dirty))
	}
	for i, s := range c.streams {
		if s == nil {
			continue
		}
		word(uint64(i), min(s.sequence, 1), s.sum, uint64(len(s.hashes)), uint64(len(s.parts)), uint64(len(s.todo)), uint64(len(s.replies)))
		token(s.token)
		flag(s.broken, s.inside, s.whole, s.begun, s.urgent)
		age(s.pending, ttl)
		age(s.lastSent, s.interval)
		word(uint64(len(s.sent)))
		for _, f := range s.sent {
			word(s.sequence - f.sequence)
			age(f.at, ttl)
		}
		for _, p := range s.parts {
			word(p.hash)
		}
	}
	return b
}
