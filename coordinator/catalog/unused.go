package catalog

import (
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// UnusedParts is into how many parts Unused takes what was reported.
const UnusedParts = softShards

// Unused is a report of a region that its owner says nobody uses.
type Unused struct {
	Region      state.RegionID
	Incarnation uint64
	OwnReport
}

// IdleTimes are for how long regions of keyspaces are to be unused, by the low half of the
// keyspace's id: two keyspaces that share it have the shorter one.
type IdleTimes map[uint16]time.Duration

// Add has the regions of a keyspace looked for that are unused for so long.
func (t IdleTimes) Add(id state.KeyspaceID, idle time.Duration) {
	if old, two := t[uint16(id)]; !two || idle < old {
		t[uint16(id)] = idle
	}
}

// Unused appends what is said in one part, 0 to UnusedParts-1, of regions that nobody uses:
// those that their owner has stopped, and those that are unused for the time of their
// keyspace, and maybe some of others. It holds a lock for as long as that takes.
func (s *Soft) Unused(part int, of IdleTimes, now clock.Instant, all []Unused) []Unused {
	shard := &s.regions[part]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	for key, r := range shard.own {
		if r.idle > 0 && (r.stopped() || r.unused(of, now)) {
			all = append(all, Unused{key.region, key.incarnation, r.report()})
		}
	}
	return all
}

func (r *keptReport) stopped() bool {
	return coordinatorv1.RegionPhase(r.phase) == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
}

func (r *keptReport) unused(of IdleTimes, now clock.Instant) bool {
	idle, due := of[r.keyspace]
	return due && time.Duration(r.idle)*time.Second+now.Sub(r.at) >= idle
}
