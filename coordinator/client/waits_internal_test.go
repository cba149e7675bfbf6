package client

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// waiting is a Cache that changes at random, beside callers who wait for its keys.
type waiting struct {
	*Cache
	r       *rand.Rand
	index   uint64
	regions map[rooted.RegionID]*rooted.Region // of the root
	members map[rooted.MemberID]Member
	last    rooted.RegionID
	waits   []*waiter
}

// waiter is a caller of ChangedAt, and what the cache showed it then.
type waiter struct {
	key     string
	changed <-chan struct{}
	end     func()
	seen    sight
}

// sight is what the cache shows of a key; nil: of no region.
type sight struct {
	region *rooted.Region
	owners [2]Member
}

func (w *waiting) key() string { return string(rune('a' + w.r.IntN(12))) }

func (w *waiting) seen(key string) (at sight) {
	if h, ok := w.Find([]byte(key)); ok {
		at.region = h.Region()
		for i, p := range h.Peers() {
			at.owners[i] = p.Member()
		}
	}
	return at
}

// rooted is what the root has of a key.
func (w *waiting) rooted(key string) *rooted.Region {
	for _, r := range w.regions {
		if r.Start <= key && (r.End == "" || key < r.End) {
			return r
		}
	}
	return nil
}

func (w *waiting) make(id rooted.RegionID, start, end string) regionChange {
	r := &rooted.Region{ID: id, Start: start, End: end, Revision: w.index, Epoch: rooted.Epoch{Version: 1, ConfVersion: w.index}}
	for n := range w.r.IntN(3) {
		r.Owners = append(r.Owners, rooted.Owner{Member: rooted.MemberID(fmt.Sprintf("m%d", 2*w.r.IntN(3)+n)), Incarnation: 1})
	}
	w.regions[id] = r
	return regionChange{region: r}
}

// cut ends, splits, joins, moves or makes what is at a key.
func (w *waiting) cut(key string) (all []regionChange) {
	r := w.rooted(key)
	switch {
	case r == nil:
		end := string(key[0] + 1)
		w.last++
		return []regionChange{w.make(w.last, key, end)}
	case w.r.IntN(5) == 0:
		delete(w.regions, r.ID)
		return []regionChange{{region: r, removed: true}}
	case key > r.Start && w.r.IntN(2) == 0:
		w.last++
		return []regionChange{w.make(r.ID, r.Start, key), w.make(w.last, key, r.End)}
	}
	if next := w.rooted(r.End); w.r.IntN(3) == 0 && r.End <= "l" { // it takes its neighbour, or what is free
		if next == nil {
			return []regionChange{w.make(r.ID, r.Start, string(r.End[0]+1))}
		}
		delete(w.regions, next.ID)
		return []regionChange{w.make(r.ID, r.Start, next.End), {region: next, removed: true}}
	}
	return []regionChange{w.make(r.ID, r.Start, r.End)}
}

func (w *waiting) be(id int) memberChange {
	m := Member{ID: rooted.MemberID(fmt.Sprintf("m%d", id)), Address: fmt.Sprintf("%d:%d", id, w.r.IntN(2)), State: rootv1.MemberState_MEMBER_STATE_ACTIVE, Incarnation: uint64(1 + w.r.IntN(2))}
	if w.r.IntN(3) == 0 {
		delete(w.members, m.ID)
		return memberChange{member: Member{ID: m.ID}, removed: true}
	}
	w.members[m.ID] = m
	return memberChange{member: m}
}

func (w *waiting) at() Position { return Position{Token: rooted.Token{Incarnation: 1, Index: w.index}} }

