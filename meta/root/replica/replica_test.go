package replica_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// wire delivers messages between Replicas of one process.
type wire struct {
	mu    sync.RWMutex
	peers map[uint64]*replica.Replica
	// lose loses all messages, cut those of one peer; 0: of none.
	lose atomic.Bool
	cut  atomic.Uint64
	// checkpoint gives a peer another one's checkpoint; nil: none arrives.
	checkpoint func(from, to uint64) (storage.CheckpointMeta, bool)
}

func (w *wire) peer(id uint64) *replica.Replica {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.peers[id]
}

type wireEnd struct {
	*wire
	id     uint64
	voters []uint64
}

// Send implements replica.Transport.
func (e wireEnd) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		to := e.peer(m.GetTo())
		cut := e.cut.Load()
		reached := to != nil && !e.lose.Load() && (cut == 0 || cut != e.id && cut != m.GetTo())
		if m.GetType() == raftpb.MsgSnap {
			meta, ok := storage.CheckpointMeta{}, false
			if reached {
				meta, ok = e.checkpoint(e.id, m.GetTo())
			}
			e.peer(e.id).SnapshotDelivered(m.GetTo(), ok)
			if ok {
				to.Deliver(replica.Received(m, meta))
			}
			continue
		}
		if reached {
			to.Deliver(m)
		}
	}
}

// Tell implements replica.Transport.
func (e wireEnd) Tell(s replica.Standing) {
	for _, id := range e.voters {
		if to := e.peer(id); id != e.id && to != nil {
			to.PeerStateHash(e.id, s.Index, s.Hash)
		}
	}
}

func (e wireEnd) SetPeers(*rootv1.Cluster) {}

// running is a cluster of Replicas and the ends of their Runs.
type running struct {
	wire
	t    testing.TB
	logs map[uint64]replica.Log
	// clocks are those of the peers.
	clocks map[uint64]*jumpClock
	stops  map[uint64]context.CancelFunc
	ends   map[uint64]chan error
}

func run(t testing.TB, n int, log func(id uint64) replica.Log, change func(*replica.Config)) *running {
	r := &running{
		wire: wire{peers: make(map[uint64]*replica.Replica)}, t: t, logs: make(map[uint64]replica.Log),
		clocks: make(map[uint64]*jumpClock), stops: make(map[uint64]context.CancelFunc), ends: make(map[uint64]chan error),
	}
	r.checkpoint = func(from, to uint64) (storage.CheckpointMeta, bool) {
		a, b := memLogOf(r.logs[from]), memLogOf(r.logs[to])
		if a == nil || b == nil {
			return storage.CheckpointMeta{}, false
		}
		return b.receive(a), true
	}
	bootstrap := &rootv1.Cluster{ClusterId: 5, Incarnation: 1}
	var voters []uint64
	for id := uint64(1); id <= uint64(n); id++ {
		voters = append(voters, id)
		bootstrap.Peers = append(bootstrap.Peers, &rootv1.RootPeer{NodeId: id, Incarnation: id, TransportAddress: fmt.Sprintf("127.0.0.1:%d", id)})
	}
	for _, id := range voters {
		cfg := replica.Defaults()
		cfg.NodeID, cfg.Voters, cfg.Bootstrap = id, voters, bootstrap
		cfg.Transport = wireEnd{wire: &r.wire, id: id, voters: voters}
		if change != nil {
			change(&cfg)
		}
		r.logs[id] = log(id)
		r.clocks[id] = &jumpClock{Monotonic: clock.NewMonotonic()}
		peer, err := replica.New(cfg, r.logs[id], r.clocks[id])
		if err != nil {
			t.Fatal(err)
		}
		r.peers[id] = peer
	}
	for id, peer := range r.peers {
		ctx, cancel := context.WithCancel(context.Background())
		end := make(chan error, 1)
		r.stops[id], r.ends[id] = cancel, end
		go func() { end <- peer.Run(ctx) }()
	}
	return r
}

// jumpClock is a clock that can be put ahead, as one is found by a process that was
// stopped.
type jumpClock struct {
	*clock.Monotonic
	ahead atomic.Int64
}

// Now implements clock.Clock.
func (c *jumpClock) Now() clock.Instant { return c.Monotonic.Now().Add(time.Duration(c.ahead.Load())) }

// memLogOf is the memLog under a log; nil: there is none.
func memLogOf(log replica.Log) *memLog {
	switch l := log.(type) {
	case *memLog:
		return l
	case gatedLog:
		return l.memLog
	}
	return nil
}

func memLogs(uint64) replica.Log { return newMemLog() }

// stop ends all peers and checks that they end well.
func (r *running) stop(ids ...uint64) {
	r.t.Helper()
	for _, id := range ids {
		r.stops[id]()
		if err := <-r.ends[id]; err != nil {
			r.t.Errorf("peer %d: %v", id, err)
		}
	}
}

