package state_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A transition is named by what it changes and the epoch it was planned at, so that whoever
// plans the same again, at whatever replica and after whatever restart, means the same one.
// Ended, it keeps its name; the next one of its region, at the next epoch, has another.
func TestN21ATransitionKeepsItsID(t *testing.T) {
	plan := func(version, conf uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
			RegionId: 5, ExpectedEpoch: &rootv1.RegionEpoch{Version: version, ConfVersion: conf}, SplitKey: []byte("g"),
		}}}
	}
	m := bootstrapped(t)
	m.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "k", Settings: state.DefaultSettings()}}})
	m.must(publish(&rootv1.Region{Id: 5, KeyspaceId: 1, Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}}).GetEvents()...)
	const id = "split-5-1.1"
	planned := m.must(plan(1, 1)).Events[0].Transition
	if planned.GetId() != id {
		t.Fatalf("it is %q, want %q", planned.GetId(), id)
	}
	same := func(when string, want rootv1.TransitionStatus) {
		t.Helper()
		for name, s := range map[string]*state.State{"": m.s, ", of its records": restored(t, m.s), ", of parts": parted(t, m.s)} {
			got := s.Transition(id)
			if got.GetStatus() != want || got.GetId() != id || !proto.Equal(got, m.s.Transition(id)) {
				t.Errorf("%s%s: %v, want %v", when, name, got, want)
			}
		}
	}
	same("planned", rootv1.TransitionStatus_TRANSITION_STATUS_PENDING)
	again := m.apply(&rootv1.Command{Events: []*rootv1.Event{plan(1, 1)}})[0]
	if again.Outcome != rootv1.Outcome_OUTCOME_ALREADY_APPLIED || again.Events[0].Transition.GetId() != id {
		t.Errorf("planned again: %v", again)
	}
	m.must(&rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: id}}})
	same("cancelled", rootv1.TransitionStatus_TRANSITION_STATUS_CANCELLED)
	if got := m.must(plan(1, 1)).Events[0].Transition.GetId(); got != id {
		t.Errorf("planned anew at the same epoch it is %q", got)
	}
	m.must(&rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: id}}})
	same("completed", rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED)
	r := m.s.Region(5)
	next := plan(r.Epoch.Version, r.Epoch.ConfVersion)
	next.GetSplitPlanned().SplitKey = []byte("c")
	if got := m.must(next).Events[0].Transition.GetId(); got != "split-5-"+r.Epoch.String() || got == id {
		t.Errorf("the next one is %q", got)
	}
	same("when the next one is planned", rootv1.TransitionStatus_TRANSITION_STATUS_COMPLETED)
}

// parted is a State of the parts of a checkpoint.
func parted(t tester, s *state.State) *state.State {
	t.Helper()
	r, err := fromParts(t, s.Token(), s.Hash(), packed(t, s, 3))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return r
}
