package roottest

import (
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3/raftpb"
)

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
