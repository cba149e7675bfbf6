package state_test

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func removeRegion(id uint64) *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}}}}
}

func regionAt(id, version uint64) *rootv1.Command {
	return publish(&rootv1.Region{
		Id: id, KeyspaceId: 1, StartKey: []byte(benchKey(int(id))), EndKey: []byte(benchKey(int(id) + 1)),
		Epoch: &rootv1.RegionEpoch{Version: version, ConfVersion: 1},
	})
}

// removeMany removes as many regions as are remembered, of ids above 2^41.
func (m *machine) removeMany() {
	m.t.Helper()
	for done := 0; done < state.MaxRemovedRegions; {
		var events []*rootv1.Event
		for range 2048 {
			done++
			id := uint64(1<<41 + done)
			events = append(append(events, published(id, "a", "b", 5)), removeRegion(id).Events...)
		}
		m.must(events...)
	}
}

// TestRemovedRegionsAreForgotten: MaxRemovedRegions are remembered, each with its
// own last version. One that was removed before them all is as if it never was.
func TestRemovedRegionsAreForgotten(t *testing.T) {
	t.Parallel()
	m := bootstrapped(t)
	for _, id := range []uint64{1, 2} {
		m.must(regionAt(id, 9).Events...)
		m.must(removeRegion(id).Events...)
	}
	wants := func(s *state.State, id, version uint64, want bool) {
		t.Helper()
		f := &machine{t: t, s: s.Fork()}
		r := f.apply(regionAt(id, version))[0]
		if (r.Outcome == rootv1.Outcome_OUTCOME_APPLIED) != want || !want && r.Reject.GetReason() != rootv1.Reason_REASON_EPOCH_STALE {
			t.Errorf("region %d again at version %d: %v %v", id, version, r.Outcome, r.Reject)
		}
	}
	wants(m.s, 1, 9, false)
	wants(m.s, 1, 10, true)
	m.removeMany()
	m.checkHash()
	for name, s := range map[string]*state.State{"grown": m.s, "restored": restored(t, m.s)} {
		t.Run(name, func(t *testing.T) {
			wants(s, 1, 1, true)
			wants(s, 2, 1, true)
			wants(s, 1<<41+1, 5, false)
			wants(s, 1<<41+1, 6, true)
		})
	}
	n := 0
	for _, r := range records(t, m.s) {
		if r.GetRemovedRegion() != nil {
			n++
		}
	}
	if n != state.MaxRemovedRegions {
		t.Errorf("%d removed regions are remembered", n)
	}
}

// TestNewRegionsAfterManyRemovals: whatever was removed in the life of the cluster,
// also of the highest version, a region that never was may be published, and
// changed, and an id that the root gives begins at the beginning.
func TestNewRegionsAfterManyRemovals(t *testing.T) {
	t.Parallel()
	m := bootstrapped(t)
	m.must(published(1<<40, "x", "y", state.MaxEpoch)) // a member chose its own id and version, both allowed
	m.must(removeRegion(1 << 40).Events...)
	m.removeMany()
	r := m.must(published(0, "p", "q", 0)).Events[0].Region
	if r.Epoch != (state.Epoch{Version: 1, ConfVersion: 1}) {
		t.Errorf("a new region %d got epoch %s", r.ID, r.Epoch)
	}
	m.must(published(uint64(r.ID), "p", "pp", r.Epoch.Version+1))
	m.must(published(12_345, "r", "s", 1)) // an id that AllocID gave, below others
	m.must(published(12_346, "t", "u", 3))
}

// TestSlotsOfADeletedKeyspaceTakeNoRoom: they drive none of the regions that were
// removed one by one out of memory, and the root gives their ids to no other.
func TestSlotsOfADeletedKeyspaceTakeNoRoom(t *testing.T) {
	m := bootstrapped(t)
	m.must(regionAt(1<<40, 9).Events...)
	m.must(removeRegion(1 << 40).Events...)
	const slots = 100
	k := m.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{
		Name: "k", Settings: &rootv1.KeyspaceSettings{
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
			Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: slots}}},
		},
	}}}).Events[0].Keyspace
	m.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{KeyspaceId: k.GetId(), ExpectedVersion: k.GetVersion()}}})
	m.checkHash()
	for _, r := range records(t, m.s) {
		if removed := r.GetRemovedRegion(); removed != nil && removed.GetId() != 1<<40 {
			t.Errorf("a slot is remembered: %v", removed)
		}
	}
	if r := m.must(published(0, "p", "q", 0)).Events[0].Region; r.ID <= slots {
		t.Errorf("the id %d of a slot is given again", r.ID)
	}
	m.must(published(1, "r", "s", 1)) // what is late about a slot, in another keyspace, is a region of it
}

// TestReplacedRootPeersAreRefusedForEver: a node id that was used is refused to the
// last that fits, and then every further replacement is, with a way out.
func TestReplacedRootPeersAreRefusedForEver(t *testing.T) {
	t.Parallel()
	m := bootstrapped(t)
	add := func(node uint64) *rootv1.Command {
		return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RootPeerAdded{RootPeerAdded: &rootv1.RootPeerAdded{
			Peer: &rootv1.RootPeer{NodeId: node, Incarnation: 1000 + node, TransportAddress: fmt.Sprintf("a%d:1", node)}, Replaces: 1,
		}}}}}
	}
	for node := uint64(2); node < state.MaxReplacedPeers+2; node++ {
		m.must(add(node).Events...)
		m.must(&rootv1.Event{Kind: &rootv1.Event_RootPeerDropped{RootPeerDropped: &rootv1.RootPeerDropped{NodeId: node}}})
	}
	m.checkHash()
	for _, s := range []*state.State{m.s, restored(t, m.s)} {
		m.s = s
		for _, node := range []uint64{2, 2000, state.MaxReplacedPeers + 1} {
			if r := m.apply(add(node))[0]; r.Reject.GetReason() != rootv1.Reason_REASON_ALREADY_EXISTS || !state.WasReplaced(m.s.Cluster(), node) {
				t.Errorf("root peer %d again: %v", node, r.Reject)
			}
		}
		if r := m.apply(add(state.MaxReplacedPeers + 2))[0]; r.Reject.GetReason() != rootv1.Reason_REASON_CAPACITY_EXCEEDED || r.Reject.GetLimit() != state.MaxReplacedPeers {
			t.Errorf("one more than fit: %v", r.Reject)
		}
	}
}
