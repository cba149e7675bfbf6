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

// piece is a range of keys, from its place in a btree to before end, that one region held here last.
type piece struct {
	end string
	of  *departed
}

func (p piece) goesOn(at string) bool { return p.end == "" || at < p.end }

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
	gone.Descend(at, func(_ string, p piece) bool {
		if p.goesOn(at) {
			last = p.of
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
		for _, at := range within(gone, first.region) {
			if p, _ := gone.Get(at); p.of == first {
				gone.Delete(at)
			}
		}
	}
	t.past[d.region.ID] = d
	t.order = append(t.order, d)
	gone := t.gone[d.region.Keyspace]
	if gone == nil {
		gone = btree.NewMap[string, piece](0)
		t.gone[d.region.Keyspace] = gone
	}
	cut(gone, d.region.Start)
	if d.region.End != "" {
		cut(gone, d.region.End)
	}
	for _, at := range within(gone, d.region) {
		gone.Delete(at)
	}
	gone.Set(d.region.Start, piece{d.region.End, d})
}

// cut makes two pieces of one that a key is in the middle of.
func cut(gone *btree.Map[string, piece], at string) {
	var from string
	var whole piece
	gone.Descend(at, func(begins string, p piece) bool {
		from, whole = begins, p
		return false
	})
	if whole.of != nil && from < at && whole.goesOn(at) {
		gone.Set(from, piece{at, whole.of})
		gone.Set(at, whole)
	}
}

// within are the places that are in a region, ascending.
func within[V any](all *btree.Map[string, V], r *rooted.Region) (places []string) {
	all.Ascend(r.Start, func(at string, _ V) bool {
		if !r.Contains(at) {
			return false
		}
		places = append(places, at)
		return true
	})
	return places
}

// waiters are all who wait for one region, or for one key, from one change to the next.
type waiters struct {
	turn  chan struct{}
	count int
}

// Changed is closed when something about a region has changed since the call; without a region, about whichever comes to
// hold the key of a request. Whoever waits no more calls the function returned.
func (t *Table) Changed(id rooted.RegionID, q *Request) (<-chan struct{}, func()) {
	t.waiting.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if id != 0 {
		return await(t, t.changed, id)
	}
	var in rooted.KeyspaceID
	at := ""
	if k := (*t.names.Load())[q.Keyspace]; k != nil {
		terms := k.now.Load()
		in, at = terms.ID, rooted.RouteKey(terms.Layout, q.Key)
	}
	if t.keys[in] == nil {
		t.keys[in] = btree.NewMap[string, *waiters](0)
	}
	return await(t, t.keys[in], at)
}

func await[K rooted.RegionID | string](t *Table, all *btree.Map[K, *waiters], at K) (<-chan struct{}, func()) {
	w, ok := all.Get(at)
	if !ok {
		w = &waiters{turn: make(chan struct{})}
		all.Set(at, w)
	}
	w.count++
	return w.turn, func() {
		t.waiting.Add(-1)
		t.mu.Lock()
		defer t.mu.Unlock()
		w.count--
		if now, _ := all.Get(at); w.count == 0 && now == w {
			all.Delete(at)
		}
	}
}

// wake lets those look again who wait for a region, or for a key that is in it: a change costs as much as it has of
// them, however many others wait.
func (t *Table) wake(g *Grant) {
	if t.waiting.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	wake(t.changed, g.Region.ID)
	keys := t.keys[g.Region.Keyspace]
	if keys == nil {
		return
	}
	for _, at := range within(keys, g.Region) {
		wake(keys, at)
	}
}

func wake[K rooted.RegionID | string](all *btree.Map[K, *waiters], at K) {
	if w, ok := all.Delete(at); ok {
		close(w.turn)
	}
}

// wakeAll lets all look again who wait.
func (t *Table) wakeAll() {
	t.wakeKeys()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range t.changed.Keys() {
		wake(t.changed, id)
	}
}

// wakeKeys lets all look again who wait for keys: their keyspace is known now, or another one has its name.
func (t *Table) wakeKeys() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for in, keys := range t.keys {
		for _, at := range keys.Keys() {
			wake(keys, at)
		}
		delete(t.keys, in)
	}
}
