package server_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

func (w *world) incarnation(id state.MemberID) uint64 {
	return w.root.state.Member(id).GetIncarnation()
}

func TestStoreHeartbeat(t *testing.T) {
	w := routed(t)
	beat := &coordinatorv1.StoreHeartbeatRequest{MemberId: "m1", Incarnation: w.incarnation("m1"), Sequence: 1, Load: 0.5, CapacityBytes: 10}
	resp, err := w.client.StoreHeartbeat(within(t), beat)
	if err != nil || resp.GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE || len(resp.GetOperations()) != 0 {
		t.Fatalf("%v, %v", resp, err)
	}
	list, err := w.client.ListMembers(within(t), &coordinatorv1.ListMembersRequest{})
	if err != nil || len(list.GetMembers()) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	m1 := list.GetMembers()[0]
	if m1.GetMember().GetId() != "m1" || !proto.Equal(m1.GetLastHeartbeat(), beat) || m1.GetOwnedRegions() != 2 || m1.GetHeartbeatAgeMillis() > 10_000 {
		t.Errorf("m1: %v", m1)
	}
	if m2 := list.GetMembers()[1]; m2.GetLastHeartbeat() != nil || m2.GetOwnedRegions() != 2 {
		t.Errorf("m2: %v", m2)
	}
	checkDisclosure(t, w, list.GetDisclosure(), coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT)
}

// Hints come from the holder of the Tenure alone.
func TestN14HintsComeFromTheHolder(t *testing.T) {
	w := start(t)
	w.root.must(t, join("h1"))
	w.root.must(t, join("h2"))
	for _, id := range []uint64{901, 902} {
		w.root.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			Id: id, KeyspaceId: 1, StartKey: fmt.Append(nil, id), EndKey: fmt.Append(nil, id, "x"), Owners: []*rootv1.Owner{{MemberId: "h1"}, {MemberId: "h2"}},
		}}}})
	}
	beat := func(id state.MemberID, sequence, leads uint64) []*coordinatorv1.SchedulerOperation {
		t.Helper()
		resp, err := w.client.StoreHeartbeat(within(t), &coordinatorv1.StoreHeartbeatRequest{MemberId: string(id), Incarnation: w.incarnation(id), Sequence: sequence, LeaderCount: leads})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetOperations()
	}
	beat("h1", 1, 2)
	beat("h2", 1, 0)
	for _, id := range []uint64{901, 902} {
		_, err := w.client.RegionHeartbeat(within(t), &coordinatorv1.RegionHeartbeatRequest{
			MemberId: "h1", Incarnation: w.incarnation("h1"), Leader: true, Region: w.root.state.Region(state.RegionID(id)).Proto(),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if ops := beat("h1", 2, 2); len(ops) != 0 {
		t.Fatalf("hints of who holds nothing: %v", ops)
	}
	claim := tenureClaim(string(coordinatorID), 0)
	claim.GetTenureClaimed().HolderIncarnation = 99
	w.root.must(t, claim)
	if _, err := w.client.GetRegion(within(t), &coordinatorv1.GetRegionRequest{RegionId: 901, Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}}); err != nil {
		t.Fatal(err) // its view has the claim
	}
	ops := beat("h1", 3, 2)
	if len(ops) != 1 || ops[0].GetTransferLeader().GetToMemberId() != "h2" || ops[0].GetEra() != 1 || ops[0].GetReasonCode() != rootv1.OperationReason_OPERATION_REASON_COUNT {
		t.Errorf("%v", ops)
	}
}

// A member that registered a moment ago, with another coordinator, is known by
// its first heartbeat; one that never did is told to.
func TestR16HeartbeatOfAStranger(t *testing.T) {
	w := start(t)
	w.root.must(t, join("new")) // the view may not have it yet
	if _, err := w.client.StoreHeartbeat(within(t), &coordinatorv1.StoreHeartbeatRequest{MemberId: "new", Incarnation: w.incarnation("new")}); err != nil {
		t.Errorf("just registered: %v", err)
	}
	_, err := w.client.StoreHeartbeat(within(t), &coordinatorv1.StoreHeartbeatRequest{MemberId: "stranger", Incarnation: 1})
	refused(t, err, rootv1.Reason_REASON_REGISTER_FIRST)
	_, err = w.client.RegionHeartbeat(within(t), &coordinatorv1.RegionHeartbeatRequest{MemberId: "stranger", Incarnation: 1, Region: region(t, 1, 1)})
	refused(t, err, rootv1.Reason_REASON_REGISTER_FIRST)
	for field, req := range map[string]*coordinatorv1.StoreHeartbeatRequest{
		"member_id":   {Incarnation: 1},
		"incarnation": {MemberId: "new"},
	} {
		_, err = w.client.StoreHeartbeat(within(t), req)
		if detail := refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST); !strings.HasPrefix(detail.GetMessage(), field) {
			t.Errorf("%v does not name %s", detail, field)
		}
	}
	_, err = w.client.StoreHeartbeat(within(t), &coordinatorv1.StoreHeartbeatRequest{MemberId: strings.Repeat("m", 256), Incarnation: 1})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
}

