// Package cow has ordered maps with copies in constant time: Map, of keys and
// values, and Index, of very many values that know their keys.
//
// It owns the trees behind them and nothing else. It promises:
//
//  1. Fork and Branch take constant time; what is shared is copied node by
//     node when one side writes.
//  2. Values are never copied, only the nodes that hold them.
//  3. Reads of one Map or Index may overlap each other. A write, or a Fork,
//     overlaps with nothing on the same one; forks are others.
//  4. Between two forks no node is copied twice, however many writes there are.
package cow

import (
	"cmp"

	"github.com/tidwall/btree"
)

// degree makes nodes of up to 63 items: measured the best trade between
// lookups and copies for a million regions.
const degree = 32

// key is what a Map can be ordered by: the tree below does not take more.
type key interface {
	~uint32 | ~uint64 | ~string
	cmp.Ordered
}

// Map is an ordered map. The zero Map is not usable: see New.
type Map[K key, V any] struct {
	tree *btree.Map[K, V]
}

// New makes an empty Map.
func New[K key, V any]() Map[K, V] {
	return Map[K, V]{tree: btree.NewMap[K, V](degree)}
}

// Fork returns a Map with the same content; both may be written from now on.
func (m *Map[K, V]) Fork() Map[K, V] {
	return Map[K, V]{tree: m.tree.IsoCopy()}
}

// Branch is Fork for a Map that nobody writes to any more: it leaves the
// receiver's bookkeeping alone, so that Branches and reads of one Map may
// overlap. Writing to the receiver afterwards is an error of the caller.
func (m Map[K, V]) Branch() Map[K, V] {
	header := *m.tree
	return Map[K, V]{tree: header.IsoCopy()}
}

// Len is the number of keys.
func (m Map[K, V]) Len() int { return m.tree.Len() }

// Get returns the value of a key.
func (m Map[K, V]) Get(k K) (V, bool) { return m.tree.Get(k) }

// Set sets the value of a key.
func (m Map[K, V]) Set(k K, v V) { m.tree.Set(k, v) }

// Delete removes a key, if it is there.
func (m Map[K, V]) Delete(k K) { m.tree.Delete(k) }

// Min returns the first key and its value.
func (m Map[K, V]) Min() (K, V, bool) { return m.tree.Min() }

// Ascend calls fn in rising order for all keys from the given one on, until
// fn returns false.
func (m Map[K, V]) Ascend(from K, fn func(K, V) bool) { m.tree.Ascend(from, fn) }

// Descend calls fn in falling order for all keys from the given one down,
// until fn returns false.
func (m Map[K, V]) Descend(from K, fn func(K, V) bool) { m.tree.Descend(from, fn) }

// Scan calls fn in rising order for all keys, until fn returns false.
func (m Map[K, V]) Scan(fn func(K, V) bool) { m.tree.Scan(fn) }
