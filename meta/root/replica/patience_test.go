package replica_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/replica"
	"go.etcd.io/raft/v3/raftpb"
)

// A peer that nobody waits for need not look at every tick: a leader has its
// heartbeats to send, a follower hears of them. One that hears nothing, or is waited
// for, counts each.
func TestPatience(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.lead(1)
	settings := replica.Defaults()
	c.tick(2 * settings.ElectionTicks) // The commit index is saved.
	if got := l.core.Patience(); got != settings.HeartbeatTicks {
		t.Errorf("an idle leader looks after %d ticks, heartbeats come each %d", got, settings.HeartbeatTicks)
	}
	f := c.peers[2]
	for range settings.HeartbeatTicks {
		l.turn(1)
		c.settle()
	}
	if got := f.core.Patience(); got <= settings.HeartbeatTicks || got > settings.ElectionTicks/2 {
		t.Errorf("a follower that heard a heartbeat looks after %d ticks", got)
	}
	f.turn(1)
	if got := f.core.Patience(); got != 1 {
		t.Errorf("a follower that hears nothing looks after %d ticks", got)
	}
	c.isolate(1)
	l.turn(0, replica.NewRead())
	if got := l.core.Patience(); got != 1 {
		t.Errorf("a leader with a read that waits looks after %d ticks", got)
	}
}

// A read index is a heartbeat: none is sent besides, and nobody goes without for
// twice the time.
func TestReadsReplaceHeartbeats(t *testing.T) {
	for _, every := range []int{1, 3, 5} {
		c := newCluster(t, 3, nil)
		l := c.lead(1)
		c.tick(10)
		spare, silent, longest, asked := 0, 0, 0, 100
		c.drop = func(m *raftpb.Message) bool {
			if m.GetType() == raftpb.MsgHeartbeat && m.GetTo() == 2 {
				if silent = 0; len(m.GetContext()) > 0 {
					asked = 0
				} else if asked < l.cfg.HeartbeatTicks {
					spare++
				}
			}
			return false
		}
		for i := range 60 {
			if i%every == 0 {
				l.turn(0, replica.NewRead())
				c.settle()
			}
			silent++
			asked++
			c.tick(1)
			longest = max(longest, silent)
		}
		if spare > 0 || longest >= 2*l.cfg.HeartbeatTicks {
			t.Errorf("a read each %d ticks: %d heartbeats besides, and none for %d ticks", every, spare, longest)
		}
	}
}
