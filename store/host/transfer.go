package host

import (
	"context"
	"errors"
	"slices"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/local"
)

// partBytes is about how much of a region a message of a copy has; an entry above it
// goes alone.
const partBytes = 512 << 10

// maxVersion bounds the versions that a copy may bring: there are always enough above it.
const maxVersion = 1 << 62

// TransferLeader copies a region to another of its owners, which leads it then. It
// returns the region as it is rooted, and how many keys were copied.
func (h *Host) TransferLeader(ctx context.Context, at *storev1.RegionAt, to rooted.MemberID) (*rooted.Region, uint64, error) {
	r, err := h.begin(at)
	if err != nil {
		return nil, 0, err
	}
	defer h.end(r)
	i := slices.IndexFunc(r.region.Owners, func(o rooted.Owner) bool { return o.Member == to })
	switch {
	case i < 0:
		return nil, 0, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "to_member_id: %.64q is no owner of region %d", to, r.region.ID)
	case i == 0:
		return r.region, 0, nil
	}
	h.setRole(r, Copying)
	workdir, keys, err := h.copyTo(ctx, r, to)
	if err == nil {
		// From here on, also behind a crash, nothing is served before the root has said
		// whose the region is.
		err = h.note(r, func(n *hosted) { n.role, n.handing = HandingOver, to })
	}
	if err != nil {
		h.setRole(r, Leading)
		return nil, 0, err
	}
	next := r.region.Clone()
	next.Epoch.ConfVersion++
	next.Frontier = string(workdir)
	next.Owners = append(append(next.Owners[:0:0], r.region.Owners[i]), slices.Delete(slices.Clone(r.region.Owners), i, i+1)...)
	switch err := h.republish(ctx, r, next); {
	case unknown(err):
		h.settleSoon() // Run asks
		return nil, 0, err
	case err != nil && h.find(r.region.ID) == r: // refused for good: under its identity it is never applied
		return nil, 0, errors.Join(err, h.note(r, func(n *hosted) { n.role, n.handing = Leading, "" }))
	case err != nil:
		return nil, 0, err
	}
	now := h.find(r.region.ID)
	if now == nil || now.region.Epoch != next.Epoch || now.region.Owners[0].Member != to {
		return nil, 0, pending(r, "region %d was changed by somebody else meanwhile", r.region.ID)
	}
	h.drop(now)
	return now.region, keys, nil
}

// setRole changes the role of a region that an operation has busy, unless it is another
// region by now.
func (h *Host) setRole(r *hosted, role Role) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.role = role
}

// drop removes the data of a region that went to another store. A crash leaves some of
// it, which is removed before the range is filled again.
func (h *Host) drop(r *hosted) {
	err := pending(r, "another region is being taken")
	if h.taking.TryLock() {
		defer h.taking.Unlock()
		err = h.clear(r)
	}
	if err != nil {
		h.cfg.Logger.Warn("data of a region that went to another store stays on disk", "region", r.region.ID, "err", err)
	}
}

// copyTo sends a region that is not written any more to another store.
func (h *Host) copyTo(ctx context.Context, r *hosted, to rooted.MemberID) (workdir []byte, keys uint64, err error) {
	// Writes that were admitted before are on disk behind this, and no other one is.
	if err := h.cfg.Disk.Settle(); err != nil {
		return nil, 0, err
	}
	version, err := h.cfg.Disk.Version()
	if err != nil {
		return nil, 0, err
	}
	workdir, err = h.cfg.Peers.Copy(ctx, to, &storev1.ImportHeader{Region: r.region.Proto(), Version: version}, func(each func(*storev1.Entry) error) error {
		keys = 0
		return h.cfg.Disk.Walk([]byte(r.region.Start), []byte(r.region.End), func(e *local.Entry) error {
			keys++
			return each(&storev1.Entry{Key: e.Key, Value: e.Value, Version: e.Version})
		})
	})
	if err == nil && (len(workdir) == 0 || string(workdir) == h.workdir) {
		err = reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "%s took the copy into workdir %x: it is this store; check --store-addr", to, workdir)
	}
	return workdir, keys, err
}

