package rooted

import "time"

// Stats is what an application tells of a region.
type Stats struct {
	// Load is in units that are comparable within a keyspace.
	Load  float64
	Keys  uint64
	Bytes uint64
	// Idle is how long nobody has used the region; 0: not known.
	Idle time.Duration
	// Leader: it leads the region's own replication group. Saturated: its share of a
	// shared region is more than it can serve.
	Leader, Saturated bool
}

// Load is a member's load as a whole, or a region's share of it.
type Load struct {
	// Load is in units of the application's own, and Capacity the most of it, the load limit: not
	// the member's weight, which is Config.Capacity. 0: not known.
	Load, Capacity float64
}

// MemberCounts are what a member has counted since its incarnation began.
type MemberCounts struct {
	// SetsObeyed and SetsIgnored count sets by what was done with them; SetsUnfit those
	// that did not come out as the coordinator's.
	SetsObeyed, SetsIgnored, SetsUnfit uint64
	// Confirmed counts confirmations, Unconfirmed times that a keyspace ran out of them.
	Confirmed, Unconfirmed uint64
	// Frames counts frames made, Reports regions reported in them.
	Frames, Reports uint64
	// Failed counts calls that failed, Expired times that requests had not ended within
	// the grace that they have, and lost their right.
	Failed, Expired uint64
}
