package replica_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// gate stops the first who passes it at a place, once armed for it.
type gate struct {
	place   atomic.Pointer[string]
	stopped chan struct{} // closed when somebody is stopped
	release chan struct{}
}

func newGate() *gate {
	return &gate{stopped: make(chan struct{}), release: make(chan struct{})}
}

func (g *gate) arm(place string) { g.place.Store(&place) }

func (g *gate) pass(place string) {
	if at := g.place.Load(); at != nil && *at == place && g.place.CompareAndSwap(at, nil) {
		close(g.stopped)
		<-g.release
	}
}

// gatedLog stops in what the loop calls.
type gatedLog struct {
	*memLog
	*gate
}

func (l gatedLog) Append(hs *raftpb.HardState, entries []*raftpb.Entry, sync bool) error {
	l.pass(fmt.Sprintf("Append, sync %v", sync))
	return l.memLog.Append(hs, entries, sync)
}

func (l gatedLog) Compact(index uint64) error { l.pass("Compact"); return l.memLog.Compact(index) }

func (l gatedLog) Entries(lo, hi, size uint64) ([]*raftpb.Entry, error) {
	l.pass("Entries")
	return l.memLog.Entries(lo, hi, size)
}

func (l gatedLog) Term(i uint64) (uint64, error) { l.pass("Term"); return l.memLog.Term(i) }
func (l gatedLog) FirstIndex() (uint64, error)   { l.pass("FirstIndex"); return l.memLog.FirstIndex() }

func (l gatedLog) LastIndex() (uint64, error) { l.pass("LastIndex"); return l.memLog.LastIndex() }

func (l gatedLog) ReleaseCheckpoint() { l.pass("ReleaseCheckpoint"); l.memLog.ReleaseCheckpoint() }

func (l gatedLog) ReceivedCluster() *rootv1.Cluster {
	l.pass("ReceivedCluster")
	return l.memLog.ReceivedCluster()
}
func (l gatedLog) Snapshot() (*raftpb.Snapshot, error) { return l.memLog.Snapshot() }

func (l gatedLog) Checkpoint() (storage.CheckpointMeta, bool) {
	l.pass("Checkpoint")
	return l.memLog.Checkpoint()
}

func (l gatedLog) HoldCheckpoint(meta storage.CheckpointMeta) bool {
	l.pass("HoldCheckpoint")
	return l.memLog.HoldCheckpoint(meta)
}

func (l gatedLog) InstallCheckpoint(meta storage.CheckpointMeta) error {
	l.pass("InstallCheckpoint")
	return l.memLog.InstallCheckpoint(meta)
}

func (l gatedLog) ReadCheckpoint(fn func([]byte) error) (storage.CheckpointMeta, error) {
	l.pass("ReadCheckpoint")
	return l.memLog.ReadCheckpoint(fn)
}

// gatedEnd stops in what the loop tells the transport.
type gatedEnd struct {
	replica.Transport
	*gate
}

func (e gatedEnd) Send(messages []*raftpb.Message) { e.pass("Send"); e.Transport.Send(messages) }

func (e gatedEnd) Tell(s replica.Standing) {
	e.pass("Tell")
	e.Transport.Tell(s)
}

func (e gatedEnd) SetPeers(c *rootv1.Cluster) { e.pass("SetPeers"); e.Transport.SetPeers(c) }

// gatedLogger stops in what the loop logs.
type gatedLogger struct {
	hclog.Logger
	*gate
}

func (l gatedLogger) Info(string, ...any)       { l.pass("Logger.Info") }
func (l gatedLogger) Named(string) hclog.Logger { return l }

// stalling is a cluster under load, of which one peer stops somewhere.
type stalling struct {
	*running
	t    *testing.T
	gate *gate
	peer uint64
	end  context.CancelFunc
}

