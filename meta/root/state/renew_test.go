package state_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestRenewLaws: whatever a cluster does behind its backup, what is restored
// from that starts above it, is of one piece, and has nobody in charge.
func TestRenewLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := state.New()
		apply := func(commands ...*rootv1.Command) {
			if err := s.ApplyEntry(1, s.Token().Index+1, encode(t, commands...), nil); err != nil {
				t.Fatalf("apply: %v", err)
			}
		}
		apply(&rootv1.Command{Events: []*rootv1.Event{clusterEvent()}})
		for range rapid.IntRange(0, 40).Draw(t, "before") {
			apply(drawCommand(t, s))
		}
		backup := s.Fork()
		for range rapid.IntRange(0, 40).Draw(t, "behind") {
			apply(drawCommand(t, s))
		}
		hash := backup.Hash()
		const gap = 1 << 30
		r, err := backup.Renew(state.Renewal{
			ClusterID: 8, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 12}}, IDGap: gap, TSOFence: s.Allocators().GetTsoFence() + 1,
		})
		if err != nil {
			t.Fatalf("renew: %v", err)
		}
		judgeRenewed(t, s, r)
		if backup.Hash() != hash {
			t.Errorf("renew changed the backup")
		}
		if again := restored(t, r); again.Hash() != r.Hash() {
			t.Errorf("the hash is %x, that of the records %x", r.Hash(), again.Hash())
		}
	})
}

// judgeRenewed compares what was restored with the end of the cluster before it.
func judgeRenewed(t *rapid.T, old, r *state.State) {
	t.Helper()
	if r.Token().Compare(old.Token()) <= 0 {
		t.Errorf("token %s is not above %s", r.Token(), old.Token())
	}
	a, before := r.Allocators(), old.Allocators()
	if a.GetIdFence() <= before.GetIdFence() || a.GetTsoFence() <= before.GetTsoFence() {
		t.Errorf("fences %v, the old cluster got to %v", a, before)
	}
	if r.Tenure().GetEra() <= old.Tenure().GetEra() || r.ActiveEra() != 0 || r.CoordinatorCount() != 0 {
		t.Errorf("era %d, active %d, %d coordinators; the old cluster got to era %d",
			r.Tenure().GetEra(), r.ActiveEra(), r.CoordinatorCount(), old.Tenure().GetEra())
	}
	for _, h := range r.Handovers() {
		if h.GetStage() != rootv1.HandoverStage_HANDOVER_STAGE_CLOSED {
			t.Errorf("handover %d is at %s", h.GetEra(), h.GetStage())
		}
	}
	next := &rootv1.TenureClaimed{HolderId: "c9", HolderIncarnation: 9, HolderAddress: "c9:1", ExpectedEra: r.Tenure().GetEra(), Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_TSO}}
	claim := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: next}}}}
	after := restored(t, r)
	if err := after.ApplyEntry(1, r.Token().Index+1, encode(t, claim), nil); err != nil {
		t.Fatalf("claim: %v", err)
	}
	legacy := after.Handovers()[len(after.Handovers())-1].GetLegacy()
	if after.ActiveEra() != state.Era(r.Tenure().GetEra())+1 || legacy.GetExact() || after.Tenure().GetInherited().GetAllocId() != a.GetIdFence() {
		t.Errorf("the first claim made %v, of %v", after.Tenure(), legacy)
	}
}

// What got keys of a keyspace before the backup, and may have again behind it, gets them above all that
// the old cluster may have given since: also where the keyspace was reported at the time, or deleted.
func TestRenewedEpochsAreAboveThoseOfNamesToo(t *testing.T) {
	const far = 1 << 40
	ranges := &rootv1.Layout{Kind: &rootv1.Layout_Ranges_{Ranges: &rootv1.Layout_Ranges{}}}
	for name, change := range map[string]func(id uint32) *rootv1.Event{
		"reported, with the region": nil,
		"reported": func(id uint32) *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: id, ExpectedVersion: 1, Settings: &rootv1.KeyspaceSettings{Layout: ranges, Placement: rootv1.Placement_PLACEMENT_REPORTED}}}}
		},
		"deleted": func(id uint32) *rootv1.Event {
			return &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{KeyspaceId: id}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := state.New()
			apply := func(e *rootv1.Event) *state.EventResult {
				t.Helper()
				var out state.Applied
				if err := s.ApplyEntry(1, s.Token().Index+1, encode(t, &rootv1.Command{Events: []*rootv1.Event{e}}), &out); err != nil {
					t.Fatal(err)
				}
				if out.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
					t.Fatalf("%v: %v", e, out.Results[0].Reject)
				}
				return &out.Results[0].Events[0]
			}
			assigned := &rootv1.KeyspaceSettings{Layout: ranges, Placement: rootv1.Placement_PLACEMENT_ASSIGNED}
			create := &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "k", Settings: assigned}}}
			publish := func(id uint32, epoch *rootv1.RegionEpoch) *state.EventResult {
				return apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
					KeyspaceId: id, StartKey: []byte("a"), EndKey: []byte("b"), Epoch: epoch,
				}}}})
			}
			apply(clusterEvent())
			if change == nil {
				create.GetKeyspaceCreated().Settings = &rootv1.KeyspaceSettings{Layout: ranges, Placement: rootv1.Placement_PLACEMENT_REPORTED}
			}
			id := apply(create).Keyspace.GetId()
			r := publish(id, &rootv1.RegionEpoch{Version: far, ConfVersion: 1}).Region
			remove := &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: uint64(r.ID)}}}
			if change != nil {
				apply(remove)
				apply(change(id))
			}
			renewed, err := s.Renew(state.Renewal{ClusterID: 8, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 12}}})
			if err != nil {
				t.Fatal(err)
			}
			s = restored(t, renewed)
			switch version := uint64(2); name {
			case "deleted":
				id = apply(create).Keyspace.GetId()
			default:
				if change == nil {
					version = 1
				}
				apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{KeyspaceId: id, ExpectedVersion: version, Settings: assigned}}})
			}
			if change == nil {
				apply(remove)
			}
			if got := publish(id, nil).Region.Epoch; got.Version <= far+state.RenewEpochs {
				t.Errorf("the first region behind the restore is at %s, the old cluster may have been at %d by then", got, uint64(far+state.RenewEpochs))
			}
		})
	}
}
