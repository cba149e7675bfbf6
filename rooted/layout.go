package rooted

import (
	"encoding/binary"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// RouteKey is the key's place in a keyspace of that layout: the key itself for
// ranges and points; for slots the 8-byte big-endian number of its slot.
func RouteKey(layout *rootv1.Layout, key []byte) string {
	var room [8]byte
	if layout.GetSlots().GetCount() > 0 {
		return string(AppendRouteKey(room[:0], layout, key))
	}
	return string(key)
}

// AppendRouteKey appends the RouteKey to dst.
func AppendRouteKey(dst []byte, layout *rootv1.Layout, key []byte) []byte {
	if n := layout.GetSlots().GetCount(); n > 0 {
		return AppendSlotKey(dst, Slot(n, key))
	}
	return append(dst, key...)
}

// Slot is the slot of a key among count slots: the FNV-1a hash of the key, 64
// bits, modulo count. Members and callers in other languages compute it too.
func Slot(count uint32, key []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for _, b := range key {
		h = (h ^ uint64(b)) * prime
	}
	return h % uint64(count)
}

// AppendSlotKey appends the route key at which a slot begins.
func AppendSlotKey(dst []byte, slot uint64) []byte { return binary.BigEndian.AppendUint64(dst, slot) }

// SlotAt is the slot that begins at a route key; 0 for what AppendSlotKey did not make.
func SlotAt(routeKey string) uint64 {
	if len(routeKey) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64([]byte(routeKey))
}
