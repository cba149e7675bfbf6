package host

import (
	"errors"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/local"
	"google.golang.org/protobuf/proto"
)

// Bounds of a scan.
const (
	MaxScan      = 1000
	DefaultScan  = 100
	maxScanBytes = 1 << 20
)

// judge says why a region is not served at an epoch; r may be nil. The caller holds mu.
func (h *Host) judge(r *hosted, at *storev1.RegionAt, write bool) error {
	if r == nil {
		e := reason.New(rootv1.Reason_REASON_NOT_FOUND, "region %d is not hosted here: ask a coordinator who has it", at.GetRegionId())
		e.Detail.Region = &rootv1.Region{Id: at.GetRegionId()}
		return e
	}
	if asked := rooted.EpochFromProto(at.GetEpoch()); asked != r.region.Epoch {
		e := reason.New(rootv1.Reason_REASON_EPOCH_STALE, "region %d is at epoch %s here, not %s: ask a coordinator again", r.region.ID, r.region.Epoch, asked)
		e.Detail.Region = r.region.Proto()
		return e
	}
	switch {
	case h.closed != nil && r.leads():
		return ofRegion(h.closed, r)
	case r.role == Leading, r.role == Copying && !write:
		return nil
	case r.role == Following:
		return h.notLeader(r)
	case r.role == Missing:
		return reason.New(rootv1.Reason_REASON_NOT_FOUND, "region %d: %s", r.region.ID, r.why)
	default:
		return pending(r, "region %d is %s", r.region.ID, r.role)
	}
}

// ofRegion is a refusal of everything as one of a region: a router takes for a store's what
// names one, and calls again.
func ofRegion(err error, r *hosted) error {
	said := proto.CloneOf(reason.From(err))
	said.Region = r.region.Proto()
	return &reason.Error{Detail: said}
}

func (h *Host) notLeader(r *hosted) error {
	leader := r.region.Owners[0].Member
	e := reason.New(rootv1.Reason_REASON_NOT_LEADER, "%s leads region %d, not %s", leader, r.region.ID, h.cfg.Self)
	e.Detail.LeaderAddress, e.Detail.Region = h.cfg.Peers.Address(leader), r.region.Proto()
	return e
}

// admit judges a request for a key.
func (h *Host) admit(at *storev1.RegionAt, key []byte, write bool) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	r := h.regions[rooted.RegionID(at.GetRegionId())]
	if err := h.judge(r, at, write); err != nil {
		return err
	}
	if !r.region.Contains(string(key)) {
		return outside(r, "the key %.64q", key)
	}
	return nil
}

func outside(r *hosted, format string, args ...any) error {
	e := reason.New(rootv1.Reason_REASON_INVALID_RANGE, format+" does not lie in region %d, [%.64q, %.64q)", append(args, r.region.ID, r.region.Start, r.region.End)...)
	e.Detail.Region = r.region.Proto()
	return e
}

// Get reads a key.
func (h *Host) Get(at *storev1.RegionAt, key []byte) (local.Entry, error) {
	if err := checkKey(key); err != nil {
		return local.Entry{}, err
	}
	if err := h.admit(at, key, false); err != nil {
		return local.Entry{}, err
	}
	e, err := h.cfg.Disk.Get(key)
	if err == nil {
		// What was led before and is not any more may have been written elsewhere since.
		err = h.admit(at, key, false)
	}
	h.served.Add(1)
	return e, err
}

// Put writes a key and returns its version.
func (h *Host) Put(at *storev1.RegionAt, key, value []byte, expected *uint64) (uint64, error) {
	if len(value) > local.MaxValueBytes {
		e := reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "value: %d bytes are above the limit of %d", len(value), local.MaxValueBytes)
		e.Detail.Limit = local.MaxValueBytes
		return 0, e
	}
	w, err := h.write(at, local.Write{Key: key, Value: value, Expected: expected})
	return w.Version, err
}

// Delete removes a key; false: there was none.
func (h *Host) Delete(at *storev1.RegionAt, key []byte, expected *uint64) (bool, error) {
	w, err := h.write(at, local.Write{Key: key, Delete: true, Expected: expected})
	return w.Done, err
}

