// Package hotkeys finds the keys of a region that are used most, in little memory.
//
// It is a Space-Saving sketch of 64 counters over a sample of what is used: a key
// that has more than a 64th of the sample is among them. What is seldom used now
// makes room for what is used much; old counts fade.
package hotkeys

import (
	"cmp"
	"slices"
	"sync"
)

const (
	// counters is how many keys are counted.
	counters = 64
	// MaxKeyBytes is the longest key that is counted.
	MaxKeyBytes = 256
	// oneIn is how few of the uses are looked at.
	oneIn = 8
	// fadeAt is the number of uses looked at after which all counts are halved.
	fadeAt = 1 << 14
)

// Sketch counts the keys of one region. Any number of goroutines may use it.
type Sketch struct {
	below func(uint32) uint32

	mu sync.Mutex
	// Guarded by mu.
	keys   map[string]int
	counts []counter
	total  uint64
}

type counter struct {
	key   string
	count uint64
}

// New makes an empty Sketch, which samples by chance: below returns a random number below n,
// and any number of goroutines may call it.
func New(below func(n uint32) uint32) *Sketch {
	return &Sketch{below: below, keys: make(map[string]int, counters)}
}

// Touch notes a use of a key, perhaps. It never waits: who finds the Sketch taken
// goes on, and is one of those that are not looked at.
func (s *Sketch) Touch(key []byte) {
	if s.below(oneIn) != 0 || len(key) == 0 || len(key) > MaxKeyBytes || !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	s.add(key)
}

func (s *Sketch) add(key []byte) {
	if s.total++; s.total%fadeAt == 0 {
		s.total = 0
		for i := range s.counts {
			s.counts[i].count /= 2
			s.total += s.counts[i].count
		}
	}
	if i, ok := s.keys[string(key)]; ok {
		s.counts[i].count++
		return
	}
	if len(s.counts) < counters {
		s.keys[string(key)] = len(s.counts)
		s.counts = append(s.counts, counter{string(key), 1})
		return
	}
	least := 0
	for i := range s.counts {
		if s.counts[i].count < s.counts[least].count {
			least = i
		}
	}
	delete(s.keys, s.counts[least].key)
	s.counts[least] = counter{string(key), s.counts[least].count + 1}
	s.keys[s.counts[least].key] = least
}

// Hot is a key and its share of the uses in thousandths.
type Hot struct {
	Key      string
	Permille uint32
}

// Top returns at most so many keys with at least a hundredth of the uses, the hottest
// first, and the key below which as near to half of the uses that were counted are as can
// be, three tenths at least where no key has more than four; empty: none is known.
func (s *Sketch) Top(most int) (hot []Hot, median string) {
	s.mu.Lock()
	all, total := slices.Clone(s.counts), s.total
	s.mu.Unlock()
	if total == 0 {
		return nil, ""
	}
	slices.SortFunc(all, func(a, b counter) int { return cmp.Compare(a.key, b.key) })
	sum, below := uint64(0), uint64(0)
	for _, c := range all {
		sum += c.count
	}
	for _, c := range all {
		half := below + c.count
		if 2*half >= sum {
			if median = c.key; 2*half-sum < sum-2*below {
				median += "\x00" // behind it is nearer
			}
			break
		}
		below = half
	}
	slices.SortStableFunc(all, func(a, b counter) int { return cmp.Compare(b.count, a.count) })
	for _, c := range all[:min(most, len(all))] {
		if share := uint32(min(1000*c.count/total, 1000)); share >= 10 {
			hot = append(hot, Hot{c.key, share})
		}
	}
	return hot, median
}
