package host

import (
	"context"
	"time"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
)

// Pauses of Run while the root does not answer.
const (
	settleMin = 100 * time.Millisecond
	settleMax = 5 * time.Second
	// settleWait bounds one question to the root.
	settleWait = 10 * time.Second
)

// Run claims regions that have no data anywhere, and finds out what became of leads that
// were handed over, until ctx ends or the disk fails. Before Serve it asks for nothing.
func (h *Host) Run(ctx context.Context) error {
	pause := settleMin
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.unsettled:
			pause = settleMin
		case <-timer.C:
		}
		open := h.settle(ctx)
		if err := h.cfg.Disk.Broken(); err != nil {
			return err
		}
		if open {
			timer.Reset(pause)
			pause = min(2*pause, settleMax)
		}
	}
}

// settle asks the root about every region that waits for it; true: some still do.
func (h *Host) settle(ctx context.Context) (open bool) {
	for _, r := range h.inOrder() {
		h.mu.Lock()
		role := r.role
		mine := h.closed == nil && !r.busy && h.regions[r.region.ID] == r && (role == Claiming || role == HandingOver)
		if mine {
			r.busy = true
		}
		h.mu.Unlock()
		if !mine {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, settleWait)
		step := h.claim
		if role == HandingOver {
			// That the region stays, or the change that was asked for before: one of them is
			// applied, and the other one never.
			step = h.lead
		}
		err := step(asked, r)
		cancel()
		h.end(r)
		if err != nil {
			open = true
			h.cfg.Logger.Debug("a region waits for the root", "region", r.region.ID, "role", role, "err", err)
		}
	}
	return open
}

// claim asks the root that a region without data be led here. What the range has of
// regions that were here once is removed first.
func (h *Host) claim(ctx context.Context, r *hosted) error {
	if !h.taking.TryLock() {
		return pending(r, "another region is being taken")
	}
	defer h.taking.Unlock()
	if !r.arrived { // otherwise it is done, and the root may have said yes
		if err := h.clear(r); err != nil {
			return err
		}
		if err := h.note(r, func(n *hosted) { n.arrived = true }); err != nil {
			return err
		}
	}
	// A crash here, or behind the answer, finds a region that may be led as it is: empty.
	return h.lead(ctx, r)
}

// lead publishes that a region's data is here, at the next epoch. That the root has moved
// on is no error: the watch tells what is so.
func (h *Host) lead(ctx context.Context, r *hosted) error {
	next := r.region.Clone()
	next.Epoch.ConfVersion++
	next.Frontier = h.workdir
	return h.republish(ctx, r, next)
}

// republish roots another descriptor of a region, and follows it.
func (h *Host) republish(ctx context.Context, r *hosted, next *rooted.Region) error {
	result, err := h.published(ctx, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{
		RegionPublished: &rootv1.RegionPublished{Region: next.Proto(), ExpectedEpoch: r.region.Epoch.Proto()},
	}})
	if err != nil {
		if now := reason.From(err).GetRegion(); reason.Of(err) == rootv1.Reason_REASON_EPOCH_STALE && now.GetId() == uint64(r.region.ID) && len(now.GetOwners()) > 0 {
			return h.followed(r, now)
		}
		return err
	}
	for _, e := range result.GetEvents() {
		if e.GetRegion().GetId() == uint64(r.region.ID) && len(e.GetRegion().GetOwners()) > 0 {
			return h.followed(r, e.GetRegion())
		}
	}
	return pending(r, "region %d has changed, and how comes with the watch", r.region.ID)
}

// followed takes one region as the root has it.
func (h *Host) followed(was *hosted, now *rootv1.Region) error {
	if err := h.Follow([]Change{{Region: rooted.RegionFromProto(now)}}, false, 0); err != nil {
		return err
	}
	if r := h.find(was.region.ID); r == was {
		return pending(was, "the root has region %d as it is here", was.region.ID)
	}
	return nil
}

// note changes what the catalog says of a region beside its descriptor; the caller has
// it busy, or holds taking. It fails when the region has changed.
func (h *Host) note(r *hosted, change func(*hosted)) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	n := &hosted{region: r.region, role: r.role, arrived: r.arrived, handing: r.handing, transition: r.transition, why: r.why}
	change(n)
	h.mu.RLock()
	changed := h.regions[r.region.ID] != r
	h.mu.RUnlock()
	if changed {
		return pending(r, "region %d has changed", r.region.ID)
	}
	if err := h.cfg.Disk.Keep([]*storev1.LocalRegion{n.record()}); err != nil {
		return err
	}
	h.mu.Lock()
	r.role, r.arrived, r.handing = n.role, n.arrived, n.handing
	h.mu.Unlock()
	return nil
}

// clear removes what was left in the range of a region that is not led here; nothing
// becomes led meanwhile. The caller holds taking.
func (h *Host) clear(r *hosted) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	h.mu.RLock()
	changed, full := h.regions[r.region.ID] != r || r.arrived, meets(r.region, led(h.regions))
	h.mu.RUnlock()
	switch {
	case changed:
		return pending(r, "region %d has changed", r.region.ID)
	case full:
		return pending(r, "region %d overlaps one that is led here", r.region.ID)
	}
	return h.cfg.Disk.Wipe([]byte(r.region.Start), []byte(r.region.End))
}
