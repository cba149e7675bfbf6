package roottest

import (
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/replica"
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
}

// Small are settings in which checkpoints, segments and log ends come often.
func Small() Config {
	r := replica.Defaults()
	r.CheckpointEntries, r.RetainEntries, r.HashEvery = 40, 20, 16
	r.MaxEntryBytes = 4 << 10
	return Config{Peers: 3, Replica: r, SegmentBytes: 8 << 10, DriftPermille: 5}
}

// Cluster is a metadata root in a World.
type Cluster struct {
	World *World
	Net   *Network
	Peers []*Peer
	// Log is what was committed, as seen by any peer.
	Log *Log
	// Failures are processes that ended by themselves and should not have.
	Failures []error
	// Checkpoints and Transfers count what was written and sent.
	Checkpoints, Transfers int

	cfg Config
	// allowed judges errors that a fault explains.
	allowed func(error) bool
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
	for _, sp := range peers {
		c.Peers = append(c.Peers, &Peer{
			ID: sp.NodeID, Place: Place(fmt.Sprintf("root-%d", sp.NodeID)), Disk: disk.NewFake(w.Rand.Uint64()),
			Clock: w.NewClock(cfg.DriftPermille), cluster: c,
			identity: storage.Identity{ClusterID: ClusterID, NodeID: sp.NodeID, Incarnation: sp.Incarnation, Peers: peers, Member: true},
		})
	}
	for _, p := range c.Peers {
		if err := p.Disk.MkdirAll(workdir, 0o755); err != nil {
			return nil, err
		}
		if err := p.Start(); err != nil {
			return nil, fmt.Errorf("root %d: %w", p.ID, err)
		}
	}
	return c, nil
}

// ClusterID is the identity of every simulated cluster.
const ClusterID = 0xc1c1

func (c *Cluster) identity() *rootv1.Cluster {
	id := &rootv1.Cluster{ClusterId: ClusterID, Incarnation: 1}
	for _, p := range c.Peers {
		id.Peers = append(id.Peers, &rootv1.RootPeer{NodeId: p.ID, Incarnation: p.identity.Incarnation, TransportAddress: fmt.Sprintf("root-%d:1", p.ID)})
	}
	return id
}

func (c *Cluster) voters() []uint64 {
	ids := make([]uint64, 0, len(c.Peers))
	for _, p := range c.Peers {
		ids = append(ids, p.ID)
	}
	return ids
}

func (c *Cluster) peer(id uint64) *Peer { return c.Peers[id-1] }

func (c *Cluster) expected(err error) bool { return c.allowed != nil && c.allowed(err) }

// AllowFailures says which errors of processes that end by themselves are a
// consequence of what was injected.
func (c *Cluster) AllowFailures(allowed func(error) bool) { c.allowed = allowed }

// Leader is the peer that leads with the highest term; nil for none.
func (c *Cluster) Leader() *Peer {
	var leader *Peer
	for _, p := range c.Peers {
		if p.Alive() && !p.paused && p.View().Role == rootv1.RaftRole_RAFT_ROLE_LEADER &&
			(leader == nil || p.View().Term > leader.View().Term) {
			leader = p
		}
	}
	return leader
}

// Kill ends a process; its disk keeps everything that was written.
func (p *Peer) Kill() {
	if p.core != nil {
		p.cluster.World.Fault("process killed")
		p.down()
		p.Disk.Kill()
	}
}

// PowerCut ends a machine: what was not synced is kept, lost or spoilt.
func (p *Peer) PowerCut() {
	p.cluster.World.Fault("power cut")
	p.down()
	p.reboot()
}

func (p *Peer) reboot() {
	p.crashed = false
	p.Disk.SetFault(nil)
	p.Disk.Reboot()
}

// CrashWithin makes the machine lose power after at most n disk operations.
func (p *Peer) CrashWithin(n int, effect bool) {
	left := 1 + p.cluster.World.Rand.IntN(n)
	p.Disk.SetFault(func(op disk.Op) disk.Fault {
		if !op.Kind.Changes() {
			return disk.Fault{}
		}
		if left--; left > 0 {
			return disk.Fault{}
		}
		p.crashed = true
		return disk.Fault{Err: disk.ErrCrashed, Crash: true, Effect: effect}
	})
}

// Restart brings a peer up that is down. Unsynced data was dealt with when it went.
func (p *Peer) Restart() error {
	if p.core != nil {
		return nil
	}
	if p.Err != nil {
		if p.crashed {
			p.cluster.World.Fault("crash inside a disk operation")
		}
		p.reboot()
	}
	err := p.Start()
	if errors.Is(err, disk.ErrCrashed) {
		p.Err = err // the armed crash came during the start
		return nil
	}
	if err != nil {
		return fmt.Errorf("root %d does not start: %w", p.ID, err)
	}
	return nil
}

func (p *Peer) down() {
	p.core, p.store, p.Err = nil, nil, nil
	for _, other := range p.cluster.Peers {
		if other != p && other.core != nil {
			life := other.life
			p.cluster.World.After(p.cluster.World.Between(time.Millisecond, 5*time.Millisecond), func() {
				if p.core == nil && !p.cluster.Net.IsCut(other.Place, p.Place) && !p.cluster.Net.IsCut(p.Place, other.Place) {
					other.observe(life, replica.Event{Kind: replica.PeerRefused, Peer: p.ID})
				}
			})
		}
	}
}

// Pause makes a process stand still, as SIGSTOP does.
func (p *Peer) Pause() {
	if p.core != nil && !p.paused {
		p.cluster.World.Fault("process paused")
		p.paused = true
	}
}

// Resume lets it go on. The process notices when it stood still for longer
// than an election timeout.
func (p *Peer) Resume() {
	if p.core == nil || !p.paused {
		return
	}
	p.paused, p.woken = false, false
	tick := int64(p.Clock.Now()) / int64(p.cluster.cfg.Replica.Tick)
	p.input.Stalled = tick-p.lastTik > int64(p.cluster.cfg.Replica.ElectionTicks)
	p.wake()
}

// SlowAppend makes the next append of the process count as slower than an election timeout.
func (p *Peer) SlowAppend() {
	if p.core != nil {
		p.cluster.World.Fault("slow append")
		p.overdue = true
	}
}

// Heal ends all faults: links carry, processes run.
func (c *Cluster) Heal() error {
	c.Net.MendAll()
	c.Net.Lose, c.Net.Repeat, c.Net.Slow = 0, 0, 0
	for _, p := range c.Peers {
		p.Resume()
		if p.core != nil && p.crashed {
			p.fail(disk.ErrCrashed) // the process has not noticed yet
		}
		p.Disk.SetFault(nil)
		if err := p.Restart(); err != nil {
			return err
		}
	}
	return nil
}