// load has one peer asked for everything that makes its loop do something, until
// end is called. What becomes of it does not matter.
func (s *stalling) load() {
	ctx, cancel := context.WithCancel(context.Background())
	s.end = cancel
	go func() {
		for n := 0; ctx.Err() == nil; n++ {
			for _, p := range s.peers {
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				c := command(fmt.Sprint("c", n))
				c.Events[0].GetCoordinatorJoined().Address = strings.Repeat("x", 200) // an entry is a sector or two
				_, _ = p.Propose(short, []*rootv1.Command{c})
				cancel()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
}

// judge asks that a peer that was stopped at a place does not vouch for anything
// any more, an election timeout later: or that it goes on, and what it says is so.
func (s *stalling) judge(wantStill bool) {
	s.t.Helper()
	p := s.peers[s.peer]
	cfg := replica.Defaults()
	time.Sleep(cfg.Tick * time.Duration(cfg.ElectionTicks))
	v := p.View()
	if v.Stalled != wantStill {
		s.t.Errorf("stalled is %v, want %v", v.Stalled, wantStill)
	}
	_, read := p.ReadIndex(deadline(s.t, 100*time.Millisecond))
	confirmed, _ := p.Confirm(deadline(s.t, 100*time.Millisecond), confirm(1, "a").Request)
	if !v.Stalled {
		if read != nil {
			s.t.Errorf("it says that it does not stall, and does not serve: %v", read)
		}
		return
	}
	if v.LeaderlessSince == 0 || read == nil || confirmed.GetActive() {
		s.t.Errorf("it vouches: leaderless since %d, read index %v, confirmed %v", v.LeaderlessSince, read, confirmed)
	}
}

// recover asks that the peer serves again, and is informed again.
func (s *stalling) recover() {
	s.t.Helper()
	close(s.gate.release)
	s.end()
	time.Sleep(5 * time.Second)
	s.leader(1, 2, 3)
	for id, p := range s.peers {
		if _, err := p.ReadIndex(deadline(s.t, time.Second)); err != nil || p.View().Stalled || p.View().LeaderlessSince != 0 {
			s.t.Errorf("peer %d afterwards: %v, leaderless since %d", id, err, p.View().LeaderlessSince)
		}
	}
	s.stop(1, 2, 3)
}

// begin runs three peers of which one, who leads or follows, has a gate.
func begin(t *testing.T, g *gate, leads bool, retain uint64, log func(id uint64) replica.Log) *stalling {
	s := &stalling{t: t, gate: g, peer: 1}
	wrap := func(cfg *replica.Config) {
		cfg.CheckpointEntries, cfg.RetainEntries, cfg.HashEvery = 40, retain, 16
		if cfg.NodeID == s.peer {
			cfg.Transport, cfg.Logger = gatedEnd{cfg.Transport, g}, gatedLogger{hclog.NewNullLogger(), g}
		}
	}
	s.running = run(t, 3, log, wrap)
	l := s.leader(1, 2, 3)
	for lead := map[bool]uint64{true: 1, false: 2}[leads]; s.idOf(l) != lead; l = s.leader(1, 2, 3) {
		if _, err := l.TransferLeadership(deadline(t, 5*time.Second), lead); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Claim(deadline(t, time.Second), claim(t, "a", 0, time.Hour).Request); err != nil {
		t.Fatal(err)
	}
	s.load()
	return s
}

// reached says that the peer has come to the place where it is stopped.
func (s *stalling) reached() bool {
	s.t.Helper()
	select {
	case <-s.gate.stopped:
		return true
	case <-time.After(20 * time.Second):
		s.t.Error("the place is never reached")
		return false
	}
}

// gatedClock stops who asks for the time of day, as every Turn does.
type gatedClock struct {
	*clock.Monotonic
	*gate
}

func (c gatedClock) Wall() uint64 { c.pass("Wall"); return c.Monotonic.Wall() }

// The first Turn may hang as any other.
func TestAFirstTurnThatHangsIsAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		cfg := replica.Defaults()
		cfg.NodeID, cfg.Voters, cfg.Transport = 1, []uint64{1}, wireEnd{wire: &wire{}, id: 1}
		cfg.Bootstrap = &rootv1.Cluster{ClusterId: 5, Incarnation: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "127.0.0.1:1"}}}
		p, err := replica.New(cfg, newMemLog(), gatedClock{clock.NewMonotonic(), g})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		g.arm("Wall")
		go func() { ended <- p.Run(ctx) }()
		<-g.stopped
		time.Sleep(cfg.Tick * time.Duration(cfg.ElectionTicks))
		if !p.View().Stalled {
			t.Error("an election timeout later it does not say that it stands still")
		}
		begun := time.Now()
		if _, err := p.ReadIndex(deadline(t, time.Minute)); err == nil || time.Since(begun) != 0 {
			t.Errorf("who asks it is told %v after %v", err, time.Since(begun))
		}
		close(g.release)
		time.Sleep(5 * time.Second)
		if v := p.View(); v.Stalled || v.LeaderlessSince != 0 {
			t.Errorf("let go, it is stalled %v, leaderless since %d", v.Stalled, v.LeaderlessSince)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Wherever the loop can be stopped, the peer stops vouching within an election
// timeout, and knows again when it is let go.
func TestStallAtEveryPlace(t *testing.T) {
	install := func(s *stalling) { s.cut.Store(s.peer) }
	for _, c := range []struct {
		place   string
		leads   bool
		provoke func(*stalling)
	}{
		{place: "Append, sync true", leads: true},
		{place: "Append, sync true"},
		{place: "Append, sync false", leads: true, provoke: func(s *stalling) { s.end() }},
		{place: "Compact", leads: true},
		{place: "Compact"},
		{place: "Entries", leads: true, provoke: func(s *stalling) { s.cut.Store(3); time.Sleep(50 * time.Millisecond); s.cut.Store(0) }},
		{place: "Term", leads: true},
		{place: "Term"},
		{place: "FirstIndex", leads: true},
		{place: "FirstIndex"},
		{place: "LastIndex", provoke: install},
		{place: "Checkpoint", leads: true},
		{place: "Checkpoint"},
		{place: "ReleaseCheckpoint", leads: true},
		{place: "ReleaseCheckpoint"},
		{place: "HoldCheckpoint", provoke: install},
		{place: "ReceivedCluster", provoke: install},
		{place: "InstallCheckpoint", provoke: install},
		{place: "ReadCheckpoint", provoke: install},
		{place: "SetPeers", provoke: install},
		{place: "Send", leads: true},
		{place: "Send"},
		{place: "Tell", leads: true},
		{place: "Tell"},
		{place: "Logger.Info", leads: true, provoke: func(s *stalling) {
			_, _ = s.peers[1].TransferLeadership(deadline(s.t, time.Second), 2)
		}},
		{place: "Logger.Info", provoke: func(s *stalling) {
			_, _ = s.peers[2].TransferLeadership(deadline(s.t, time.Second), 3)
		}},
	} {
		t.Run(fmt.Sprintf("%s, leads %v", c.place, c.leads), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGate()
				s := begin(t, g, c.leads, 10, func(id uint64) replica.Log {
					if id == 1 {
						return gatedLog{newMemLog(), g}
					}
					return newMemLog()
				})
				time.Sleep(500 * time.Millisecond)
				g.arm(c.place)
				if c.provoke != nil {
					go func() {
						c.provoke(s)
						if s.cut.Load() != 0 {
							time.Sleep(2 * time.Second)
							s.cut.Store(0)
						}
					}()
				}
				if s.reached() {
					s.judge(true)
				}
				s.recover()
			})
		})
	}
}

