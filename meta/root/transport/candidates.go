package transport

import (
	"fmt"
	"net"
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

// consider looks at who belongs to no cluster yet: it is welcome to learn who the
// peers are, and a candidate if it is none. With a reason it is put off, or refused.
func (t *Transport) consider(h hello, w welcome, remote net.Addr) (k kind, why string) {
	theirs := party(h.from, h.cluster, h.fromIncarnation)
	for _, m := range w.members {
		switch {
		case m.NodeID != h.from:
		case m.Incarnation != h.fromIncarnation:
			// The welcome says so, and ends it.
			t.noteRefused(h.from, remote, fmt.Sprintf("it is workdir %016x, the cluster knows %016x: wiped, or the wrong one", h.fromIncarnation, m.Incarnation))
			return 0, ""
		default:
			return 0, ""
		}
	}
	switch {
	case w.replaced:
		t.noteRefused(h.from, remote, fmt.Sprintf("it is workdir %016x, and root peer %d was replaced or given up: a new peer takes a new node id", h.fromIncarnation, h.from))
		return 0, ""
	case h.purpose == forBootstrap:
		t.noteRefused(h.from, remote, fmt.Sprintf("it is not among the root peers %s", names(w.members)))
		return 0, ""
	case h.from == 0 || h.fromIncarnation == 0 || h.transport == "":
		return kindRefusal, fmt.Sprintf("%s does not say who and where it is", theirs)
	}
	if why := t.tooOld(h.from, h.level); why != "" {
		t.noteRefused(h.from, remote, why)
		return kindNotYet, why
	}
	p := storage.Peer{NodeID: h.from, Incarnation: h.fromIncarnation, Address: h.transport}
	taken, first, other := t.candidates.knock(p)
	switch {
	case other != 0:
		t.noteRefused(h.from, remote, fmt.Sprintf("workdir %016x knocks as root peer %d already: stop that process, or %s", other, h.from, theirs))
		return kindNotYet, fmt.Sprintf("another process knocks as root peer %d already: stop it, or this one", h.from)
	case !taken:
		return kindNotYet, fmt.Sprintf("more than %d processes wait to become a root peer", maxCandidates)
	case first:
		t.log.Info("a process waits to become a root peer: run `nokv root replace --lost ID --with "+fmt.Sprint(h.from)+"`",
			"peer", h.from, "workdir", fmt.Sprintf("%016x", h.fromIncarnation), "address", h.transport)
	}
	return 0, ""
}
