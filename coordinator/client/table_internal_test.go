package client

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/rooted"
)

// A table answers as a plain list does, whatever its keys are like and whatever was put
// in and taken out, in leaves that stay filled.
func TestTableAnswersAsAPlainListWould(t *testing.T) {
	long := strings.Repeat("long", 40)
	kinds := map[string]func(r *rand.Rand) string{
		"zeros": func(r *rand.Rand) string { return strings.Repeat("\x00", r.IntN(40)) },
		"few": func(r *rand.Rand) string {
			return string([]byte{byte(r.IntN(3)), byte(r.IntN(3)), byte(r.IntN(3)), byte(r.IntN(3))}[:r.IntN(5)])
		},
		"long": func(r *rand.Rand) string {
			return long + string([]byte{byte(r.IntN(4)), byte(r.IntN(256)), 0}[:r.IntN(4)])
		},
		"ends": func(r *rand.Rand) string { // as high as the places of a leaf that are empty
			return strings.Repeat("\xff", r.IntN(12)) + strings.Repeat("\x00", r.IntN(3))
		},
		"slots": func(r *rand.Rand) string { return string(rooted.AppendSlotKey(nil, r.Uint64N(2000))) },
		"deep": func(r *rand.Rand) string {
			return "same/eight" + strings.Repeat("x", 8) + string(rune('a'+r.IntN(20))) + string(rune('a'+r.IntN(20)))
		},
		"numers": func(r *rand.Rand) string {
			return "user/" + string([]byte{'0' + byte(r.IntN(10)), '0' + byte(r.IntN(10)), '0' + byte(r.IntN(10))})
		},
	}
	for name, key := range kinds {
		r := rand.New(rand.NewPCG(1, 2))
		var model []*rooted.Region
		tb := &table{}
		find := func(k string) *rooted.Region {
			for _, m := range model {
				if m.Contains(k) {
					return m
				}
			}
			return nil
		}
		for step := range 3000 {
			e := tb.edit()
			for range 1 + r.IntN(3) {
				reg := &rooted.Region{ID: rooted.RegionID(step + 1), Start: key(r)}
				reg.End = reg.Start + "\x00" // a point, or up to some key
				if r.IntN(2) == 0 {
					reg.End = key(r)
				}
				if reg.End != "" && reg.End <= reg.Start {
					continue
				}
				shrinking := step%1000 > 600
				old := e.overlaps(reg)
				want := slices.DeleteFunc(slices.Clone(model), func(m *rooted.Region) bool {
					return m.End != "" && m.End <= reg.Start || reg.End != "" && m.Start >= reg.End
				})
				if !slices.Equal(old, want) {
					t.Fatalf("%s, step %d: %d overlap, want %d", name, step, len(old), len(want))
				}
				for _, o := range old {
					e.remove(o)
					model = slices.DeleteFunc(model, func(m *rooted.Region) bool { return m == o })
				}
				if shrinking && len(old) > 0 {
					continue
				}
				e.insert(entry{region: reg})
				i, _ := slices.BinarySearchFunc(model, reg, func(a, b *rooted.Region) int { return cmp.Compare(a.Start, b.Start) })
				model = slices.Insert(model, i, reg)
			}
			before := tb
			kept := slices.Clone(model)
			tb = e.done(tb)
			if tb.count != len(model) {
				t.Fatalf("%s, step %d: %d regions, want %d", name, step, tb.count, len(model))
			}
			for range 8 {
				k := key(r)
				if r.IntN(3) == 0 {
					k += string([]byte{byte(r.IntN(2))})
				}
				var got *rooted.Region
				if found := tb.find(k); found != nil {
					got = found.region
				}
				if want := find(k); got != want {
					t.Fatalf("%s, step %d: key %q: %v, want %v", name, step, k, got, want)
				}
			}
			if step%100 == 0 {
				n := 0
				before.edit().done(before) // a fork of what nobody writes to
				tb.scan(func(e *entry) bool {
					if e.region != kept[n] {
						t.Fatalf("%s, step %d: region %d is %v", name, step, n, e.region)
					}
					n++
					return true
				})
			}
		}
		leaves := 0
		tb.leaves.Scan(func(*leaf) bool { leaves++; return true })
		if most := 1 + 2*tb.count/leafLeast; leaves > most {
			t.Errorf("%s: %d leaves of %d regions, want %d at most", name, leaves, tb.count, most)
		}
	}
}

