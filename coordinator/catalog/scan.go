package catalog

import (
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Bounds of ScanRegionsRequest.limit.
const (
	// DefaultScanLimit is what a limit of 0 stands for.
	DefaultScanLimit = 256
	// MaxScanLimit is the highest limit.
	MaxScanLimit = 4096
)

// Page is a part of a scan.
type Page struct {
	// Keyspace that was scanned.
	Keyspace *rootv1.Keyspace
	// Regions in the order of their route keys.
	Regions []*state.Region
	// Next is the route key to go on from; empty when the scan is complete.
	Next string
}

// Scan lists the regions of a keyspace that share a key with the route keys
// [start, end), limit of them at most. An empty start is the beginning, an empty
// end the end. It refuses with REASON_NOT_FOUND when there is no such keyspace,
// REASON_INVALID_RANGE when the interval is empty, and REASON_INVALID_REQUEST
// when the limit is above MaxScanLimit.
func Scan(st *state.State, keyspace string, start, end []byte, limit uint32) (Page, error) {
	if limit == 0 {
		limit = DefaultScanLimit
	}
	if limit > MaxScanLimit {
		e := reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "a scan lists at most %d regions, %d were asked for", MaxScanLimit, limit)
		e.Detail.Limit = MaxScanLimit
		return Page{}, e
	}
	if len(end) > 0 && string(start) >= string(end) {
		return Page{}, reason.New(rootv1.Reason_REASON_INVALID_RANGE, "[%.64q, %.64q) holds no key", start, end)
	}
	ks, err := Keyspace(st, keyspace)
	if err != nil {
		return Page{}, err
	}
	page := Page{Keyspace: ks}
	until := string(end)
	st.RegionsFrom(state.KeyspaceID(ks.GetId()), string(start), func(r *state.Region) bool {
		if until != "" && r.Start >= until {
			return false
		}
		if len(page.Regions) == int(limit) {
			page.Next = r.Start
			return false
		}
		page.Regions = append(page.Regions, r)
		return true
	})
	return page, nil
}
