package host_test

import (
	"errors"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/local"
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

// A cluster that was restored from a backup takes the folders of its stores, and what its
// root knows of regions holds, however old that is.
func TestN65RestoredRootTakesFolders(t *testing.T) {
	w := newWorld(t, 1)
	one := w.hosts["store-1"]
	backup := w.region(1, "", "", "store-1")
	one.put(backup, "a", "1")
	one.put(backup, "z", "2")
	if _, _, err := one.host.Split(t.Context(), at(backup), []byte("m")); err != nil {
		t.Fatal(err)
	}
	one.stop()
	folder := one.read()
	for _, rebind := range []bool{true, false} {
		young := newWorld(t, 1)
		young.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			Id: 1, KeyspaceId: uint32(rooted.DefaultKeyspace), Owners: []*rootv1.Owner{{MemberId: "store-1"}}, Frontier: []byte(backup.Frontier),
		}}}})
		one := young.hosts["store-1"]
		one.stop()
		one.write(folder)
		if rebind {
			disk, err := local.Open(one.dir, 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(disk.Rebind(), disk.Close()); err != nil {
				t.Fatal(err)
			}
		}
		one.start()
		one.hear()
		now := young.rooted(1)
		if _, err := one.host.Get(at(now), []byte("z")); (err == nil) != rebind {
			t.Errorf("rebind: %v, z: %v", rebind, err)
		}
		if rebind {
			one.wantValue(now, "a", "1")
			one.wantValue(now, "z", "2")
		}
	}
}
