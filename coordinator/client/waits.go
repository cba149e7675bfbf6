package client

import (
	"maps"
	"slices"

	"github.com/nokv/nokv/internal/cow"
	"github.com/nokv/nokv/rooted"
)

// waits are the callers of ChangedAt by their keys: a change costs as much as it has
// callers to wake, however many others wait. Guarded by Cache.mu.
type waits struct {
	byKey cow.Map[string, *wait] // by route key
	// woken hear of what is shown next. They are not in byKey.
	woken []*wait
}

// wait is of all callers of one key, from one change to the next.
type wait struct {
	at      string // route key
	callers int
	owners  []*Peer // each has it among its waits
	changed chan struct{}
	over    bool // it is not in byKey
}

// ChangedAt returns a channel that is closed when the cache shows something else of a key
// than now: its region, or the address, state or incarnation of a member that owns it. Of a
// key whose region is not held it tells when the watch has something of it. It may be closed
// for less. Whoever looks behind this call misses nothing, and calls end when it waits no more;
// to call it again does nothing.
func (k *Cache) ChangedAt(key []byte) (changed <-chan struct{}, end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.table.Load()
	at := rooted.RouteKey(t.slots, key)
	w, ok := k.waits.byKey.Get(at)
	if !ok {
		w = &wait{at: at, changed: make(chan struct{})}
		if e := t.find(at); e != nil {
			w.owners = e.owners.peers
		}
		for _, p := range w.owners {
			p.await(w)
		}
		k.waits.byKey.Set(at, w)
	}
	w.callers++
	waits := true
	return w.changed, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !waits {
			return
		}
		waits = false
		if w.callers--; w.callers == 0 {
			k.waits.remove(w)
		}
	}
}

func (p *Peer) await(w *wait) {
	if p.waits == nil {
		p.waits = map[*wait]struct{}{}
	}
	p.waits[w] = struct{}{}
}

// remove takes a wait out of the index, once.
func (s *waits) remove(w *wait) {
	if w.over {
		return
	}
	w.over = true
	s.byKey.Delete(w.at)
	for _, p := range w.owners {
		delete(p.waits, w)
	}
}

// wake has all hear of the next change that is shown.
func (s *waits) wake(all []*wait) {
	for _, w := range all {
		s.remove(w)
	}
	s.woken = append(s.woken, all...)
}

// region wakes those whose keys are in a region; nil: in none.
func (s *waits) region(r *rooted.Region) {
	if r == nil || s.byKey.Len() == 0 {
		return
	}
	var all []*wait
	s.byKey.Ascend(r.Start, func(at string, w *wait) bool {
		if r.End != "" && at >= r.End {
			return false
		}
		all = append(all, w)
		return true
	})
	s.wake(all)
}

// member wakes those who have a member among the owners of their region.
func (s *waits) member(p *Peer) {
	s.wake(slices.Collect(maps.Keys(p.waits)))
}

// everything wakes all.
func (s *waits) everything() {
	var all []*wait
	s.byKey.Scan(func(_ string, w *wait) bool {
		all = append(all, w)
		return true
	})
	s.wake(all)
}

// shown is called when there is a new table.
func (s *waits) shown() {
	for _, w := range s.woken {
		close(w.changed)
	}
	s.woken = nil
}
