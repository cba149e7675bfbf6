package client

import (
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/rooted"
)

// Peer is a member as a Cache knows it, and as this process has found it. There is
// one for each member, for as long as the cache knows it or has a region of it.
// Its methods may be called by any number of goroutines.
type Peer struct {
	own     owners // itself, so that regions of one owner share a list
	now     atomic.Pointer[Member]
	avoided atomic.Pointer[time.Time] // until when; nil: it is not
	alone   [1]*Peer                  // of own

	// Guarded by Cache.mu.
	refs  int  // owners of regions that are this member
	takes bool // it may be given regions of the keyspace
	waits map[*wait]struct{}

	_       [64]byte // what callers write is in a line of its own
	pending atomic.Int64
	_       [56]byte
}

func newPeer(m Member) *Peer {
	p := &Peer{}
	p.alone[0] = p
	p.own.peers = p.alone[:]
	p.now.Store(&m)
	return p
}

// Member returns what is known of the member: of one that is not known, or gone,
// the id.
func (p *Peer) Member() Member { return *p.now.Load() }

// Now is Member for a caller in a hurry. It is shared: read only.
func (p *Peer) Now() *Member { return p.now.Load() }

// hear takes in what a member is now; false: it was known. Called with mu held, before show.
func (k *Cache) hear(p *Peer, m Member) bool {
	if *p.now.Load() == m {
		return false
	}
	p.now.Store(&m)
	k.waits.member(p)
	return true
}

// Avoid has the member avoided until a time, where there are others: it could not
// be reached. The zero Time ends that.
func (p *Peer) Avoid(until time.Time) {
	if until.IsZero() {
		p.avoided.Store(nil)
	} else {
		p.avoided.Store(&until)
	}
}

// Avoided says whether the member is to be avoided.
func (p *Peer) Avoided() bool {
	until := p.avoided.Load()
	return until != nil && time.Now().Before(*until)
}

// Begin and End count what this process has under way at the member.
func (p *Peer) Begin() { p.pending.Add(1) }

// End is for what Begin counted.
func (p *Peer) End() { p.pending.Add(-1) }

// Pending is how many are under way.
func (p *Peer) Pending() int64 { return p.pending.Load() }

// peerOf is the Peer of a member. Called with mu held.
func (k *Cache) peerOf(id rooted.MemberID) *Peer {
	p := k.peers[id]
	if p == nil {
		p = newPeer(Member{ID: id})
		k.peers[id] = p
		k.found.Store(id, p)
	}
	return p
}

// forgetPeer drops a member that nothing names. Called with mu held.
func (k *Cache) forgetPeer(id rooted.MemberID) {
	delete(k.peers, id)
	k.found.Delete(id)
}

// Member is what is known of a member that may serve, or has served, the keyspace. It takes
// no lock. False: it is not known.
func (k *Cache) Member(id rooted.MemberID) (*Peer, bool) {
	p, ok := k.found.Load(id)
	if !ok {
		return nil, false
	}
	return p.(*Peer), true
}

// learn takes in what the watch says of a member. Called with mu held.
func (k *Cache) learn(c memberChange) {
	if c.removed {
		if p := k.peers[c.member.ID]; p != nil {
			k.lose(c.member.ID, p)
		}
		return
	}
	p := k.peerOf(c.member.ID)
	k.tell(p, takes(c.record, k.cfg.Keyspace))
	k.hear(p, c.member)
}

// lose is of a member that there is no more. Called with mu held.
func (k *Cache) lose(id rooted.MemberID, p *Peer) {
	k.tell(p, false)
	k.hear(p, Member{ID: id})
	if p.refs == 0 {
		k.forgetPeer(id)
	}
}

func (k *Cache) tell(p *Peer, takes bool) {
	if p.takes == takes {
		return
	}
	if p.takes = takes; takes {
		k.takers.Add(1)
	} else {
		k.takers.Add(-1)
	}
}

// refer counts the owners of a region that came, or went. Called with mu held.
func (k *Cache) refer(r *rooted.Region, by int) {
	for i := range r.Owners {
		id := r.Owners[i].Member
		p := k.peerOf(id)
		if p.refs += by; p.refs == 0 && *p.now.Load() == (Member{ID: id}) {
			k.forgetPeer(id)
		}
	}
}

// entryOf is a region as a table has it. Called with mu held.
func (k *Cache) entryOf(r *rooted.Region) entry {
	e := entry{
		region: r, owners: &noOwners,
		version: uint32(min(r.Epoch.Version, largeEpoch)), confVersion: uint32(min(r.Epoch.ConfVersion, largeEpoch)),
	}
	if len(r.Owners) > 0 {
		e.incarnation = r.Owners[0].Incarnation
	}
	asked := k.answers.byID[r.ID]
	if asked == nil && len(r.Owners) == 1 {
		e.owners = &k.peerOf(r.Owners[0].Member).own
	} else if asked != nil || len(r.Owners) > 0 {
		e.owners = &owners{answer: asked, peers: make([]*Peer, len(r.Owners))}
		for i := range r.Owners {
			e.owners.peers[i] = k.peerOf(r.Owners[i].Member)
		}
	}
	return e
}