// leader waits until one of the peers leads a bootstrapped cluster and all the
// others know it.
func (r *running) leader(ids ...uint64) *replica.Replica {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for i := 0; i < len(ids); {
		changed := r.peers[ids[i]].Changed()
		v := r.peers[ids[i]].View()
		for _, id := range ids {
			if v.Leader == id && v.State.Cluster() != nil && !v.Stalled {
				i++
				break
			}
		}
		select {
		case <-changed:
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			r.t.Fatalf("no leader of %v: peer %d sees %+v", ids, ids[i], v)
		}
	}
	for _, id := range ids {
		if r.peers[id].View().Role == rootv1.RaftRole_RAFT_ROLE_LEADER {
			return r.peers[id]
		}
	}
	return r.leader(ids...)
}

func (r *running) idOf(peer *replica.Replica) uint64 {
	for id, p := range r.peers {
		if p == peer {
			return id
		}
	}
	return 0
}

func deadline(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestReplicasServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, 3, memLogs, nil)
		l := r.leader(1, 2, 3)
		ctx := deadline(t, 5*time.Second)
		results, err := l.Propose(ctx, []*rootv1.Command{command("a"), command("b")})
		if err != nil || len(results) != 2 || results[1].GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
			t.Fatalf("results %v, error %v", results, err)
		}
		if got := l.View().State.CoordinatorCount(); got != 2 {
			t.Fatalf("the leader's view has %d coordinators when the write is answered", got)
		}
		for id, peer := range r.peers {
			token, err := peer.ReadIndex(ctx)
			if err != nil || token.Index < results[1].GetToken().GetIndex() {
				t.Fatalf("peer %d: read at %v, error %v", id, token, err)
			}
			if got := peer.View().State.CoordinatorCount(); got != 2 {
				t.Fatalf("peer %d: %d coordinators", id, got)
			}
		}
		claimed, err := l.Claim(ctx, claim(t, "a", 0, testTTL).Request)
		if err != nil || !applied(claimed) {
			t.Fatalf("claim %v, error %v", claimed, err)
		}
		confirmed, err := l.Confirm(ctx, confirm(1, "a").Request)
		if err != nil || !confirmed.GetActive() {
			t.Fatalf("confirm %v, error %v", confirmed, err)
		}
		old := r.idOf(l)
		to, err := l.TransferLeadership(ctx, old%3+1)
		if err != nil || to != old%3+1 {
			t.Fatalf("leader %d, error %v", to, err)
		}
		r.leader(1, 2, 3)
		_, err = l.Propose(ctx, []*rootv1.Command{command("c")})
		wantReason(t, err, rootv1.Reason_REASON_NOT_LEADER)
		r.stop(1, 2, 3)
	})
}

// A peer that starts shows the log that it has before it has replayed it, and not
// one that was wiped.
func TestAViewBeforeTheReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, 1, memLogs, nil)
		l := r.leader(1)
		if _, err := l.Propose(deadline(t, 5*time.Second), []*rootv1.Command{command("a")}); err != nil {
			t.Fatal(err)
		}
		r.stop(1)
		cfg := replica.Defaults()
		cfg.NodeID, cfg.Voters, cfg.Bootstrap, cfg.Transport = 1, []uint64{1}, &rootv1.Cluster{ClusterId: 5}, wireEnd{wire: &r.wire, id: 1}
		again, err := replica.New(cfg, r.logs[1], r.clocks[1])
		if err != nil {
			t.Fatal(err)
		}
		if v := again.View(); v.Commit == 0 || v.LastIndex < v.Commit || v.FirstIndex != 1 || v.Applied >= v.Commit || v.LeaderlessSince == 0 {
			t.Errorf("%+v", v)
		}
	})
}

// A leader that is told to stop hands over: the others need no election
// timeout.
func TestStopHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, 3, memLogs, nil)
		l := r.leader(1, 2, 3)
		id := r.idOf(l)
		began := time.Now()
		r.stop(id)
		others := []uint64{id%3 + 1, (id+1)%3 + 1}
		r.leader(others...)
		if d := time.Since(began); d > 150*time.Millisecond {
			t.Errorf("leaderless for %v", d)
		}
		_, err := l.Propose(deadline(t, time.Second), []*rootv1.Command{command("c")})
		wantReason(t, err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
		r.stop(others...)
	})
}

