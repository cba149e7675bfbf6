package roottest

import (
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3/raftpb"
)

// Kill ends a process; its disk keeps everything that was written.
func (p *Peer) Kill() {
	if p.core != nil {
		p.cluster.World.Fault("process killed")
		p.down()
		p.crashed = false
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
		p.cluster.World.Fault("crash inside a disk operation")
		return disk.Fault{Err: disk.ErrCrashed, Crash: true, Effect: effect}
	})
}

// Restart brings a peer up that is down. Unsynced data was dealt with when it went.
func (p *Peer) Restart() error {
	if p.core != nil {
		return nil
	}
	if p.Err != nil {
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

// down ends the process; the others may find its port closed.
func (p *Peer) down() {
	p.core, p.store, p.Err = nil, nil, nil
	p.resetStreams()
	if p == p.cluster.twin {
		return // Its port is not the one that the others know.
	}
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

// Pause makes a process stand still, as SIGSTOP or a sleeping machine does.
func (p *Peer) Pause() {
	if p.core != nil && !p.paused {
		p.cluster.World.Fault("process paused")
		p.paused = true
	}
}

// Resume lets it go on.
func (p *Peer) Resume() {
	if p.core == nil || !p.paused {
		return
	}
	p.paused, p.woken = false, false
	if len(p.input.Messages) > 0 {
		p.input.MessagesSince = p.Clock.Now() // They waited in its sockets.
	}
	p.wake()
	p.wakeStreams()
}

// SlowAppend makes the next append of the process take so long.
func (p *Peer) SlowAppend(d time.Duration) {
	if p.core != nil {
		p.slow = d
	}
}

// Transfer asks a peer to hand its leadership over, if it leads.
func (p *Peer) Transfer(to uint64) {
	if p.core != nil {
		p.cluster.World.Fault("leadership transfer")
		p.submit(replica.NewTransfer(to), func(replica.Request) {})
	}
}

// Heal ends all faults: links carry, processes run, clocks tell the time.
func (c *Cluster) Heal() error {
	if c.past != nil {
		c.past.end()
	}
	c.Net.MendAll()
	c.Net.Lose, c.Net.Repeat, c.Net.Slow = 0, 0, 0
	for _, p := range c.Peers {
		p.Clock.WallOffset = 0
		if err := p.steady(); err != nil {
			return err
		}
	}
	return nil
}

// steady ends what disturbs a peer, and starts it if it is down.
func (p *Peer) steady() error {
	p.slow = 0
	p.Resume()
	if p.core != nil && p.crashed {
		p.fail(disk.ErrCrashed) // the process has not noticed yet
	}
	p.Disk.SetFault(nil)
	if p.Stale {
		return nil // It ends again.
	}
	return p.Restart()
}

// diskLog is a peer's storage whose appends can take long: the world goes on
// while the process is inside one.
type diskLog struct {
	*storage.Storage
	peer *Peer
	life int
}

// mostStall bounds one append, pauses included.
const mostStall = 10 * time.Second

// Append implements replica.Log.
func (l *diskLog) Append(hs *raftpb.HardState, entries []*raftpb.Entry, sync bool) error {
	p := l.peer
	if p.cluster.cfg.AppendsUnsynced {
		sync = false
	}
	d := p.slow
	if d == 0 || !sync {
		return l.Storage.Append(hs, entries, sync)
	}
	p.slow = 0
	p.cluster.World.Fault("slow append")
	// The bytes may reach the disk early or late; the answer comes late.
	early := p.cluster.World.Chance(0.5)
	if early {
		if err := l.Storage.Append(hs, entries, sync); err != nil {
			return err
		}
	}
	p.cluster.World.RunFor(d, l.gone)
	p.cluster.World.RunFor(mostStall, func() bool { return l.gone() || !p.paused })
	if l.gone() {
		return disk.ErrCrashed
	}
	if early {
		return nil
	}
	return l.Storage.Append(hs, entries, sync)
}

// gone says that the process inside the append is no more.
func (l *diskLog) gone() bool { return l.peer.core == nil || l.peer.life != l.life }

func (p *Peer) electionTimeout() time.Duration {
	return p.cluster.cfg.Replica.Tick * time.Duration(p.cluster.cfg.Replica.ElectionTicks)
}
