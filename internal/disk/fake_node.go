package disk

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// node is a file or a directory of a Fake.
type node struct {
	// Files: what a reader sees, what is on the platter, and which sectors of
	// cache a sync still has to bring there.
	cache, platter []byte
	dirty          map[int64]bool
	// name is the newest path, for operations on open files.
	name string

	// Directories: what a reader sees, what is durable, and the changes
	// between the two in order.
	names, durable map[string]*node
	pending        []change
}

// change is one change of a directory: a name given to a node, perhaps taken
// from another name, or taken away (node nil).
type change struct {
	name, from string
	node       *node
}

func newFile() *node { return &node{dirty: map[int64]bool{}} }

func newDir() *node { return &node{names: map[string]*node{}, durable: map[string]*node{}} }

func (n *node) change(c change) {
	apply(n.names, c)
	n.pending = append(n.pending, c)
}

func apply(names map[string]*node, c change) {
	if c.node == nil {
		delete(names, c.name)
		return
	}
	if c.from != "" && names[c.from] == c.node {
		delete(names, c.from)
	}
	names[c.name] = c.node
}

func (n *node) write(b []byte, off int64) {
	if end := off + int64(len(b)); end > int64(len(n.cache)) {
		n.cache = append(n.cache, make([]byte, end-int64(len(n.cache)))...)
	}
	copy(n.cache[off:], b)
	for s := off / SectorBytes; s*SectorBytes < off+int64(len(b)); s++ {
		n.dirty[s] = true
	}
}

func (n *node) sync() {
	if len(n.platter) < len(n.cache) {
		n.platter = append(n.platter, make([]byte, len(n.cache)-len(n.platter))...)
	}
	for s := range n.dirty {
		lo := s * SectorBytes
		copy(n.platter[lo:], n.cache[lo:min(lo+SectorBytes, int64(len(n.cache)))])
	}
	clear(n.dirty)
}

// outcome is what a crash makes of one unsynced thing.
type outcome int

const (
	kept outcome = iota
	lost
	garbage
)

func (f *Fake) settle(n *node) {
	for _, s := range slices.Sorted(maps.Keys(n.dirty)) {
		f.settleSector(n, s, outcome(f.rng.IntN(3)))
	}
	clear(n.dirty)
	if len(n.platter) < len(n.cache) && f.rng.IntN(2) == 0 {
		n.platter = append(n.platter, make([]byte, len(n.cache)-len(n.platter))...)
	}
	n.cache = slices.Clone(n.platter)
}

func (f *Fake) settleSector(n *node, s int64, as outcome) {
	lo := s * SectorBytes
	hi := min(lo+SectorBytes, int64(len(n.cache)))
	if as == lost || lo >= hi {
		return
	}
	if hi > int64(len(n.platter)) {
		n.platter = append(n.platter, make([]byte, hi-int64(len(n.platter)))...)
	}
	if as == kept {
		copy(n.platter[lo:hi], n.cache[lo:hi])
		return
	}
	for i := lo; i < hi; i++ {
		n.platter[i] = byte(f.rng.Uint32())
	}
}

// settleNames decides about each unsynced change of a directory.
func (f *Fake) settleNames(n *node) {
	for _, c := range n.pending {
		if outcome(f.rng.IntN(2)) == kept {
			apply(n.durable, c)
		}
	}
	n.pending = nil
	n.names = maps.Clone(n.durable)
}

// Reboot cuts the power and starts again: what was not synced is kept, lost or
// spoilt by chance; open files and locks are gone.
func (f *Fake) Reboot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restartLocked()
	f.used = 0
	f.walk(f.root, func(n *node) {
		if n.names != nil {
			f.settleNames(n)
			return
		}
		f.settle(n)
		f.used += int64(len(n.cache))
	})
}

// Kill ends the process and not the machine: nothing is lost but open files
// and locks.
func (f *Fake) Kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restartLocked()
}

func (f *Fake) restartLocked() {
	f.boot++
	f.crashed = false
	f.fault = nil
	clear(f.locks)
}

// walk visits a directory before what is in it, each node once, in order.
func (f *Fake) walk(n *node, visit func(*node)) {
	visit(n)
	for _, name := range sortedNames(n.names) {
		f.walk(n.names[name], visit)
	}
}

// FlipBit changes one bit of a file as rot would, on the platter too.
func (f *Fake) FlipBit(name string, bit int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.lookupLocked(name)
	if n == nil || bit/8 >= int64(len(n.cache)) {
		return &fs.PathError{Op: "flip", Path: name, Err: fs.ErrNotExist}
	}
	n.cache[bit/8] ^= 1 << (bit % 8)
	if bit/8 < int64(len(n.platter)) {
		n.platter[bit/8] ^= 1 << (bit % 8)
	}
	return nil
}

// Clone copies the disk as it is, unsynced things included, with its own
// chance. Open files and locks stay with the original.
func (f *Fake) Clone(seed uint64) *Fake {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := NewFake(seed)
	copies := map[*node]*node{}
	c.root = f.root.clone(copies)
	c.crashed, c.capacity, c.used = f.crashed, f.capacity, f.used
	return c
}

func (n *node) clone(copies map[*node]*node) *node {
	if n == nil {
		return nil
	}
	if c := copies[n]; c != nil {
		return c
	}
	c := &node{name: n.name, cache: slices.Clone(n.cache), platter: slices.Clone(n.platter), dirty: maps.Clone(n.dirty)}
	copies[n] = c
	if n.names == nil {
		return c
	}
	c.names, c.durable = map[string]*node{}, map[string]*node{}
	for name, child := range n.names {
		c.names[name] = child.clone(copies)
	}
	for name, child := range n.durable {
		c.durable[name] = child.clone(copies)
	}
	for _, ch := range n.pending {
		c.pending = append(c.pending, change{ch.name, ch.from, ch.node.clone(copies)})
	}
	return c
}

func (f *Fake) lookupLocked(name string) *node {
	at := f.root
	for _, part := range split(name) {
		if at = at.names[part]; at == nil {
			return nil
		}
	}
	return at
}

func (f *Fake) parentLocked(name string) (*node, string, error) {
	dir := f.lookupLocked(path.Dir(path.Clean(name)))
	if dir == nil || dir.names == nil {
		return nil, "", &fs.PathError{Op: "lookup", Path: name, Err: fs.ErrNotExist}
	}
	return dir, path.Base(name), nil
}

func split(name string) []string {
	return strings.FieldsFunc(path.Clean(name), func(r rune) bool { return r == '/' || r == '.' && path.Clean(name) == "." })
}

func sortedNames(m map[string]*node) []string { return slices.Sorted(maps.Keys(m)) }
