package explorer

import (
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// memoryLog is a replica.Log in memory that is never compacted.
type memoryLog struct{ *raft.MemoryStorage }

func (l memoryLog) Append(hs *raftpb.HardState, entries []*raftpb.Entry, _ bool) error {
	if hs != nil {
		if err := l.SetHardState(hs); err != nil {
			return err
		}
	}
	return l.MemoryStorage.Append(entries)
}

func (memoryLog) Compact(uint64) error                           { return nil }
func (memoryLog) HoldCheckpoint(storage.CheckpointMeta) bool     { return false }
func (memoryLog) ReleaseCheckpoint()                             {}
func (memoryLog) ReceivedCluster() *rootv1.Cluster               { return nil }
func (memoryLog) InstallCheckpoint(storage.CheckpointMeta) error { return storage.ErrOutdated }
func (memoryLog) Checkpoint() (storage.CheckpointMeta, bool)     { return storage.CheckpointMeta{}, false }

func (memoryLog) WriteCheckpoint(storage.CheckpointMeta, func(func([]byte) error) error) error {
	return storage.ErrOutdated
}

func (memoryLog) ReadCheckpoint(func([]byte) error) (storage.CheckpointMeta, error) {
	return storage.CheckpointMeta{}, nil
}

// quorum is three real replica.Cores in one goroutine, of one clock.
type quorum struct {
	peers  [3]*replicaPeer
	leader int
	now    clock.Instant
	// hold keeps entries from the followers, so that nothing commits; away is
	// a peer whose messages are lost, -1 for none.
	hold bool
	away int
	done map[replica.Request]bool
}

type replicaPeer struct {
	q     *quorum
	core  *replica.Core
	inbox []*raftpb.Message
	view  *replica.View
}

// Send implements replica.Transport.
func (p *replicaPeer) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		from, to := int(m.GetFrom())-1, int(m.GetTo())-1
		if from == p.q.away || to == p.q.away || p.q.hold && m.GetType() == raftpb.MsgApp {
			continue
		}
		p.q.peers[to].inbox = append(p.q.peers[to].inbox, proto.CloneOf(m))
	}
}

// Tell implements replica.Transport.
func (p *replicaPeer) Tell(replica.Standing) {}

// SetPeers implements replica.Transport.
func (p *replicaPeer) SetPeers(*rootv1.Cluster) {}

func newQuorum(seed uint64) (*quorum, error) {
	q := &quorum{now: 1, away: -1, leader: -1, done: map[replica.Request]bool{}}
	bootstrap := &rootv1.Cluster{ClusterId: 1, Incarnation: 1, FeatureLevel: state.FeatureLevel}
	for id := uint64(1); id <= 3; id++ {
		bootstrap.Peers = append(bootstrap.Peers, &rootv1.RootPeer{NodeId: id, Incarnation: id, TransportAddress: fmt.Sprint("root:", id)})
	}
	for i := range q.peers {
		cfg := replica.Defaults()
		cfg.NodeID, cfg.Voters, cfg.Bootstrap, cfg.Seed = uint64(i+1), []uint64{1, 2, 3}, bootstrap, seed*3+uint64(i)
		cfg.DriftPermille = 1000*fast/slow - 1000
		p := &replicaPeer{q: q}
		cfg.Transport = p
		core, err := replica.NewCore(cfg, memoryLog{raft.NewMemoryStorage()}, state.New())
		if err != nil {
			return nil, err
		}
		p.core = core
		q.peers[i] = p
	}
	return q, q.elect()
}

// step gives a peer its mail, ticks and requests.
func (q *quorum) step(i, ticks int, requests ...replica.Request) error {
	p := q.peers[i]
	in := replica.Input{Now: q.now, Wall: 1, Ticks: ticks, Messages: p.inbox, Requests: requests}
	p.inbox = nil
	for {
		out, err := p.core.Turn(in)
		if err != nil {
			return fmt.Errorf("peer %d: %w", i+1, err)
		}
		for _, r := range out.Done {
			q.done[r] = true
		}
		if out.View != nil {
			p.view = out.View
		}
		if !out.More {
			return nil
		}
		in = replica.Input{Now: q.now, Wall: 1}
	}
}

// settle delivers mail until there is none.
func (q *quorum) settle() error {
	for busy := true; busy; {
		busy = false
		for i, p := range q.peers {
			if len(p.inbox) > 0 {
				busy = true
				if err := q.step(i, 0); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// ask gives a request to the leader; it reports whether it was answered.
func (q *quorum) ask(r replica.Request) (bool, error) {
	if err := q.step(q.leader, 0, r); err != nil {
		return false, err
	}
	return q.done[r], q.beat()
}

// beat lets the leader be heard, so that what was lost is sent again.
func (q *quorum) beat() error {
	for range 3 {
		if err := q.settle(); err != nil {
			return err
		}
		if err := q.step(q.leader, 2); err != nil {
			return err
		}
	}
	return q.settle()
}

// elect makes another peer the leader. Entries that were held are lost.
func (q *quorum) elect() error {
	old := q.leader
	q.away, q.leader = old, -1
	for range 100 {
		for i, p := range q.peers {
			if i == old {
				continue
			}
			if err := q.step(i, 1); err != nil {
				return err
			}
			if p.view != nil && p.view.Role == rootv1.RaftRole_RAFT_ROLE_LEADER {
				q.leader = i
			}
		}
		q.hold = false
		if err := q.settle(); err != nil {
			return err
		}
		if q.leader >= 0 {
			q.away = -1
			return q.beat()
		}
	}
	return fmt.Errorf("nobody was elected")
}

func (q *quorum) state() *state.State { return q.peers[q.leader].view.State }

// pass lets the leader's clock count.
func (q *quorum) pass(units uint8) { q.now = q.now.Add(time.Duration(units) * unit) }
