package state

import (
	"github.com/nokv/nokv/internal/cow"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// State is rooted truth at one position of the log. Records in it are
// immutable: an event replaces them.
//
// One goroutine applies. Reads of a State that nobody applies to any more may
// overlap each other.
type State struct {
	token    Token
	cluster  *rootv1.Cluster
	alloc    allocators
	counters counters
	tenure   *rootv1.Tenure
	// handovers is oldest first. A new slice replaces it: forks share it.
	handovers []*rootv1.Handover
	pinKeys   keyring
	tokenKeys keyring
	// revoked are the bearer tokens that were, by key and serial. A new slice replaces
	// it: forks share it.
	revoked []*rootv1.RevokedToken

	coordinators cow.Map[CoordinatorID, *rootv1.Coordinator]
	members      cow.Map[MemberID, *rootv1.Member]
	// removed orders removed members by revision: see removedKey.
	removed cow.Map[string, MemberID]
	// owned has what each member owns; absent is nothing. owner marks those
	// that this State may change in place.
	owned cow.Map[MemberID, *holding]
	owner *ownership
	lives lives

	keyspaces     cow.Map[KeyspaceID, *keyspace]
	keyspaceNames cow.Map[string, KeyspaceID]
	// deleted are keyspaces that were, oldest first: see heritageOf. A new slice
	// replaces it: forks share it.
	deleted []*rootv1.Keyspace

	// regions is ordered by startKey, regionIDs by idKey.
	regions   cow.Index[*Region]
	regionIDs cow.Index[*Region]

	transitions cow.Map[string, transition]
	// pending names the pending transition that a region takes part in: the
	// one that changes, the right one of a merge, the right id of a split.
	pending cow.Map[RegionID, string]
	// ended orders ended transitions by where they ended: see endedKey.
	ended cow.Map[string, string]

	// removedRegions is ordered by id, removalOrder by when they were removed.
	removedRegions cow.Index[*removedRegion]
	removalOrder   cow.Index[*removedRegion]

	commands commands

	// settings of the cluster; nil: nobody changed them.
	settings *rootv1.ClusterSettings
	grants   grants

	// sum is the sum of the hashes of all records in maps and lists.
	sum uint64
}

// New makes the State before the first entry.
func New() *State {
	return &State{
		coordinators:  cow.New[CoordinatorID, *rootv1.Coordinator](),
		members:       cow.New[MemberID, *rootv1.Member](),
		removed:       cow.New[string, MemberID](),
		owned:         cow.New[MemberID, *holding](),
		lives:         newLives(),
		keyspaces:     cow.New[KeyspaceID, *keyspace](),
		keyspaceNames: cow.New[string, KeyspaceID](),
		regions:       cow.NewIndex((*Region).startKey),
		regionIDs:     cow.NewIndex((*Region).idKey),
		transitions:   cow.New[string, transition](),
		pending:       cow.New[RegionID, string](),
		ended:         cow.New[string, string](),

		removedRegions: cow.NewIndex((*removedRegion).idKey),
		removalOrder:   cow.NewIndex((*removedRegion).orderKey),

		grants: newGrants(),
	}
}

// Fork returns a State with the same content, in constant time; both may go on
// independently. It must not overlap with another Fork, Apply or read of the
// same State that is applied to.
func (s *State) Fork() *State {
	s.owner = nil
	f := *s
	f.coordinators = s.coordinators.Fork()
	f.members = s.members.Fork()
	f.removed = s.removed.Fork()
	f.owned = s.owned.Fork()
	f.lives = s.lives.fork()
	f.keyspaces = s.keyspaces.Fork()
	f.keyspaceNames = s.keyspaceNames.Fork()
	f.regions = s.regions.Fork()
	f.regionIDs = s.regionIDs.Fork()
	f.transitions = s.transitions.Fork()
	f.pending = s.pending.Fork()
	f.ended = s.ended.Fork()
	f.removedRegions = s.removedRegions.Fork()
	f.removalOrder = s.removalOrder.Fork()
	f.commands = s.commands.fork()
	f.grants = s.grants.fork()
	return &f
}

// branch is Fork for a State that nobody applies to any more: branches and
// reads of one State may overlap.
func (s *State) branch() *State {
	b := *s
	b.owner = nil
	b.coordinators = s.coordinators.Branch()
	b.members = s.members.Branch()
	b.removed = s.removed.Branch()
	b.owned = s.owned.Branch()
	b.lives = s.lives.branch()
	b.keyspaces = s.keyspaces.Branch()
	b.keyspaceNames = s.keyspaceNames.Branch()
	b.regions = s.regions.Branch()
	b.regionIDs = s.regionIDs.Branch()
	b.transitions = s.transitions.Branch()
	b.pending = s.pending.Branch()
	b.ended = s.ended.Branch()
	b.removedRegions = s.removedRegions.Branch()
	b.removalOrder = s.removalOrder.Branch()
	b.commands = s.commands.fork()
	b.grants = s.grants.branch()
	return &b
}

// Token is the position of the last entry applied.
func (s *State) Token() Token { return s.token }

// Cluster is the cluster's identity; nil before the bootstrap.
func (s *State) Cluster() *rootv1.Cluster { return s.cluster }

// Tenure is the authority record, active or retired; nil when there was none.
func (s *State) Tenure() *rootv1.Tenure { return s.tenure }

// Handovers are the last MaxHandovers handovers, oldest first; the last one is
// the current one. Callers must not change the slice.
func (s *State) Handovers() []*rootv1.Handover { return s.handovers }

// PinKeys are the keys that open pins, oldest first; the last one seals.
// Callers must not change the slice.
func (s *State) PinKeys() []*rootv1.PinKey { return s.pinKeys }
