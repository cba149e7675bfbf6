package transport

import (
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/meta/root/storage"
)

// Who knocks is remembered for candidateFor, and at most maxCandidates at a time.
const (
	maxCandidates = 16
	candidateFor  = 10 * time.Second
)

// candidates are the processes that knock to become a peer.
type candidates struct {
	mu sync.Mutex
	// Guarded by mu, in the order in which they first knocked.
	list []candidate
}

type candidate struct {
	peer storage.Peer
	at   time.Time // the last knock
}

// knock notes a candidate. Not taken: another workdir knocks under its node id,
// which it returns, or too many knock.
func (c *candidates) knock(p storage.Peer) (taken, first bool, other uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	i := slices.IndexFunc(c.list, func(k candidate) bool { return k.peer.NodeID == p.NodeID })
	switch {
	case i < 0 && len(c.list) >= maxCandidates:
		return false, false, 0
	case i < 0:
		c.list = append(c.list, candidate{p, time.Now()})
		return true, true, 0
	case c.list[i].peer.Incarnation != p.Incarnation:
		return false, false, c.list[i].peer.Incarnation
	}
	c.list[i] = candidate{p, time.Now()}
	return true, false, 0
}

// find returns who knocks under a node id.
func (c *candidates) find(node uint64) (storage.Peer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	for _, k := range c.list {
		if k.peer.NodeID == node {
			return k.peer, true
		}
	}
	return storage.Peer{}, false
}

// forget drops who has not knocked lately. The lock is held.
func (c *candidates) forget() {
	c.list = slices.DeleteFunc(c.list, func(k candidate) bool { return time.Since(k.at) >= candidateFor })
}

// Candidate is the process that knocks lately, with -join, to become root peer
// node: its workdir and the address of its transport. False: none does.
func (t *Transport) Candidate(node uint64) (storage.Peer, bool) { return t.candidates.find(node) }
