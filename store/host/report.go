package host

import (
	"context"
	"fmt"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// Report is a region as coordinators are told of it.
type Report struct {
	Region *rooted.Region
	// Leads is set of a region that is led here; Keys and Bytes are about what it has.
	Leads       bool
	Keys, Bytes uint64
}

// Reports are all regions, in key order. What was not counted yet is counted now; what of
// it cannot be read is told without its numbers, and the log says why.
func (h *Host) Reports() []Report {
	all := h.inOrder()
	out := make([]Report, len(all))
	for i, r := range all {
		h.mu.RLock()
		leads := r.leads()
		h.mu.RUnlock()
		if leads && !r.counted.Load() {
			if _, err := h.measure(r); err != nil {
				h.cfg.Logger.Warn("a region is not counted", "region", r.region.ID, "err", err)
				r.counted.Store(true) // by what is written from here on
			}
		}
		out[i] = Report{Region: r.region, Leads: leads, Keys: uint64(max(0, r.keys.Load())), Bytes: uint64(max(0, r.bytes.Load()))}
	}
	return out
}

// Served counts the requests that were answered.
func (h *Host) Served() uint64 { return h.served.Load() }

// MaxShown, and maxShownBytes, bound the regions of Status.
const (
	MaxShown      = 1024
	maxShownBytes = 1 << 20
)

// Status shows regions as the local catalog has them, as many as its bounds let it, and how
// many there are.
func (h *Host) Status() (shown []*storev1.HostedRegion, count int) {
	all := h.inOrder()
	h.mu.RLock()
	defer h.mu.RUnlock()
	size := 0
	for _, r := range all[:min(len(all), MaxShown)] {
		s := &storev1.HostedRegion{Region: r.region.Proto(), Role: r.role.String(), Error: r.why, TransitionId: r.transition}
		if r.leads() {
			s.Keys, s.Bytes = uint64(max(0, r.keys.Load())), uint64(max(0, r.bytes.Load()))
		}
		if size += proto.Size(s); size > maxShownBytes {
			break
		}
		shown = append(shown, s)
	}
	return shown, len(all)
}

// Do does what a coordinator hints at, if the regions are still as it saw them: a hint
// that was obeyed, or outlived, is refused by their epochs or roles.
func (h *Host) Do(ctx context.Context, op *coordinatorv1.SchedulerOperation) error {
	at := func(id uint64, epoch *rootv1.RegionEpoch) *storev1.RegionAt {
		return &storev1.RegionAt{RegionId: id, Epoch: epoch}
	}
	var err error
	switch kind := op.GetKind().(type) {
	case *coordinatorv1.SchedulerOperation_TransferLeader:
		t := kind.TransferLeader
		if t.GetFromMemberId() != string(h.cfg.Self) {
			return fmt.Errorf("the hint is for %q", t.GetFromMemberId())
		}
		_, _, err = h.TransferLeader(ctx, at(t.GetRegionId(), t.GetExpectedEpoch()), rooted.MemberID(t.GetToMemberId()))
	case *coordinatorv1.SchedulerOperation_Split:
		_, _, err = h.Split(ctx, at(kind.Split.GetRegionId(), kind.Split.GetExpectedEpoch()), nil)
	case *coordinatorv1.SchedulerOperation_Merge:
		m := kind.Merge
		_, err = h.Merge(ctx, at(m.GetLeftRegionId(), m.GetLeftExpectedEpoch()), at(m.GetRightRegionId(), m.GetRightExpectedEpoch()))
	default:
		return fmt.Errorf("a hint of a kind that this build does not know")
	}
	return err
}

// Hosts reports whether a region is in the catalog.
func (h *Host) Hosts(id rooted.RegionID) bool { return h.find(id) != nil }

// Roles counts regions by what they are here.
func (h *Host) Roles() map[string]int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	out := map[string]int{}
	for _, r := range h.regions {
		out[r.role.String()]++
	}
	return out
}