// change does one thing to the cache, and says what; told are the keys of which the watch says something.
func (w *waiting) change() (did string, told func(key string) bool) {
	told = func(string) bool { return false }
	switch key := w.key(); w.r.IntN(12) {
	case 0:
		n := &changeset{snapshot: true, at: w.at()}
		for _, id := range slices.Sorted(maps.Keys(w.regions)) {
			n.regions = append(n.regions, regionChange{region: w.regions[id]})
		}
		for _, id := range slices.Sorted(maps.Keys(w.members)) {
			n.members = append(n.members, memberChange{member: w.members[id]})
		}
		w.r.Shuffle(len(n.regions), func(i, j int) { n.regions[i], n.regions[j] = n.regions[j], n.regions[i] })
		n.regions = n.regions[:min(len(n.regions), w.cfg.MaxRegions)]
		w.apply(n)
		return "a snapshot", func(string) bool { return true }
	case 1, 2:
		if h, ok := w.Find([]byte(key)); ok {
			w.Invalidate(h.Route())
		}
		return "invalidated " + key, told
	case 3, 4, 5:
		if r := w.rooted(key); r != nil && w.isRefuted(r) {
			w.confirm(r)
		}
		if r := w.rooted(key); r != nil {
			w.Keep(Route{Region: r, At: w.at().Token})
		}
		return "kept " + key, told
	case 6, 7:
		w.index++
		w.apply(&changeset{at: w.at(), members: []memberChange{w.be(w.r.IntN(6))}})
		return "a member", told
	}
	w.index++
	n := &changeset{at: w.at()}
	touched := map[string]bool{}
	for range 1 + w.r.IntN(2) {
		for _, c := range w.cut(w.key()) {
			n.regions = append(n.regions, c)
			for key := 'a'; key < 'a'+12; key++ {
				if at := string(key); c.region.Start <= at && (c.region.End == "" || at < c.region.End) {
					touched[at] = true
				}
			}
		}
	}
	if w.r.IntN(4) == 0 {
		n.members = append(n.members, w.be(w.r.IntN(6)))
	}
	w.apply(n)
	return fmt.Sprintf("changed %v", touched), func(key string) bool { return touched[key] }
}

// Whatever changes, and however little is held: who waits for a key is woken by all that is shown of it since, and, where
// nothing is shown, by all that the watch says of it; and nothing is left of who waits no more.
func TestP84NobodyWhoWaitsIsForgotten(t *testing.T) {
	for _, cfg := range []CacheConfig{{}, {MaxRegions: 4, MaxAnswers: 2}, {MaxRegions: 1, MaxAnswers: 1}, {MaxRegions: 2, MaxAnswers: -1}} {
		for seed := range uint64(60) {
			w := &waiting{
				Cache: (&Client{}).NewCache(cfg), r: rand.New(rand.NewPCG(seed, uint64(cfg.MaxRegions))), index: 5,
				regions: map[rooted.RegionID]*rooted.Region{}, members: map[rooted.MemberID]Member{},
			}
			for _, key := range []string{"a", "e", "i"} {
				w.cut(key)
			}
			w.apply(&changeset{snapshot: true, at: w.at()})
			for turn := range 200 {
				for len(w.waits) < 20 {
					key := w.key()
					changed, end := w.ChangedAt([]byte(key))
					w.waits = append(w.waits, &waiter{key, changed, end, w.seen(key)})
				}
				did, told := w.change()
				var left []*waiter
				for _, one := range w.waits {
					woken := false
					select {
					case <-one.changed:
						woken = true
					default:
					}
					now := w.seen(one.key)
					news := now.region != nil && now != one.seen || now.region == nil && told(one.key)
					if !woken && news {
						t.Fatalf("%+v, seed %d, turn %d, %s: who waits for %q is not woken: it has seen %+v, now it is %+v", cfg, seed, turn, did, one.key, one.seen, now)
					}
					if woken || w.r.IntN(8) == 0 {
						one.end()
						continue
					}
					left = append(left, one)
				}
				w.waits = left
			}
			for _, one := range w.waits {
				one.end()
			}
			if n := w.Cache.waits.byKey.Len(); n != 0 {
				t.Fatalf("%+v, seed %d: %d keys are waited for by nobody", cfg, seed, n)
			}
			for id, p := range w.peers {
				if len(p.waits) != 0 {
					t.Fatalf("%+v, seed %d: %d wait for %s, of nobody", cfg, seed, len(p.waits), id)
				}
			}
		}
	}
}
