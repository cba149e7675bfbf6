package state_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// TestUpgradeFromLevel2: what a build of level 2 sends goes on to apply beside newer
// ones until the level is raised; then an era that it claimed ends as it can, and the
// next one is judged by the new rules.
func TestUpgradeFromLevel2(t *testing.T) {
	m := newMachine(t)
	bootstrap := clusterEvent()
	bootstrap.GetClusterBootstrapped().Cluster.FeatureLevel = 2
	m.must(bootstrap)
	mandate := rootv1.Mandate_MANDATE_ALLOC_ID
	claim := func(expected uint64, digest []byte) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
			HolderId: "c1", HolderIncarnation: 1, ExpectedEra: expected, Mandates: []rootv1.Mandate{mandate},
			TtlMillis: 2 * state.DefaultMaxTenureTTLMillis, RetireDigest: digest,
		}}}
	}
	advance := func(era uint64, to rootv1.HandoverStage, holder string, process uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_HandoverAdvanced{HandoverAdvanced: &rootv1.HandoverAdvanced{
			Era: era, Stage: to, HolderId: holder, HolderIncarnation: process,
		}}}
	}
	extend := func(era, floor uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{Mandate: mandate, Era: era, Floor: floor, Size: 10}}}
	}
	retire := func(era, consumed uint64, secret []byte) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_TenureRetired{TenureRetired: &rootv1.TenureRetired{
			Era: era, HolderId: "c1", HolderIncarnation: 1, Consumed: &rootv1.Frontiers{AllocId: consumed}, RetireSecret: secret,
		}}}
	}
	join := func(level uint32, incarnation, follows uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_CoordinatorJoined{CoordinatorJoined: &rootv1.CoordinatorJoined{
			Id: "c9", Incarnation: incarnation, Follows: follows, FeatureLevel: level,
		}}}
	}
	refused := func(want rootv1.Reason, e *rootv1.Event) {
		t.Helper()
		before := m.s.Hash()
		if r := m.apply(&rootv1.Command{Events: []*rootv1.Event{e}})[0]; r.Reject.GetReason() != want || m.s.Hash() != before {
			t.Fatalf("%v: %v %v, want %v", e, r.Outcome, r.Reject, want)
		}
	}
	secret := digestOf([]byte("c1"))

	m.must(join(2, 1, 0))
	m.must(join(2, 2, 1))
	m.must(claim(0, nil), extend(1, 0))
	m.must(advance(1, rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED, "", 0))
	for _, e := range []*rootv1.Event{
		{Kind: &rootv1.Event_TenureEnded{TenureEnded: &rootv1.TenureEnded{Era: 1}}},
		granted("client/a", "k", rootv1.Verb_VERB_READ),
		claim(1, digestOf(secret)), retire(1, 10, secret),
		advance(1, rootv1.HandoverStage_HANDOVER_STAGE_CLOSED, "c1", 1),
	} {
		refused(rootv1.Reason_REASON_FEATURE_LEVEL, e)
	}
	signed := &rootv1.Command{Actor: "operator/o", Via: "coordinator/c1", Why: "because"}
	if m.s.CutUnknown(signed); signed.Actor+signed.Via+signed.Why != "" {
		t.Error("words that a build of level 2 does not know are let into its log")
	}

	m.must(&rootv1.Event{Kind: &rootv1.Event_FeatureLevelRaised{FeatureLevelRaised: &rootv1.FeatureLevelRaised{From: 2, To: 3}}})
	if m.s.CutUnknown(signed); m.s.FeatureLevel() != 3 {
		t.Fatal(m.s.FeatureLevel())
	}
	m.s = restored(t, m.s)
	refused(rootv1.Reason_REASON_FINALITY, advance(1, rootv1.HandoverStage_HANDOVER_STAGE_CLOSED, "", 0))
	m.must(advance(1, rootv1.HandoverStage_HANDOVER_STAGE_CLOSED, "c1", 1))
	refused(rootv1.Reason_REASON_TOO_OLD, join(2, 3, 2))
	m.must(retire(1, 7, nil))            // nobody knows a secret of it
	longer := claim(1, digestOf(secret)) // than that of the era which the raise found
	longer.GetTenureClaimed().TtlMillis++
	refused(rootv1.Reason_REASON_INVALID_TENURE, longer)
	m.must(claim(1, digestOf(secret)))
	if got := m.s.Tenure().GetInherited().GetAllocId(); got != 7 {
		t.Errorf("the next era starts above %d, want 7", got)
	}
	refused(rootv1.Reason_REASON_TENURE_NOT_HELD, retire(2, 7, nil))
	m.must(retire(2, 7, secret))
	if again := restored(t, m.s); again.Hash() != m.s.Hash() {
		t.Error("restored, it is another state")
	}
}
