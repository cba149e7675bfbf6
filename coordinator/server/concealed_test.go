package server_test

import (
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// closedToMembers is a secureWorld with a keyspace "r" whose members report regions.
// Region 21 of it is m1's, region 22 m2's. It is closed to both, as is t.
func closedToMembers(t *testing.T) (w *world, ks uint32, m1 coordinatorv1.CoordinatorClient) {
	t.Helper()
	w = secureWorld(t)
	settings := state.DefaultSettings()
	settings.Placement = rootv1.Placement_PLACEMENT_REPORTED
	w.must(t, create("r", settings))
	ks = w.root.state.KeyspaceByName("r").GetId()
	w.must(t, publish(21, ks, "", "m", 1, "m1"))
	w.must(t, publish(22, ks, "m", "", 1, "m2"))
	w.grant(t, "client/a", "t", rootv1.Verb_VERB_READ)
	w.grant(t, "client/a", "r", rootv1.Verb_VERB_READ)
	w.catchUp(t)
	return w, ks, coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Member, "m1")))
}

func (w *world) beat(region *rootv1.Region) *coordinatorv1.RegionHeartbeatRequest {
	return &coordinatorv1.RegionHeartbeatRequest{MemberId: "m1", Incarnation: w.incarnation("m1"), Region: region}
}

// TestHeartbeatsReadNoClosedKeyspace: a heartbeat is answered with the region that it
// is about, but not to a member that neither owns it nor may read its keyspace.
func TestHeartbeatsReadNoClosedKeyspace(t *testing.T) {
	w, ks, m1 := closedToMembers(t)
	for _, version := range []uint64{1, 9} { // known from before, and newer
		for id, keyspace := range map[uint64]uint32{2: w.root.state.KeyspaceByName("t").GetId(), 22: ks} {
			got, err := m1.RegionHeartbeat(within(t), w.beat(publish(id, keyspace, "m", "", version, "m1").GetRegionPublished().GetRegion()))
			if got.GetRegion() != nil || reason.Of(err) != rootv1.Reason_REASON_PERMISSION_DENIED || reason.From(err).GetRegion() != nil {
				t.Errorf("region %d of m2, at version %d: %v, %v", id, version, got, err)
			}
		}
	}
	w.grant(t, "member/m1", "r", rootv1.Verb_VERB_HOST)
	w.catchUp(t)
	for _, version := range []uint64{1, 9} {
		got, err := m1.RegionHeartbeat(within(t), w.beat(publish(21, ks, "", "m", version, "m1").GetRegionPublished().GetRegion()))
		if err != nil || got.GetRegion().GetEpoch().GetVersion() != version {
			t.Errorf("its own region: %v, %v", got, err)
		}
		w.catchUp(t)
	}
}

// TestRefusalsReadNoClosedKeyspace: a refusal names the region that is in the way, and
// shows it to those who may read it.
func TestRefusalsReadNoClosedKeyspace(t *testing.T) {
	w, ks, m1 := closedToMembers(t)
	overlapping := publish(23, ks, "n", "z", 1, "m1")
	overlapping.GetRegionPublished().ExpectedEpoch = &rootv1.RegionEpoch{}
	assess := func() (*rootv1.CommandResult, error) {
		got, err := m1.AssessRootEvent(within(t), &coordinatorv1.AssessRootEventRequest{Event: overlapping})
		return got.GetResult(), err
	}
	publishIt := func() (*rootv1.CommandResult, error) {
		got, err := m1.PublishRootEvents(within(t), &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{{Events: []*rootv1.Event{overlapping}}}})
		if err != nil {
			return nil, err
		}
		return got.GetResults()[0], nil
	}
	report := func() (*rootv1.CommandResult, error) {
		_, err := m1.RegionHeartbeat(within(t), w.beat(overlapping.GetRegionPublished().GetRegion()))
		return &rootv1.CommandResult{Error: reason.From(err)}, nil
	}
	for _, readable := range []bool{false, true} {
		for name, call := range map[string]func() (*rootv1.CommandResult, error){"AssessRootEvent": assess, "PublishRootEvents": publishIt, "RegionHeartbeat": report} {
			got, err := call()
			if err != nil {
				got = &rootv1.CommandResult{Error: reason.From(err)}
			}
			want := map[bool]rootv1.Reason{false: rootv1.Reason_REASON_PERMISSION_DENIED, true: rootv1.Reason_REASON_RANGE_OVERLAP}[readable]
			if got.GetError().GetReason() != want {
				t.Fatalf("%s: %v", name, got)
			}
			if (got.GetError().GetRegion() != nil) != readable {
				t.Errorf("%s of what region 22 is in the way of, readable: %t: %v", name, readable, got)
			}
		}
		w.grant(t, "member/m1", "r", rootv1.Verb_VERB_HOST)
		w.catchUp(t)
	}
}

// TestLostRegionIsNotShown: the report of a member that lost its region meanwhile is
// not answered with what the root has instead.
func TestLostRegionIsNotShown(t *testing.T) {
	w, ks, m1 := closedToMembers(t)
	w.grant(t, "member/m2", "r", rootv1.Verb_VERB_HOST)
	w.catchUp(t)
	moved := publish(21, ks, "", "m", 9, "m2")
	moved.GetRegionPublished().Region.Epoch.ConfVersion = 9
	w.root.must(t, moved)
	got, err := m1.RegionHeartbeat(within(t), w.beat(publish(21, ks, "", "m", 2, "m1").GetRegionPublished().GetRegion()))
	if got.GetRegion() != nil || reason.Of(err) != rootv1.Reason_REASON_PERMISSION_DENIED || reason.From(err).GetRegion() != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// TestHeartbeatsTellNoHiddenRegion: a report of a region that is hidden is refused like
// one of a region that is not there.
func TestHeartbeatsTellNoHiddenRegion(t *testing.T) {
	w, ks, m1 := closedToMembers(t)
	report := func(id uint64) error {
		r := publish(id, ks, "m", "", 1, "m2").GetRegionPublished().GetRegion()
		_, err := m1.RegionHeartbeat(within(t), w.beat(r))
		return err
	}
	hidden, missing := report(22), report(99)
	if reason.Of(missing) != rootv1.Reason_REASON_PERMISSION_DENIED || strings.ReplaceAll(hidden.Error(), "22", "99") != missing.Error() {
		t.Errorf("a region that is hidden is told from one that is not there:\n%v\n%v", hidden, missing)
	}
}
