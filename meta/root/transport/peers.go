package transport

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// maxGuests bounds the peers that this one has not heard of and lets in.
const maxGuests = 8

// strangersAfter is when a node of the -peer list that the cluster does not know
// is spoken of: the log may have to come first.
const strangersAfter = 10 * time.Second

// remotes are the peers that are there, and the guests. Never changed once stored.
func (t *Transport) remotes() map[uint64]*remote { return *t.peers.Load() }

// replace stores another set of remotes and has Run follow it. The lock is held.
func (t *Transport) replace(next map[uint64]*remote) {
	for node, p := range t.remotes() {
		if next[node] != p {
			t.let = append(t.let, p)
		}
	}
	t.peers.Store(&next)
	signal(t.changed)
}

// letGo returns who is a peer no more since the last call.
func (t *Transport) letGo() []*remote {
	t.mu.Lock()
	defer t.mu.Unlock()
	let := t.let
	t.let = nil
	return let
}

// SetPeers implements replica.Transport.
func (t *Transport) SetPeers(c *rootv1.Cluster) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cluster = c
	old, next := t.remotes(), map[uint64]*remote{}
	for _, p := range c.GetPeers() {
		if p.GetNodeId() == t.cfg.Identity.NodeID {
			continue
		}
		r := old[p.GetNodeId()]
		if r == nil || r.id.Incarnation != p.GetIncarnation() {
			r = newRemote(t, storage.Peer{NodeID: p.GetNodeId(), Incarnation: p.GetIncarnation()})
		}
		r.guest = false
		r.moved(t.reach(p.GetNodeId(), p.GetTransportAddress()))
		next[p.GetNodeId()] = r
	}
	for node, r := range old {
		// Whoever the record does not know yet stays as long as it talks: the record
		// may be an old one, which the log is being applied behind.
		if next[node] == nil && whyGone(c, node) == "" && r.talks() {
			r.guest = true
			next[node] = r
		}
	}
	t.replace(next)
	t.cfg.Memory.Forget(func(node uint64) bool { return whyGone(c, node) != "" })
	t.tellReplaced(c)
	if why := whyGone(c, t.cfg.Identity.NodeID); why != "" {
		t.end(&ReplacedError{Node: t.cfg.Identity.NodeID, Why: why})
	}
}

// end has Run end.
func (t *Transport) end(err error) {
	select {
	case t.over <- err:
	default: // It ends already.
	}
}

// reach is where a peer is dialed: the flag wins over what is known otherwise.
func (t *Transport) reach(node uint64, known string) string {
	if a := t.cfg.Addresses[node]; a != "" {
		return a
	}
	return known
}

// tellReplaced logs, once each, what of the -peer list a replacement has outdated.
// The lock is held.
func (t *Transport) tellReplaced(c *rootv1.Cluster) {
	for node := range t.cfg.Addresses {
		if why := whyGone(c, node); why != "" && !t.warned[node] && node != t.cfg.Identity.NodeID {
			t.warned[node] = true
			t.log.Warn("the -peer list names a root peer that is none any more: take it out at the next start", "peer", node, "reason", why)
		}
	}
}

// tellStrangers logs what the -peer list has and the cluster has not.
func (t *Transport) tellStrangers() {
	t.mu.Lock()
	c := t.cluster
	t.mu.Unlock()
	for _, node := range slices.Sorted(maps.Keys(t.cfg.Addresses)) {
		if node != t.cfg.Identity.NodeID && t.remotes()[node] == nil && whyGone(c, node) == "" {
			t.log.Warn("the -peer list names a root peer that the cluster does not have: take it out, or make it one with `nokv root replace`",
				"peer", node, "address", t.cfg.Addresses[node])
		}
	}
}

// whyGone says what became of a node that is a peer no more; empty: it is one, or never
// was. Of those that went long ago the record has the node ids alone.
func whyGone(c *rootv1.Cluster, node uint64) string {
	i := slices.IndexFunc(c.GetReplaced(), func(p *rootv1.RootPeer) bool { return p.GetNodeId() == node })
	switch {
	case i < 0 && !slices.Contains(c.GetReplacedNodeIds(), node):
		return ""
	case i >= 0 && c.GetReplaced()[i].GetRole() == rootv1.RootPeerRole_ROOT_PEER_ROLE_LEARNER:
		return fmt.Sprintf("root peer %d was given up before it voted", node)
	}
	for _, p := range slices.Concat(c.GetPeers(), c.GetReplaced()) {
		if p.GetReplaces() == node && p.GetRole() != rootv1.RootPeerRole_ROOT_PEER_ROLE_LEARNER {
			return fmt.Sprintf("root peer %d was replaced by root peer %d", node, p.GetNodeId())
		}
	}
	return fmt.Sprintf("root peer %d was replaced", node)
}

// follow keeps a pair of goroutines for each remote of the present set, until
// ctx ends.
func (t *Transport) follow(ctx context.Context) {
	var working sync.WaitGroup
	defer working.Wait()
	ends := map[*remote]context.CancelFunc{}
	strangers := time.NewTimer(strangersAfter)
	defer strangers.Stop()
	for {
		for _, p := range t.remotes() {
			if ends[p] != nil {
				continue
			}
			its, end := context.WithCancel(ctx)
			ends[p] = end
			working.Go(func() { p.run(its) })
			working.Go(func() { p.sendCheckpoints(its) })
		}
		// Behind the others: who came and went meanwhile was begun just now, or never.
		for _, p := range t.letGo() {
			if end := ends[p]; end != nil {
				end()
				delete(ends, p)
			}
			p.end()
			t.log.Info("root peer is let go", "peer", p.id.NodeID)
		}
		select {
		case <-t.changed:
		case <-strangers.C:
			t.tellStrangers()
		case <-ctx.Done():
			return
		}
	}
}

