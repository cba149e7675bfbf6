package cow

import "slices"

// LoadIndex makes an Index of values that come by rising key, no two with the
// same one. It is what Set makes of them one by one, sooner.
func LoadIndex[V any](key func(V) Key, vals []V) Index[V] {
	x := NewIndex(key)
	var level []*node[V]
	for some := range slices.Chunk(vals, most) {
		level = append(level, x.complete(&node[V]{vals: slices.Clone(some)}))
	}
	for len(level) > 1 {
		var above []*node[V]
		for kids := range slices.Chunk(level, most) {
			n := &node[V]{kids: slices.Clone(kids), seps: make([]Key, len(kids))}
			for i, kid := range kids {
				n.seps[i] = x.keyAt(kid, 0)
			}
			above = append(above, x.complete(n))
		}
		level = above
	}
	if len(level) > 0 {
		x.root, x.size = level[0], len(vals)
	}
	return x
}

// complete makes the column of a node that has its entries.
func (x *Index[V]) complete(n *node[V]) *node[V] {
	x.rehead(n, x.common(n))
	return n
}

// Set puts a value in the place of the one that has its key, if there is one.
func (x *Index[V]) Set(v V) {
	x.begin()
	k := x.key(v)
	if x.root == nil {
		x.root = &node[V]{by: x.by}
		x.size++
		x.put(x.root, 0, k, v, nil)
		return
	}
	x.root = x.own(x.root)
	if right := x.set(x.root, k, v); right != nil {
		x.root = x.parent(x.root, right)
	}
}

// Delete removes the value that has a key, if there is one.
func (x *Index[V]) Delete(k Key) {
	if _, ok := x.Get(k); !ok {
		return
	}
	x.begin()
	x.root = x.own(x.root)
	x.remove(x.root, k)
	x.size--
	for len(x.root.kids) == 1 {
		x.root = x.root.kids[0]
	}
	if x.size == 0 {
		x.root = nil
	}
}

func (x *Index[V]) begin() {
	if x.by == nil {
		x.by = new(edit)
	}
}

// own is n, or a copy of it, that x may change.
func (x *Index[V]) own(n *node[V]) *node[V] {
	if n.by == x.by {
		return n
	}
	c := *n
	c.by, c.lent = x.by, true
	c.vals, c.kids = slices.Clone(n.vals), slices.Clone(n.kids)
	return &c
}

// unlend makes heads and seps the node's own.
func (n *node[V]) unlend() {
	if n.lent {
		n.heads, n.seps, n.lent = slices.Clone(n.heads), slices.Clone(n.seps), false
	}
}

// set puts a value below n, which x owns. It returns what became the right
// part of n when there was no room, or nil.
func (x *Index[V]) set(n *node[V], k Key, v V) *node[V] {
	i, found := x.floor(n, k)
	if n.kids == nil {
		if found {
			n.vals[i] = v
			return nil
		}
		x.size++
		return x.insert(n, i+1, k, v, nil)
	}
	if i < 0 {
		i = 0
		x.lower(n, k)
	}
	kid := x.own(n.kids[i])
	n.kids[i] = kid
	right := x.set(kid, k, v)
	if right == nil {
		return nil
	}
	return x.insert(n, i+1, x.keyAt(right, 0), v, right)
}

// lower makes k, which is below it, the first of seps.
func (x *Index[V]) lower(n *node[V], k Key) {
	n.unlend()
	n.seps[0] = k
	if n.fits(k) {
		n.heads[0] = n.head(k)
	} else {
		x.rehead(n, x.common(n))
	}
}

// parent makes a node above two.
func (x *Index[V]) parent(left, right *node[V]) *node[V] {
	p := &node[V]{by: x.by}
	var none V
	x.put(p, 0, x.keyAt(left, 0), none, left)
	x.put(p, 1, x.keyAt(right, 0), none, right)
	return p
}

