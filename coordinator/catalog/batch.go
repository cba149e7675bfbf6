package catalog

import (
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
	var last *state.Region
	var lastPlace uint32
	ordered := ks.GetSettings().GetLayout().GetSlots() == nil
	for _, key := range keys {
		// Keys of one request are often neighbours.
		if last == nil || !ordered || string(key) < last.Start || last.End != "" && string(key) >= last.End {
			if last = regionOf(st, ks, key); last != nil {
				lastPlace = b.place(last)
			} else {
				lastPlace = 0
			}
		}
		b.RegionOfKey = append(b.RegionOfKey, lastPlace)
	}
	return nil
}

func (b *Batch) reset(ks *rootv1.Keyspace, keys int) {
	clear(b.Regions)
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
