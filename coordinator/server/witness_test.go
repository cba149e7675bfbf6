package server_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/witness"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	holds      = coordinatorv1.Verdict_VERDICT_HOLDS
	broken     = coordinatorv1.Verdict_VERDICT_BROKEN
	cannotTell = coordinatorv1.Verdict_VERDICT_CANNOT_TELL
)

func (w *world) witness(t *testing.T, freshness coordinatorv1.Freshness) *coordinatorv1.WitnessResponse {
	t.Helper()
	resp, err := w.client.Witness(within(t), &coordinatorv1.WitnessRequest{Read: &coordinatorv1.ReadOptions{Freshness: freshness}})
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.GetGuarantees()) != int(witness.Guarantees) {
		t.Fatalf("%d guarantees", len(resp.GetGuarantees()))
	}
	for i, g := range resp.GetGuarantees() {
		if g.GetGuarantee() != coordinatorv1.Guarantee(i+1) || g.GetNumbers() == "" {
			t.Errorf("guarantee %d: %v", i, g)
		}
	}
	return resp
}

// verdicts are those on the four guarantees of authority, in order.
func verdicts(resp *coordinatorv1.WitnessResponse) [4]coordinatorv1.Verdict {
	var out [4]coordinatorv1.Verdict
	for i, g := range resp.GetGuarantees()[:len(out)] {
		out[i] = g.GetVerdict()
	}
	return out
}

func tenureClaim(holder string, expected uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: holder, HolderIncarnation: 7, HolderAddress: holder + ":1", ExpectedEra: expected, PredecessorExpired: true,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}}
}

func handoverAdvance(holder string, era uint64, stage rootv1.HandoverStage) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_HandoverAdvanced{HandoverAdvanced: &rootv1.HandoverAdvanced{
		Era: era, Stage: stage, HolderId: holder, HolderIncarnation: 7,
	}}}
}

// A handover is watched from its claim to its close; one that stays open past
// the deadline breaks Finality, and closing it mends that.
func TestWitnessFollowsAHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		strong := coordinatorv1.Freshness_FRESHNESS_STRONG
		if v := verdicts(w.witness(t, strong)); v != [4]coordinatorv1.Verdict{holds, holds, holds, holds} {
			t.Errorf("before the first era: %v", v)
		}
		w.must(t, tenureClaim("a", 0))
		w.must(t, handoverAdvance("a", 1, rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED))
		w.must(t, handoverAdvance("a", 1, rootv1.HandoverStage_HANDOVER_STAGE_CLOSED))
		w.must(t, tenureClaim("b", 1))
		synctest.Wait()
		time.Sleep(witness.HandoverDeadline - time.Millisecond)
		resp := w.witness(t, strong)
		if v := verdicts(resp); v != [4]coordinatorv1.Verdict{holds, holds, holds, holds} {
			t.Errorf("open within the deadline: %v", resp.GetGuarantees())
		}
		if resp.GetHandoverOpenMillis() < 4900 || resp.GetTenure().GetHolderId() != "b" || len(resp.GetHandovers()) != 2 ||
			resp.GetCluster().GetClusterId() != clusterID || resp.GetAllocators() == nil || resp.GetForgottenEras() != 0 {
			t.Errorf("%v", resp)
		}
		if d := resp.GetDisclosure(); d.GetServingClass() != coordinatorv1.ServingClass_SERVING_CLASS_LINEARIZABLE || d.GetServedRootToken().GetIndex() != w.root.token().Index {
			t.Errorf("%v", d)
		}
		time.Sleep(time.Second)
		resp = w.witness(t, strong)
		if v := verdicts(resp); v != [4]coordinatorv1.Verdict{holds, holds, holds, broken} || w.server.Guarantees()["finality"] != "broken" {
			t.Errorf("open past the deadline: %v", resp.GetGuarantees())
		}
		if a := resp.GetAnomalies(); len(a) != 1 || a[0].GetKind() != string(witness.OpenPastDeadline) || a[0].GetEra() != 2 || a[0].GetToken().GetIndex() == 0 || a[0].GetNote() {
			t.Errorf("%v", a)
		}
		w.must(t, handoverAdvance("b", 2, rootv1.HandoverStage_HANDOVER_STAGE_CONFIRMED))
		w.must(t, handoverAdvance("b", 2, rootv1.HandoverStage_HANDOVER_STAGE_CLOSED))
		resp = w.witness(t, strong)
		if v := verdicts(resp); v != [4]coordinatorv1.Verdict{holds, holds, holds, holds} || resp.GetHandoverOpenMillis() != 0 {
			t.Errorf("closed: %v", resp.GetGuarantees())
		}
	})
}

// A view that no root stands behind says what it has, and that it cannot tell;
// what was open when the root was last heard may be closed by now.
func TestWitnessWithoutTheRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.must(t, tenureClaim("a", 0))
		w.root.setDown(true)
		time.Sleep(time.Minute)
		resp := w.witness(t, coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT)
		if v := verdicts(resp); v != [4]coordinatorv1.Verdict{cannotTell, cannotTell, cannotTell, cannotTell} {
			t.Errorf("%v", resp.GetGuarantees())
		}
		if n := resp.GetGuarantees()[0].GetNumbers(); !strings.Contains(n, "no root peer with a quorum") {
			t.Error(n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := w.client.Witness(ctx, &coordinatorv1.WitnessRequest{Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}})
		if err == nil {
			t.Error("a linearizable answer without a root")
		}
	})
}

