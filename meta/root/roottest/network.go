package roottest

import (
	"slices"
	"time"

	"github.com/nokv/nokv/meta/root/replica"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Place is an end of links: "root-1", "coordinator-c1", "client-3".
type Place string

// Network carries messages between places, badly.
type Network struct {
	world *World
	// Lose, Repeat and Slow are probabilities of each message.
	Lose, Repeat, Slow float64
	// MinDelay and MaxDelay bound an ordinary message, SlowDelay a slow one.
	MinDelay, MaxDelay, SlowDelay time.Duration

	// cut has the directed links that carry nothing.
	cut map[[2]Place]bool
}

func newNetwork(w *World) *Network {
	return &Network{
		world: w, MinDelay: 50 * time.Microsecond, MaxDelay: 2 * time.Millisecond, SlowDelay: 300 * time.Millisecond,
		cut: make(map[[2]Place]bool),
	}
}

// Cut stops one direction of a link.
func (n *Network) Cut(from, to Place) { n.cut[[2]Place{from, to}] = true }

// Mend lets one direction of a link carry again.
func (n *Network) Mend(from, to Place) { delete(n.cut, [2]Place{from, to}) }

// MendAll lets every link carry again.
func (n *Network) MendAll() { clear(n.cut) }

// IsCut says whether a direction carries nothing.
func (n *Network) IsCut(from, to Place) bool { return n.cut[[2]Place{from, to}] }

// Send delivers by chance, once, twice or never. It says whether it will.
func (n *Network) Send(from, to Place, deliver func()) bool {
	if n.IsCut(from, to) {
		return false
	}
	if n.world.Chance(n.Lose) {
		n.world.Fault("message lost")
		return false
	}
	copies := 1
	if n.world.Chance(n.Repeat) {
		n.world.Fault("message repeated")
		copies = 2
	}
	for range copies {
		delay := n.world.Between(n.MinDelay, n.MaxDelay)
		if n.world.Chance(n.Slow) {
			n.world.Fault("message late")
			delay = n.world.Between(n.MaxDelay, n.SlowDelay)
		}
		n.world.After(delay, func() {
			if !n.IsCut(from, to) {
				deliver()
			}
		})
	}
	return true
}

// Send implements replica.Transport.
func (p *Peer) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		to := p.reached(m.GetTo())
		if p.refuses(to) {
			continue
		}
		if m.GetType() == raftpb.MsgSnap {
			p.sendCheckpoint(to, proto.CloneOf(m))
			continue
		}
		m := proto.CloneOf(m)
		life := p.life
		if !p.cluster.Net.Send(p.Place, to.Place, func() { to.arrives(p, life, m) }) {
			p.cluster.World.After(time.Millisecond, func() { p.observe(life, replica.Event{Kind: replica.PeerUnreachable, Peer: to.ID}) })
		}
	}
}

// SetPeers implements replica.Transport. The network knows every peer; it tells
// those that were replaced.
func (p *Peer) SetPeers(c *rootv1.Cluster) { p.rooted = c }

// refuses says whether this process has no connection with another peer, because
// it knows that it was replaced.
func (p *Peer) refuses(other *Peer) bool {
	return slices.ContainsFunc(p.rooted.GetReplaced(), func(r *rootv1.RootPeer) bool { return r.GetNodeId() == other.ID })
}

// sendCheckpoint stands for a connection of its own: it arrives whole, late, damaged, or not.
func (p *Peer) sendCheckpoint(to *Peer, announced *raftpb.Message) {
	life := p.life
	report := func(ok bool) {
		kind := replica.SnapshotFailed
		if ok {
			kind = replica.SnapshotDelivered
		}
		p.observe(life, replica.Event{Kind: kind, Peer: to.ID})
	}
	raw, err := p.checkpointBytes()
	if err != nil || p.cluster.Net.IsCut(p.Place, to.Place) {
		p.cluster.World.After(time.Millisecond, func() { report(false) })
		return
	}
	if p.cluster.World.Chance(p.cluster.Net.Lose) {
		p.cluster.World.Fault("checkpoint damaged on the way")
		raw[p.cluster.World.Rand.IntN(len(raw))] ^= 1 << p.cluster.World.Rand.IntN(8)
	}
	p.cluster.World.After(p.cluster.World.Between(time.Millisecond, 20*time.Millisecond), func() {
		report(!p.cluster.Net.IsCut(p.Place, to.Place) && p.core != nil && p.life == life && to.receiveCheckpoint(p, announced, raw))
	})
}
