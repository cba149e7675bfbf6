// Package breadth keeps the worlds that a breadth-first search has seen.
//
// It promises: worlds are kept and compared whole, never by hash alone, so that no two are
// ever taken for one; the first way to a world is a shortest one.
package breadth

import (
	"fmt"
	"hash/maphash"
	"reflect"
	"unsafe"
)

// Set is a set of values, numbered in the order of their coming. V has neither pointers
// nor padding.
type Set[V comparable] struct {
	values blocks[V]
	// table has the number of each value plus 1, by hash; the upper half of an entry is
	// the upper half of the hash, so that few values are compared in vain.
	table []uint64
	seed  maphash.Seed
}

// Graph is a Set of worlds, each with the one that it was first reached from.
type Graph[W comparable] struct {
	Set[W]
	parents blocks[uint32]
}

// blocks is an array that grows without being copied.
type blocks[T any] struct {
	all [][]T
	n   int
}

const (
	blockSize = 1 << 12
	lower     = 1<<32 - 1
)

func (b *blocks[T]) at(i int) *T { return &b.all[i/blockSize][i%blockSize] }

func (b *blocks[T]) push(v T) {
	if b.n%blockSize == 0 {
		b.all = append(b.all, make([]T, blockSize))
	}
	*b.at(b.n) = v
	b.n++
}

// NewSet makes an empty Set. It panics if V has pointers or padding: values are hashed by
// their bytes, and equal ones would be taken for different ones.
func NewSet[V comparable]() *Set[V] {
	if t := reflect.TypeFor[V](); packed(t) != t.Size() {
		panic(fmt.Sprintf("breadth: %v has pointers or padding: %d bytes, %d of them values", t, t.Size(), packed(t)))
	}
	return &Set[V]{table: make([]uint64, 1<<10), seed: maphash.MakeSeed()}
}

// packed is how many bytes of a type are values that are equal if their bytes are.
func packed(t reflect.Type) uintptr {
	switch k := t.Kind(); {
	case k == reflect.Struct:
		n := uintptr(0)
		for i := range t.NumField() {
			if f := t.Field(i); f.Name != "_" {
				n += packed(f.Type)
			}
		}
		return n
	case k == reflect.Array:
		return uintptr(t.Len()) * packed(t.Elem())
	case k >= reflect.Bool && k <= reflect.Uintptr:
		return t.Size()
	}
	return 0
}

// New makes an empty Graph; see NewSet.
func New[W comparable]() *Graph[W] { return &Graph[W]{Set: *NewSet[W]()} }

// Len is how many values there are.
func (s *Set[V]) Len() int { return s.values.n }

// At is a value by its number.
func (s *Set[V]) At(i int) *V { return s.values.at(i) }

// Find is the number of a value.
func (s *Set[V]) Find(v *V) (number int, known bool) {
	number, _, _, known = s.find(v)
	return number, known
}

// Has says whether a value is in it.
func (s *Set[V]) Has(v *V) bool {
	_, known := s.Find(v)
	return known
}

// find also says where in the table to put it, and the entry without its number.
func (s *Set[V]) find(v *V) (number int, slot, entry uint64, known bool) {
	mask := uint64(len(s.table) - 1)
	hash := maphash.Bytes(s.seed, unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)))
	entry = hash &^ lower
	for slot = hash & mask; s.table[slot] != 0; slot = (slot + 1) & mask {
		if s.table[slot]&^lower != entry {
			continue
		}
		if n := int(s.table[slot]&lower) - 1; *s.values.at(n) == *v {
			return n, slot, entry, true
		}
	}
	return 0, slot, entry, false
}

// Add is the number of a value, and whether it is new.
func (s *Set[V]) Add(v *V) (number int, added bool) {
	number, slot, entry, known := s.find(v)
	if known {
		return number, false
	}
	s.values.push(*v)
	s.table[slot] = entry | uint64(s.values.n)
	if 2*s.values.n > len(s.table) {
		s.grow()
	}
	return s.values.n - 1, true
}

// grow doubles the table.
func (s *Set[V]) grow() {
	s.table = make([]uint64, 2*len(s.table))
	for i := range s.values.n {
		_, slot, entry, _ := s.find(s.values.at(i))
		s.table[slot] = entry | uint64(i+1)
	}
}

// Visit adds a world that was reached from another one, and says whether it is new.
func (g *Graph[W]) Visit(w *W, parent int) bool {
	_, added := g.Add(w)
	if added {
		g.parents.push(uint32(parent))
	}
	return added
}

// Path is the way from the first world to a world.
func (g *Graph[W]) Path(at int) []W {
	var back []W
	for ; at != 0; at = int(*g.parents.at(at)) {
		back = append(back, *g.At(at))
	}
	back = append(back, *g.At(0))
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	return back
}
