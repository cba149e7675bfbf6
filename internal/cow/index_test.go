package cow_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/internal/cow"
	"github.com/nokv/nokv/test/size"
)

// item is a value that knows its key; n tells values of one key apart.
type item struct {
	key cow.Key
	n   int
}

func keyOf(v *item) cow.Key { return v.key }

func order(a, b cow.Key) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), strings.Compare(a.Text, b.Text))
}

// model is what should be in an Index: sorted items.
type model []*item

func (m model) find(k cow.Key) (int, bool) {
	return slices.BinarySearchFunc(m, k, func(v *item, k cow.Key) int { return order(v.key, k) })
}

// last is the place of the last item that is not above k.
func (m model) last(k cow.Key) int {
	i, found := m.find(k)
	if found {
		return i
	}
	return i - 1
}

func (m model) set(v *item) model {
	i, found := m.find(v.key)
	if found {
		m[i] = v
		return m
	}
	return slices.Insert(m, i, v)
}

func (m model) delete(k cow.Key) model {
	if i, found := m.find(k); found {
		return slices.Delete(m, i, i+1)
	}
	return m
}

// twin is an Index with what should be in it.
type twin struct {
	got  cow.Index[*item]
	want model
}

func (w *twin) fork() *twin { return &twin{w.got.Fork(), slices.Clone(w.want)} }

func (w *twin) set(v *item) { w.got.Set(v); w.want = w.want.set(v) }

func (w *twin) delete(k cow.Key) { w.got.Delete(k); w.want = w.want.delete(k) }

type failer interface{ Fatalf(string, ...any) }

// check compares what is read around k.
func (w *twin) check(t failer, k cow.Key) {
	i, found := w.want.find(k)
	v, ok := w.got.Get(k)
	if ok != found || found && v != w.want[i] {
		t.Fatalf("Get %+v is %v, %v", k, v, ok)
	}
	last := w.want.last(k)
	v, ok = w.got.Floor(k)
	if ok != (last >= 0) || ok && v != w.want[last] {
		t.Fatalf("Floor %+v is %v, %v", k, v, ok)
	}
	w.checkFloors(t, k)
	w.walk(t, "Ascend", func(fn func(*item) bool) { w.got.Ascend(k, fn) }, w.want[i:])
	down := slices.Clone(w.want[:last+1])
	slices.Reverse(down)
	w.walk(t, "Descend", func(fn func(*item) bool) { w.got.Descend(k, fn) }, down)
}

// checkFloors asks for k and for keys that are there, in no order.
func (w *twin) checkFloors(t failer, k cow.Key) {
	keys := []cow.Key{k, {}, {Group: k.Group}}
	for i := range min(len(w.want), 70) {
		k := w.want[i*41%len(w.want)].key
		keys = append(keys, k, cow.Key{Group: k.Group, Text: k.Text + "\x00"})
	}
	got := make([]*item, len(keys))
	got[0] = &item{}
	w.got.Floors(keys, got)
	for i, k := range keys {
		var want *item
		if last := w.want.last(k); last >= 0 {
			want = w.want[last]
		}
		if got[i] != want {
			t.Fatalf("Floors %+v is %v, want %v", k, got[i], want)
		}
	}
}

func (w *twin) checkAll(t failer) {
	w.walk(t, "Scan", w.got.Scan, w.want)
	if w.got.Len() != len(w.want) {
		t.Fatalf("Len is %d, want %d", w.got.Len(), len(w.want))
	}
}

// walk compares all of a walk, and one that is ended early.
func (w *twin) walk(t failer, name string, walk func(func(*item) bool), want []*item) {
	for _, limit := range []int{len(want) + 1, len(want)/2 + 1} {
		var got []*item
		walk(func(v *item) bool {
			got = append(got, v)
			return len(got) < limit
		})
		if !slices.Equal(got, want[:min(limit, len(want))]) {
			t.Fatalf("%s up to %d gives %d of %d values, or others", name, limit, len(got), len(want))
		}
	}
}