// A load that compares with nothing would put members into no order.
func TestLoadIsANumber(t *testing.T) {
	w := routed(t)
	for _, load := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
		_, err := w.client.StoreHeartbeat(within(t), &coordinatorv1.StoreHeartbeatRequest{MemberId: "m1", Incarnation: w.incarnation("m1"), Sequence: 1, Load: load})
		if detail := refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST); !strings.HasPrefix(detail.GetMessage(), "load") {
			t.Errorf("%v", detail)
		}
	}
}

// A report that comes after its region was removed, because it was judged by
// the view before, does not stay.
func TestLateReportsAreSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft := catalog.NewSoft(catalog.SoftConfig{})
		w := start(t, func(c *server.Config) { c.Soft = soft })
		w.must(t, join("m1"), publish(1, 1, "", "", 1, "m1"))
		before := w.follower.View().State
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 1}}})
		if _, taken, err := soft.RegionHeartbeat(before, &coordinatorv1.RegionHeartbeatRequest{
			MemberId: "m1", Incarnation: w.incarnation("m1"), Region: region(t, 1, 1), Leader: true,
		}, 1); !taken || err != nil {
			t.Fatalf("taken %v, %v", taken, err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, regions := soft.Len(); regions != 0 {
			t.Errorf("something is kept of %d regions, want none", regions)
		}
		w.conn.Close()
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

func region(t *testing.T, id, version uint64, owners ...string) *rootv1.Region {
	t.Helper()
	return publish(id, 1, "", "g", version, owners...).GetRegionPublished().GetRegion()
}

// A newer descriptor is rooted, an older one is answered with the rooted one.
func TestRegionHeartbeat(t *testing.T) {
	w := routed(t)
	beat := &coordinatorv1.RegionHeartbeatRequest{
		MemberId: "m1", Incarnation: w.incarnation("m1"), Region: region(t, 1, 1, "m1"), Leader: true, KeyCount: 5,
	}
	before := w.root.changes()
	resp, err := w.client.RegionHeartbeat(within(t), beat)
	if err != nil || resp.GetRootedAt() != nil || !proto.Equal(resp.GetRegion(), w.root.state.Region(1).Proto()) {
		t.Fatalf("nothing new: %v, %v", resp, err)
	}
	if w.root.changes() != before {
		t.Error("a heartbeat that says nothing new was rooted")
	}
	got, err := w.client.GetRegionByKey(within(t), byKey("a"))
	if err != nil || got.GetLeaderMemberId() != "m1" {
		t.Errorf("leader: %v, %v", got, err)
	}
	beat.Region = region(t, 1, 4, "m1")
	resp, err = w.client.RegionHeartbeat(within(t), beat)
	if err != nil || state.TokenFromProto(resp.GetRootedAt()) != w.root.token() || resp.GetRegion().GetEpoch().GetVersion() != 4 {
		t.Fatalf("newer: %v, %v", resp, err)
	}
	w.catchUp(t)
	beat.Region = region(t, 1, 3, "m1")
	resp, err = w.client.RegionHeartbeat(within(t), beat)
	if err != nil || resp.GetRootedAt() != nil || resp.GetRegion().GetEpoch().GetVersion() != 4 {
		t.Errorf("older: %v, %v", resp, err)
	}
	beat.Region = publish(77, 1, "zz", "", 1, "m1").GetRegionPublished().GetRegion()
	_, err = w.client.RegionHeartbeat(within(t), beat)
	refused(t, err, rootv1.Reason_REASON_RANGE_OVERLAP)
}

// Another coordinator rooted something newer first: its descriptor is the answer.
func TestRegionHeartbeatLosesTheRace(t *testing.T) {
	w := routed(t)
	w.root.mu.Lock()
	w.root.muted = true // the view stays where it is
	w.root.mu.Unlock()
	w.root.must(t, publish(1, 1, "", "g", 9, "m1"))
	resp, err := w.client.RegionHeartbeat(within(t), &coordinatorv1.RegionHeartbeatRequest{
		MemberId: "m1", Incarnation: w.incarnation("m1"), Region: region(t, 1, 2, "m1"),
	})
	if err != nil || resp.GetRootedAt() != nil || resp.GetRegion().GetEpoch().GetVersion() != 9 {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestRegionHeartbeatRefusals(t *testing.T) {
	w := routed(t)
	for field, r := range map[string]*rootv1.Region{
		"region:":      nil,
		"region.id":    {KeyspaceId: 1, Epoch: &rootv1.RegionEpoch{Version: 1}},
		"region.epoch": {Id: 1, KeyspaceId: 1},
		"region: ":     {Id: 1, KeyspaceId: 1, StartKey: []byte("b"), EndKey: []byte("a"), Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}},
	} {
		_, err := w.client.RegionHeartbeat(within(t), &coordinatorv1.RegionHeartbeatRequest{MemberId: "m1", Incarnation: w.incarnation("m1"), Region: r})
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

// What the root removed is forgotten.
func TestSoftStateIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft := catalog.NewSoft(catalog.SoftConfig{})
		w := routed(t, func(c *server.Config) { c.Soft = soft })
		for id := range uint64(3) {
			if _, err := w.client.RegionHeartbeat(within(t), &coordinatorv1.RegionHeartbeatRequest{
				MemberId: "m1", Incarnation: w.incarnation("m1"), Region: w.root.state.Region(state.RegionID(id + 1)).Proto(),
			}); err != nil {
				t.Fatal(err)
			}
		}
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 2}}})
		synctest.Wait()
		if _, regions := soft.Len(); regions != 2 {
			t.Errorf("%d regions are remembered, want 2", regions)
		}
		w.conn.Close()
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A late report of a region that is gone is refused, with the region's last epoch:
// there is no descriptor to answer with.
func TestRegionHeartbeatOfARemovedRegion(t *testing.T) {
	w := routed(t)
	beat := &coordinatorv1.RegionHeartbeatRequest{MemberId: "m1", Incarnation: w.incarnation("m1"), Region: region(t, 1, 4, "m1"), Leader: true}
	if _, err := w.client.RegionHeartbeat(within(t), beat); err != nil {
		t.Fatal(err)
	}
	last := w.root.state.Region(1).Epoch
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 1}}})
	w.catchUp(t)
	resp, err := w.client.RegionHeartbeat(within(t), beat)
	d := refused(t, err, rootv1.Reason_REASON_EPOCH_STALE)
	if got := state.EpochFromProto(d.GetRegion().GetEpoch()); d.GetRegion().GetId() != 1 || got != last {
		t.Errorf("%v, %v: want epoch %s", resp, d, last)
	}
}
