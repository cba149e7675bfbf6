package catalog_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func heartbeat(id string, incarnation, sequence uint64) *coordinatorv1.StoreHeartbeatRequest {
	return &coordinatorv1.StoreHeartbeatRequest{MemberId: id, Incarnation: incarnation, Sequence: sequence, Load: float64(sequence)}
}

func TestStoreHeartbeats(t *testing.T) {
	w := newWorld(t)
	old := w.apply(joined("m1", 1))[0].Member.GetIncarnation()
	now := w.apply(joinedAfter(old, "m1", 2))[0].Member.GetIncarnation()
	s := catalog.NewSoft(catalog.SoftConfig{})
	send := func(hb *coordinatorv1.StoreHeartbeatRequest, at clock.Instant, want bool) {
		t.Helper()
		m, taken, err := s.StoreHeartbeat(w.st, hb, at)
		if err != nil || taken != want || m.GetIncarnation() != now {
			t.Fatalf("taken %v, %v", taken, err)
		}
	}
	refuse := func(hb *coordinatorv1.StoreHeartbeatRequest, want rootv1.Reason) {
		t.Helper()
		_, _, err := s.StoreHeartbeat(w.st, hb, 1)
		refused(t, err, want)
	}
	send(heartbeat("m1", now, 5), 10, true)
	send(heartbeat("m1", now, 5), 11, false)
	send(heartbeat("m1", now, 4), 12, false)
	if r, ok := s.Store("m1"); !ok || r.At != 10 || r.Heartbeat.GetLoad() != 5 {
		t.Fatalf("kept %+v", r)
	}
	send(heartbeat("m1", now, 6), 13, true)
	refuse(heartbeat("m2", 1, 1), rootv1.Reason_REASON_REGISTER_FIRST)
	refuse(heartbeat("m1", 0, 9), rootv1.Reason_REASON_INVALID_REQUEST)
	refuse(heartbeat("m1", old, 9), rootv1.Reason_REASON_MEMBER_RETIRED)
	refuse(heartbeat("m1", now+1, 9), rootv1.Reason_REASON_ROOT_LAG_EXCEEDED)

	next := w.apply(joinedAfter(now, "m1", 3))[0].Member.GetIncarnation()
	now = next
	send(heartbeat("m1", next, 1), 14, true) // a newer incarnation counts from its own start
	w.apply(removed("m1"))
	refuse(heartbeat("m1", next, 2), rootv1.Reason_REASON_MEMBER_RETIRED)
	refuse(heartbeat("m1", next+1, 1), rootv1.Reason_REASON_ROOT_LAG_EXCEEDED) // it registered since, which is not known here
	s.Sweep(w.st)
	if members, _ := s.Len(); members != 0 {
		t.Fatalf("%d members after a sweep", members)
	}
}

func removed(id string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
		MemberId: id, State: rootv1.MemberState_MEMBER_STATE_REMOVED,
	}}}
}

