package liveness

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// pool is an assigned keyspace.
type pool struct {
	id   rooted.KeyspaceID
	name string
	terms
	fence        Fence
	massPermille uint64
	// massHold is how long a member is silent when its verdict is held no longer.
	massWindow, massHold time.Duration
	// named are the classes that name it; those that take every keyspace do not.
	named []*class
	// hosts are those who may own its regions by grants, as when tolls were counted: see Holdings.
	hosts string
}

// class is the members that take regions of the same keyspaces.
type class struct {
	// names of the keyspaces, with commas; empty: all.
	key     string
	members int
	terms
	// watched: there is such a keyspace.
	watched bool
	// pools are those that the names name.
	pools []*pool
	// awake is when this process last stood still for so long that members of the class may
	// look dead.
	awake clock.Instant
}

// pools are the assigned keyspaces, and the classes of members over them.
type pools struct {
	byID    map[rooted.KeyspaceID]*pool
	classes map[string]*class
	// stale: classes do not say what keyspaces say.
	stale bool
	// changes counts those of fences.
	changes uint64
	// named are those that some class names, by id.
	named []*pool
}

func newPools() pools {
	return pools{byID: map[rooted.KeyspaceID]*pool{}, classes: map[string]*class{}}
}

func (p *pools) set(k *rootv1.Keyspace) {
	id, s := rooted.KeyspaceID(k.GetId()), k.GetSettings()
	if s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED {
		p.drop(id)
		return
	}
	g, fence := state.GuardsOf(s), FenceOf(k)
	if old := p.byID[id]; old == nil || old.fence != fence {
		p.changes++
	}
	p.byID[id] = &pool{
		id: id, name: k.GetName(), terms: termsOf(s), fence: fence,
		massPermille: g.GetMassPermille(), massWindow: millis(g.GetMassWindowMillis()), massHold: millis(g.GetMassHoldMillis()),
	}
	p.stale = true
}

func (p *pools) drop(id rooted.KeyspaceID) {
	if p.byID[id] != nil {
		delete(p.byID, id)
		p.stale = true
	}
}

// join moves a member from a class, nil for none, to the one with those keyspaces.
func (p *pools) join(from *class, keyspaces []string) *class {
	key := ""
	if len(keyspaces) > 0 {
		key = strings.Join(slices.Compact(slices.Sorted(slices.Values(keyspaces))), ",")
	}
	if from != nil && from.key == key {
		return from
	}
	p.leave(from)
	to := p.classes[key]
	if to == nil {
		to = &class{key: key}
		p.classes[key] = to
		p.stale = true
	}
	to.members++
	return to
}

func (p *pools) leave(from *class) {
	if from == nil {
		return
	}
	if from.members--; from.members == 0 {
		delete(p.classes, from.key)
		p.stale = true
	}
}

// refresh makes the classes say what keyspaces say.
func (p *pools) refresh() {
	p.stale, p.named = false, nil
	byName := make(map[string]*pool, len(p.byID))
	all := slices.SortedFunc(maps.Values(p.byID), func(a, b *pool) int { return int(a.id) - int(b.id) })
	for _, k := range all {
		k.named = nil
		byName[k.name] = k
	}
	for _, key := range slices.Sorted(maps.Keys(p.classes)) {
		c := p.classes[key]
		c.terms, c.watched, c.pools = terms{}, false, nil
		if key == "" {
			for _, k := range all {
				c.add(k)
			}
			continue
		}
		for name := range strings.SplitSeq(key, ",") {
			if k := byName[name]; k != nil {
				c.add(k)
				c.pools = append(c.pools, k)
				k.named = append(k.named, c)
			}
		}
	}
	for _, k := range all {
		if len(k.named) > 0 {
			p.named = append(p.named, k)
		}
	}
}

// takes reports whether members of the class name a keyspace.
func (c *class) takes(k *pool) bool { return c.key == "" || slices.Contains(c.pools, k) }

func (c *class) add(k *pool) {
	if !c.watched {
		c.terms, c.watched = k.terms, true
		return
	}
	c.terms = c.terms.strictest(k.terms)
}

// stoodStill notes that this process did nothing for a time. A member that sent frames until
// then and does so again is silent for less than the rest of what death takes.
func (p *pools) stoodStill(d time.Duration, now clock.Instant) {
	for _, c := range p.classes {
		if d >= c.dead/2 {
			c.awake = now
		}
	}
}
