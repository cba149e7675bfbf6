package explorer

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// search is a breadth-first search over the worlds of a model. Worlds are kept
// whole and compared whole, so that no two are ever taken for one.
type search struct {
	*model
	worlds  blocks[world]
	parents blocks[uint32]
	// table has the number of each world plus 1, by hash; the upper half of an
	// entry is the upper half of the hash, so that few worlds are compared in vain.
	table []uint64
	seed  maphash.Seed

	depth       int
	transitions uint64
	// bounded: limit stopped it before everything was seen.
	bounded bool
	// counterexample is set when a promise was broken.
	counterexample *counterexample
}

// counterexample is a shortest way to a broken promise.
type counterexample struct {
	predicate predicate
	path      []world
	last      step
}

// blocks is an array that grows without being copied.
type blocks[T any] struct {
	all [][]T
	n   int
}

const blockSize = 1 << 14

func (b *blocks[T]) at(i int) *T { return &b.all[i/blockSize][i%blockSize] }

func (b *blocks[T]) push(v T) {
	if b.n%blockSize == 0 {
		b.all = append(b.all, make([]T, blockSize))
	}
	*b.at(b.n) = v
	b.n++
}

func newSearch(c config) *search {
	return &search{model: newModel(c), table: make([]uint64, 1<<12), seed: maphash.MakeSeed()}
}

// find is the number of a world, or the place in the table to put it and the
// entry without its number.
func (s *search) find(w *world) (number int, slot, entry uint64, known bool) {
	mask := uint64(len(s.table) - 1)
	hash := maphash.Bytes(s.seed, bytesOf(w))
	entry = hash &^ lower
	for slot = hash & mask; s.table[slot] != 0; slot = (slot + 1) & mask {
		if s.table[slot]&^lower != entry {
			continue
		}
		if n := int(s.table[slot]&lower) - 1; *s.worlds.at(n) == *w {
			return n, slot, entry, true
		}
	}
	return 0, slot, entry, false
}

const lower = 1<<32 - 1

// visit adds a world unless it is known.
func (s *search) visit(w *world, parent int) {
	_, slot, entry, known := s.find(w)
	if known {
		return
	}
	s.worlds.push(*w)
	s.parents.push(uint32(parent))
	s.table[slot] = entry | uint64(s.worlds.n)
	if 2*s.worlds.n > len(s.table) {
		s.grow()
	}
}

// grow doubles the table.
func (s *search) grow() {
	old := s.table
	s.table = make([]uint64, 2*len(old))
	for i := range s.worlds.n {
		_, slot, entry, _ := s.find(s.worlds.at(i))
		s.table[slot] = entry | uint64(i+1)
	}
}

// run searches until a promise is broken, everything was seen, or more than
// limit worlds or depth steps were. 0: no limit.
func (s *search) run(limit, depth int) {
	first := s.first()
	s.visit(&first, 0)
	for at := 0; at < s.worlds.n; {
		level := s.worlds.n
		if depth > 0 && s.depth == depth || limit > 0 && level >= limit {
			s.bounded = true
			return
		}
		for ; at < level; at++ {
			if s.expand(at) {
				return
			}
			if limit > 0 && s.worlds.n >= limit {
				s.bounded = true
				return
			}
		}
		if s.worlds.n > level {
			s.depth++
		}
	}
}

// expand visits the successors of a world; it reports whether one was broken.
func (s *search) expand(at int) bool {
	w := *s.worlds.at(at)
	for i := range s.successors(&w) {
		next := &s.out[i]
		s.transitions++
		if next.broken != nothing {
			s.counterexample = &counterexample{predicate: next.broken, path: s.path(at), last: next.step}
			return true
		}
		s.normalize(&next.world)
		s.visit(&next.world, at)
	}
	return false
}

// path is the way from the first world to a world.
func (s *search) path(at int) []world {
	var back []world
	for ; at != 0; at = int(*s.parents.at(at)) {
		back = append(back, *s.worlds.at(at))
	}
	back = append(back, *s.worlds.at(0))
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	return back
}

// trace tells a counterexample step by step. It goes the way again without
// sorting processes and calls, so that each keeps its number.
func (s *search) trace(c *counterexample) string {
	var b strings.Builder
	w := c.path[0]
	line := 0
	tell := func(st step, next *world) {
		line++
		fmt.Fprintf(&b, "%3d. %s\n", line, s.describe(&w, st, next))
	}
	for _, target := range c.path[1:] {
		st, next := s.stepTo(&w, &target)
		tell(st, &next)
		w = next
	}
	if c.predicate == nothing {
		return b.String()
	}
	for _, next := range s.successors(&w) {
		if next.broken == c.predicate {
			tell(next.step, &next.world)
			break
		}
	}
	fmt.Fprintf(&b, "     %s is broken.\n", c.predicate)
	return b.String()
}

// stepTo finds the step of w that leads to target but for the order of things.
func (s *search) stepTo(w, target *world) (step, world) {
	for _, next := range s.successors(w) {
		sorted := next.world
		s.normalize(&sorted)
		if sorted == *target {
			return next.step, next.world
		}
	}
	panic("explorer: a step of the trace is not a successor")
}