func TestRegionLeaders(t *testing.T) {
	w := newWorld(t)
	incarnation := map[string]uint64{}
	for i, m := range []string{"m1", "m2", "m3"} {
		incarnation[m] = w.apply(joined(m, uint64(i)+1))[0].Member.GetIncarnation()
	}
	w.apply(published(1, 10, "a", "b", "m1", "m2"))
	s := catalog.NewSoft(catalog.SoftConfig{LeaderFor: time.Minute})
	at := clock.Instant(1)
	report := func(member string, leader bool, keys uint64, want bool) {
		t.Helper()
		_, taken, err := s.RegionHeartbeat(w.st, &coordinatorv1.RegionHeartbeatRequest{
			MemberId: member, Incarnation: incarnation[member], Region: &rootv1.Region{Id: 10}, Leader: leader, KeyCount: keys,
		}, at)
		if err != nil || taken != want {
			t.Fatalf("%s: taken %v, %v", member, taken, err)
		}
	}
	leads := func(want state.MemberID, keys uint64) {
		t.Helper()
		r, _ := s.Region(10)
		if got := s.Leader(w.st, w.st.Region(10), at); got != want || r.Keys != keys {
			t.Fatalf("leader %q with %d keys, want %q with %d", got, r.Keys, want, keys)
		}
	}
	leads("", 0)
	report("m2", false, 5, true)
	leads("", 5)
	report("m1", true, 7, true)
	leads("m1", 7)
	report("m2", false, 6, false) // a follower's word against the leader's
	leads("m1", 7)
	report("m2", true, 8, true)
	leads("m2", 8)
	report("m2", false, 9, true)
	leads("", 9)
	report("m3", true, 3, true)
	leads("", 3) // not an owner
	report("m1", true, 4, true)
	at = at.Add(time.Minute + 1)
	leads("", 4)

	_, _, err := s.RegionHeartbeat(w.st, &coordinatorv1.RegionHeartbeatRequest{MemberId: "m1", Incarnation: incarnation["m1"], Region: &rootv1.Region{Id: 99}}, at)
	refused(t, err, rootv1.Reason_REASON_NOT_FOUND)
	_, _, err = s.RegionHeartbeat(w.st, &coordinatorv1.RegionHeartbeatRequest{MemberId: "m9", Incarnation: 1, Region: &rootv1.Region{Id: 10}}, at)
	refused(t, err, rootv1.Reason_REASON_REGISTER_FIRST)
	s.Forget([]state.Change{{Kind: state.ChangeRegion, Removed: true, Region: w.st.Region(10)}, {Kind: state.ChangeMember, Removed: true, Member: &rootv1.Member{Id: "m1"}}})
	if _, regions := s.Len(); regions != 0 {
		t.Fatalf("%d regions after their removal", regions)
	}
}

func TestSoftStateIsBounded(t *testing.T) {
	w := newWorld(t)
	var m *rootv1.Member
	for i := range 300 {
		m = w.apply(joined(fmt.Sprint("m", i), 1))[0].Member
		w.apply(published(1, uint64(i)+1000, fmt.Sprintf("k%03d", i), fmt.Sprintf("k%03d", i+1)))
	}
	s := catalog.NewSoft(catalog.SoftConfig{MaxMembers: 128, MaxRegions: 128})
	w.st.Members(func(m *rootv1.Member) bool {
		_, _, err := s.StoreHeartbeat(w.st, heartbeat(m.GetId(), m.GetIncarnation(), 1), 1)
		return err == nil
	})
	for i := range uint64(300) {
		if _, _, err := s.RegionHeartbeat(w.st, &coordinatorv1.RegionHeartbeatRequest{
			MemberId: m.GetId(), Incarnation: m.GetIncarnation(), Region: &rootv1.Region{Id: i + 1000},
		}, 1); err != nil {
			t.Fatal(err)
		}
	}
	if members, regions := s.Len(); members > 128 || regions > 128 || members < 64 || regions < 64 {
		t.Fatalf("%d members and %d regions are kept", members, regions)
	}
}

func TestSoftStateFromEverywhere(t *testing.T) {
	w := newWorld(t)
	inc := w.apply(joined("m1", 1))[0].Member.GetIncarnation()
	w.apply(published(1, 10, "a", "b", "m1"))
	s := catalog.NewSoft(catalog.SoftConfig{})
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range uint64(200) {
				_, _, _ = s.StoreHeartbeat(w.st, heartbeat("m1", inc, i*8+uint64(g)), 1)
				_, _, _ = s.RegionHeartbeat(w.st, &coordinatorv1.RegionHeartbeatRequest{MemberId: "m1", Incarnation: inc, Region: &rootv1.Region{Id: 10}, Leader: true}, 1)
				s.Leader(w.st, w.st.Region(10), 1)
				s.Sweep(w.st)
			}
		})
	}
	all.Wait()
	if r, _ := s.Store("m1"); r.Heartbeat.GetSequence() != 199*8+7 {
		t.Fatalf("the newest heartbeat is %d", r.Heartbeat.GetSequence())
	}
}
