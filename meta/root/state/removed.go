package state

import (
	"encoding/binary"
	"fmt"

	"github.com/nokv/nokv/internal/cow"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// removedRegion remembers a region that is gone, so that what is late about it
// does not make it again, and its id does not get an epoch twice. That holds for
// MaxRemovedRegions: what is forgotten is as if it never was. Immutable.
type removedRegion struct {
	id RegionID
	// epoch that it had at last.
	epoch Epoch
	// revision is the index of the entry that removed it.
	revision uint64
	// place is the id as orderKey has it.
	place string
}

func newRemovedRegion(id RegionID, epoch Epoch, revision uint64) *removedRegion {
	return &removedRegion{id, epoch, revision, string(binary.BigEndian.AppendUint64(nil, uint64(id)))}
}

func (r *removedRegion) idKey() cow.Key { return idKey(r.id) }

// orderKey orders removed regions by when they were removed, then by id.
func (r *removedRegion) orderKey() cow.Key { return cow.Key{Group: r.revision, Text: r.place} }

func (r *removedRegion) proto() *rootv1.RemovedRegion {
	return &rootv1.RemovedRegion{Id: uint64(r.id), Epoch: r.epoch.Proto(), Revision: r.revision}
}

// hash equals hashRecord of the proto.
func (r *removedRegion) hash() uint64 {
	var room [64]byte
	b := binary.AppendUvarint(room[:0], tagRemoved)
	b = appendUintField(b, 1, uint64(r.id))
	b = append(b, 2)
	b = appendUintField(b, 1, r.epoch.Version)
	b = appendUintField(b, 2, r.epoch.ConfVersion)
	b = append(b, 0)
	b = appendUintField(b, 3, r.revision)
	return hashBytes(append(b, 0))
}

// rememberRemovedRegion notes that a region is gone, and forgets the one that was
// removed longest ago when there are more than MaxRemovedRegions.
func (t *turn) rememberRemovedRegion(old *Region) {
	t.addRemovedRegion(newRemovedRegion(old.ID, old.Epoch, t.token.Index))
	if t.removedRegions.Len() <= MaxRemovedRegions {
		return
	}
	t.removalOrder.Scan(func(oldest *removedRegion) bool {
		t.forgetRemovedRegion(oldest.id)
		return false
	})
}

func (s *State) addRemovedRegion(r *removedRegion) {
	s.sum += r.hash()
	s.removedRegions.Set(r)
	s.removalOrder.Set(r)
}

// forgetRemovedRegion drops what is remembered of a removed region, if it is.
func (s *State) forgetRemovedRegion(id RegionID) {
	r, ok := s.removedRegions.Get(idKey(id))
	if !ok {
		return
	}
	s.sum -= r.hash()
	s.removedRegions.Delete(r.idKey())
	s.removalOrder.Delete(r.orderKey())
}

// lastVersion is the version that a region of that id, which is not there, had at
// last; 0: there was none, or it is forgotten.
func (s *State) lastVersion(id RegionID) uint64 {
	if r, ok := s.removedRegions.Get(idKey(id)); ok {
		return r.epoch.Version
	}
	return 0
}

// raise is what a new epoch of a region at epoch e must be above. In reported
// keyspaces it is e: the members' epochs are their own, and go on where they are
// after a restore of the root. In assigned ones they are the root's, so that those
// that a lost tail gave are skipped.
func (s *State) raise(k *keyspace, e Epoch) Epoch {
	if !k.assigned() {
		return e
	}
	return join(e, s.counters.epochFloor)
}

// nextOwners is the epoch behind e for other owners. Behind a restore its version is raised,
// too: the lost tail may have given a higher one with the same keys.
func (s *State) nextOwners(k *keyspace, e Epoch) Epoch {
	e = s.raise(k, e)
	e.ConfVersion++
	return e
}

// raiseFloor has regions that get keys of r begin above it.
func raiseFloor(k *rootv1.Keyspace, r *Region) {
	if v := r.Epoch.Version; v <= MaxEpoch/2 { // one beyond stands for itself
		k.VersionFloor = max(k.GetVersionFloor(), v)
	}
}

// versionFloor is what the version of a region must be above that takes keys which have no
// region now; 0 in reported keyspaces, whose epochs are their members' own. So the epochs of
// all owners that a key ever has are in order, whichever regions it was in.
func (k *keyspace) versionFloor() uint64 {
	if !k.assigned() {
		return 0
	}
	return k.record.GetVersionFloor()
}

// epochUsed refuses an epoch of a region that is gone. The detail has its id and
// its last epoch, and no keyspace.
func (s *State) epochUsed(id RegionID, last uint64) *rootv1.ErrorDetail {
	epoch, what := Epoch{Version: last}, "keys of region %d were in another one before: its version must be above %d"
	if r, ok := s.removedRegions.Get(idKey(id)); ok {
		epoch, what = join(epoch, r.epoch), "region %d was there before: its version must be above %d"
	}
	return withRegion(&Region{Region: rooted.Region{ID: id, Epoch: epoch}}, rootv1.Reason_REASON_EPOCH_STALE,
		what, id, last)
}

// removedRegion takes what is remembered of a removed region; they come by id.
func (b *builder) removedRegion(p *rootv1.RemovedRegion) error {
	r := newRemovedRegion(RegionID(p.GetId()), EpochFromProto(p.GetEpoch()), p.GetRevision())
	if b.removedRegions.Len() >= MaxRemovedRegions || r.id <= b.lastRemoved {
		return fmt.Errorf("removed region %d is out of order, or one too many", r.id)
	}
	b.lastRemoved = r.id
	b.addRemovedRegion(r)
	return nil
}