// Without a quorum callers come back when their time is over, and nothing of
// them stays behind.
func TestCallersComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, 3, memLogs, func(cfg *replica.Config) { cfg.MaxQueuedReads = 100 })
		l := r.leader(1, 2, 3)
		id := r.idOf(l)
		r.stop(id%3+1, (id+1)%3+1)
		for range 3 {
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					_, err := l.ReadIndex(deadline(t, 100*time.Millisecond))
					if got := reason.Of(err); got != rootv1.Reason_REASON_ROOT_UNAVAILABLE {
						t.Errorf("error %v", err)
					}
				})
			}
			wg.Wait()
			time.Sleep(300 * time.Millisecond)
		}
		r.stop(id)
	})
}

// While the leader's disk stalls its callers are told, its view says so, the
// others elect; when the disk is back the old leader follows.
func TestStalledDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := make(map[uint64]*memLog)
		r := run(t, 3, func(id uint64) replica.Log {
			logs[id] = newMemLog()
			return logs[id]
		}, nil)
		l := r.leader(1, 2, 3)
		id := r.idOf(l)
		release := make(chan struct{})
		stalling := make(chan struct{})
		var once sync.Once
		stall := func([]*raftpb.Entry) error {
			once.Do(func() { close(stalling) })
			<-release
			return nil
		}
		logs[id].setOnAppend(stall)
		failed := make(chan error, 1)
		go func() {
			_, err := l.Propose(deadline(t, 10*time.Second), []*rootv1.Command{command("c")})
			failed <- err
		}()
		<-stalling
		wantReason(t, <-failed, rootv1.Reason_REASON_OUTCOME_UNKNOWN)
		if v := l.View(); !v.Stalled || v.LeaderlessSince == 0 {
			t.Errorf("the view does not say that it may be old: %+v", v)
		}
		_, err := l.ReadIndex(deadline(t, time.Hour))
		wantReason(t, err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
		others := []uint64{id%3 + 1, (id+1)%3 + 1}
		next := r.leader(others...)
		if _, err := next.Propose(deadline(t, time.Second), []*rootv1.Command{command("d")}); err != nil {
			t.Fatal(err)
		}
		logs[id].setOnAppend(nil)
		close(release)
		r.leader(1, 2, 3)
		time.Sleep(time.Second)
		if v := l.View(); v.Stalled || v.LeaderlessSince != 0 || v.Role == rootv1.RaftRole_RAFT_ROLE_LEADER || v.State.Hash() != next.View().State.Hash() {
			t.Errorf("after the stall: %+v", v)
		}
		if _, err := l.ReadIndex(deadline(t, time.Second)); err != nil {
			t.Errorf("after the stall: %v", err)
		}
		r.stop(1, 2, 3)
	})
}

// A storage error ends Run with that error, and every caller.
func TestRunEndsWithStorageError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := newMemLog()
		r := run(t, 1, func(uint64) replica.Log { return logs }, nil)
		l := r.leader(1)
		logs.setOnAppend(func([]*raftpb.Entry) error { return errDisk })
		_, err := l.Propose(context.Background(), []*rootv1.Command{command("c")})
		wantReason(t, err, rootv1.Reason_REASON_OUTCOME_UNKNOWN)
		if err := <-r.ends[1]; !errors.Is(err, errDisk) {
			t.Errorf("Run: %v", err)
		}
		_, err = l.ReadIndex(context.Background())
		wantReason(t, err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
	})
}

// Checkpoints are written in the background and the log is cut behind them.
func TestBackgroundCheckpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, 1, memLogs, func(cfg *replica.Config) { cfg.CheckpointEntries, cfg.RetainEntries = 10, 5 })
		l := r.leader(1)
		for i := range 100 {
			if _, err := l.Propose(deadline(t, time.Second), []*rootv1.Command{command(fmt.Sprint("c", i))}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if v := l.View(); !v.HasCheckpoint || v.FirstIndex < 80 {
			t.Errorf("checkpoint %v at %d, log from %d", v.HasCheckpoint, v.Checkpoint.Index, v.FirstIndex)
		}
		r.stop(1)
	})
}

func TestConfigValidate(t *testing.T) {
	good := replica.Defaults()
	good.NodeID, good.Voters, good.Transport = 1, []uint64{1, 2, 3}, wireEnd{}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*replica.Config){
		"no id":         func(c *replica.Config) { c.NodeID = 0 },
		"no transport":  func(c *replica.Config) { c.Transport = nil },
		"two voters":    func(c *replica.Config) { c.Voters = []uint64{1, 2} },
		"twice":         func(c *replica.Config) { c.Voters = []uint64{1, 2, 2} },
		"not a voter":   func(c *replica.Config) { c.Voters = []uint64{2, 3, 4} },
		"short timeout": func(c *replica.Config) { c.ElectionTicks = 3*c.HeartbeatTicks - 1 },
		"negative":      func(c *replica.Config) { c.MaxQueuedBytes = -1 },
	} {
		bad := good
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
