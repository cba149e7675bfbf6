package client

import (
	"math"
	"math/bits"
	"slices"
	"sort"
	"time"
	"unsafe"

	"github.com/nokv/nokv/internal/cow"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// table is a keyspace's regions in key order: leaves of regions, in an index.
// Immutable once it is a Cache's table: a change copies the leaves it touches, and
// of the index the path to them.
type table struct {
	leaves   cow.Index[*leaf]
	count    int
	keyspace rooted.KeyspaceID
	slots    *rootv1.Layout // layout whose route key is not the key itself; else nil
	replicas bool           // the owners of a region are not equal: the first one leads
	at       Position
	level    time.Time // when at was the newest, at the latest; see Batch.AsOf
	complete bool      // a snapshot has been taken in
}

// Regions of one leaf: at most, as a snapshot fills them, and below which it joins
// a neighbour.
const (
	leafMost  = 64
	leafFill  = 56
	leafLeast = leafMost / 4
)

// leaf is a run of regions, laid out for a search that waits for memory as seldom
// as possible: the part that all their first keys share is compared once, the eight
// bytes behind it as numbers, which are fetched all at once, and whole keys only where
// these are equal. What a caller wants of a region is behind them, two regions a line.
// Immutable once its edit is done.
//
// The allocator puts 8 bytes before what is so large: with these, what is before heads
// is one line, heads are four, and no entry is in two.
type leaf struct {
	rare *leafRare
	// meets has bit i set where region i reaches to the start of region i+1: a key
	// in between needs no look at the end. points: where it holds one key.
	meets, points uint64
	shared        uint16 // bytes that all keys begin with
	count         uint8
	// width of what is behind these, where it is the same for all and fits a head;
	// else -1.
	width   int8
	_       [4]byte
	prefix  [leafPrefix]byte // as much of what is shared as there is room for
	heads   [leafMost]uint64 // behind the last one all bits are set
	entries [leafMost]entry
}

const leafPrefix = 24

// leafRare is what a search seldom needs of a leaf.
type leafRare struct {
	first string // key of the first region: its place in the index
	by    *edit  // that made it; it may change it until done
}

// newLeaf makes one of entries, 1 to leafMost, of which the first one comes first.
func newLeaf(by *edit, entries []entry) *leaf {
	l := &leaf{rare: &leafRare{by: by, first: entries[0].start()}, count: uint8(len(entries))}
	copy(l.entries[:], entries)
	return l
}

// entry is a region in a leaf, of 32 bytes.
type entry struct {
	region *rooted.Region
	owners *owners
	// Of the region: the incarnation of the first owner that it was granted to, and its
	// epoch; largeEpoch: it has the parts of it itself.
	incarnation          uint64
	version, confVersion uint32
}

const largeEpoch = math.MaxUint32

// owners of a region in order, and what became of it here. Immutable.
type owners struct {
	peers  []*Peer
	answer *answer // not nil: it is here because somebody asked
}

var noOwners owners

func (e *entry) start() string { return e.region.Start }

func (e *entry) epoch() rooted.Epoch {
	if e.version == largeEpoch || e.confVersion == largeEpoch {
		return e.region.Epoch
	}
	return rooted.Epoch{Version: uint64(e.version), ConfVersion: uint64(e.confVersion)}
}

// find returns what holds a route key; nil: nothing here does.
func (t *table) find(routeKey string) *entry {
	l, ok := t.leaves.Floor(cow.Key{Text: routeKey})
	if !ok {
		return nil
	}
	i, exact := l.floor(routeKey)
	e := &l.entries[i&(leafMost-1)]
	bit := uint64(1) << (i & (leafMost - 1))
	switch {
	case l.meets&bit != 0 || exact:
		return e
	case l.points&bit != 0:
		return nil
	}
	if r := e.region; r.End != "" && routeKey >= r.End {
		return nil
	}
	return e
}

// notAbove is the place of the last head that is not above h, or 0. firsts are the heads that begin lines.
func (l *leaf) notAbove(h uint64, firsts *[8]uint64) int {
	_, a := bits.Sub64(h, firsts[1], 0)
	_, b := bits.Sub64(h, firsts[2], 0)
	_, c := bits.Sub64(h, firsts[3], 0)
	_, d := bits.Sub64(h, firsts[4], 0)
	_, e := bits.Sub64(h, firsts[5], 0)
	_, f := bits.Sub64(h, firsts[6], 0)
	_, g := bits.Sub64(h, firsts[7], 0)
	n := 56 - 8*int(a+b+c+d+e+f+g)
	line := (*[8]uint64)(l.heads[n&(leafMost-8):])
	var above uint64
	for i := range line {
		_, one := bits.Sub64(h, line[i], 0)
		above += one
	}
	return max(min(n+8-int(above), int(l.count))-1, 0)
}

// floor is the last region whose start is not above a key, which is not below the
// first one, and whether it starts there.
func (l *leaf) floor(key string) (int, bool) {
	// The first of each line of heads, read before anything is waited for, so that all are on their way at once.
	firsts := [8]uint64{l.heads[0], l.heads[8], l.heads[16], l.heads[24], l.heads[32], l.heads[40], l.heads[48], l.heads[56]}
	n := int(l.shared)
	if len(key) < n {
		return int(l.count) - 1, false
	}
	h := cow.Head(key, n)
	i := l.notAbove(h, &firsts)
	if n > 0 && key[:n] != l.common() {
		return int(l.count) - 1, false
	}
	if l.heads[i&(leafMost-1)] != h {
		return i, false
	}
	return l.tied(key, h, i)
}

// tied is floor where region i has the head of the key: there may be more like it.
func (l *leaf) tied(key string, h uint64, i int) (int, bool) {
	if w := int(l.width); w >= 0 {
		switch tail := len(key) - int(l.shared); { // no other start has this head
		case tail == w:
			return i, true
		case tail < w && i > 0:
			return i - 1, false
		default:
			return i, false
		}
	}
	for i > 0 && l.heads[i-1] == h && l.entries[i].start() > key {
		i--
	}
	switch start := l.entries[i].start(); {
	case start == key:
		return i, true
	case start > key && i > 0:
		return i - 1, false
	default:
		return i, false
	}
}

func (l *leaf) common() string {
	if l.shared <= leafPrefix {
		return unsafe.String(&l.prefix[0], l.shared)
	}
	return l.rare.first[:l.shared]
}

// index makes what a search needs of the entries.
func (l *leaf) index() {
	n := int(l.count)
	first, last := l.entries[0].start(), l.entries[n-1].start()
	shared := min(len(cow.SharedPrefix(first, last)), math.MaxUint16)
	l.shared, l.meets, l.points = uint16(shared), 0, 0
	copy(l.prefix[:], first[:shared])
	l.width = -1
	if width := len(first) - shared; width <= 8 {
		l.width = int8(width)
	}
	for i := range n {
		r := l.entries[i].region
		l.heads[i] = cow.Head(r.Start, shared)
		if len(r.Start)-shared != int(l.width) {
			l.width = -1
		}
		if i > 0 && l.entries[i-1].region.End == r.Start {
			l.meets |= 1 << (i - 1)
		}
		if len(r.End) == len(r.Start)+1 && r.End[len(r.Start)] == 0 && r.End[:len(r.Start)] == r.Start {
			l.points |= 1 << i
		}
	}
	for i := n; i < leafMost; i++ {
		l.heads[i] = math.MaxUint64
	}
}

func (t *table) describe(k *rootv1.Keyspace) {
	t.keyspace, t.slots = rooted.KeyspaceID(k.GetId()), nil
	t.replicas = k.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED
	if l := k.GetSettings().GetLayout(); l.GetSlots() != nil {
		t.slots = l
	}
}

// scan calls fn for all entries in key order, until it returns false.
func (t *table) scan(fn func(*entry) bool) {
	t.leaves.Scan(func(l *leaf) bool {
		for i := range l.count {
			if !fn(&l.entries[i]) {
				return false
			}
		}
		return true
	})
}

func keyOfLeaf(l *leaf) cow.Key { return cow.Key{Text: l.rare.first} }

// fill takes in the entries of a snapshot, in the order of their keys.
func (t *table) fill(entries []entry) {
	leaves := make([]*leaf, 0, len(entries)/leafFill+1)
	for part := range slices.Chunk(entries, leafFill) {
		l := newLeaf(nil, part)
		l.index()
		leaves = append(leaves, l)
	}
	t.leaves, t.count = cow.LoadIndex(keyOfLeaf, leaves), len(entries)
}

// edit is a change of a table in the making.
type edit struct {
	leaves cow.Index[*leaf]
	count  int
	made   []*leaf // whose index is to be made
}

func (t *table) edit() *edit {
	if t.count == 0 {
		return &edit{leaves: cow.NewIndex(keyOfLeaf)}
	}
	return &edit{leaves: t.leaves.Branch(), count: t.count}
}

// done makes the changed table.
func (e *edit) done(t *table) *table {
	next := *t
	for _, l := range e.made {
		if l.count > 0 {
			l.index()
		}
		l.rare.by = nil
	}
	next.leaves, next.count = e.leaves, e.count
	return &next
}

// own is l, or a copy of it in its place, that this edit may change.
func (e *edit) own(l *leaf) *leaf {
	if l.rare.by == e {
		return l
	}
	c := *l
	c.rare = &leafRare{by: e, first: l.rare.first}
	e.made = append(e.made, &c)
	e.leaves.Set(&c)
	return &c
}

// seek returns the leaf that start is or would be in, its place there, and whether
// it is there; nil: there is no leaf.
func (e *edit) seek(start string) (l *leaf, i int, there bool) {
	l, ok := e.leaves.Floor(cow.Key{Text: start})
	if !ok {
		e.leaves.Scan(func(first *leaf) bool { l = first; return false })
		return l, 0, false
	}
	i = sort.Search(int(l.count), func(i int) bool { return l.entries[i].start() >= start })
	return l, i, i < int(l.count) && l.entries[i].start() == start
}

// overlaps returns the regions that have keys in common with r.
func (e *edit) overlaps(r *rooted.Region) []*rooted.Region {
	l, i, there := e.seek(r.Start)
	if l == nil {
		return nil
	}
	var out []*rooted.Region
	if !there && i > 0 {
		if before := l.entries[i-1].region; before.End == "" || before.End > r.Start {
			out = append(out, before)
		}
	}
	e.leaves.Ascend(keyOfLeaf(l), func(l *leaf) bool {
		for ; i < int(l.count); i++ {
			o := l.entries[i].region
			if r.End != "" && o.Start >= r.End {
				return false
			}
			out = append(out, o)
		}
		i = 0
		return true
	})
	return out
}

// replace puts an entry in the place of the one that starts where it does.
func (e *edit) replace(with entry) {
	if l, i, there := e.seek(with.start()); there {
		e.own(l).entries[i] = with
	}
}

func (e *edit) insert(with entry) {
	e.count++
	l, i, _ := e.seek(with.start())
	if l == nil {
		e.add(newLeaf(e, []entry{with}))
		return
	}
	l = e.own(l)
	if l.count == leafMost {
		right := newLeaf(e, l.entries[leafMost/2:])
		l.truncate(leafMost / 2)
		e.add(right)
		if i > int(l.count) {
			i -= int(l.count)
			l = right
		}
	}
	copy(l.entries[i+1:], l.entries[i:l.count])
	l.entries[i] = with
	l.count++
	e.place(l)
}

// add puts in a leaf that this edit has made.
func (e *edit) add(l *leaf) {
	e.made = append(e.made, l)
	e.leaves.Set(l)
}

// place puts a leaf whose first region is another one where it belongs.
func (e *edit) place(l *leaf) {
	if first := l.entries[0].start(); first != l.rare.first {
		e.leaves.Delete(keyOfLeaf(l))
		l.rare.first = first
		e.leaves.Set(l)
	}
}

// truncate keeps the first entries of a leaf, and nothing of the others.
func (l *leaf) truncate(count int) {
	clear(l.entries[count:l.count])
	l.count = uint8(count)
}

func (e *edit) remove(r *rooted.Region) {
	l, i, there := e.seek(r.Start)
	if !there || l.entries[i].region.ID != r.ID {
		return
	}
	e.count--
	l = e.own(l)
	copy(l.entries[i:], l.entries[i+1:l.count])
	l.truncate(int(l.count) - 1)
	if l.count == 0 {
		e.leaves.Delete(keyOfLeaf(l))
		return
	}
	e.place(l)
	if l.count < leafLeast {
		e.join(l)
	}
}

// join puts a small leaf and a neighbour of it together, if they fit well.
func (e *edit) join(l *leaf) {
	left, right := l, (*leaf)(nil)
	e.leaves.Ascend(keyOfLeaf(l), func(n *leaf) bool {
		right = n
		return n == l
	})
	if right == l || right.count+l.count > leafFill {
		e.leaves.Descend(keyOfLeaf(l), func(n *leaf) bool {
			left = n
			return n == l
		})
		right = l
	}
	if left == right || left.count+right.count > leafFill {
		return
	}
	e.leaves.Delete(keyOfLeaf(right))
	left = e.own(left)
	copy(left.entries[left.count:], right.entries[:right.count])
	left.count += right.count
	if right.rare.by == e {
		right.count = 0 // nobody has it
	}
}