// A peer that stood still for ten seconds, at whatever place, and hears from nobody
// afterwards, does not vouch for what it had before: others lead and have written
// since.
func TestNothingIsVouchedForBehindAStall(t *testing.T) {
	for _, c := range []struct {
		place string
		leads bool
	}{
		{"Append, sync true", false},
		{"Append, sync true", true},
		{"Send", false},
		{"Send", true},
		{"ReleaseCheckpoint", false},
		{"ReleaseCheckpoint", true},
		{"FirstIndex", false},
		{"FirstIndex", true},
		{"Append, sync false", true},
	} {
		t.Run(fmt.Sprintf("%s, leads %v", c.place, c.leads), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGate()
				s := begin(t, g, c.leads, 1000, func(id uint64) replica.Log {
					if id == 1 {
						return gatedLog{newMemLog(), g}
					}
					return newMemLog()
				})
				time.Sleep(500 * time.Millisecond)
				g.arm(c.place)
				if c.place == "Append, sync false" {
					s.end()
				}
				if s.reached() {
					s.cut.Store(s.peer)
					time.Sleep(10 * time.Second)
					p, cfg := s.peers[s.peer], replica.Defaults()
					var newest uint64
					for _, other := range s.peers {
						newest = max(newest, other.View().Commit)
					}
					s.gate.release <- struct{}{}
					for range 3 {
						time.Sleep(cfg.Tick / 2)
						if v := p.View(); !v.Stalled && v.LeaderlessSince == 0 {
							t.Errorf("it vouches for %d as %v, the others are at %d", max(v.Known, v.Commit), v.Role, newest)
							break
						}
					}
				}
				s.cut.Store(0)
				s.recover()
			})
		})
	}
}

