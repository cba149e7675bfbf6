package held

// Here is what the table keeps of regions that are not here any more, and who waits for those that come.

import (
	"github.com/nokv/nokv/rooted"
	"github.com/tidwall/btree"
)

// departed is a region that was given away, and what is said of it.
type departed struct {
	region *rooted.Region
	no     *Refusal
}

// spot is a key of a keyspace.
type spot struct{ keyspace, key string }

type waiters struct {
	turn  chan struct{}
	count int
}

// departed is what was given away of the region of a request, or that held its key here last; nil: nothing is known.
func (t *Table) departed(q *Request, k *keyspace) (last *departed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.Region != 0 {
		return t.past[q.Region]
	}
	if k == nil {
		return nil
	}
	terms := k.now.Load()
	gone := t.gone[terms.ID]
	if gone == nil {
		return nil
	}
	var room [8]byte
	at := routeKey(room[:0], terms.Layout, q.Key)
	gone.Descend(at, func(_ string, d *departed) bool {
		if d.region.Contains(at) {
			last = d
		}
		return false
	})
	return last
}

// remember keeps where a region went.
func (t *Table) remember(d *departed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == maxPast {
		first := t.order[0]
		t.order = t.order[1:]
		if t.past[first.region.ID] == first {
			delete(t.past, first.region.ID)
		}
		gone := t.gone[first.region.Keyspace]
		if at, ok := gone.Get(first.region.Start); ok && at == first {
			gone.Delete(first.region.Start)
		}
	}
	t.past[d.region.ID] = d
	t.order = append(t.order, d)
	gone := t.gone[d.region.Keyspace]
	if gone == nil {
		gone = btree.NewMap[string, *departed](0)
		t.gone[d.region.Keyspace] = gone
	}
	gone.Set(d.region.Start, d)
}

// Changed is closed when something about a region has changed since the call; without a region, about whichever comes to
// hold the key of a request. Whoever waits no more calls the function returned.
func (t *Table) Changed(id rooted.RegionID, q *Request) (<-chan struct{}, func()) {
	if id == 0 {
		return await(t, t.keys, spot{q.Keyspace, string(q.Key)})
	}
	return await(t, t.changed, id)
}

func await[K comparable](t *Table, all map[K]*waiters, at K) (<-chan struct{}, func()) {
	t.waiting.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	w := all[at]
	if w == nil {
		w = &waiters{turn: make(chan struct{})}
		all[at] = w
	}
	w.count++
	return w.turn, func() {
		t.waiting.Add(-1)
		t.mu.Lock()
		defer t.mu.Unlock()
		if w.count--; w.count == 0 && all[at] == w {
			delete(all, at)
		}
	}
}

// wake lets those look again who wait for a region, or for a key that is in it.
func (t *Table) wake(g *Grant) {
	if t.waiting.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	wake(t.changed, g.Region.ID)
	terms := g.Keyspace()
	if isPoints(terms.Layout) {
		wake(t.keys, spot{terms.Name, g.Region.Start})
		return
	}
	for at := range t.keys {
		if at.keyspace == terms.Name && g.holds([]byte(at.key)) {
			wake(t.keys, at)
		}
	}
}

func wake[K comparable](all map[K]*waiters, at K) {
	if w := all[at]; w != nil {
		close(w.turn)
		delete(all, at)
	}
}

// wakeAll lets all look again who wait.
func (t *Table) wakeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.changed {
		wake(t.changed, id)
	}
	for at := range t.keys {
		wake(t.keys, at)
	}
}