// Import takes the copy of a region that another store leads: from says which, where
// callers have names. next returns the parts behind the header. One copy is taken at a time.
func (h *Host) Import(from rooted.MemberID, header *storev1.ImportHeader, next func() (*storev1.ImportRequest, error)) error {
	sent := rooted.RegionFromProto(header.GetRegion())
	if header.GetVersion() > maxVersion {
		return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "header.version: %d is no version that there can be", header.GetVersion())
	}
	r, err := h.mayImport(from, sent)
	if err != nil {
		return err
	}
	if !h.taking.TryLock() {
		return pending(r, "another region is being taken")
	}
	defer h.taking.Unlock()
	// A crash from here on finds a region that has no data.
	if err := h.note(r, func(n *hosted) { n.arrived = false }); err != nil {
		return err
	}
	if err := h.clear(r); err != nil {
		return err
	}
	if err := h.fill(r, header.GetVersion(), next); err != nil {
		return err
	}
	return h.note(r, func(n *hosted) { n.arrived = true })
}

// mayImport judges who sends what.
func (h *Host) mayImport(from rooted.MemberID, sent *rooted.Region) (*hosted, error) {
	if sent == nil || len(sent.Owners) == 0 {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "header.region: it is missing, or has no owners")
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	r := h.regions[sent.ID]
	at := &storev1.RegionAt{RegionId: uint64(sent.ID), Epoch: sent.Epoch.Proto()}
	switch {
	case h.closed != nil:
		return nil, h.closed
	case r == nil || r.region.Epoch != sent.Epoch:
		return nil, h.judge(r, at, true)
	case r.role != Following:
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "region %d is %s here: only a region that another store leads is taken", sent.ID, r.role)
	case from != "" && from != r.region.Owners[0].Member:
		return nil, reason.New(rootv1.Reason_REASON_PERMISSION_DENIED, "%s does not lead region %d", from, sent.ID)
	}
	return r, nil
}

// fill writes what comes, in key order, of one region.
func (h *Host) fill(r *hosted, version uint64, next func() (*storev1.ImportRequest, error)) error {
	var count uint64
	last := ""
	for {
		part, err := next()
		if err != nil {
			return err
		}
		entries := make([]local.Entry, len(part.GetEntries()))
		for i, e := range part.GetEntries() {
			key := string(e.GetKey())
			switch {
			case checkKey(e.GetKey()) != nil, len(e.GetValue()) > local.MaxValueBytes, e.GetVersion() == 0, e.GetVersion() > version:
				return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "entries: key %.64q has no size or version that there can be", key)
			case !r.region.Contains(key):
				return outside(r, "the key %.64q", key)
			case key <= last:
				return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "entries: key %.64q is not above %.64q", key, last)
			}
			last = key
			entries[i] = local.Entry{Key: e.GetKey(), Value: e.GetValue(), Version: e.GetVersion()}
		}
		count += uint64(len(entries))
		if part.GetLast() && count != part.GetEntriesInAll() {
			return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "%d entries came of %d", count, part.GetEntriesInAll())
		}
		if err := h.cfg.Disk.Import(entries, version); err != nil {
			return err
		}
		if part.GetLast() {
			return nil
		}
	}
}

// Parts packs entries into messages of about half a MiB, the last one marked.
func Parts(send func(each func(*storev1.Entry) error) error, deliver func(*storev1.ImportRequest) error) error {
	part, size, count := &storev1.ImportRequest{}, 0, uint64(0)
	err := send(func(e *storev1.Entry) error {
		count++
		n := len(e.GetKey()) + len(e.GetValue())
		if len(part.GetEntries()) > 0 && (size+n > partBytes || len(part.GetEntries()) >= MaxScan) {
			if err := deliver(part); err != nil {
				return err
			}
			part, size = &storev1.ImportRequest{}, 0
		}
		part.Entries = append(part.Entries, e)
		size += n
		return nil
	})
	if err != nil {
		return err
	}
	part.Last, part.EntriesInAll = true, count
	return deliver(part)
}
