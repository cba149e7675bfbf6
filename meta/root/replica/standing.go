package replica

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/nokv/nokv/meta/root/freshness"
	"go.etcd.io/raft/v3/raftpb"
)

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

// hashes compare state hashes among peers: at fixed positions, which all of them pass,
// and where a peer rests.
type hashes struct {
	every uint64
	node  uint64
	// reported are the hashes that peers told, by index and peer; the oldest is dropped beyond
	// maxHashPositions.
	reported map[uint64]map[uint64]uint64
	// mismatches counts positions with different hashes.
	mismatches uint64

	// own is the newest position that this peer has a hash of, with the hash.
	own, hash uint64
	// agreed are the voters whose state was this peer's, with the newest position; apart
	// are those whose state was another since.
	agreed map[uint64]uint64
	apart  map[uint64]parting
	// apartFor counts the ticks since no majority bears this peer's state out; silent
	// says that this peer does not vote for that.
	apartFor int
	silent   bool
}

// parting is the first and the newest position at which two states differed.
type parting struct{ first, last uint64 }

// maxHashPositions bounds the positions for which hashes are remembered.
const maxHashPositions = 32

func (h *hashes) init(cfg Config) {
	h.every, h.node = cfg.HashEvery, cfg.NodeID
	h.reported, h.agreed, h.apart = make(map[uint64]map[uint64]uint64), make(map[uint64]uint64), make(map[uint64]parting)
}

// telling is when this peer tells of itself.
type telling struct {
	// acked is what this peer acknowledged last, in ackedTerm.
	acked, ackedTerm uint64
	// due says that it is time; said is what was told last, at tick at; applied is where
	// this peer was then.
	due         bool
	said        Standing
	at, applied uint64
}

// answered notes what leaves this peer, behind the write that makes it true.
func (t *telling) answered(messages []*raftpb.Message) {
	for _, m := range messages {
		if m.GetType() != raftpb.MsgAppResp || m.GetReject() {
			continue
		}
		if m.GetTerm() != t.ackedTerm {
			t.acked, t.ackedTerm = 0, m.GetTerm()
		}
		t.acked = max(t.acked, m.GetIndex())
	}
}

// promise is what this peer has promised, all of it durable. A leader promises its own log.
func (c *Core) promise() freshness.Promise {
	p := freshness.Promise{Term: c.hard.GetTerm(), Vote: c.hard.GetVote()}
	if c.leads() {
		p.Index = c.persisted
	} else if c.telling.ackedTerm == p.Term {
		p.Index = c.telling.acked
	}
	if term, err := c.log.Term(p.Index); err == nil {
		p.IndexTerm = term
	}
	return p
}

// tell tells the others what this peer promised and how its state is: with every
// heartbeat when there is something new, else once in an election timeout.
func (c *Core) tell() error {
	t := &c.telling
	if !t.due || c.members.alone() || !c.members.has(c.cfg.NodeID) {
		return nil
	}
	t.due = false
	applied := c.state.Token().Index
	if applied == t.applied && applied != c.hashes.own && applied > 0 {
		// It rests here, and others may rest with it.
		if err := c.ownHash(applied); err != nil {
			return err
		}
	}
	t.applied = applied
	if t.said != c.standing() || c.ticks-t.at >= uint64(c.cfg.ElectionTicks) {
		c.say()
	}
	return nil
}

func (c *Core) standing() Standing {
	return Standing{Index: c.hashes.own, Hash: c.hashes.hash, Promise: c.promise()}
}

func (c *Core) say() {
	c.telling.said, c.telling.at = c.standing(), c.ticks
	c.cfg.Transport.Tell(c.telling.said)
}

// passed takes this peer's hash at every fixed position, and tells it: peers that go on
// compare there.
func (c *Core) passed(index uint64) error {
	if index%c.hashes.every != 0 || c.members.alone() {
		return nil
	}
	if err := c.ownHash(index); err != nil {
		return err
	}
	c.say()
	return nil
}

// ownHash takes this peer's hash where it is.
func (c *Core) ownHash(index uint64) error {
	c.hashes.own, c.hashes.hash = index, c.state.Hash()
	return c.compareHash(c.cfg.NodeID, index, c.hashes.hash)
}

