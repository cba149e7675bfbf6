// Package breadth keeps the worlds that a breadth-first search has seen.
//
// It promises: worlds are kept and compared whole, never by hash alone, so that no two are
// ever taken for one; the first way to a world is a shortest one.
package breadth

import (
	"hash/maphash"
	"unsafe"
)

// Graph is a set of worlds, numbered in the order of their coming, each with the one
// that it was first reached from. W has neither pointers nor padding.
type Graph[W comparable] struct {
	worlds  blocks[W]
	parents blocks[uint32]
	// table has the number of each world plus 1, by hash; the upper half of an entry is
	// the upper half of the hash, so that few worlds are compared in vain.
	table []uint64
	seed  maphash.Seed
}

// blocks is an array that grows without being copied.
type blocks[T any] struct {
	all [][]T
	n   int
}

const (
	blockSize = 1 << 14
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

// New makes an empty Graph.
func New[W comparable]() *Graph[W] {
	return &Graph[W]{table: make([]uint64, 1<<12), seed: maphash.MakeSeed()}
}

// Len is how many worlds there are.
func (g *Graph[W]) Len() int { return g.worlds.n }

// At is a world by its number.
func (g *Graph[W]) At(i int) *W { return g.worlds.at(i) }

// Find is the number of a world.
func (g *Graph[W]) Find(w *W) (number int, known bool) {
	number, _, _, known = g.find(w)
	return number, known
}

// find also says where in the table to put it, and the entry without its number.
func (g *Graph[W]) find(w *W) (number int, slot, entry uint64, known bool) {
	mask := uint64(len(g.table) - 1)
	hash := maphash.Bytes(g.seed, unsafe.Slice((*byte)(unsafe.Pointer(w)), unsafe.Sizeof(*w)))
	entry = hash &^ lower
	for slot = hash & mask; g.table[slot] != 0; slot = (slot + 1) & mask {
		if g.table[slot]&^lower != entry {
			continue
		}
		if n := int(g.table[slot]&lower) - 1; *g.worlds.at(n) == *w {
			return n, slot, entry, true
		}
	}
	return 0, slot, entry, false
}

// Visit adds a world that was reached from another one, and says whether it is new.
func (g *Graph[W]) Visit(w *W, parent int) bool {
	_, slot, entry, known := g.find(w)
	if known {
		return false
	}
	g.worlds.push(*w)
	g.parents.push(uint32(parent))
	g.table[slot] = entry | uint64(g.worlds.n)
	if 2*g.worlds.n > len(g.table) {
		g.grow()
	}
	return true
}

// grow doubles the table.
func (g *Graph[W]) grow() {
	g.table = make([]uint64, 2*len(g.table))
	for i := range g.worlds.n {
		_, slot, entry, _ := g.find(g.worlds.at(i))
		g.table[slot] = entry | uint64(i+1)
	}
}

// Path is the way from the first world to a world.
func (g *Graph[W]) Path(at int) []W {
	var back []W
	for ; at != 0; at = int(*g.parents.at(at)) {
		back = append(back, *g.worlds.at(at))
	}
	back = append(back, *g.worlds.at(0))
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	return back
}
