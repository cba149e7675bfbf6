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

// TestRemovedRegionsAreForgotten: MaxRemovedRegions are remembered one by one,
// each with its own last version. Of the one that was removed before them all, the
// highest version of everything forgotten stays, and it holds for each id that is
// neither there nor remembered.
func TestRemovedRegionsAreForgotten(t *testing.T) {
	m := bootstrapped(t)
	m.must(regionAt(1, 9).Events...)
	m.must(removeRegion(1).Events...)
	for id := uint64(2); id < state.MaxRemovedRegions+2; {
		var made, gone []*rootv1.Command
		for len(made) < 2048 && id < state.MaxRemovedRegions+2 {
			made, gone = append(made, regionAt(id, 3)), append(gone, removeRegion(id))
			id++
		}
		if id == state.MaxRemovedRegions+2 { // all but the last are remembered
			m.apply(made...)
			m.apply(gone[:len(gone)-1]...)
			break
		}
		m.apply(made...)
		m.apply(gone...)
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
	wants(m.s, 2, 4, true)
	m.checkHash()

	m.must(removeRegion(state.MaxRemovedRegions + 1).Events...)
	m.checkHash()
	for name, s := range map[string]*state.State{"grown": m.s, "restored": restored(t, m.s)} {
		t.Run(name, func(t *testing.T) {
			wants(s, 1, 9, false) // forgotten: of it stays the version that is used up
			wants(s, 1, 10, true)
			wants(s, 2, 3, false)
			wants(s, 2, 4, true)
		})
	}
	n := 0
	for _, r := range records(t, m.s) {
		if r.GetRemovedRegion() != nil {
			n++
		}
		if e := r.GetCounters(); e != nil && e.GetRemovedEpoch().GetVersion() != 9 {
			t.Errorf("the version that stays of what is forgotten: %v", e.GetRemovedEpoch())
		}
	}
	if n != state.MaxRemovedRegions {
		t.Errorf("%d removed regions are remembered", n)
	}
}

// TestReplacedRootPeersAreRefusedForEver: a node id that was used is refused to the
// last that fits, and then every further replacement is, with a way out.
func TestReplacedRootPeersAreRefusedForEver(t *testing.T) {
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
