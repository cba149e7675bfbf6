package client

import (
	"encoding/binary"
	"sort"
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
		c.shared = sharedPrefix(keys[0], keys[len(keys)-1])
	}
	for i, k := range keys {
		c.heads[i] = head(k[len(c.shared):])
	}
	return c
}

// sharedPrefix of the first and the last of sorted keys is that of all.
func sharedPrefix(a, b string) string {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return a[:i]
		}
	}
	return a[:n]
}

// head is the first eight bytes as a number that orders as they do.
func head(s string) uint64 {
	var b [8]byte
	if len(s) >= 8 {
		return uint64(s[7]) | uint64(s[6])<<8 | uint64(s[5])<<16 | uint64(s[4])<<24 |
			uint64(s[3])<<32 | uint64(s[2])<<40 | uint64(s[1])<<48 | uint64(s[0])<<56
	}
	copy(b[:], s)
	return binary.BigEndian.Uint64(b[:])
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
	h := head(key)
	lo, hi := 0, len(c.heads)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); c.heads[mid] <= h {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
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