// Answers beyond the bounds are those used last, few and small.
func TestP73AnswersAreBounded(t *testing.T) {
	k := (&Client{}).NewCache(CacheConfig{MaxRegions: 1, MaxBytes: 64 << 10, MaxAnswers: 3})
	at := Position{Token: rooted.Token{Incarnation: 1, Index: 5}}
	regionOf := func(id int, key string) *rooted.Region {
		return &rooted.Region{ID: rooted.RegionID(id), Start: key, End: key + "\x00", Revision: 1, Owners: []rooted.Owner{{Member: "m1"}}}
	}
	k.apply(&changeset{snapshot: true, at: at, regions: []regionChange{{region: regionOf(1, "a")}}})
	has := func(key string) bool { _, ok := k.Lookup([]byte(key)); return ok }
	keep := func(id int, key string) { k.Keep(Route{Region: regionOf(id, key), At: at.Token}) }
	keep(2, "b")
	keep(3, "c")
	keep(4, "d")
	if k.Len() != 4 || !has("b") {
		t.Fatalf("%d regions", k.Len())
	}
	keep(5, "e") // b was used since
	if !has("a") || !has("b") || has("c") || !has("d") || !has("e") {
		t.Errorf("after one more: b %t, c %t, d %t, e %t", has("b"), has("c"), has("d"), has("e"))
	}
	// A change of one is shown, and its end.
	moved := regionOf(5, "e")
	moved.Revision, moved.Owners[0].Member = 6, "m2"
	k.apply(&changeset{at: Position{Token: rooted.Token{Incarnation: 1, Index: 6}}, regions: []regionChange{{region: moved}}})
	if r, _ := k.Lookup([]byte("e")); r.Region != moved {
		t.Errorf("after a change: %+v", r.Region)
	}
	k.apply(&changeset{at: Position{Token: rooted.Token{Incarnation: 1, Index: 7}}, regions: []regionChange{{region: moved, removed: true}}})
	if has("e") || k.Len() != 3 || len(k.answers.byID) != 2 {
		t.Errorf("after its end: %d regions, %d answers", k.Len(), len(k.answers.byID))
	}
	at.Token.Index = 8
	// One that is asked for again and again takes no more room; a large one none.
	for i := range 1000 {
		keep(100, "again")
		k.Invalidate(Route{Region: regionOf(100, "again")})
		delete(k.refuted, 100)
		keep(101+i, "big"+strings.Repeat("x", 3000))
	}
	if len(k.answers.ring) > 64+5*3 || k.answers.bytes > k.cfg.MaxBytes/8 || len(k.answers.byID) > 3 {
		t.Errorf("%d in the ring, %d bytes, %d answers", len(k.answers.ring), k.answers.bytes, len(k.answers.byID))
	}
	bytes := 0
	for _, r := range k.byID {
		bytes += sizeOf(r)
	}
	if k.Bytes() != bytes {
		t.Errorf("%d bytes counted, %d held", k.Bytes(), bytes)
	}
	// Without them.
	none := (&Client{}).NewCache(CacheConfig{MaxRegions: 1, MaxAnswers: -1})
	none.apply(&changeset{snapshot: true, at: at, regions: []regionChange{{region: regionOf(1, "a")}}})
	none.Keep(Route{Region: regionOf(2, "b"), At: at.Token})
	if none.Len() != 1 {
		t.Errorf("%d regions", none.Len())
	}
}

// Snapshots are bounded by bytes too, and members are forgotten when nothing is theirs.
func TestCacheIsBoundedInBytes(t *testing.T) {
	k := (&Client{}).NewCache(CacheConfig{MaxBytes: 32 << 10, MaxAnswers: -1})
	n := &changeset{snapshot: true, at: Position{Token: rooted.Token{Incarnation: 1, Index: 5}}}
	for i := range 100 {
		key := strings.Repeat("k", 4000) + string(rune('0'+i))
		n.regions = append(n.regions, regionChange{region: &rooted.Region{ID: rooted.RegionID(i + 1), Start: key, End: key + "\x00", Revision: 1, Owners: []rooted.Owner{{Member: "m1"}}}})
	}
	n.regions = n.regions[:4]
	k.apply(n)
	for i := range 100 {
		key := strings.Repeat("z", 4000) + string(rune('0'+i))
		k.apply(&changeset{at: Position{Token: rooted.Token{Incarnation: 1, Index: uint64(6 + i)}}, regions: []regionChange{{region: &rooted.Region{
			ID: rooted.RegionID(1000 + i), Start: key, End: key + "\x00", Revision: uint64(6 + i), Owners: []rooted.Owner{{Member: rooted.MemberID(key[3990:])}},
		}}}})
	}
	if k.Bytes() > 32<<10+9000 || k.Len() < 4 {
		t.Errorf("%d regions of %d bytes", k.Len(), k.Bytes())
	}
	held := map[rooted.MemberID]bool{}
	for _, r := range k.byID {
		held[r.Owners[0].Member] = true
	}
	if len(k.peers) != len(held) {
		t.Errorf("%d members known, of %d there are regions", len(k.peers), len(held))
	}
	var all []regionChange
	for _, r := range k.byID {
		all = append(all, regionChange{region: r, removed: true})
	}
	k.apply(&changeset{at: Position{Token: rooted.Token{Incarnation: 1, Index: 1000}}, regions: all})
	if len(k.peers) != 0 || k.Bytes() != 0 || k.Len() != 0 {
		t.Errorf("in the end: %d members, %d bytes, %d regions", len(k.peers), k.Bytes(), k.Len())
	}
}

// Leaves of which little is left join their neighbours.
func TestTableLeavesStayFilled(t *testing.T) {
	tb := &table{}
	e := tb.edit()
	var all []*rooted.Region
	for i := range uint64(2000) {
		start := string(rooted.AppendSlotKey(nil, i))
		r := &rooted.Region{ID: rooted.RegionID(i + 1), Start: start, End: start + "\x00"}
		all = append(all, r)
		e.insert(entry{region: r})
	}
	tb = e.done(tb)
	for i, r := range all {
		if i%40 != 0 {
			e := tb.edit()
			e.remove(r)
			tb = e.done(tb)
		}
	}
	leaves := 0
	tb.leaves.Scan(func(*leaf) bool { leaves++; return true })
	if most := 1 + 2*tb.count/leafLeast; tb.count != 50 || leaves > most {
		t.Errorf("%d leaves of %d regions, want %d at most", leaves, tb.count, most)
	}
}
