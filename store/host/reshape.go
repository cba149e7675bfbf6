package host

import (
	"context"
	"errors"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/local"
)

// Split cuts a region in two before a key, or in the middle of its keys when that is
// empty. The plan and its end are one command of the root.
func (h *Host) Split(ctx context.Context, at *storev1.RegionAt, key []byte) (left, right *rooted.Region, err error) {
	r, err := h.begin(at)
	if err != nil {
		return nil, nil, err
	}
	defer h.end(r)
	if len(key) == 0 {
		if key, err = h.middle(r); err != nil {
			return nil, nil, err
		}
	}
	if err := checkKey(key); err != nil {
		return nil, nil, err
	}
	if string(key) <= r.region.Start || !r.region.Contains(string(key)) {
		return nil, nil, outside(r, "the split key %.64q", key)
	}
	made, err := h.reshape(ctx, rootv1.TransitionKind_TRANSITION_KIND_SPLIT, r, nil, &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
		RegionId: at.GetRegionId(), ExpectedEpoch: at.GetEpoch(), SplitKey: key,
	}}})
	if err != nil {
		return nil, nil, err
	}
	return rooted.RegionFromProto(made.GetRegion()), rooted.RegionFromProto(made.GetRightRegion()), nil
}

// Merge joins a region and its right neighbour; both are led here.
func (h *Host) Merge(ctx context.Context, left, right *storev1.RegionAt) (*rooted.Region, error) {
	l, err := h.begin(left)
	if err != nil {
		return nil, err
	}
	defer h.end(l)
	r, err := h.begin(right)
	if err != nil {
		return nil, err
	}
	defer h.end(r)
	if l.region.End == "" || l.region.End != r.region.Start {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_RANGE, "region %d is not the right neighbour of region %d", r.region.ID, l.region.ID)
	}
	made, err := h.reshape(ctx, rootv1.TransitionKind_TRANSITION_KIND_MERGE, l, r, &rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: &rootv1.MergePlanned{
		LeftRegionId: left.GetRegionId(), LeftExpectedEpoch: left.GetEpoch(), RightRegionId: right.GetRegionId(), RightExpectedEpoch: right.GetEpoch(),
	}}})
	if err != nil {
		return nil, err
	}
	return rooted.RegionFromProto(made.GetRegion()), nil
}

// reshape has a change of a region's range planned and completed, and follows it; ended
// is the region that it takes in.
func (h *Host) reshape(ctx context.Context, kind rootv1.TransitionKind, r, ended *hosted, plan *rootv1.Event) (*rootv1.EventResult, error) {
	id := rooted.TransitionID(kind, r.region.ID, r.region.Epoch)
	result, err := h.published(ctx, plan, &rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: id}}})
	if err != nil {
		return nil, err
	}
	// A crash here finds the old region; the watch tells what it has become.
	var made *rootv1.EventResult
	if events := result.GetEvents(); len(events) == 2 {
		made = events[1]
	}
	split := kind == rootv1.TransitionKind_TRANSITION_KIND_SPLIT
	if len(made.GetRegion().GetOwners()) == 0 || split && len(made.GetRightRegion().GetOwners()) == 0 {
		return nil, pending(r, "region %d has changed, and how comes with the watch", r.region.ID)
	}
	changes := []Change{{Region: rooted.RegionFromProto(made.GetRegion())}}
	if split {
		changes = append(changes, Change{Region: rooted.RegionFromProto(made.GetRightRegion())})
	} else {
		changes = append(changes, Change{Region: ended.region, Removed: true})
	}
	return made, h.follow(changes, false, 0, id)
}

// middle is the key behind half of a region's keys.
func (h *Host) middle(r *hosted) (key []byte, err error) {
	n, err := h.measure(r)
	if err != nil {
		return nil, err
	}
	if n < 2 {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_RANGE, "region %d has %d keys: there is no middle; name a key", r.region.ID, n)
	}
	passed := int64(0)
	err = h.cfg.Disk.Walk([]byte(r.region.Start), []byte(r.region.End), func(e *local.Entry) error {
		if passed++; passed > n/2 && string(e.Key) > r.region.Start {
			key = e.Key
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	if key == nil {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_RANGE, "region %d has lost keys meanwhile: name a key", r.region.ID)
	}
	return key, nil
}

// measure counts a region's keys. Writes that come meanwhile are counted or not.
func (h *Host) measure(r *hosted) (keys int64, err error) {
	bytes := int64(0)
	err = h.cfg.Disk.Walk([]byte(r.region.Start), []byte(r.region.End), func(e *local.Entry) error {
		keys++
		bytes += int64(e.Bytes())
		return nil
	})
	if err == nil {
		r.keys.Store(keys)
		r.bytes.Store(bytes)
		r.counted.Store(true)
	}
	return keys, err
}