// texts are keys of several shapes: with long common beginnings, zeros, ends
// inside each other, and numbers in a row.
func texts(t *rapid.T) string {
	return rapid.OneOf(
		rapid.StringOfN(rapid.RuneFrom([]rune{0, 'a', 'b'}), 0, 4, -1),
		rapid.Map(rapid.StringOfN(rapid.RuneFrom([]rune{0, 'a'}), 0, 12, -1), func(s string) string { return "a-long-beginning/" + s }),
		rapid.Map(rapid.IntRange(0, 2000), func(n int) string { return fmt.Sprintf("tenant/%06d", n) }),
		rapid.Map(rapid.IntRange(0, 400), func(n int) string { return fmt.Sprintf("%08d/a-long-end/%d", n/100, n) }),
	).Draw(t, "text")
}

// TestIndex: an Index and its forks go on independently and are what a sorted
// slice is, whatever is done to each (promises 1 and 2).
func TestIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := rapid.Uint64Range(1, 3).Draw(t, "groups")
		all := []*twin{loaded(rapid.IntRange(0, 400).Draw(t, "loaded"), groups)}
		for i := range rapid.IntRange(0, 60).Draw(t, "steps") {
			w := all[rapid.IntRange(0, len(all)-1).Draw(t, "index")]
			k := cow.Key{Group: rapid.Uint64Range(1, groups).Draw(t, "group"), Text: texts(t)}
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				w.delete(k)
			case 1: // a row is removed
				for _, v := range slices.Clone(w.want[max(w.want.last(k), 0):]) {
					if w.delete(v.key); v.n%7 == 6 {
						break
					}
				}
			case 2:
				if len(all) < 5 {
					all = append(all, w.fork())
				}
			case 3: // a row is added
				for j := range rapid.IntRange(0, 400).Draw(t, "row") {
					w.set(&item{cow.Key{Group: k.Group, Text: fmt.Sprintf("%s/%05d", k.Text, j*i)}, j})
				}
			default:
				w.set(&item{k, i})
			}
			w.check(t, k)
		}
		for _, w := range all {
			w.checkAll(t)
		}
	})
}

// loaded is an Index of n values made by LoadIndex.
func loaded(n int, groups uint64) *twin {
	var want model
	for i := range n {
		want = append(want, &item{cow.Key{Group: 1 + uint64(i)*groups/uint64(n), Text: fmt.Sprintf("tenant/%06d", i*3)}, i})
	}
	return &twin{cow.LoadIndex(keyOf, want), slices.Clone(want)}
}

var (
	indexSteps = size.Int("index.steps", 40, 300, "so many values of a loaded Index are changed, with everything read around each")
	indexEvery = size.Int("index.every", 8000, 1000, "everything is read after so many changes of a large Index")
)

// TestLoadIndex: an Index that is loaded is one whose values are set in order,
// at every size where it gets another node or level, and goes on from there.
func TestLoadIndex(t *testing.T) {
	for _, n := range []int{0, 1, 2, 127, 128, 129, 256, 257, 128 * 128, 128*128 + 1, 40_000} {
		w := loaded(n, 2)
		w.checkAll(t)
		f := w.fork()
		for i := range *indexSteps {
			k := cow.Key{Group: uint64(1 + i&1), Text: fmt.Sprintf("tenant/%06d", (i*7919+n*3)%(n*3+5))}
			if w.check(t, k); i%3 == 0 {
				w.delete(k)
			} else {
				w.set(&item{k, -i})
			}
			w.check(t, k)
		}
		w.checkAll(t)
		f.checkAll(t)
	}
}

