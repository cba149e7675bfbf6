package host

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"

	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
)

// Change is a region as the root has it; with Removed, as it was.
type Change struct {
	Region  *rooted.Region
	Removed bool
}

// Follow takes what the root says, in its order; whatever else it told earlier stays as
// it is. A snapshot is all there is at an index of the log.
func (h *Host) Follow(changes []Change, snapshot bool, index uint64) error {
	return h.follow(changes, snapshot, index, "")
}

func (h *Host) follow(changes []Change, snapshot bool, index uint64, transition string) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	h.mu.RLock()
	known := make(map[rooted.RegionID]*hosted, len(h.regions))
	for id, r := range h.regions {
		known[id] = r
	}
	h.mu.RUnlock()
	var made []*hosted
	var gone []rooted.RegionID
	named := map[rooted.RegionID]bool{}
	had := intervals(known, func(r *hosted) bool { return r.leads() || r.arrived })
	for _, c := range changes {
		named[c.Region.ID] = true
		old := known[c.Region.ID]
		_, mine := c.Region.Owner(h.cfg.Self)
		switch {
		case old == nil && (c.Removed || !mine):
		case old != nil && c.Region.Revision < old.region.Revision, old != nil && !c.Removed && c.Region.Revision == old.region.Revision:
			// What it did itself is known here before the watch tells it.
		case c.Removed, !mine:
			gone = append(gone, c.Region.ID)
		default:
			made = append(made, h.next(c.Region, old, had, transition))
		}
	}
	if snapshot {
		for id, r := range known {
			if !named[id] && r.region.Revision <= index {
				gone = append(gone, id)
			}
		}
	}
	if len(made)+len(gone) == 0 {
		return nil
	}
	return h.keep(made, gone)
}

// keep puts regions into both catalogs, on disk first. The caller holds changing.
func (h *Host) keep(made []*hosted, gone []rooted.RegionID) error {
	records := make([]*storev1.LocalRegion, len(made))
	for i, r := range made {
		records[i] = r.record()
	}
	// A crash before or behind this line: the watch tells the same again.
	if err := h.cfg.Disk.Keep(records, gone...); err != nil {
		return err
	}
	h.mu.Lock()
	for _, id := range gone {
		h.tell("hosts no more", h.regions[id])
		delete(h.regions, id)
	}
	for _, r := range made {
		h.regions[r.region.ID] = r
	}
	h.mu.Unlock()
	for _, r := range made {
		h.tell("hosts", r)
	}
	h.settleSoon()
	return nil
}

func (h *Host) tell(what string, r *hosted) {
	args := []any{"region", r.region.ID, "epoch", r.region.Epoch, "role", r.role}
	if r.why != "" {
		h.cfg.Logger.Warn(what, append(args, "err", r.why)...)
		return
	}
	h.cfg.Logger.Info(what, args...)
}

// next is what a region becomes by a newer descriptor.
func (h *Host) next(region *rooted.Region, old *hosted, had []interval, transition string) *hosted {
	r := &hosted{region: region, transition: transition}
	if old != nil {
		r.transition = cmp.Or(transition, old.transition)
	}
	r.role, r.why = h.roleOf(region, old, had)
	if r.role == Leading && old != nil && old.leads() && old.region.Start == region.Start && old.region.End == region.End {
		r.keys.Store(old.keys.Load())
		r.bytes.Store(old.bytes.Load())
		r.counted.Store(old.counted.Load())
	}
	if old != nil && old.role == Leading && r.role != Leading {
		h.cfg.Logger.Warn("somebody else took the lead of a region: its data stays in this workdir", "region", region.ID, "epoch", region.Epoch, "workdir", hex.EncodeToString([]byte(h.workdir)))
	}
	return r
}

// roleOf is what the store may do with a region, of which it knew old, when it had all
// data of some ranges.
func (h *Host) roleOf(region *rooted.Region, old *hosted, had []interval) (role Role, why string) {
	switch {
	case region.Owners[0].Member != h.cfg.Self:
		return Following, ""
	case region.Frontier == "":
		return Claiming, ""
	case region.Frontier != h.workdir:
		return Missing, fmt.Sprintf("its data is in workdir %s, not in %s: make the store that has it the first owner again, and transfer the lead from there",
			hex.EncodeToString([]byte(region.Frontier)), hex.EncodeToString([]byte(h.workdir)))
	case covered(region, had), old != nil && old.arrived && old.region.Start == region.Start && old.region.End == region.End:
		return Leading, ""
	}
	return Missing, "the root says that its data is in this workdir, and not all of it is: was an older copy of the folder restored?"
}

// interval is [start, end); an empty end is that of all keys.
type interval struct{ start, end string }

// led are the intervals that are led here, in order.
func led(regions map[rooted.RegionID]*hosted) []interval { return intervals(regions, (*hosted).leads) }

func intervals(regions map[rooted.RegionID]*hosted, of func(*hosted) bool) []interval {
	var all []interval
	for _, r := range regions {
		if of(r) {
			all = append(all, interval{r.region.Start, r.region.End})
		}
	}
	slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.start, b.start) })
	return all
}

// covered says whether all of a region lies in intervals.
func covered(r *rooted.Region, in []interval) bool {
	at := r.Start
	for _, i := range in {
		if i.start > at {
			return false
		}
		if i.end == "" || r.End != "" && i.end >= r.End {
			return true
		}
		at = max(at, i.end)
	}
	return false
}

// meets says whether a region has keys in one of the intervals.
func meets(r *rooted.Region, in []interval) bool {
	return slices.ContainsFunc(in, func(i interval) bool {
		return (i.end == "" || r.Start < i.end) && (r.End == "" || i.start < r.End)
	})
}