// Whatever operation of its disk does not end, a peer goes on or stops vouching.
func TestStallAtEveryDiskOperation(t *testing.T) {
	for _, c := range []struct {
		kind   disk.OpKind
		suffix string
		// stalls says that the loop waits for it, from so much later on at the latest:
		// when the active segment is full.
		stalls bool
		later  time.Duration
	}{
		{disk.OpWrite, ".wal", true, 0},
		{disk.OpSync, ".wal", true, 0},
		{disk.OpCreate, ".spare", true, 200 * time.Millisecond},
		{disk.OpWrite, ".spare", true, 200 * time.Millisecond},
		{disk.OpSync, ".spare", true, 200 * time.Millisecond},
		{disk.OpRename, ".spare", true, 200 * time.Millisecond},
		{disk.OpSyncDir, ".wal", true, 200 * time.Millisecond},
		{disk.OpPut, "root.raft.bin", false, 0},
		{disk.OpCreate, ".tmp", false, 0},
		{disk.OpWrite, ".tmp", false, 0},
		{disk.OpSync, ".tmp", false, 0},
		{disk.OpRename, ".tmp", false, 0},
		{disk.OpSyncDir, "work", false, 0},
	} {
		for _, leads := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s %s, leads %v", c.kind, c.suffix, leads), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newGate()
					background, stop := context.WithCancel(context.Background())
					ended := make(chan error, 3)
					s := begin(t, g, leads, 150, func(id uint64) replica.Log {
						f := disk.NewFake(id)
						store := openFake(t, f, id)
						if id == 1 {
							f.SetFault(func(op disk.Op) disk.Fault {
								if op.Kind == c.kind && strings.HasSuffix(op.Name, c.suffix) {
									g.pass("disk")
								}
								return disk.Fault{}
							})
						}
						go func() { ended <- store.Run(background) }()
						return store
					})
					time.Sleep(2 * time.Second) // Segments are retired by then.
					g.arm("disk")
					if s.reached() {
						time.Sleep(c.later)
						s.judge(c.stalls)
					}
					s.recover()
					stop()
					for range 3 {
						if err := <-ended; err != nil {
							t.Error(err)
						}
					}
				})
			})
		}
	}
}

func openFake(t testing.TB, f *disk.Fake, id uint64) *storage.Storage {
	t.Helper()
	store, err := storage.Open("work", storage.Options{
		FS:            f,
		OpenRegisters: func(path string) (storage.Registers, error) { return f.OpenRegisters(path) },
		ReadRegisters: f.ReadRegisters, SegmentBytes: storage.MinSegmentBytes, MarkInterval: 10 * time.Millisecond,
	})
	if err == nil {
		err = store.SaveIdentity(storage.Identity{ClusterID: 5, NodeID: id, Incarnation: id, Member: true, Peers: []storage.Peer{{NodeID: 1}, {NodeID: 2}, {NodeID: 3}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return store
}

var _ raft.Storage = gatedLog{}

// A process that was stopped between two Turns says from its first instant on that it
// may know nothing of the present, without waiting for a tick or a Turn; and knows
// again, in the same term, when the others have followed it.
func TestFrozenProcessVouchesForNothing(t *testing.T) {
	for _, frozen := range []uint64{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			s := begin(t, newGate(), true, 1000, memLogs)
			s.end()
			time.Sleep(time.Second)
			p := s.peers[frozen]
			before := p.View()
			if before.Stalled || before.LeaderlessSince != 0 {
				t.Fatalf("before: %+v", before)
			}
			s.clocks[frozen].ahead.Add(int64(testElection + time.Millisecond))
			if v := p.View(); !v.Stalled || v.LeaderlessSince == 0 {
				t.Errorf("peer %d vouches: leaderless since %d", frozen, v.LeaderlessSince)
			}
			time.Sleep(200 * time.Millisecond)
			if v := p.View(); v.Stalled || v.LeaderlessSince != 0 || v.Term != before.Term || v.Role != before.Role {
				t.Errorf("peer %d afterwards: %+v", frozen, v)
			}
			s.stop(1, 2, 3)
		})
	}
}
