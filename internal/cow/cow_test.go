package cow_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/internal/cow"
)

// pair is a Map with what should be in it.
type pair struct {
	got  cow.Map[uint64, int]
	want map[uint64]int
}

func (p pair) check(t *rapid.T) {
	var keys []uint64
	p.got.Scan(func(k uint64, v int) bool {
		if p.want[k] != v {
			t.Fatalf("key %d is %d, want %d", k, v, p.want[k])
		}
		keys = append(keys, k)
		return true
	})
	if want := slices.Sorted(maps.Keys(p.want)); !slices.Equal(keys, want) || p.got.Len() != len(want) {
		t.Fatalf("keys %v (%d), want %v", keys, p.got.Len(), want)
	}
}

// TestForks: maps and their forks go on independently, whatever is done to
// each (promises 1 and 2).
func TestForks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := []pair{{cow.New[uint64, int](), map[uint64]int{}}}
		for i := range rapid.IntRange(0, 600).Draw(t, "steps") {
			p := &all[rapid.IntRange(0, len(all)-1).Draw(t, "map")]
			k := rapid.Uint64Range(0, 300).Draw(t, "key")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				p.got.Delete(k)
				delete(p.want, k)
			case 1:
				if len(all) < 5 {
					all = append(all, pair{p.got.Fork(), maps.Clone(p.want)})
				}
			default:
				p.got.Set(k, i)
				p.want[k] = i
			}
			if v, ok := p.got.Get(k); v != p.want[k] || ok != (v != 0 || mapHas(p.want, k)) {
				t.Fatalf("key %d is %d, %v", k, v, ok)
			}
		}
		for _, p := range all {
			p.check(t)
		}
	})
}

func mapHas(m map[uint64]int, k uint64) bool {
	_, ok := m[k]
	return ok
}

// TestOrder: Ascend and Descend start at the key or at the next one.
func TestOrder(t *testing.T) {
	m := cow.New[string, int]()
	for i, k := range []string{"b", "d", "f"} {
		m.Set(k, i)
	}
	collect := func(walk func(string, func(string, int) bool), from string, limit int) (keys []string) {
		walk(from, func(k string, _ int) bool {
			keys = append(keys, k)
			return len(keys) < limit
		})
		return keys
	}
	for _, c := range []struct {
		got, want []string
	}{
		{collect(m.Ascend, "d", 9), []string{"d", "f"}},
		{collect(m.Ascend, "c", 1), []string{"d"}},
		{collect(m.Ascend, "g", 9), nil},
		{collect(m.Descend, "d", 9), []string{"d", "b"}},
		{collect(m.Descend, "e", 1), []string{"d"}},
		{collect(m.Descend, "a", 9), nil},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
	if k, v, ok := m.Min(); k != "b" || v != 0 || !ok {
		t.Errorf("the first is %q %d %v", k, v, ok)
	}
}

// TestBranch: branches of a Map that rests may be made, written and read at
// the same time (promise 3; for the race detector).
func TestBranch(t *testing.T) {
	m := cow.New[uint64, int]()
	for i := range uint64(1000) {
		m.Set(i, 1)
	}
	done := make(chan int)
	for w := range 4 {
		go func() {
			b := m.Branch()
			for i := range uint64(1000) {
				b.Set(i, w+2)
				if v, _ := m.Get(i); v != 1 {
					t.Errorf("key %d is %d in the Map that rests", i, v)
				}
			}
			sum := 0
			b.Scan(func(_ uint64, v int) bool { sum += v; return true })
			done <- sum - 1000*(w+2)
		}()
	}
	for range 4 {
		if off := <-done; off != 0 {
			t.Errorf("a branch is off by %d", off)
		}
	}
}
