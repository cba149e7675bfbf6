package rooted

import (
	"cmp"
	"fmt"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Epoch orders the descriptors of one region; by Compare, all that a key of an assigned
// keyspace was ever in.
type Epoch struct {
	// Version rises when the range changes.
	Version uint64
	// ConfVersion rises when the owner set changes.
	ConfVersion uint64
}

// EpochFromProto reads an epoch from the wire; nil is the zero Epoch.
func EpochFromProto(e *rootv1.RegionEpoch) Epoch {
	return Epoch{Version: e.GetVersion(), ConfVersion: e.GetConfVersion()}
}

// Proto is the epoch on the wire.
func (e Epoch) Proto() *rootv1.RegionEpoch {
	return &rootv1.RegionEpoch{Version: e.Version, ConfVersion: e.ConfVersion}
}

// String is version.conf_version.
func (e Epoch) String() string { return fmt.Sprintf("%d.%d", e.Version, e.ConfVersion) }

// Compare is below, at or above 0 as e is below, at or above o: by version, then by conf
// version. What becomes of regions has a version above theirs, so that this is the order of
// all owner sets that a key of an assigned keyspace ever has, whichever regions it is in.
func (e Epoch) Compare(o Epoch) int {
	return cmp.Or(cmp.Compare(e.Version, o.Version), cmp.Compare(e.ConfVersion, o.ConfVersion))
}

// NewerThan reports whether e is above o, both of one region: no component lower, one higher.
func (e Epoch) NewerThan(o Epoch) bool {
	return e != o && e.Version >= o.Version && e.ConfVersion >= o.ConfVersion
}

// Owner is a member's share in a region.
type Owner struct {
	Member MemberID
	// Peer is the peer id inside the region's own replication group, or 0.
	Peer uint64
	// Incarnation of the member that the region was granted to; 0 in reported
	// keyspaces.
	Incarnation uint64
	Role        rootv1.OwnerRole
}

// OwnerFromProto reads an owner from the wire.
func OwnerFromProto(o *rootv1.Owner) Owner {
	return Owner{Member: MemberID(o.GetMemberId()), Peer: o.GetPeerId(), Incarnation: o.GetIncarnation(), Role: o.GetRole()}
}

// Proto is the owner on the wire.
func (o Owner) Proto() *rootv1.Owner {
	return &rootv1.Owner{MemberId: string(o.Member), PeerId: o.Peer, Incarnation: o.Incarnation, Role: o.Role}
}

// Region is the descriptor of an interval [Start, End) of a keyspace. One that
// came from the cluster is shared: change a copy from Clone.
type Region struct {
	ID       RegionID
	Keyspace KeyspaceID
	// Start is the first route key.
	Start string
	// End is the first route key behind the interval. Empty: to the end.
	End   string
	Epoch Epoch
	// Owners in the order of the descriptor.
	Owners []Owner
	// Frontier is how far the previous owner got: opaque to the root.
	Frontier string
	// Revision is the index of the entry that last changed the record.
	Revision uint64
	// Former is whom the region was taken from, or nil. It is never written to.
	Former *FormerOwner
}

// FormerOwner is who owned a region that has no owner now, and may still act for it.
type FormerOwner struct {
	Member      MemberID
	Incarnation uint64
	// Revision is the index of the entry that took the region from it.
	Revision uint64
}

// Proto is the former owner on the wire; nil gives nil.
func (f *FormerOwner) Proto() *rootv1.FormerOwner {
	if f == nil {
		return nil
	}
	return &rootv1.FormerOwner{MemberId: string(f.Member), Incarnation: f.Incarnation, Revision: f.Revision}
}

// FormerOwnerFromProto reads a former owner from the wire; nil gives nil.
func FormerOwnerFromProto(f *rootv1.FormerOwner) *FormerOwner {
	if f == nil {
		return nil
	}
	return &FormerOwner{Member: MemberID(f.GetMemberId()), Incarnation: f.GetIncarnation(), Revision: f.GetRevision()}
}

// Clone returns a Region that may be changed, with its own owners.
func (r *Region) Clone() *Region {
	c := *r
	c.Owners = slices.Clone(r.Owners)
	return &c
}

// Contains reports whether the route key is in [Start, End).
func (r *Region) Contains(routeKey string) bool {
	return r.Start <= routeKey && (r.End == "" || routeKey < r.End)
}

// Owner returns the share of a member.
func (r *Region) Owner(id MemberID) (Owner, bool) {
	if i := slices.IndexFunc(r.Owners, func(o Owner) bool { return o.Member == id }); i >= 0 {
		return r.Owners[i], true
	}
	return Owner{}, false
}

// Proto is the region on the wire; nil gives nil.
func (r *Region) Proto() *rootv1.Region {
	if r == nil {
		return nil
	}
	p := &rootv1.Region{
		Id: uint64(r.ID), KeyspaceId: uint32(r.Keyspace), Epoch: r.Epoch.Proto(), Revision: r.Revision,
		StartKey: keyBytes(r.Start), EndKey: keyBytes(r.End), Frontier: keyBytes(r.Frontier), Former: r.Former.Proto(),
	}
	if len(r.Owners) > 0 {
		p.Owners = make([]*rootv1.Owner, len(r.Owners))
	}
	for i, o := range r.Owners {
		p.Owners[i] = o.Proto()
	}
	return p
}

func keyBytes(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// RegionFromProto reads a region from the wire; nil gives nil. It checks
// nothing.
func RegionFromProto(p *rootv1.Region) *Region {
	if p == nil {
		return nil
	}
	r, room := WithOwners[Region](len(p.GetOwners()))
	r.Owners = room
	r.Read(p)
	return r
}

// Read makes r what the wire says; its owners are appended to what room r.Owners has.
func (r *Region) Read(p *rootv1.Region) {
	*r = Region{
		ID: RegionID(p.GetId()), Keyspace: KeyspaceID(p.GetKeyspaceId()),
		Start: string(p.GetStartKey()), End: string(p.GetEndKey()), Frontier: string(p.GetFrontier()),
		Epoch: EpochFromProto(p.GetEpoch()), Revision: p.GetRevision(), Owners: r.Owners[:0],
		Former: FormerOwnerFromProto(p.GetFormer()),
	}
	for _, o := range p.GetOwners() {
		r.Owners = append(r.Owners, OwnerFromProto(o))
	}
}

// WithOwners makes a T, and room for so many owners in it; with one owner, the
// usual case, in one piece of memory.
func WithOwners[T any](owners int) (*T, []Owner) {
	switch owners {
	case 0:
		return new(T), nil
	case 1:
		one := new(struct {
			value T
			owner [1]Owner
		})
		return &one.value, one.owner[:0:1]
	default:
		return new(T), make([]Owner, 0, owners)
	}
}
