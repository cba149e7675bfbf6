package cow

// Index is an ordered map of values that know their own keys, for many of
// them: 19 bytes each beside the value when they come in order, 24 when they do
// not, and lookups that touch little memory. It is a tree of wide nodes that
// hold a number for each key, to search by, and no keys: see column.
//
// The key of a value must stay what it was for as long as the value is in an
// Index.
type Index[V any] struct {
	key  func(V) Key
	root *node[V] // nil: empty
	size int
	// by marks the nodes that this Index may change: it made them since its
	// last Fork. nil: none.
	by *edit
}

// edit is a mark; it has a size so that each has its own address.
type edit struct{ _ byte }

// most entries of a node. Full nodes are what loading in order makes.
const most = 128

// least entries of a node: below, it joins a neighbour when both fit well.
const least = most / 4

// node is a leaf, with vals, or has kids. It is never empty, but for moments
// inside a write.
type node[V any] struct {
	column
	vals []V
	kids []*node[V]
	// seps has for each of kids a key that is not above any of its keys, and
	// above all keys of those before.
	seps []Key
	by   *edit
	// lent: heads and seps belong to an older node too.
	lent bool
}

func (n *node[V]) size() int { return max(len(n.vals), len(n.kids)) }

// NewIndex makes an empty Index of values whose key is what key says.
func NewIndex[V any](key func(V) Key) Index[V] { return Index[V]{key: key} }

// Fork returns an Index with the same content; both may be written from now on.
func (x *Index[V]) Fork() Index[V] {
	x.by = nil
	return *x
}

// Branch is Fork for an Index that nobody writes to any more, as Map has it.
func (x Index[V]) Branch() Index[V] {
	x.by = nil
	return x
}

// Len is the number of values.
func (x *Index[V]) Len() int { return x.size }

// Get returns the value that has a key.
func (x *Index[V]) Get(k Key) (v V, ok bool) {
	n := x.root
	if n == nil {
		return v, false
	}
	for n.kids != nil {
		i, _ := x.floor(n, k)
		n = n.kids[max(i, 0)]
	}
	if i, ok := x.floor(n, k); ok {
		return n.vals[i], true
	}
	return v, false
}

// Floor returns the last value whose key is not above k.
func (x *Index[V]) Floor(k Key) (v V, ok bool) {
	n := x.root
	if n == nil {
		return v, false
	}
	for n.kids != nil {
		i, _ := x.floor(n, k)
		n = n.kids[max(i, 0)]
	}
	if i, _ := x.floor(n, k); i >= 0 {
		return n.vals[i], true
	}
	return x.before(k)
}

// before is Floor where the leaf that k would be in has none: what it looks for is the
// last one of the leaf before.
func (x *Index[V]) before(k Key) (v V, ok bool) {
	var before *node[V] // everything in it is below k, and nothing is between
	for n := x.root; n.kids != nil; {
		i, _ := x.floor(n, k)
		if i > 0 {
			before = n.kids[i-1]
		}
		n = n.kids[max(i, 0)]
	}
	if before == nil {
		return v, false
	}
	for before.kids != nil {
		before = before.kids[len(before.kids)-1]
	}
	return before.vals[len(before.vals)-1], true
}

// together is how many keys Floors takes down the tree at a time.
const together = 32

// Floors is Floor for many keys at once: vals[i], which the caller makes room
// for, is the one for keys[i], or the zero value when there is none. The keys go
// down the tree together, so that what one of them waits for, others do too.
func (x *Index[V]) Floors(keys []Key, vals []V) {
	for len(keys) > together {
		x.floors(keys[:together], vals)
		keys, vals = keys[together:], vals[together:]
	}
	x.floors(keys, vals)
}

func (x *Index[V]) floors(keys []Key, vals []V) {
	if x.root == nil {
		clear(vals[:len(keys)])
		return
	}
	var room [together]*node[V]
	at := room[:len(keys)]
	for i := range at {
		at[i] = x.root
	}
	for n := x.root; n.kids != nil; n = n.kids[0] {
		for i, here := range at {
			j, _ := x.floor(here, keys[i])
			at[i] = here.kids[max(j, 0)]
		}
	}
	for i, leaf := range at {
		if j, _ := x.floor(leaf, keys[i]); j >= 0 {
			vals[i] = leaf.vals[j]
		} else {
			vals[i], _ = x.Floor(keys[i])
		}
	}
}

// Ascend calls fn in rising order for the values from the given key on, until
// fn returns false.
func (x *Index[V]) Ascend(from Key, fn func(V) bool) {
	if x.root != nil {
		x.ascend(x.root, from, fn)
	}
}

func (x *Index[V]) ascend(n *node[V], from Key, fn func(V) bool) bool {
	i, found := x.floor(n, from)
	if n.kids == nil {
		if !found {
			i++
		}
		return each(n.vals[i:], fn)
	}
	i = max(i, 0)
	if !x.ascend(n.kids[i], from, fn) {
		return false
	}
	for _, kid := range n.kids[i+1:] {
		if !kid.scan(fn) {
			return false
		}
	}
	return true
}

// Descend calls fn in falling order for the values from the given key down,
// until fn returns false.
func (x *Index[V]) Descend(from Key, fn func(V) bool) {
	if x.root != nil {
		x.descend(x.root, from, fn)
	}
}

func (x *Index[V]) descend(n *node[V], from Key, fn func(V) bool) bool {
	i, _ := x.floor(n, from)
	if n.kids == nil {
		return eachBack(n.vals[:i+1], fn)
	}
	i = max(i, 0)
	if !x.descend(n.kids[i], from, fn) {
		return false
	}
	for i--; i >= 0; i-- {
		if !n.kids[i].scanBack(fn) {
			return false
		}
	}
	return true
}

// Scan calls fn in rising order for all values, until fn returns false.
func (x *Index[V]) Scan(fn func(V) bool) {
	if x.root != nil {
		x.root.scan(fn)
	}
}

func (n *node[V]) scan(fn func(V) bool) bool {
	for _, kid := range n.kids {
		if !kid.scan(fn) {
			return false
		}
	}
	return each(n.vals, fn)
}

func (n *node[V]) scanBack(fn func(V) bool) bool {
	for i := len(n.kids) - 1; i >= 0; i-- {
		if !n.kids[i].scanBack(fn) {
			return false
		}
	}
	return eachBack(n.vals, fn)
}

func each[V any](vals []V, fn func(V) bool) bool {
	for _, v := range vals {
		if !fn(v) {
			return false
		}
	}
	return true
}

func eachBack[V any](vals []V, fn func(V) bool) bool {
	for i := len(vals) - 1; i >= 0; i-- {
		if !fn(vals[i]) {
			return false
		}
	}
	return true
}
