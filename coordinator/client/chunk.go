package client

import (
	"sort"

	"github.com/nokv/nokv/internal/cow"
)

// column is sorted keys, laid out for search: the part that all of them share
// is compared once, the eight bytes behind it as a number, and whole keys only
// where these are equal. Immutable.
type column struct {
	shared string
	heads  []uint64
	keys   []string
}

func newColumn(keys []string) column {
	c := column{keys: keys, heads: make([]uint64, len(keys))}
	if len(keys) > 0 {
		c.shared = cow.SharedPrefix(keys[0], keys[len(keys)-1])
	}
	for i, k := range keys {
		c.heads[i] = cow.Head(k[len(c.shared):])
	}
	return c
}

// floor is the position of the last key that is not above key; -1: all are.
func (c *column) floor(key string) int {
	if n := len(c.shared); n > 0 {
		if len(key) < n || key[:n] != c.shared {
			if key < c.shared {
				return -1
			}
			return len(c.keys) - 1
		}
		key = key[n:]
	}
	h := cow.Head(key)
	lo := sort.Search(len(c.heads), func(i int) bool { return c.heads[i] > h })
	// Heads before lo are not above h; among those equal to it, whole keys decide.
	if lo == 0 || c.heads[lo-1] != h {
		return lo - 1
	}
	skip := len(c.shared)
	if c.keys[lo-1][skip:] <= key {
		return lo - 1
	}
	from := sort.Search(lo, func(i int) bool { return c.heads[i] >= h })
	n := sort.Search(lo-from, func(i int) bool { return c.keys[from+i][skip:] > key })
	return from + n - 1
}
