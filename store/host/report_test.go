package host_test

import (
	"fmt"
	"testing"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/host"
	"google.golang.org/protobuf/proto"
)

// What is shown of regions is bounded in bytes: their keys may be long.
func TestStatusIsBoundedInBytes(t *testing.T) {
	w := newWorld(t, 1)
	n := w.hosts["store-1"]
	var all []host.Change
	long := make([]byte, 4000)
	for i := range 1000 {
		key := func(i int) []byte { return append(fmt.Appendf(nil, "%04d", i), long...) }
		all = append(all, host.Change{Region: rooted.RegionFromProto(&rootv1.Region{
			Id: uint64(i + 1), KeyspaceId: 1, Revision: 1, StartKey: key(i), EndKey: key(i + 1), Owners: []*rootv1.Owner{{MemberId: "store-2"}, {MemberId: "store-1"}},
		})})
	}
	if err := n.host.Follow(all, true, 1); err != nil {
		t.Fatal(err)
	}
	shown, count := n.host.Status()
	size := 0
	for _, r := range shown {
		size += proto.Size(r)
	}
	if size > 2<<20 || count != len(all) || len(shown) == 0 {
		t.Errorf("%d of %d regions in %d bytes", len(shown), count, size)
	}
}

// A value that is damaged is not answered; what else there is is told of as before.
func TestADamagedValueSilencesNobody(t *testing.T) {
	w := newWorld(t, 1)
	n := w.hosts["store-1"]
	r := w.region(1, "", "m", "store-1")
	w.region(2, "m", "", "store-1")
	n.put(r, "a", "12345678")
	n.stop()
	n.spoil("12345678")
	n.start()
	if reports := n.host.Reports(); len(reports) != 2 || !reports[0].Leads || !reports[1].Leads {
		t.Errorf("%v", reports)
	}
}

// A hint is about the region that its planner saw: given twice, it is obeyed once.
func TestN14AHintIsObeyedOnce(t *testing.T) {
	w := newWorld(t, 1)
	n := w.hosts["store-1"]
	r := w.region(1, "", "", "store-1")
	for i := range 8 {
		n.put(r, fmt.Sprint(i), "x")
	}
	hint := &coordinatorv1.SchedulerOperation{Kind: &coordinatorv1.SchedulerOperation_Split{Split: &coordinatorv1.SplitHint{RegionId: 1, ExpectedEpoch: r.Epoch.Proto()}}}
	if err := n.host.Do(t.Context(), hint); err != nil {
		t.Fatal(err)
	}
	want(t, n.host.Do(t.Context(), hint), rootv1.Reason_REASON_EPOCH_STALE)
	if _, count := n.host.Status(); count != 2 {
		t.Errorf("%d regions", count)
	}
}
