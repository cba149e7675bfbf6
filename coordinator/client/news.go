package client

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// news is one whole batch of a watch.
type news struct {
	snapshot  bool
	at        Position
	regions   []regionChange
	keyspaces []keyspaceChange
	members   []memberChange
	// skipped counts regions above the limit.
	skipped int
}

type regionChange struct {
	region  *rooted.Region
	removed bool
}

type keyspaceChange struct {
	keyspace *rootv1.Keyspace
	removed  bool
}

type memberChange struct {
	member  Member
	removed bool
	record  *rootv1.Member
}

// take puts a message to those before it, and returns the batch when that is
// whole; nil: it is not. At most limit regions of a snapshot are kept.
func (n *news) take(b Batch, limit int) *news {
	if b.First {
		*n = news{snapshot: b.GetSnapshot()}
	}
	for _, c := range b.GetChanges() {
		if n.snapshot && len(n.regions) >= limit {
			n.skipped++
			continue
		}
		n.regions = append(n.regions, regionChange{rooted.RegionFromProto(c.GetRegion()), c.GetRemoved()})
	}
	for _, c := range b.GetKeyspaces() {
		n.keyspaces = append(n.keyspaces, keyspaceChange{c.GetKeyspace(), c.GetRemoved()})
	}
	for _, c := range b.GetMembers() {
		n.members = append(n.members, memberChange{memberOf(c.GetMember()), c.GetRemoved(), c.GetMember()})
	}
	if !b.Last {
		return nil
	}
	whole := *n
	*n = news{}
	whole.at = b.Position()
	return &whole
}

func memberOf(m *rootv1.Member) Member {
	return Member{ID: rooted.MemberID(m.GetId()), Address: m.GetAddress(), State: m.GetState(), Incarnation: m.GetIncarnation()}
}

// Update is what one batch of a watch did to a Cache or a Mirror.
type Update struct {
	// At is where the copy stands now.
	At Position
	// Whole is set when everything was replaced by a snapshot: Regions is empty,
	// and what there is now is in All.
	Whole bool
	// Regions that came, changed or went.
	Regions []RegionUpdate
}

// RegionUpdate is what became of a region. Old is nil for one that is new, New
// for one that is gone.
type RegionUpdate struct{ Old, New *rooted.Region }