// The wire's numbers are the Witness's.
func TestWitnessOnTheWire(t *testing.T) {
	for g := range witness.Guarantees {
		name := "GUARANTEE_" + strings.ToUpper(g.String())
		if coordinatorv1.Guarantee_value[name] != int32(g)+1 {
			t.Errorf("%s is %d", name, coordinatorv1.Guarantee_value[name])
		}
	}
	for v, name := range map[witness.Verdict]string{witness.Holds: "VERDICT_HOLDS", witness.Broken: "VERDICT_BROKEN", witness.CannotTell: "VERDICT_CANNOT_TELL"} {
		if coordinatorv1.Verdict_value[name] != int32(v) {
			t.Errorf("%s is %d", name, v)
		}
	}
	if witness.HandoverDeadline != tenure.DefaultHandoverDeadline {
		t.Errorf("the Witness's deadline is %s, the holder's %s", witness.HandoverDeadline, tenure.DefaultHandoverDeadline)
	}
}

func TestWitnessNeedsADeadline(t *testing.T) {
	w := start(t)
	_, err := w.client.Witness(t.Context(), &coordinatorv1.WitnessRequest{})
	refused(t, err, rootv1.Reason_REASON_DEADLINE_REQUIRED)
	_, err = w.client.Witness(within(t), &coordinatorv1.WitnessRequest{Read: &coordinatorv1.ReadOptions{Freshness: 99}})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
}

// 32 handovers with names as long as they may be fit in one answer.
func TestWitnessIsBounded(t *testing.T) {
	w := start(t)
	holder := strings.Repeat("h", state.MaxIDBytes)
	for era := range uint64(40) {
		w.root.must(t, tenureClaim(holder, era))
	}
	w.catchUp(t)
	resp := w.witness(t, coordinatorv1.Freshness_FRESHNESS_STRONG)
	if len(resp.GetHandovers()) != state.MaxHandovers || resp.GetForgottenEras() != 8 {
		t.Errorf("%d handovers, %d eras forgotten", len(resp.GetHandovers()), resp.GetForgottenEras())
	}
}

// A coordinator judges what it follows of the log, shows it, and shows whom it says to
// lead a region: an owner, and one that may act.
func TestA20PlacementIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		synctest.Wait() // it follows from here on
		w.must(t, join("m1"))
		w.must(t, join("m2"))
		w.must(t, create("x", &rootv1.KeyspaceSettings{
			Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 2}}},
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
		}))
		w.must(t, assign(1, "m1"))
		if _, err := w.client.RegionHeartbeat(within(t), &coordinatorv1.RegionHeartbeatRequest{
			MemberId: "m1", Incarnation: w.incarnation("m1"), Region: w.root.state.Region(1).Proto(), Leader: true,
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		says := func(want string, leader string) {
			t.Helper()
			time.Sleep(2 * time.Second) // a walk is good for one
			resp := w.witness(t, coordinatorv1.Freshness_FRESHNESS_STRONG)
			if g := resp.GetGuarantees()[4]; g.GetVerdict() != holds || !strings.HasPrefix(g.GetNumbers(), want) {
				t.Errorf("Placement: %v, want %q", g, want)
			}
			r, err := w.client.GetRegion(within(t), &coordinatorv1.GetRegionRequest{RegionId: 1})
			if err != nil || r.GetLeaderMemberId() != leader {
				t.Errorf("leader %q, want %q, %v", r.GetLeaderMemberId(), leader, err)
			}
		}
		says("1 region has an owner that may act, 1 orphaned; 1 leader is an owner; ", "m1")
		w.must(t, assign(1, "m2"))
		says("1 region has an owner that may act, 1 orphaned; ", "")
		w.must(t, assign(1, "m1"))
		says("1 region has an owner that may act, 1 orphaned; 1 leader is an owner; ", "m1")
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m1", State: rootv1.MemberState_MEMBER_STATE_FAILED}}})
		says("0 regions have owners that may act, 2 orphaned; ", "")
		resp := w.witness(t, coordinatorv1.Freshness_FRESHNESS_STRONG)
		if p := resp.GetPlaced(); p.GetAssigned() != 2 || p.GetOrphaned() != 2 || p.GetGrants() != 3 || p.GetAsked() != 2 || p.GetMoved() != 0 || len(p.GetViolations()) != 5 {
			t.Errorf("%v", p)
		}
		st, err := w.client.Status(within(t), &coordinatorv1.StatusRequest{Brief: true})
		if err != nil || len(st.GetInvariantViolations()) != 5 || w.server.InvariantViolations().Total() != 0 || w.server.Guarantees()["placement"] != "holds" {
			t.Errorf("%v, %v", st.GetInvariantViolations(), err)
		}
	})
}

// AssignRegions may name an era: that somebody asked for it in one breaks nothing.
func TestAssigningInAnEraIsNoViolation(t *testing.T) {
	w := start(t)
	w.must(t, join("m1"), join("m2"))
	w.must(t, create("x", &rootv1.KeyspaceSettings{
		Layout:    &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1}}},
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
	}))
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: coordinatorID, HolderIncarnation: 99, HolderAddress: "127.0.0.1:2379",
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}})
	var id uint64
	page, err := w.client.ScanRegions(within(t), &coordinatorv1.ScanRegionsRequest{Keyspace: "x"})
	if err != nil {
		t.Fatal(err)
	}
	id = page.GetRegions()[0].GetId()
	for _, m := range []string{"m1", "m2"} {
		_, err = w.client.AssignRegions(within(t), &coordinatorv1.AssignRegionsRequest{
			Assignments: []*rootv1.Assignment{{RegionId: id, Owners: []*rootv1.Owner{{MemberId: m}}}}, RequireEra: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		w.catchUp(t)
	}
	resp, err := w.client.Witness(within(t), &coordinatorv1.WitnessRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if v := w.server.InvariantViolations(); v.Total() != 0 {
		t.Errorf("%v: %v", v, resp.GetAnomalies())
	}
}
