package catalog

import "github.com/nokv/nokv/meta/root/state"

// UnusedParts is into how many parts Unused takes what was reported.
const UnusedParts = softShards

// Unused is a report of a region that its owner says nobody uses.
type Unused struct {
	Region      state.RegionID
	Incarnation uint64
	OwnReport
}

// Unused appends what is said in one part, 0 to UnusedParts-1, of regions that nobody uses.
// It holds a lock for as long as that takes.
func (s *Soft) Unused(part int, all []Unused) []Unused {
	shard := &s.regions[part]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	for key, r := range shard.own {
		if r.idle > 0 {
			all = append(all, Unused{key.region, key.incarnation, r.report()})
		}
	}
	return all
}
