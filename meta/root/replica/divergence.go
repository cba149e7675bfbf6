package replica

import "fmt"

// DivergenceError says that this peer's state differs from the one that most
// peers agree upon at the same position. The peer must not go on.
type DivergenceError struct {
	Index uint64
	// Own is this peer's state hash, Majority the one most peers have.
	Own, Majority uint64
	// Agreeing is the number of peers that have Majority.
	Agreeing int
}

// Error implements error.
func (e *DivergenceError) Error() string {
	return fmt.Sprintf("state diverged at index %d: hash %016x here, %016x on %d peers", e.Index, e.Own, e.Majority, e.Agreeing)
}

// hashes compare state hashes among peers at fixed positions.
type hashes struct {
	every uint64
	node  uint64
	// rounds is what peers told, by index; the oldest is dropped beyond
	// maxHashRounds.
	rounds map[uint64]map[uint64]uint64
	// mismatches counts rounds with different hashes that no majority settled.
	mismatches uint64
}

// maxHashRounds bounds the positions for which hashes are remembered.
const maxHashRounds = 16

func (h *hashes) init(cfg Config) {
	h.every, h.node = cfg.HashEvery, cfg.NodeID
	h.rounds = make(map[uint64]map[uint64]uint64)
}

// ownHash tells the others this peer's hash at every fixed position.
func (c *Core) ownHash(index uint64) error {
	if index%c.hashes.every != 0 || c.members.alone() {
		return nil
	}
	hash := c.state.Hash()
	c.cfg.Transport.SendStateHash(index, hash)
	return c.compareHash(c.cfg.NodeID, index, hash)
}

// compareHash notes a hash. It returns a *DivergenceError when those who decide
// agree on another hash than this peer's: a learner has its state from one of
// them, and does not bear it out.
func (c *Core) compareHash(peer, index, hash uint64) error {
	h := &c.hashes
	if index%h.every != 0 {
		return nil
	}
	round := h.round(index)
	if round == nil {
		return nil
	}
	before := len(distinct(round))
	round[peer] = hash
	counts := distinct(round)
	if len(counts) > 1 && before <= 1 {
		h.mismatches++
		c.changed = true
		c.cfg.Logger.Error("state hashes differ", "peer", c.cfg.NodeID, "index", index, "hashes", fmt.Sprintf("%x", round))
	}
	own, known := round[h.node]
	if !known {
		return nil
	}
	for majority, n := range counts {
		if majority != own && c.members.decide(func(id uint64) bool { told, ok := round[id]; return ok && told == majority }) {
			return &DivergenceError{Index: index, Own: own, Majority: majority, Agreeing: n}
		}
	}
	return nil
}

// round is what was told about index; nil when index is too old to keep.
func (h *hashes) round(index uint64) map[uint64]uint64 {
	if r := h.rounds[index]; r != nil {
		return r
	}
	if len(h.rounds) >= maxHashRounds {
		oldest := index
		for i := range h.rounds {
			oldest = min(oldest, i)
		}
		if oldest == index {
			return nil
		}
		delete(h.rounds, oldest)
	}
	r := make(map[uint64]uint64)
	h.rounds[index] = r
	return r
}

func distinct(round map[uint64]uint64) map[uint64]int {
	counts := make(map[uint64]int)
	for _, hash := range round {
		counts[hash]++
	}
	return counts
}
