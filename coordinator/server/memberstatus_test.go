package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What a member says reaches who asks at once, and the same frame that brings its load is
// its sign of life: beside its record as rooted, and what it owns.
func TestA12C07C16C44P16P45R13MembersAsTheySay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := hosting(t)
		defer w.end(t)
		m := w.hosted(t, "m1")
		status := func() *coordinatorv1.MemberStatus {
			t.Helper()
			list, err := w.client.ListMembers(within(t), &coordinatorv1.ListMembersRequest{MemberId: "m1"})
			if err != nil || len(list.GetMembers()) != 1 {
				t.Fatalf("%v, %v", list, err)
			}
			return list.GetMembers()[0]
		}
		if s := status(); s.GetLoad() != nil || s.GetMember().GetId() != "m1" || s.GetMember().GetAddress() != "m1:1000" || s.GetMember().GetIncarnation() != 1 ||
			s.GetMember().GetState() != rootv1.MemberState_MEMBER_STATE_ACTIVE || s.GetOwnedRegions() != 2 || !s.GetConnected() {
			t.Errorf("before it said anything: %v", s)
		}
		for i, load := range []float64{7, 3.5, 0} {
			time.Sleep(time.Second)
			if age := status().GetHeartbeatAgeMillis(); age != 1000 {
				t.Errorf("it was heard %d ms ago, want 1000", age)
			}
			m.say(&coordinatorv1.MemberFrame{Load: &coordinatorv1.MemberLoad{Load: load, Capacity: 10}})
			m.hear()
			if s := status(); s.GetLoad().GetLoad() != load || s.GetLoad().GetCapacity() != 10 || s.GetHeartbeatAgeMillis() != 0 || s.GetFrames() != uint64(i)+2 {
				t.Errorf("of load %v is shown %v", load, s)
			}
		}
		w.must(t, assign(2, "m2"))
		m.hear()
		if s := status(); s.GetOwnedRegions() != 1 {
			t.Errorf("a region fewer is shown as %v", s)
		}
	})
}
