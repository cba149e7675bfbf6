// Package fence keeps an owner that was replaced from changing what is not its memory.
//
// An epoch is a fencing token: every owner set of a region has another one, and later
// ones are higher. A resource that remembers the highest epoch that it has seen of a
// region, and refuses lower ones, needs neither clocks nor leases. Guard is such a memory
// for a resource that is a Go process; docs/members.md has recipes for SQL and for files,
// where the check and the write have to be one step just the same.
package fence

import (
	"errors"
	"fmt"
	"sync"

	"github.com/nokv/nokv/rooted"
)

// StaleError says that an epoch is below the highest that was seen: whoever sent it is
// not the owner any more.
type StaleError struct {
	Region         rooted.RegionID
	Asked, Highest rooted.Epoch
}

// Error implements error.
func (e *StaleError) Error() string {
	return fmt.Sprintf("region %d: epoch %s is over, %s was seen", e.Region, e.Asked, e.Highest)
}

// ErrFull says that a Guard knows as many regions as it may.
var ErrFull = errors.New("the guard knows as many regions as it may: make it larger")

// DefaultRegions is how many regions the zero Guard knows at most.
const DefaultRegions = 1 << 20

const shards = 64

// Guard refuses epochs below the highest seen, by region. The zero Guard is ready. Any
// number of goroutines may use it. It forgets when its process ends, so it is for what
// ends with the process, too.
type Guard struct {
	// Regions is how many it may know; 0: DefaultRegions.
	Regions int

	shards [shards]shard
}

type shard struct {
	mu sync.Mutex
	at map[rooted.RegionID]*seen
}

type seen struct {
	mu      sync.Mutex
	highest rooted.Epoch
}

// Do runs write if no higher epoch of the region was seen, and lets no other write of
// the region run meanwhile: what an owner writes cannot land behind what its successor
// has written. A *StaleError, or ErrFull: write was not run.
func (g *Guard) Do(region rooted.RegionID, epoch rooted.Epoch, write func() error) error {
	s, err := g.seen(region)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch.Version < s.highest.Version || epoch.ConfVersion < s.highest.ConfVersion {
		return &StaleError{Region: region, Asked: epoch, Highest: s.highest}
	}
	s.highest = epoch
	return write()
}

// Raise notes an epoch, so that lower ones are refused from now on.
func (g *Guard) Raise(region rooted.RegionID, epoch rooted.Epoch) error {
	return g.Do(region, epoch, func() error { return nil })
}

func (g *Guard) seen(region rooted.RegionID) (*seen, error) {
	most := g.Regions
	if most == 0 {
		most = DefaultRegions
	}
	at := &g.shards[region%shards]
	at.mu.Lock()
	defer at.mu.Unlock()
	s := at.at[region]
	if s != nil {
		return s, nil
	}
	if len(at.at) >= (most+shards-1)/shards {
		return nil, ErrFull
	}
	if at.at == nil {
		at.at = map[rooted.RegionID]*seen{}
	}
	s = &seen{}
	at.at[region] = s
	return s, nil
}