// insert puts an entry at i: v in a leaf, kid elsewhere. A full node is split
// in halves; one that grows at its end stays full, so that what is loaded in
// order fills its nodes.
func (x *Index[V]) insert(n *node[V], i int, k Key, v V, kid *node[V]) *node[V] {
	if len(n.heads) < most {
		x.put(n, i, k, v, kid)
		return nil
	}
	at := most / 2
	if i == most {
		at = most
	}
	right := x.split(n, at)
	if i < at {
		x.put(n, i, k, v, kid)
	} else {
		x.put(right, i-at, k, v, kid)
	}
	return right
}

// put is insert where there is room.
func (x *Index[V]) put(n *node[V], i int, k Key, v V, kid *node[V]) {
	n.unlend()
	if kid != nil {
		n.kids, n.seps = insertAt(n.kids, i, kid), insertAt(n.seps, i, k)
	} else {
		n.vals = insertAt(n.vals, i, v)
	}
	if len(n.heads) > 0 && n.fits(k) {
		n.heads = insertAt(n.heads, i, n.head(k))
	} else {
		x.rehead(n, x.common(n))
	}
}

// split moves the entries of n from at on to a new node.
func (x *Index[V]) split(n *node[V], at int) *node[V] {
	right := &node[V]{by: x.by, column: n.column}
	right.heads = slices.Clone(n.heads[at:])
	n.heads = n.heads[:at]
	if n.kids != nil {
		n.unlend()
		right.kids, right.seps = slices.Clone(n.kids[at:]), slices.Clone(n.seps[at:])
		n.kids, n.seps = slices.Delete(n.kids, at, len(n.kids)), slices.Delete(n.seps, at, len(n.seps))
	} else {
		right.vals = slices.Clone(n.vals[at:])
		n.vals = slices.Delete(n.vals, at, len(n.vals))
	}
	if at < most {
		x.reindex(n)
		x.reindex(right)
	}
	return right
}

// remove removes a key that is there from below n, which x owns.
func (x *Index[V]) remove(n *node[V], k Key) {
	i, _ := x.floor(n, k)
	if n.kids == nil {
		n.cut(i)
		return
	}
	i = max(i, 0)
	kid := x.own(n.kids[i])
	n.kids[i] = kid
	x.remove(kid, k)
	if len(kid.heads) < least {
		x.mend(n, i)
	}
}

// cut removes the entry at i.
func (n *node[V]) cut(i int) {
	n.unlend()
	n.heads = slices.Delete(n.heads, i, i+1)
	if n.kids != nil {
		n.kids, n.seps = slices.Delete(n.kids, i, i+1), slices.Delete(n.seps, i, i+1)
	} else {
		n.vals = slices.Delete(n.vals, i, i+1)
	}
}

// mend joins the kid at i, which has become small, with a neighbour, unless
// they would soon split again. An empty one always goes.
func (x *Index[V]) mend(n *node[V], i int) {
	if len(n.kids) == 1 {
		if len(n.kids[0].heads) == 0 {
			n.cut(0)
		}
		return
	}
	i = min(i, len(n.kids)-2)
	left, right := n.kids[i], n.kids[i+1]
	l, r := len(left.heads), len(right.heads)
	if l+r > most*3/4 && l > 0 && r > 0 {
		return
	}
	left = x.own(left)
	left.unlend()
	left.vals, left.kids = append(left.vals, right.vals...), append(left.kids, right.kids...)
	left.seps = append(left.seps, right.seps...)
	x.rehead(left, x.common(left))
	n.kids[i] = left
	n.cut(i + 1)
}

// insertAt is slices.Insert for one entry, with little room to grow: most
// nodes rest.
func insertAt[T any](s []T, i int, v T) []T {
	if len(s) == cap(s) {
		s = append(make([]T, 0, room(len(s)+1)), s...)
	}
	return slices.Insert(s, i, v)
}

// room is what a node of so many entries has room for.
func room(size int) int { return min((size+15)&^15, most) }
