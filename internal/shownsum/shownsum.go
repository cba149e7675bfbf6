// Package shownsum is the hash by which a member and a coordinator see that they mean
// the same regions: that of nokv.coordinator.v1.ShownRegion.
//
// It promises: the hash of a region is a function of its id, its epoch, and role, peer
// and stage of its move, the same in every version and language; the checksum of a set is the
// exclusive or of its regions' hashes.
package shownsum

import (
	"math/bits"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// Shown is what of a region goes into its hash.
type Shown struct {
	ID, Version, ConfVersion uint64
	// Role in a move, the incarnation of the other side, and whether the region is to
	// be released now; zero without a move.
	Role            coordinatorv1.MoveRole
	PeerIncarnation uint64
	ReleaseNow      bool
}

// Of is the hash of a region as a set shows it.
func Of(r *coordinatorv1.ShownRegion) uint64 {
	e, m := r.GetRegion().GetEpoch(), r.GetMove()
	return Shown{
		ID: r.GetRegion().GetId(), Version: e.GetVersion(), ConfVersion: e.GetConfVersion(),
		Role: m.GetRole(), PeerIncarnation: m.GetPeerIncarnation(), ReleaseNow: m.GetReleaseNow(),
	}.Hash()
}

// Hash is XXH64 with seed 0 of eight little-endian words.
func (s Shown) Hash() uint64 {
	words := [8]uint64{s.ID, s.Version, s.ConfVersion, uint64(s.Role), 0, 0, s.PeerIncarnation, 0}
	if s.ReleaseNow {
		words[7] = 1
	}
	return xxh64(&words)
}

const (
	prime1 uint64 = 11400714785074694791
	prime2 uint64 = 14029467366897019727
	prime3 uint64 = 1609587929392839161
	prime4 uint64 = 9650029242287828579
)

// xxh64 is XXH64 of 64 bytes: two rounds of the four lanes, and the mixing behind them.
func xxh64(words *[8]uint64) uint64 {
	sum := prime1 // so that the constants may wrap around
	lanes := [4]uint64{sum + prime2, prime2, 0, -sum}
	for i, w := range words {
		lanes[i%4] = round(lanes[i%4], w)
	}
	h := bits.RotateLeft64(lanes[0], 1) + bits.RotateLeft64(lanes[1], 7) + bits.RotateLeft64(lanes[2], 12) + bits.RotateLeft64(lanes[3], 18)
	for _, lane := range lanes {
		h = (h^round(0, lane))*prime1 + prime4
	}
	h += 8 * uint64(len(words))
	h = (h ^ h>>33) * prime2
	h = (h ^ h>>29) * prime3
	return h ^ h>>32
}

func round(lane, word uint64) uint64 { return bits.RotateLeft64(lane+word*prime2, 31) * prime1 }