func (h *Host) write(at *storev1.RegionAt, w local.Write) (local.Written, error) {
	if err := checkKey(w.Key); err != nil {
		return local.Written{}, err
	}
	if err := h.admit(at, w.Key, true); err != nil { // costs no turn at the disk
		return local.Written{}, err
	}
	w.Admit = func() error { return h.admit(at, w.Key, true) }
	written, err := h.cfg.Disk.Write(w)
	h.served.Add(1)
	switch {
	case errors.Is(err, local.ErrFull):
		e := reason.New(rootv1.Reason_REASON_OVERLOADED, "%v: try again", err)
		e.Detail.Limit, e.Detail.RetryAfterMillis = local.MaxWaiting, retryAfterMillis
		return written, e
	case errors.Is(err, local.ErrNoRoom):
		return written, reason.New(rootv1.Reason_REASON_CAPACITY_EXCEEDED, "%s: %v", h.cfg.Self, err)
	case err != nil:
		return written, err
	case written.Mismatch:
		e := reason.New(rootv1.Reason_REASON_VERSION_STALE, "the key has version %d, not %d: read it again", written.Version, *w.Expected)
		e.Detail.KeyVersion = written.Version
		return written, e
	}
	if err := h.open(); err != nil && written.Done {
		// Another process on another folder may have been asked for the key meanwhile.
		return local.Written{}, reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "the write is in a folder that is the store's no longer, or was not: %v", err)
	}
	if r := h.find(rooted.RegionID(at.GetRegionId())); r != nil {
		r.count(&w, &written)
	}
	return written, nil
}

// count keeps what is reported of a region about right.
func (r *hosted) count(w *local.Write, done *local.Written) {
	if !done.Done {
		return
	}
	keys, bytes := 0, 0
	if done.Was.Version != 0 {
		keys, bytes = -1, -done.Was.Bytes()
	}
	if !w.Delete {
		is := local.Entry{Key: w.Key, Value: w.Value}
		keys, bytes = keys+1, bytes+is.Bytes()
	}
	r.keys.Add(int64(keys))
	r.bytes.Add(int64(bytes))
}

func checkKey(key []byte) error {
	if len(key) == 0 || len(key) > local.MaxKeyBytes {
		e := reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "key: %d bytes; it has 1 to %d", len(key), local.MaxKeyBytes)
		e.Detail.Limit = local.MaxKeyBytes
		return e
	}
	return nil
}

var errEnough = errors.New("enough")

// Scan lists keys of one region, at most limit of them; next is where to go on, or nil.
func (h *Host) Scan(at *storev1.RegionAt, start, end []byte, limit uint32) (entries []local.Entry, next []byte, err error) {
	switch {
	case limit == 0:
		limit = DefaultScan
	case limit > MaxScan:
		e := reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "limit: %d is above %d", limit, MaxScan)
		e.Detail.Limit = MaxScan
		return nil, nil, e
	}
	var r *hosted // the very one that is judged: its range is that of the epoch
	check := func() error {
		h.mu.RLock()
		defer h.mu.RUnlock()
		r = h.regions[rooted.RegionID(at.GetRegionId())]
		return h.judge(r, at, false)
	}
	if err := check(); err != nil {
		return nil, nil, err
	}
	if len(start) == 0 {
		start = []byte(r.region.Start)
	}
	if len(end) == 0 {
		end = []byte(r.region.End)
	}
	switch {
	case !r.region.Contains(string(start)) && len(start) > 0, r.region.End != "" && string(end) > r.region.End:
		return nil, nil, outside(r, "[%.64q, %.64q)", start, end)
	case len(end) > 0 && string(start) >= string(end):
		return nil, nil, reason.New(rootv1.Reason_REASON_INVALID_RANGE, "end_key is not above start_key: the range is [start, end)")
	}
	size := 0
	err = h.cfg.Disk.Scan(start, end, func(e *local.Entry) error {
		if len(entries) > 0 && (len(entries) >= int(limit) || size+e.Bytes() > maxScanBytes) {
			next = e.Key
			return errEnough
		}
		size += e.Bytes()
		entries = append(entries, *e)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	if err == nil {
		err = check()
	}
	h.served.Add(1)
	return entries, next, err
}