// peerHash takes what another peer told of its state.
func (c *Core) peerHash(peer, index, hash uint64) error {
	if index == 0 || !c.members.has(peer) || peer == c.cfg.NodeID || c.objectHash(index) {
		return nil
	}
	if err := c.compareHash(peer, index, hash); err != nil || index != c.state.Token().Index || index == c.hashes.own {
		return err
	}
	return c.ownHash(index)
}

// compareHash notes a hash. It returns a *DivergenceError when those who decide
// agree on another hash than this peer's: a learner has its state from one of
// them, and does not bear it out.
func (c *Core) compareHash(peer, index, hash uint64) error {
	h := &c.hashes
	hashes := h.at(index)
	if hashes == nil {
		return nil
	}
	before := len(distinct(hashes))
	hashes[peer] = hash
	counts := distinct(hashes)
	if len(counts) > 1 && before <= 1 {
		h.mismatches++
		c.changed = true
		c.cfg.Logger.Error("state hashes differ", "peer", c.cfg.NodeID, "index", index, "hashes", fmt.Sprintf("%x", hashes))
	}
	own, known := hashes[h.node]
	if !known {
		return nil
	}
	for majority, n := range counts {
		if majority != own && c.members.decide(func(id uint64) bool { told, ok := hashes[id]; return ok && told == majority }) {
			return &DivergenceError{Index: index, Own: own, Majority: majority, Agreeing: n}
		}
	}
	for id, told := range hashes {
		c.compared(id, index, told == own)
	}
	return nil
}

// compared notes whether another voter had this peer's state at a position.
func (c *Core) compared(id, index uint64, same bool) {
	h := &c.hashes
	if id == h.node || !slices.Contains(c.members.Voters, id) && !slices.Contains(c.members.Outgoing, id) {
		return
	}
	p, apart := h.apart[id]
	switch {
	case same && apart && index <= p.last:
		return // Of before they parted.
	case same:
		h.agreed[id] = max(h.agreed[id], index)
		delete(h.apart, id)
	case !apart:
		h.apart[id] = parting{index, index}
	default:
		h.apart[id] = parting{min(p.first, index), max(p.last, index)}
	}
	c.changed = c.changed || apart == same
}

// tickHashes has this peer stop voting while another voter's state differs from its
// own and no majority bears its own out: one of the two is wrong, and nobody knows
// which. Only who agrees at or behind the parting bears a state out. It waits two election
// timeouts, in which others tell of themselves.
func (c *Core) tickHashes(out *Output) {
	h := &c.hashes
	first := uint64(math.MaxUint64)
	for id, p := range h.apart {
		if first = min(first, p.first); !c.members.has(id) {
			delete(h.apart, id)
			c.changed = true
		}
	}
	if len(h.apart) == 0 || c.members.decide(func(id uint64) bool { return id == h.node || h.agreed[id] >= first }) {
		if h.apartFor = 0; h.silent {
			h.silent, c.changed = false, true
			c.cfg.Logger.Info("voting again: a majority has this peer's state", "peer", c.cfg.NodeID)
		}
		return
	}
	if h.apartFor++; h.silent || h.apartFor < 2*c.cfg.ElectionTicks {
		return
	}
	c.cfg.Logger.Error("this peer does not vote any more: "+c.differs(), "peer", c.cfg.NodeID)
	c.stepDown(out)
	h.silent, c.changed = true, true
}

// differs says in a sentence whose state differs from this peer's; empty: nobody's.
func (c *Core) differs() string {
	h := &c.hashes
	for _, id := range slices.Sorted(maps.Keys(h.apart)) {
		return fmt.Sprintf("the state of root peer %d differs from that of root peer %d at entry %d, and at most one of them is right: "+
			"compare their folders with `nokv witness --workdir A --workdir B`, stop the wrong one, replace it, and start the other one again", id, h.node, h.apart[id].first)
	}
	return ""
}

// at is what was told about index; nil when index is too old to keep.
func (h *hashes) at(index uint64) map[uint64]uint64 {
	if r := h.reported[index]; r != nil {
		return r
	}
	if len(h.reported) >= maxHashPositions {
		oldest := index
		for i := range h.reported {
			oldest = min(oldest, i)
		}
		if oldest == index {
			return nil
		}
		delete(h.reported, oldest)
	}
	r := make(map[uint64]uint64)
	h.reported[index] = r
	return r
}

func distinct(hashes map[uint64]uint64) map[uint64]int {
	counts := make(map[uint64]int)
	for _, hash := range hashes {
		counts[hash]++
	}
	return counts
}
