package catalog

import (
	"slices"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Batch is the answer to many keys at once: each region once. A Batch is used
// again for the next answer, by one goroutine, and then allocates nothing.
type Batch struct {
	// Keyspace of the keys.
	Keyspace *rootv1.Keyspace
	// Regions found, in the order in which keys first hit them.
	Regions []*state.Region
	// RegionOfKey is, for each key, the place of its region in Regions plus
	// one; 0 when no region holds the key.
	RegionOfKey []uint32

	// hits are the regions found, key by key.
	hits []*state.Region
	// places is an open hash table from region id to place; a row of an older
	// turn is empty.
	places []place
	turn   uint32
}

type place struct {
	region state.RegionID
	turn   uint32
	place  uint32
}

// LookupBatch finds the regions of many keys of one keyspace. It refuses with
// REASON_NOT_FOUND when there is no such keyspace. What b held before is
// overwritten; its slices are b's own.
func LookupBatch(st *state.State, keyspace string, keys [][]byte, b *Batch) error {
	ks, err := Keyspace(st, keyspace)
	if err != nil {
		return err
	}
	b.reset(ks, len(keys))
	if ks.GetSettings().GetLayout().GetSlots() == nil {
		st.RegionsAt(state.KeyspaceID(ks.GetId()), keys, b.hits)
	} else {
		for i, key := range keys {
			b.hits[i] = regionOf(st, ks, key)
		}
	}
	var last *state.Region
	var lastPlace uint32
	for _, r := range b.hits {
		if r != last { // keys of one request are often neighbours
			if last, lastPlace = r, 0; r != nil {
				lastPlace = b.place(r)
			}
		}
		b.RegionOfKey = append(b.RegionOfKey, lastPlace)
	}
	return nil
}

func (b *Batch) reset(ks *rootv1.Keyspace, keys int) {
	clear(b.Regions)
	clear(b.hits)
	b.hits = slices.Grow(b.hits[:0], keys)[:keys]
	b.Keyspace, b.Regions, b.RegionOfKey = ks, b.Regions[:0], b.RegionOfKey[:0]
	b.turn++
	if need := tableSize(keys); len(b.places) < need || b.turn == 0 {
		b.places, b.turn = make([]place, need), 1
	}
}

// tableSize is a power of two that leaves half of the table empty.
func tableSize(keys int) int {
	n := 16
	for n < 2*keys {
		n *= 2
	}
	return n
}

// place returns the place of a region in Regions plus one, and puts it there.
func (b *Batch) place(r *state.Region) uint32 {
	mask := uint64(len(b.places) - 1)
	for i := uint64(r.ID) * 0x9E3779B97F4A7C15 >> 32 & mask; ; i = (i + 1) & mask {
		p := &b.places[i]
		if p.turn != b.turn {
			b.Regions = append(b.Regions, r)
			*p = place{region: r.ID, turn: b.turn, place: uint32(len(b.Regions))}
			return p.place
		}
		if p.region == r.ID {
			return p.place
		}
	}
}
