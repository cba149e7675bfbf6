package state

import (
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// join is the higher of each component.
func join(a, b Epoch) Epoch {
	return Epoch{Version: max(a.Version, b.Version), ConfVersion: max(a.ConfVersion, b.ConfVersion)}
}

// epochUnlessZero is the epoch on the wire, or nil.
func epochUnlessZero(e Epoch) *rootv1.RegionEpoch {
	if e == (Epoch{}) {
		return nil
	}
	return e.Proto()
}

// Region is a region as a State has it. It is immutable once it is in a State,
// and shared between versions of the State: change a copy from Clone.
type Region struct {
	// Owners are at most MaxOwners.
	rooted.Region

	// sum is the record's hash, set when the region enters a State.
	sum uint64
}

// number is the id; 0 for nil.
func (r *Region) number() uint64 {
	if r == nil {
		return 0
	}
	return uint64(r.ID)
}

// Clone returns a Region that may be changed, with its own owners.
func (r *Region) Clone() *Region {
	c := newRegion(len(r.Owners))
	owners := append(c.Owners, r.Owners...)
	*c = *r
	c.Owners = owners
	return c
}

func (r *Region) ownerAt(id MemberID) int {
	return slices.IndexFunc(r.Owners, func(o Owner) bool { return o.Member == id })
}

// Proto is the region on the wire; nil gives nil.
func (r *Region) Proto() *rootv1.Region {
	if r == nil {
		return nil
	}
	return r.Region.Proto()
}

// RegionFromProto reads a region from the wire; nil gives nil. It checks
// nothing.
func RegionFromProto(p *rootv1.Region) *Region {
	if p == nil {
		return nil
	}
	r := newRegion(len(p.GetOwners()))
	r.Read(p)
	return r
}

// newRegion makes room for a region and its owners.
func newRegion(owners int) *Region {
	r, room := rooted.WithOwners[Region](owners)
	r.Owners = room
	return r
}
