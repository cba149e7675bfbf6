package client

import "sync/atomic"

// Stats are counts since New.
type Stats struct {
	// Retries counts tries after the first of a call.
	Retries uint64
	// Hedges counts questions asked because a coordinator was silent.
	Hedges uint64
	// Redirects counts moves to a Tenure holder that a refusal named.
	Redirects uint64
	// LowerEras counts replies discarded because their era was below the highest one seen.
	LowerEras uint64
	// OrderViolations counts timestamp replies discarded because they were not
	// above an earlier one. Any is a defect of the cluster.
	OrderViolations uint64
	// OtherClusters counts calls that another cluster refused, and its answers, which are discarded.
	OtherClusters uint64
	// TsoRequests, AllocIDRequests and PublishRequests count requests sent for
	// merged callers; the Callers counts say for how many calls.
	TsoRequests, AllocIDRequests, PublishRequests uint64
	TsoCallers, AllocIDCallers, PublishCallers    uint64
	// StreamBreaks counts streams for timestamps, routes and publishing that ended in an error.
	StreamBreaks uint64
	// WatchResumes counts watches continued after a break, WatchRestarts those
	// that had to begin with a snapshot again.
	WatchResumes, WatchRestarts uint64
	// CacheSkipped counts regions that a route cache had no room for.
	CacheSkipped uint64
	// Era is the highest era seen.
	Era uint64
	// ClusterID is the cluster pinned; 0 before the first answer.
	ClusterID uint64
}

// counters are what Stats is read from.
type counters struct {
	retries, hedges, redirects                    atomic.Uint64
	lowerEras, orderViolations, otherClusters     atomic.Uint64
	tsoRequests, allocIDRequests, publishRequests atomic.Uint64
	tsoCallers, allocIDCallers, publishCallers    atomic.Uint64
	streamBreaks, watchResumes, watchRestarts     atomic.Uint64
	cacheSkipped                                  atomic.Uint64
}

// Stats returns the counts so far.
func (c *Client) Stats() Stats {
	n := &c.count
	return Stats{
		Retries: n.retries.Load(), Hedges: n.hedges.Load(), Redirects: n.redirects.Load(),
		LowerEras: n.lowerEras.Load(), OrderViolations: n.orderViolations.Load(), OtherClusters: n.otherClusters.Load(),
		TsoRequests: n.tsoRequests.Load(), AllocIDRequests: n.allocIDRequests.Load(), PublishRequests: n.publishRequests.Load(),
		TsoCallers: n.tsoCallers.Load(), AllocIDCallers: n.allocIDCallers.Load(), PublishCallers: n.publishCallers.Load(),
		StreamBreaks: n.streamBreaks.Load(), WatchResumes: n.watchResumes.Load(), WatchRestarts: n.watchRestarts.Load(),
		CacheSkipped: n.cacheSkipped.Load(), Era: c.era.Load(), ClusterID: c.cluster.Load(),
	}
}