// admit finds the remote behind a hello of a member, and counts its connection in;
// or says why it is refused. gone is what became of one that was a peer, for itself to
// know: it has named the cluster and this workdir.
func (t *Transport) admit(h hello, version uint16, conn net.Conn) (p *remote, k kind, answer, why string) {
	me := t.cfg.Identity
	mine, theirs := party(me.NodeID, me.ClusterID, me.Incarnation), party(h.from, h.cluster, h.fromIncarnation)
	t.mu.Lock()
	defer t.mu.Unlock()
	p = t.remotes()[h.from]
	gone, old := whyGone(t.cluster, h.from), tooOld(h.from, h.level, t.cluster)
	switch {
	case h.cluster != me.ClusterID: // It has none yet.
		return nil, kindRefusal, refused, fmt.Sprintf("%s and %s belong to different clusters", mine, theirs)
	case h.from == me.NodeID:
		return nil, kindRefusal, refused, fmt.Sprintf("%s has no other peer %d: %s", mine, h.from, theirs)
	case h.toIncarnation != me.Incarnation:
		return nil, kindRefusal, refused, fmt.Sprintf("%s is not the workdir %016x that %s knows as root peer %d", mine, h.toIncarnation, theirs, h.to)
	case gone != "":
		return nil, kindReplaced, gone, fmt.Sprintf("%s knows that %s. Stop that process and keep its workdir from being started; a new peer takes an empty workdir and a new node id", mine, gone)
	case p != nil && p.id.Incarnation != h.fromIncarnation:
		return nil, kindRefusal, refused, fmt.Sprintf("%s knows root peer %d by workdir %016x, not as %s: the workdir was wiped or swapped", mine, h.from, p.id.Incarnation, theirs)
	case old != "":
		return nil, kindTooOld, old, old
	case p == nil:
		if p, why = t.invite(h); why != "" {
			return nil, kindRefusal, refused, why
		}
	}
	p.attach(conn, h.claim.Newest())
	p.heard(h.address, version, h.level)
	p.says(h.transport)
	return p, 0, "", ""
}

// tooOld says why a peer cannot read what this one would send; empty: it can.
func (t *Transport) tooOld(peer uint64, level uint32) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return tooOld(peer, level, t.cluster)
}

// invite takes in a peer that was added by an entry that this one lacks: it knows
// the cluster and this workdir, and its messages may be what the entry needs to come.
// The lock is held.
func (t *Transport) invite(h hello) (*remote, string) {
	guests := 0
	next := maps.Clone(t.remotes())
	for _, p := range next {
		if p.guest {
			guests++
		}
	}
	me := t.cfg.Identity
	mine, theirs := party(me.NodeID, me.ClusterID, me.Incarnation), party(h.from, h.cluster, h.fromIncarnation)
	address := t.reach(h.from, h.transport)
	if guests >= maxGuests || address == "" {
		return nil, fmt.Sprintf("%s does not know %s, and has %d others of that kind", mine, theirs, guests)
	}
	p := newRemote(t, storage.Peer{NodeID: h.from, Incarnation: h.fromIncarnation, Address: address})
	p.guest = true
	next[h.from] = p
	t.replace(next)
	t.log.Info("a root peer that this one has not heard of is let in", "peer", h.from, "workdir", fmt.Sprintf("%016x", h.fromIncarnation), "address", address)
	return p, ""
}

// leave counts a connection out. A guest goes with its last one.
func (t *Transport) leave(p *remote, conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.detach(conn) > 0 || !p.guest || t.remotes()[p.id.NodeID] != p {
		return
	}
	next := maps.Clone(t.remotes())
	delete(next, p.id.NodeID)
	t.replace(next)
}

// former are the clusters that this one was restored from.
func (t *Transport) former() []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Concat(t.cfg.Identity.Former, t.cluster.GetRestored().GetFormerClusterIds())
}

// roll is what a welcome says of the peers to a node, which may be one no more.
func (t *Transport) roll(node uint64) (members []storage.Peer, founders, replaced bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cluster == nil {
		return t.cfg.Identity.Peers, !t.cfg.Identity.Joined, false
	}
	for _, p := range t.cluster.GetPeers() {
		members = append(members, storage.Peer{NodeID: p.GetNodeId(), Incarnation: p.GetIncarnation(), Address: p.GetTransportAddress()})
	}
	return members, t.cluster.GetPeersRevision() == 0, whyGone(t.cluster, node) != ""
}

// names are peers in a sentence.
func names(peers []storage.Peer) string {
	var out []string
	for _, p := range sortedPeers(peers) {
		out = append(out, fmt.Sprint(p.NodeID))
	}
	return strings.Join(out, ", ")
}

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

// note keeps a candidate. Not taken: another workdir knocks under its node id,
// which it returns, or too many knock.
func (c *candidates) note(p storage.Peer) (taken, first bool, other uint64) {
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
	taken, first, other := t.candidates.note(p)
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