// TestLargeIndex: an Index of three levels, filled and emptied in several
// orders, is right all the while, and so are the forks made on the way.
func TestLargeIndex(t *testing.T) {
	const many = 40_000
	up := make([]int, many)
	for i := range up {
		up[i] = i
	}
	down := slices.Clone(up)
	slices.Reverse(down)
	mixed := rand.New(rand.NewPCG(1, 2)).Perm(many)
	for name, orders := range map[string][2][]int{
		"up, up": {up, up}, "up, down": {up, down}, "down, mixed": {down, mixed}, "mixed, up": {mixed, up}, "mixed, mixed": {mixed, mixed},
	} {
		t.Run(name, func(t *testing.T) {
			key := func(i int) cow.Key { return cow.Key{Group: uint64(1 + i/30_000), Text: fmt.Sprintf("user/%07d", i)} }
			x, want := cow.NewIndex(keyOf), make(model, 0, many)
			for i := range many {
				want = append(want, &item{key(i), i})
			}
			there := make([]bool, many)
			var kept []*twin
			step := func(i, at int) {
				if at%*indexEvery != 0 {
					return
				}
				now := model{}
				for j, ok := range there {
					if ok {
						now = append(now, want[j])
					}
				}
				w := &twin{x.Fork(), now}
				w.check(t, cow.Key{Group: key(i).Group, Text: key(i).Text + "/x"})
				if at%8000 == 0 {
					kept = append(kept, w)
				}
			}
			for at, i := range orders[0] {
				x.Set(want[i])
				there[i] = true
				step(i, at)
			}
			for at, i := range orders[1] {
				x.Delete(key(i))
				there[i] = false
				step(i, at)
			}
			if x.Len() != 0 {
				t.Errorf("%d are left", x.Len())
			}
			for _, w := range kept {
				w.checkAll(t)
			}
		})
	}
}

// FuzzIndex: what bytes say is done to an Index and a fork of it.
func FuzzIndex(f *testing.F) {
	f.Add([]byte("abcabcabc"))
	f.Add([]byte{0, 1, 2, 3, 255, 254, 0, 0, 0, 7, 7, 7})
	f.Fuzz(func(t *testing.T, data []byte) {
		w := &twin{got: cow.NewIndex(keyOf)}
		old := w.fork()
		for i := 0; i+3 < len(data); i += 4 {
			k := cow.Key{Group: uint64(data[i] >> 6), Text: string(data[i+1 : i+1+int(data[i]&3)])}
			switch data[i] >> 2 & 15 {
			case 0:
				old = w.fork()
			case 1:
				w.delete(k)
			case 2:
				w, old = old, w
			case 3:
				for j := range int(data[i+3]) {
					w.set(&item{cow.Key{Group: k.Group, Text: k.Text + string([]byte{byte(j), data[i+2]})}, i})
				}
			case 4:
				for j := range int(data[i+3]) {
					w.delete(cow.Key{Group: k.Group, Text: k.Text + string([]byte{byte(j), data[i+2]})})
				}
			default:
				w.set(&item{k, i})
			}
			w.check(t, k)
		}
		w.checkAll(t)
		old.checkAll(t)
	})
}

// TestIndexBranch: branches of an Index that rests may be made, written and
// read at the same time (promise 3; for the race detector).
func TestIndexBranch(t *testing.T) {
	x := cow.NewIndex(keyOf)
	for i := range 3000 {
		x.Set(&item{cow.Key{Text: fmt.Sprint(i)}, 1})
	}
	done := make(chan int)
	for w := range 4 {
		go func() {
			b := x.Branch()
			for i := range 3000 {
				k := cow.Key{Text: fmt.Sprint(i)}
				b.Set(&item{k, w + 2})
				if v, _ := x.Get(k); v.n != 1 {
					t.Errorf("key %d is %d in the Index that rests", i, v.n)
				}
			}
			sum := 0
			b.Scan(func(v *item) bool { sum += v.n; return true })
			done <- sum - 3000*(w+2)
		}()
	}
	for range 4 {
		if off := <-done; off != 0 {
			t.Errorf("a branch is off by %d", off)
		}
	}
}

// TestWritesBetweenForks: what an Index made since its last Fork it changes in
// place (promise 4).
func TestWritesBetweenForks(t *testing.T) {
	x := cow.NewIndex(keyOf)
	values := make([]*item, 50_000)
	for i := range values {
		values[i] = &item{cow.Key{Text: fmt.Sprintf("%06d", i)}, i}
		x.Set(values[i])
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() { x.Set(values[i*41]); i++ }); n != 0 {
		t.Errorf("%v allocations to replace a value where nothing is shared", n)
	}
	x.Fork()
	for _, v := range values[20_000:20_010] {
		x.Set(v)
	}
	if n := testing.AllocsPerRun(5, func() { x.Set(values[20_005]) }); n != 0 {
		t.Errorf("%v allocations to replace a value beside one that was replaced since the last fork", n)
	}
}
