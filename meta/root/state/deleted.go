package state

import (
	"fmt"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// heritageOf is what a keyspace that is deleted leaves to the next assigned one of its name, whose keys
// callers and resources take for the same: who may still act for any of them, for how long, and above
// which version they go on; nil: nothing.
func heritageOf(k *keyspace, regions []*Region, index uint64) (*rootv1.Keyspace, *rootv1.ErrorDetail) {
	left := &rootv1.Keyspace{Id: k.record.GetId(), Name: k.record.GetName(), Revision: index, VersionFloor: k.record.GetVersionFloor()}
	noted := make(map[uint64]*rootv1.FormerOwner)
	note := func(f rooted.FormerOwner) {
		switch o := noted[f.Incarnation]; {
		case !k.fencedByTime():
		case o == nil:
			noted[f.Incarnation] = f.Proto()
			left.Vacated = append(left.Vacated, &rootv1.FormerRange{Owner: noted[f.Incarnation], NotedAt: index})
		default: // it has let go when it has been shown all that was taken from it
			o.Revision = max(o.GetRevision(), f.Revision)
		}
	}
	for _, r := range regions {
		if k.assigned() {
			raiseFloor(left, r)
		}
		for _, f := range mayActFor(r, index) {
			note(f)
		}
	}
	for _, x := range k.record.GetVacated() {
		note(*rooted.FormerOwnerFromProto(x.GetOwner()))
	}
	if len(left.Vacated) > maxVacated {
		return nil, capacity(maxVacated, "%d owners may act for keys of keyspace %q, and %d can be noted: stop some of its members first", len(left.Vacated), k.record.GetName(), maxVacated)
	}
	if len(left.Vacated) > 0 {
		left.FormerTtlMillis = max(fenceTTL(k.record.GetSettings()), k.record.GetFormerTtlMillis())
	}
	if len(left.Vacated) == 0 && left.VersionFloor == 0 {
		return nil, nil
	}
	return left, nil
}

// leave notes what a keyspace leaves. When there is one too many, the one that was deleted longest ago
// is forgotten, one first that nobody may act for.
func (t *turn) leave(heritage *rootv1.Keyspace) {
	if heritage == nil {
		return
	}
	if len(t.deleted) >= MaxDeletedKeyspaces {
		idle := slices.IndexFunc(t.deleted, func(left *rootv1.Keyspace) bool { return len(left.GetVacated()) == 0 })
		t.dropHeritage(max(0, idle))
	}
	t.deleted = append(slices.Clip(t.deleted), heritage)
	t.sum += hashRecord(tagDeleted, heritage)
}

// inherit gives a new record of an assigned keyspace what the last one of its name has left.
func (t *turn) inherit(k *rootv1.Keyspace) {
	at := slices.IndexFunc(t.deleted, func(left *rootv1.Keyspace) bool { return left.GetName() == k.GetName() })
	if at < 0 || !(&keyspace{record: k}).assigned() {
		return
	}
	left := t.deleted[at]
	k.VersionFloor = max(k.GetVersionFloor(), left.GetVersionFloor())
	k.Vacated = slices.Concat(k.GetVacated(), left.GetVacated())
	if longest := max(k.GetFormerTtlMillis(), left.GetFormerTtlMillis()); longest > fenceTTL(k.GetSettings()) {
		k.FormerTtlMillis = longest
	}
	t.dropHeritage(at)
}

func (t *turn) dropHeritage(at int) {
	t.sum -= hashRecord(tagDeleted, t.deleted[at])
	t.deleted = slices.Delete(slices.Clone(t.deleted), at, at+1)
}

// deletedKeyspace takes what is remembered of a deleted keyspace; they come by when they were deleted.
func (b *builder) deletedKeyspace(k *rootv1.Keyspace) error {
	n := len(b.deleted)
	named := func(other *rootv1.Keyspace) bool { return other.GetName() == k.GetName() }
	if n >= MaxDeletedKeyspaces || n > 0 && b.deleted[n-1].GetRevision() > k.GetRevision() || slices.ContainsFunc(b.deleted, named) {
		return fmt.Errorf("deleted keyspace %q is out of order, there twice, or one too many", k.GetName())
	}
	b.deleted = append(b.deleted, k)
	b.sum += hashRecord(tagDeleted, k)
	return nil
}
