package state_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestNoRetirementRepeats: whatever retirements, honest and forged, the root takes,
// no id is served twice. Holders serve what their windows have and retire with what
// they served; a forger knows everything that is rooted, and not their secrets.
func TestNoRetirementRepeats(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := restricted(t)
		var served []span
		var at, end uint64 // of the window held
		secret := func() []byte { return digestOf([]byte{byte(m.s.Tenure().GetEra()), 77}) }
		do := func(events ...*rootv1.Event) state.Result {
			return m.apply(&rootv1.Command{Events: events})[0]
		}
		retire := func(consumed uint64, secret []byte) state.Result {
			old := m.s.Tenure()
			return do(&rootv1.Event{Kind: &rootv1.Event_TenureRetired{TenureRetired: &rootv1.TenureRetired{
				Era: old.GetEra(), HolderId: old.GetHolderId(), HolderIncarnation: old.GetHolderIncarnation(),
				Consumed: &rootv1.Frontiers{AllocId: consumed}, RetireSecret: secret,
			}}})
		}
		for range rapid.IntRange(20, 60).Draw(r, "steps") {
			active := m.s.ActiveEra() != 0
			switch rapid.SampledFrom([]int{0, 1, 2, 3, 4, 1, 2, 4}).Draw(r, "step") {
			case 0:
				if !active || rapid.SampledFrom([]bool{false, false, false, true}).Draw(r, "expired") {
					era := m.s.Tenure().GetEra()
					result := do(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
						HolderId: "c1", HolderIncarnation: 1, ExpectedEra: era, PredecessorExpired: true,
						Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID}, RetireDigest: digestOf(digestOf([]byte{byte(era + 1), 77})),
					}}})
					at = result.Events[0].Tenure.GetInherited().GetAllocId()
					end = at
				}
			case 1:
				if active {
					result := do(&rootv1.Event{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
						Mandate: rootv1.Mandate_MANDATE_ALLOC_ID, Era: m.s.Tenure().GetEra(), Size: rapid.Uint64Range(1, 9).Draw(r, "size"),
					}}})
					at, end = max(at, result.Events[0].Window.GetFrom()), result.Events[0].Window.GetTo()
				}
			case 2:
				if n := rapid.Uint64Range(0, end-at).Draw(r, "served"); active && n > 0 {
					served = append(served, span{m.s.Tenure().GetEra(), at, at + n})
					at += n
				}
			case 3:
				if active {
					if result := retire(at, secret()); result.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
						r.Fatalf("an honest retirement at %d: %v", at, result.Reject)
					}
				}
			case 4:
				if active {
					forged := [][]byte{nil, digestOf(nil), m.s.Tenure().GetRetireDigest()}
					retire(rapid.Uint64Range(0, end+1).Draw(r, "consumed"), rapid.SampledFrom(forged).Draw(r, "secret"))
				}
			}
		}
		for i, a := range served {
			for _, b := range served[:i] {
				if a.from < b.to && b.from < a.to {
					r.Fatalf("%v and %v were both served", a, b)
				}
			}
		}
	})
}
