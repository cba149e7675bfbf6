package roottest

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Config says how large things are. Small ones make rare things common.
type Config struct {
	// Peers is 1, 3 or 5; 0 counts as 3.
	Peers int
	// Replica are the settings of every peer; ids, transport and identity are filled in.
	Replica replica.Config
	// SegmentBytes is the size of log segments.
	SegmentBytes int64
	// DriftPermille bounds how far clocks are from true time.
	DriftPermille int64
	// TailIdle is the distance of signs of life on a tail, TailBatchBytes what
	// one of its messages carries.
	TailIdle       time.Duration
	TailBatchBytes uint64
	// AppendsUnsynced leaves a rule out, for contrast: nothing is durable before
	// it is acknowledged.
	AppendsUnsynced bool
	// Forgetful leaves the rules of freshness out, for contrast: nobody remembers what
	// another promised.
	Forgetful bool
}

// Small are settings in which checkpoints, segments and log ends come often.
func Small() Config {
	r := replica.Defaults()
	r.CheckpointEntries, r.RetainEntries, r.HashEvery = 40, 20, 16
	r.MaxEntryBytes = 4 << 10
	return Config{Peers: 3, Replica: r, SegmentBytes: 8 << 10, DriftPermille: 4, TailIdle: 100 * time.Millisecond, TailBatchBytes: 1 << 10}
}

// Cluster is a metadata root in a World.
type Cluster struct {
	World *World
	Net   *Network
	// Peers are the machines in service, by node id; one whose disk is lost is none.
	Peers []*Peer
	// Replaced counts what became of lost peers.
	Replaced Replacements
	// Log is what was committed, as seen by any peer.
	Log *Log
	// Failures are processes that ended by themselves and should not have.
	Failures []error
	// Checkpoints and Transfers count what was written and sent.
	Checkpoints, Transfers int
	// AfterTurn is called with a peer that has taken a turn. Nil: nobody is.
	AfterTurn func(*Peer)

	cfg Config
	// machines are all that ever were, by node id; those up to founders began.
	machines []*Peer
	founders int
	// twin is a second process under the node id of another; nil: none.
	twin *Peer
	// losing is the replacement under way; nil: none.
	losing *replacement
	// past is the folder that came back from its past last; nil: none.
	past *past
}

// New makes a cluster and starts it.
func New(w *World, cfg Config) (*Cluster, error) {
	if cfg.Peers == 0 {
		cfg.Peers = 3
	}
	c := &Cluster{World: w, Net: newNetwork(w), Log: newLog(), cfg: cfg}
	var peers []storage.Peer
	for i := range cfg.Peers {
		peers = append(peers, storage.Peer{NodeID: uint64(i) + 1, Incarnation: w.Rand.Uint64() | 1, Address: fmt.Sprintf("root-%d:1", i+1)})
	}
	c.founders = len(peers)
	for _, sp := range peers {
		if _, err := c.machine(storage.Identity{ClusterID: ClusterID, NodeID: sp.NodeID, Incarnation: sp.Incarnation, Peers: peers, Member: true}); err != nil {
			return nil, err
		}
	}
	for _, p := range c.Peers {
		if err := p.Start(); err != nil {
			return nil, fmt.Errorf("root %d: %w", p.ID, err)
		}
	}
	return c, nil
}

// machine puts one more machine into service, with an empty disk.
func (c *Cluster) machine(id storage.Identity) (*Peer, error) {
	p := &Peer{
		ID: id.NodeID, Place: Place(fmt.Sprintf("root-%d", id.NodeID)), Disk: disk.NewFake(c.World.Rand.Uint64()),
		Clock: c.World.NewClock(c.cfg.DriftPermille), cluster: c, identity: id,
	}
	c.machines = append(c.machines, p)
	c.Peers = append(c.Peers[:len(c.Peers):len(c.Peers)], p)
	return p, p.Disk.MkdirAll(workdir, 0o755)
}

// ClusterID is the identity of every simulated cluster.
const ClusterID = 0xc1c1

func (c *Cluster) identity() *rootv1.Cluster {
	id := &rootv1.Cluster{ClusterId: ClusterID, Incarnation: 1, FeatureLevel: state.FeatureLevel}
	for _, p := range c.machines[:c.founders] {
		id.Peers = append(id.Peers, &rootv1.RootPeer{NodeId: p.ID, Incarnation: p.identity.Incarnation, TransportAddress: fmt.Sprintf("root-%d:1", p.ID)})
	}
	return id
}

func (c *Cluster) voters() []uint64 {
	ids := make([]uint64, 0, c.founders)
	for _, p := range c.machines[:c.founders] {
		ids = append(ids, p.ID)
	}
	return ids
}

func (c *Cluster) peer(id uint64) *Peer { return c.machines[id-1] }

// Leader is the peer that leads with the highest term; nil for none.
func (c *Cluster) Leader() *Peer {
	var leader *Peer
	for _, p := range c.machines {
		if p.Alive() && !p.paused && p.View().Role == rootv1.RaftRole_RAFT_ROLE_LEADER &&
			(leader == nil || p.View().Term > leader.View().Term) {
			leader = p
		}
	}
	return leader
}
