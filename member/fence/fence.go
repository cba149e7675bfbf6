// Package fence keeps an owner that was replaced from changing what is not its memory.
//
// An epoch is a fencing token: every owner set has another one, and of all that a key ever
// has later ones are higher, also behind splits and merges of regions. A resource that
// remembers the highest epoch that it has seen of each range of keys, and refuses lower ones,
// needs neither clocks nor leases. Guard is such a memory for a resource that is a Go process;
// docs/members.md has recipes for SQL and for files, where the check and the write have to be
// one step just the same.
package fence

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tidwall/btree"

	"github.com/nokv/nokv/rooted"
)

// Keys are those of a region: [Start, End) of its keyspace. An empty End is above all keys.
type Keys struct {
	Start, End string
}

// String is the interval.
func (k Keys) String() string { return fmt.Sprintf("[%q, %q)", k.Start, k.End) }

// Overlap reports whether a key is in both.
func (k Keys) Overlap(o Keys) bool { return !k.below(o.Start) && !o.below(k.Start) }

// below reports whether the keys end at a key or before it; "" is the least key here.
func (k Keys) below(key string) bool { return k.End != "" && k.End <= key }

// StaleError says that an epoch is below the highest that was seen of a part of the keys:
// whoever sent it is not their owner any more.
type StaleError struct {
	Keys           Keys
	Asked, Highest rooted.Epoch
}

// Error implements error.
func (e *StaleError) Error() string {
	return fmt.Sprintf("keys %s: epoch %s is over, %s was seen", e.Keys, e.Asked, e.Highest)
}

// ErrFull says that a Guard knows as many ranges of keys as it may.
var ErrFull = errors.New("the guard knows as many ranges as it may: make it larger")

// DefaultRanges is how many ranges of keys the zero Guard knows at most.
const DefaultRanges = 1 << 20

// Guard refuses epochs below the highest seen, by the keys of one assigned keyspace. It does
// not ask which region they are in: epochs of all regions that a key was ever in are in order.
// A keyspace that is deleted and made again is another one, for another Guard. The zero Guard
// is ready. Any number of goroutines may use it. It forgets when its process ends, so it is
// for what ends with the process, too.
type Guard struct {
	// Ranges is how many it may know; 0: DefaultRanges.
	Ranges int

	// mu guards seen, and what is in its spans. Who needs both locks a span first.
	mu sync.Mutex
	// seen are disjoint, by their start.
	seen btree.Map[string, *span]
}

// span is a range of keys of which one highest epoch was seen. Who holds its mu writes to it,
// or makes other spans of it.
type span struct {
	mu      sync.Mutex
	keys    Keys
	highest rooted.Epoch
}

// Do runs write, which is of a region's owner, if no higher epoch of any of the region's keys
// was seen, and lets no other write of such keys run meanwhile: what an owner writes cannot
// land behind what its successor has written. A *StaleError, ErrFull, or that there are no
// such keys: write was not run.
func (g *Guard) Do(region Keys, epoch rooted.Epoch, write func() error) error {
	s, err := g.take(region, epoch)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	return write()
}

// Raise notes an epoch, so that lower ones are refused from now on. An owner raises its
// region's when it acquires it, before it reads what is there.
func (g *Guard) Raise(region Keys, epoch rooted.Epoch) error {
	return g.Do(region, epoch, func() error { return nil })
}

// take makes one span of the keys, at the epoch, and returns it locked.
func (g *Guard) take(keys Keys, epoch rooted.Epoch) (*span, error) {
	if keys.below(keys.Start) {
		return nil, fmt.Errorf("there are no keys in %s: its end has to be above its start, or empty", keys)
	}
	var room [4]*span
	g.mu.Lock()
	over := g.over(keys, room[:0])
	g.mu.Unlock()
	for {
		for _, s := range over { // in the order of keys, as everybody does
			s.mu.Lock()
		}
		g.mu.Lock()
		now := g.over(keys, nil)
		var s *span
		var err error
		same := slices.Equal(over, now)
		if same {
			s, err = g.claim(over, keys, epoch)
		}
		g.mu.Unlock()
		for _, o := range over {
			if o != s {
				o.mu.Unlock()
			}
		}
		if same {
			return s, err
		}
		over = now // others have cut or joined them meanwhile
	}
}

// over appends the spans that overlap keys, in their order.
func (g *Guard) over(keys Keys, to []*span) []*span {
	from := keys.Start
	g.seen.Descend(keys.Start, func(start string, s *span) bool {
		if !s.keys.below(keys.Start) {
			from = start
		}
		return false
	})
	g.seen.Ascend(from, func(start string, s *span) bool {
		if keys.below(start) {
			return false
		}
		to = append(to, s)
		return true
	})
	return to
}

// claim puts one span at an epoch in the place of those parts of others that are within keys.
// over are all that overlap them; the caller has locked them.
func (g *Guard) claim(over []*span, keys Keys, epoch rooted.Epoch) (*span, error) {
	for _, o := range over {
		if o.highest.Compare(epoch) > 0 {
			return nil, &StaleError{Keys: keys, Asked: epoch, Highest: o.highest}
		}
	}
	if len(over) == 1 && over[0].keys == keys {
		over[0].highest = epoch
		return over[0], nil
	}
	parts := make([]*span, 0, 2) // of others, to both sides of keys
	for _, o := range over {
		if o.keys.Start < keys.Start {
			parts = append(parts, &span{keys: Keys{o.keys.Start, keys.Start}, highest: o.highest})
		}
		if keys.End != "" && !o.keys.below(keys.End) {
			parts = append(parts, &span{keys: Keys{keys.End, o.keys.End}, highest: o.highest})
		}
	}
	most := g.Ranges
	if most == 0 {
		most = DefaultRanges
	}
	if more := len(parts) + 1 - len(over); more > 0 && g.seen.Len()+more > most {
		return nil, ErrFull
	}
	for _, o := range over {
		g.seen.Delete(o.keys.Start)
	}
	s := &span{keys: keys, highest: epoch}
	s.mu.Lock()
	for _, p := range append(parts, s) {
		g.seen.Set(p.keys.Start, p)
	}
	return s, nil
}
