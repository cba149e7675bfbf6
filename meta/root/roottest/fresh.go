package roottest

import (
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/replica"
	"go.etcd.io/raft/v3/raftpb"
)

// contact is a process that was let in by another.
type contact struct {
	peer *Peer
	life int
}

// alive says whether the process behind a contact runs.
func (k contact) alive() bool { return k.peer != nil && k.peer.core != nil && k.peer.life == k.life }

// admits says whether p takes connections of a process of from, as the transport
// judges them (rules 3 to 8 of freshness). A process that is refused as an older copy ends.
func (p *Peer) admits(from *Peer) bool {
	old := p.contacts[from.ID]
	switch {
	case old.peer == from && old.life == from.life:
		return true
	case from.core == nil || p.core == nil || from.paused || p.paused || p.cluster.Net.IsCut(from.Place, p.Place) || p.cluster.Net.IsCut(p.Place, from.Place):
		return false // Nobody shakes hands here.
	case p.cluster.cfg.Forgetful:
		p.contacts[from.ID] = contact{from, from.life}
		return true
	}
	if old.alive() && old.peer != from && !p.cluster.Net.IsCut(old.peer.Place, p.Place) && !p.cluster.Net.IsCut(p.Place, old.peer.Place) {
		from.stale(&freshness.StaleError{Node: from.ID, Why: "another process of it is alive"})
		return false
	}
	claim := from.claim
	claim.Runs = nil // As on the wire.
	before, err := p.store.Memory().Admit(from.ID, claim)
	if lacks := from.claim.Lacks(before); err == nil && lacks != "" {
		err = &freshness.StaleError{Node: from.ID, Why: lacks}
	}
	if e := new(freshness.StaleError); errors.As(err, &e) {
		from.stale(e)
	} else if errors.Is(err, disk.ErrCrashed) {
		p.fail(err)
	}
	if err != nil || p.core == nil {
		return false
	}
	p.contacts[from.ID] = contact{from, from.life}
	return true
}

// stale ends a process that was told that it runs on an older copy of its folder.
func (p *Peer) stale(err *freshness.StaleError) {
	if p.turning {
		// It is in the middle of something: it ends behind that.
		life := p.life
		p.cluster.World.After(time.Microsecond, func() {
			if p.core != nil && p.life == life {
				p.stale(err)
			}
		})
		return
	}
	p.cluster.World.Fault("older copy refused")
	_ = p.store.Bar(err.Why) // A disk that crashes here is told the same again.
	p.down()
	p.Err, p.Stale = err, true
}

// Copy is what the disk of a peer holds now.
func (p *Peer) Copy() *disk.Fake { return p.Disk.Clone(p.cluster.World.Rand.Uint64()) }

// PutBack ends a peer's process, puts its disk back as it was when a copy was made, and
// starts it again.
func (p *Peer) PutBack(older *disk.Fake) error {
	if p.core != nil {
		p.down()
	}
	p.cluster.World.Fault("disk put back from an older copy")
	p.Disk, p.crashed = older, false
	p.Disk.Reboot()
	return p.Start()
}

// CloneBeside starts a second process of a peer on a copy of its disk, on another machine.
// What is sent to the peer reaches either, by chance.
func (c *Cluster) CloneBeside(p *Peer, older *disk.Fake) (*Peer, error) {
	c.World.Fault("clone started beside the original")
	twin := &Peer{ID: p.ID, Place: p.Place + "'", Disk: older, Clock: c.World.NewClock(c.cfg.DriftPermille), cluster: c, identity: p.identity}
	twin.Disk.Reboot()
	c.twin = twin
	return twin, twin.Start()
}

// reached is the machine that what a peer sends to a node reaches.
func (p *Peer) reached(id uint64) *Peer {
	to := p.cluster.peer(id)
	twin := p.cluster.twin
	if twin == nil || twin.ID != id || twin.core == nil || p.ID == id {
		return to
	}
	if at, ok := p.reaches[twin]; ok && at.core != nil {
		return at
	}
	if to.core == nil || p.cluster.World.Chance(0.5) {
		to = twin
	}
	p.reaches[twin] = to
	return to
}

// arrives hands a message of a process over that was let in, and remembers what it
// promises.
func (p *Peer) arrives(from *Peer, life int, m *raftpb.Message) {
	if p.core == nil || p.refuses(from) || from.life == life && !p.admits(from) || p.contacts[from.ID] != (contact{from, life}) {
		return
	}
	if promise, ok := freshness.Promised(m); ok {
		p.store.Memory().Note(from.ID, from.claim.Newest(), promise)
	}
	if from.core != nil && from.life == life && !from.admits(p) {
		return // Rule 7.
	}
	p.deliver(from, m)
}

// Tell implements replica.Transport.
func (p *Peer) Tell(s replica.Standing) {
	life, start := p.life, p.claim.Newest()
	for _, other := range p.cluster.Peers {
		if other.ID == p.ID {
			continue
		}
		to, known := p.reached(other.ID), p.store.Memory().Table()
		delete(known, p.ID)
		p.cluster.Net.Send(p.Place, to.Place, func() {
			if to.core == nil || p.life == life && !to.admits(p) || to.contacts[p.ID] != (contact{p, life}) {
				return
			}
			mine := to.store.Memory()
			mine.Note(p.ID, start, s.Promise)
			delete(known, p.ID)
			mine.Hear(to.ID, known)
			to.observe(to.life, replica.Event{Kind: replica.PeerStateHash, Peer: p.ID, Index: s.Index, Hash: s.Hash})
		})
	}
}

// Twin is the clone beside an original; nil: there is none.
func (c *Cluster) Twin() *Peer { return c.twin }

// begin counts a start of the process.
func (p *Peer) begin() (err error) {
	if p.claim, err = p.store.Begin(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	p.contacts, p.reaches, p.Stale = map[uint64]contact{}, map[*Peer]*Peer{}, false
	return nil
}
