package host_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// A region that was cut while the store that has its data was away is served by it.
func TestACutThatWasNotSeen(t *testing.T) {
	w := newWorld(t, 2)
	one, two := w.hosts["store-1"], w.hosts["store-2"]
	r := w.region(1, "", "", "store-1", "store-2")
	one.put(r, "a", "1")
	one.put(r, "z", "2")
	if _, _, err := one.host.TransferLeader(t.Context(), at(r), "store-2"); err != nil {
		t.Fatal(err)
	}
	r = w.rooted(1)
	w.apply(&rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: 1, ExpectedEpoch: r.Epoch.Proto(), SplitKey: []byte("m")}}},
		&rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{
			TransitionId: rooted.TransitionID(rootv1.TransitionKind_TRANSITION_KIND_SPLIT, 1, r.Epoch),
		}}})
	two.hear()
	two.wantValue(w.rooted(1), "a", "1")
	var right *rooted.Region
	w.st.RegionsFrom(rooted.DefaultKeyspace, "m", func(r *state.Region) bool {
		right = rooted.RegionFromProto(r.Proto())
		return false
	})
	two.wantValue(right, "z", "2")
}
