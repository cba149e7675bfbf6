package witness_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A restore skips eras and closes what was open: nothing is broken by that, and
// the guarantees go on to be judged behind it.
func TestRestoredClusters(t *testing.T) {
	for name, b := range map[string]*book{"no era yet": newBook(t), "three eras": good(t)} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			st, err := b.state.Renew(state.Renewal{ClusterID: 0xc2, IDGap: 1000, TSOFence: 1 << 40, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 9}}})
			if err != nil {
				t.Fatal(err)
			}
			if r := witness.Judge(witness.Of(st)); r.Verdict() == witness.Broken || len(r.Anomalies) != 0 {
				t.Errorf("restored: %+v", r)
			}
			audit := witness.NewAudit(witness.Of(st))
			b.state = st
			void := st.Tenure().GetEra()
			for _, e := range []*rootv1.Event{
				{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{HolderId: "c9", HolderIncarnation: 9, HolderAddress: "c9:1", ExpectedEra: void, Mandates: both}}},
				{Kind: &rootv1.Event_HandoverAdvanced{HandoverAdvanced: &rootv1.HandoverAdvanced{Era: void + 1, Stage: confirmed}}},
				{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
					Mandate: idMandate, Era: void + 1, Size: 10,
				}}},
				{Kind: &rootv1.Event_HandoverAdvanced{HandoverAdvanced: &rootv1.HandoverAdvanced{Era: void + 1, Stage: closed}}},
			} {
				if e.GetHandoverAdvanced() != nil {
					by("c9", 9, e)
				}
				entry, out := b.apply(e)
				audit.Entry(b.state.Token(), entry, out)
			}
			if got := b.state.Handovers(); got[len(got)-1].GetStage() != closed {
				t.Fatalf("the first era of the restored cluster: %v", got[len(got)-1])
			}
			if r := witness.Judge(witness.Of(b.state)); r.Verdict() != witness.Holds || len(r.Anomalies) != 0 {
				t.Errorf("the first era of the restored cluster: %+v", r)
			}

			// A void era that starts below its predecessor, or names another, is found.
			for what, spoil := range map[string]func(*rootv1.Handover){
				"starts too low":    func(h *rootv1.Handover) { h.Inherited.AllocId = 0 },
				"wrong predecessor": func(h *rootv1.Handover) { h.PredecessorEra += 7 },
				"of somebody":       func(h *rootv1.Handover) { h.SuccessorId = "c1" },
				"not closed":        func(h *rootv1.Handover) { h.ClosedAt = nil },
			} {
				bad := copyTruth(witness.Of(st))
				spoil(bad.Handovers[len(bad.Handovers)-1])
				if r := witness.Judge(bad); r.Verdict() != witness.Broken {
					t.Errorf("%s: not found", what)
				}
			}
		})
	}
}
