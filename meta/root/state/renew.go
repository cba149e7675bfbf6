package state

import (
	"fmt"

	"github.com/nokv/nokv/internal/cow"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// What a restore skips, besides the gaps of a Renewal: numbers that the cluster
// may have given out behind the backup.
const (
	// RenewEras are more eras than a cluster begins behind a backup: one every
	// ttl of 200 ms for two days.
	RenewEras = 1_000_000
	// RenewMemberIncarnations is more than the members that register meanwhile.
	RenewMemberIncarnations = 1 << 32
	// RenewKeyspaceIDs is as many keyspaces as there can be.
	RenewKeyspaceIDs = MaxKeyspaces
	// RenewEpochs is more than the changes of one region meanwhile.
	RenewEpochs = 1 << 32

	maxFormerClusters = 16
)

// Renewal says how a copy of a State becomes that of a new cluster.
type Renewal struct {
	// ClusterID is the new cluster's, Peers its root peers.
	ClusterID uint64
	Peers     []*rootv1.RootPeer
	// UnixMillis is the time of the restore.
	UnixMillis uint64
	// IDGap is added to the fence of ids. TSOFence is the least fence of
	// timestamps: nothing at or below it is served any more.
	IDGap, TSOFence uint64
}

// Renew returns the State as that of a new cluster that goes on where s was. s
// stays as it is and must not be applied to any more. The cluster incarnation is one higher, so that every token
// is above all of s's cluster. The fences, the era and the counters skip what
// that cluster may have given out behind s. The Tenure is void, an open handover
// is closed as void, no coordinator is registered; everything else stays. An
// error: the peers are not those of a cluster, or a number space is used up.
func (s *State) Renew(r Renewal) (*State, error) {
	c := &rootv1.Cluster{
		ClusterId: r.ClusterID, Incarnation: s.token.Incarnation + 1, Peers: r.Peers,
		CreatedUnixMillis: s.cluster.GetCreatedUnixMillis(), Restored: s.restored(r), FeatureLevel: s.cluster.GetFeatureLevel(),
	}
	if s.cluster == nil || c.ClusterId == s.cluster.GetClusterId() {
		return nil, fmt.Errorf("renew %s: it needs a cluster, and a new id for it", s.token)
	}
	if d := checkCluster(c); d != nil {
		return nil, fmt.Errorf("renew %s: %s", s.token, d.GetMessage())
	}
	n := s.branch()
	n.cluster, n.token.Incarnation = c, c.Incarnation
	if err := n.skip(r); err != nil {
		return nil, fmt.Errorf("renew %s: %w", s.token, err)
	}
	n.forgetCoordinators()
	n.voidHandovers()
	return n, nil
}

// restored is the record of where the new cluster comes from.
func (s *State) restored(r Renewal) *rootv1.Restored {
	former := append([]uint64(nil), s.cluster.GetRestored().GetFormerClusterIds()...)
	former = append(former, s.cluster.GetClusterId())
	former = former[max(0, len(former)-maxFormerClusters):]
	return &rootv1.Restored{FormerClusterIds: former, Token: s.token.Proto(), UnixMillis: r.UnixMillis}
}

// skip raises fences and counters above what may have been given out.
func (s *State) skip(r Renewal) error {
	switch {
	case r.IDGap > MaxID-s.alloc.id.value:
		return fmt.Errorf("the id fence %d leaves no room for a gap of %d below %d", s.alloc.id.value, r.IDGap, uint64(MaxID))
	case r.TSOFence > MaxTSO:
		return fmt.Errorf("a timestamp fence of %d is above %d", r.TSOFence, uint64(MaxTSO))
	case s.counters.keyspace > ^uint32(0)-RenewKeyspaceIDs || s.counters.memberIncarnation > ^uint64(0)-RenewMemberIncarnations:
		return fmt.Errorf("no room behind keyspace id %d or member incarnation %d", s.counters.keyspace, s.counters.memberIncarnation)
	case max(s.counters.epochFloor.Version, s.counters.epochFloor.ConfVersion) > MaxEpoch:
		return fmt.Errorf("no room behind epoch %s", s.counters.epochFloor)
	case s.era() > ^Era(0)-RenewEras:
		return fmt.Errorf("no room behind era %d", s.era())
	}
	s.alloc.id = fence{value: s.alloc.id.value + r.IDGap}
	s.alloc.tso = fence{value: max(s.alloc.tso.value, r.TSOFence)}
	s.counters.epochFloor = s.newestEpoch()
	s.counters.epochFloor.Version += RenewEpochs
	s.counters.epochFloor.ConfVersion += RenewEpochs
	s.counters.keyspace += RenewKeyspaceIDs
	s.counters.memberIncarnation += RenewMemberIncarnations
	return nil
}

// newestEpoch has the highest version and conf version of all regions, also of those whose keys
// have none now, or were in a keyspace that was deleted: its name goes on above them; and of what was
// skipped before. A reported keyspace may have become assigned behind the backup.
func (s *State) newestEpoch() Epoch {
	e := s.counters.epochFloor
	add := func(of Epoch) {
		if max(of.Version, of.ConfVersion) <= MaxEpoch/2 { // one beyond stands for itself
			e = join(e, of)
		}
	}
	s.keyspaces.Scan(func(id KeyspaceID, k *keyspace) bool {
		add(Epoch{Version: k.record.GetVersionFloor()})
		s.RegionsFrom(id, "", func(r *Region) bool {
			add(r.Epoch)
			return true
		})
		return true
	})
	for _, left := range s.deleted {
		add(Epoch{Version: left.GetVersionFloor()})
	}
	return e
}

// forgetCoordinators takes all of them off the list: they are the old cluster's.
func (s *State) forgetCoordinators() {
	s.coordinators.Scan(func(_ CoordinatorID, c *rootv1.Coordinator) bool {
		s.sum -= hashRecord(tagCoordinator, c)
		return true
	})
	s.coordinators = cow.New[CoordinatorID, *rootv1.Coordinator]()
}

// voidHandovers closes what is open, and ends the Tenure by an era that nobody
// holds. Its successor starts above the fences.
func (s *State) voidHandovers() {
	at := s.token.Proto()
	handovers := make([]*rootv1.Handover, len(s.handovers))
	for i, h := range s.handovers {
		if h.GetStage() != rootv1.HandoverStage_HANDOVER_STAGE_CLOSED {
			s.sum -= hashRecord(tagHandover, h)
			h = proto.CloneOf(h)
			h.Stage, h.ClosedAt, h.Voided = rootv1.HandoverStage_HANDOVER_STAGE_CLOSED, at, true
			s.sum += hashRecord(tagHandover, h)
		}
		handovers[i] = h
	}
	s.handovers = handovers
	inherited := &rootv1.Frontiers{AllocId: s.alloc.id.value, Tso: s.alloc.tso.value}
	void := &rootv1.Handover{
		Era: uint64(s.era() + RenewEras), PredecessorEra: uint64(s.era()), Inherited: inherited,
		Stage: rootv1.HandoverStage_HANDOVER_STAGE_CLOSED, OpenedAt: at, ClosedAt: at, Voided: true,
	}
	if s.tenure != nil {
		ended := turn{State: s}
		void.Legacy = ended.voidLegacy()
	}
	s.tenure = &rootv1.Tenure{Era: void.Era, Inherited: inherited, IssuedAt: at, Retired: true, Voided: true}
	s.pushHandover(void)
}

// voidLegacy is the predecessor as a restore ends it: how far it got is not
// known, so its frontiers are the fences, which have skipped already.
func (t *turn) voidLegacy() *rootv1.Legacy {
	retired := t.tenure
	t.tenure = proto.CloneOf(retired)
	t.tenure.Voided = true
	return t.legacy()
}
