package cow

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"strings"
)

// Key orders the values of an Index: by Group, then by Text.
type Key struct {
	Group uint64
	Text  string
}

func (k Key) compare(o Key) int {
	if c := cmp.Compare(k.Group, o.Group); c != 0 {
		return c
	}
	return compareTexts(k.Text, o.Text)
}

// compareTexts is strings.Compare; with that one the texts of callers escape
// to the heap.
func compareTexts(a, b string) int {
	switch {
	case a == b:
		return 0
	case a < b:
		return -1
	default:
		return 1
	}
}

// column is a number for each of a node's keys, its head, that orders as the
// keys do: where heads differ, no key is looked at. Keys of one group have what
// all texts begin with apart, and the eight bytes behind it for heads. Keys of
// several groups, a mixed column, have their groups for heads.
type column struct {
	heads  []uint64
	shared string
	group  uint64
	mixed  bool
}

// describe says what a column from first to last has in common.
func describe(first, last Key) column {
	if first.Group != last.Group {
		return column{mixed: true}
	}
	return column{group: first.Group, shared: SharedPrefix(first.Text, last.Text)}
}

// like says whether heads of c are heads of o.
func (c *column) like(o *column) bool {
	return c.mixed == o.mixed && (c.mixed || c.group == o.group && len(c.shared) == len(o.shared))
}

// fits says whether the key has a head in c as it is.
func (c *column) fits(k Key) bool {
	return c.mixed || c.group == k.Group && strings.HasPrefix(k.Text, c.shared)
}

// head is the head of a key that fits.
func (c *column) head(k Key) uint64 {
	if c.mixed {
		return k.Group
	}
	return Head(k.Text, len(c.shared))
}

// side is 0 for a key that fits, below 0 for one that comes before all keys of
// the column, above 0 for one that comes behind them.
func (c *column) side(k Key) int {
	switch {
	case c.mixed:
		return 0
	case k.Group != c.group:
		return cmp.Compare(k.Group, c.group)
	case strings.HasPrefix(k.Text, c.shared):
		return 0
	default:
		return compareTexts(k.Text, c.shared)
	}
}

// SharedPrefix of the first and the last of sorted texts is that of all.
func SharedPrefix(a, b string) string {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return a[:i]
		}
	}
	return a[:n]
}

// Head is the eight bytes of s from a place on, which is not behind its end, as a number
// that orders as they do; where there are fewer there are zeros behind them.
func Head(s string, from int) uint64 {
	if left := len(s) - from; left < 8 {
		return short(s, left)
	}
	return binary.BigEndian.Uint64([]byte(s[from : from+8]))
}

// short is Head where fewer than eight bytes are left. The bytes before them are read with
// them where there are such: one read instead of a copy.
func short(s string, left int) uint64 {
	if n := len(s); n >= 8 {
		return binary.BigEndian.Uint64([]byte(s[n-8:])) << (8 * (8 - uint(left)))
	}
	var b [8]byte
	copy(b[:], s[len(s)-left:])
	return binary.BigEndian.Uint64(b[:])
}

// Heads that are skipped at a time: first so many, then so few, which are one line of
// memory or two.
const (
	stride = 32
	step   = 8
)

// NotAbove counts the heads, which rise, that are not above h. No branch
// depends on them: processors guess wrong half the time, and wait for memory
// once for each guess; here they load all they need at once.
func NotAbove(heads []uint64, h uint64) int {
	n := 0
	for i := stride - 1; i < len(heads); i += stride {
		_, above := bits.Sub64(h, heads[i], 0)
		n += stride - stride*int(above)
	}
	some := heads[n:min(n+stride, len(heads))]
	for i := step - 1; i < len(some); i += step {
		_, above := bits.Sub64(h, some[i], 0)
		n += step - step*int(above)
	}
	for _, other := range heads[n:min(n+step, len(heads))] {
		_, above := bits.Sub64(h, other, 0)
		n += 1 - int(above)
	}
	return n
}

// floor is the place in n of the last key that is not above k, and whether it
// is k; -1: all are above.
func (x *Index[V]) floor(n *node[V], k Key) (int, bool) {
	if side := n.side(k); side != 0 {
		if side < 0 {
			return -1, false
		}
		return len(n.heads) - 1, false
	}
	h := n.head(k)
	i := NotAbove(n.heads, h) - 1
	if i < 0 || n.heads[i] != h {
		return i, false
	}
	if c := x.keyAt(n, i).compare(k); c <= 0 {
		return i, c == 0
	}
	return x.tied(n, k, h, i)
}

// tied is floor where key i has the head of k and is above it: there may be
// more like it.
func (x *Index[V]) tied(n *node[V], k Key, h uint64, i int) (int, bool) {
	lo, hi := 0, i
	if h > 0 {
		lo = NotAbove(n.heads, h-1)
	}
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); x.keyAt(n, mid).compare(k) <= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1, lo > 0 && x.keyAt(n, lo-1).compare(k) == 0
}

func (x *Index[V]) keyAt(n *node[V], i int) Key {
	if n.kids != nil {
		return n.seps[i]
	}
	return x.key(n.vals[i])
}

// reindex makes the column of n anew if its keys would fit one that tells more
// of them apart.
func (x *Index[V]) reindex(n *node[V]) {
	if c := x.common(n); !c.like(&n.column) {
		x.rehead(n, c)
	}
}

// common is a column for the entries of n, without heads.
func (x *Index[V]) common(n *node[V]) column {
	return describe(x.keyAt(n, 0), x.keyAt(n, n.size()-1))
}

// rehead makes c, completed, the column of n.
func (x *Index[V]) rehead(n *node[V], c column) {
	size := n.size()
	c.heads = make([]uint64, size, room(size))
	for i := range size {
		c.heads[i] = c.head(x.keyAt(n, i))
	}
	n.column = c
}
