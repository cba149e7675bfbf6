package replica_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// memLog is a Log in memory. What it holds survives the Core over it.
type memLog struct {
	*raft.MemoryStorage

	// mu guards the rest.
	mu sync.Mutex
	// onAppend is called before entries are kept; it may fail or block.
	onAppend func(entries []*raftpb.Entry) error
	meta     storage.CheckpointMeta
	records  []*rootv1.Record
	// incoming is a received checkpoint.
	incoming        storage.CheckpointMeta
	incomingRecords []*rootv1.Record
	// held is set while incoming must not be replaced.
	held bool
}

func newMemLog() *memLog { return &memLog{MemoryStorage: raft.NewMemoryStorage()} }

// setOnAppend changes the hook while the log is in use.
func (l *memLog) setOnAppend(hook func([]*raftpb.Entry) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onAppend = hook
}

func (l *memLog) Append(hs *raftpb.HardState, entries []*raftpb.Entry, sync bool) error {
	l.mu.Lock()
	hook := l.onAppend
	l.mu.Unlock()
	if hook != nil {
		if err := hook(entries); err != nil {
			return err
		}
	}
	if hs != nil {
		if err := l.SetHardState(hs); err != nil {
			return err
		}
	}
	return l.MemoryStorage.Append(entries)
}

func (l *memLog) WriteCheckpoint(meta storage.CheckpointMeta, records func(func([]byte) error) error) error {
	var all []*rootv1.Record
	if err := records(func(b []byte) error {
		r := &rootv1.Record{}
		all = append(all, r)
		return proto.Unmarshal(b, r)
	}); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	meta.Records = uint64(len(all))
	if meta.Index <= l.meta.Index {
		return storage.ErrOutdated
	}
	l.meta, l.records = meta, all
	return nil
}

// setBytes says how large the checkpoint is.
func (l *memLog) setBytes(n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.meta.Bytes = n
}

func (l *memLog) Checkpoint() (storage.CheckpointMeta, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.meta, l.meta.Index != 0
}

func (l *memLog) ReadCheckpoint(fn func([]byte) error) (storage.CheckpointMeta, error) {
	l.mu.Lock()
	meta, records := l.meta, l.records
	l.mu.Unlock()
	var packed []byte
	for _, r := range records {
		b, err := proto.Marshal(r)
		if err != nil {
			return meta, err
		}
		packed = protowire.AppendBytes(packed, b)
	}
	return meta, fn(packed)
}

// receive keeps a copy of another log's checkpoint.
func (l *memLog) receive(from *memLog) storage.CheckpointMeta {
	from.mu.Lock()
	meta, records := from.meta, from.records
	from.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held {
		l.incoming, l.incomingRecords = meta, records
	}
	return meta
}

func (l *memLog) HoldCheckpoint(meta storage.CheckpointMeta) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	there := meta == l.incoming
	l.held = l.held || there
	return there
}

func (l *memLog) ReceivedCluster() *rootv1.Cluster {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.incomingRecords {
		if c := r.GetCluster(); c != nil {
			return c
		}
	}
	return nil
}

func (l *memLog) ReleaseCheckpoint() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
}

func (l *memLog) InstallCheckpoint(meta storage.CheckpointMeta) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if meta != l.incoming {
		return fmt.Errorf("received %d, told to install %d", l.incoming.Index, meta.Index)
	}
	l.meta, l.records = l.incoming, l.incomingRecords
	return l.ApplySnapshot(&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(meta.Index), Term: new(meta.Term)}})
}

// peer is one Core of a test cluster, with its log and its mail.
type peer struct {
	t     testing.TB
	c     *cluster
	id    uint64
	cfg   replica.Config
	core  *replica.Core
	log   *memLog
	inbox []*raftpb.Message
	// events are told at the next turn.
	events []replica.Event
	// trace is what left the core, in order: sends and appends.
	trace []string
	done  []replica.Request
	view  *replica.View
	err   error
	// overdue makes the next append take too long; late says that it did.
	overdue, late bool
	hashes        map[uint64]uint64
	standing      replica.Standing // what it told last
	told          *rootv1.Cluster  // by SetPeers
	// hold keeps checkpoint tasks instead of doing them.
	hold  bool
	tasks []*replica.CheckpointTask
	turns int
}

// Send implements replica.Transport.
func (p *peer) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		p.trace = append(p.trace, fmt.Sprintf("send %s to %d", m.GetType(), m.GetTo()))
		to := p.c.peers[m.GetTo()]
		if p.c.cut[[2]uint64{p.id, m.GetTo()}] || to == nil || to.core == nil || (p.c.drop != nil && p.c.drop(m)) {
			if m.GetType() == raftpb.MsgSnap {
				p.events = append(p.events, replica.Event{Kind: replica.SnapshotFailed, Peer: m.GetTo()})
			}
			continue
		}
		m = proto.Clone(m).(*raftpb.Message)
		if m.GetType() == raftpb.MsgSnap {
			m = replica.Received(m, to.log.receive(p.log))
			p.events = append(p.events, replica.Event{Kind: replica.SnapshotDelivered, Peer: m.GetTo()})
			p.c.snapshots++
		}
		to.inbox = append(to.inbox, m)
	}
}

// Tell implements replica.Transport.
func (p *peer) Tell(s replica.Standing) {
	index, hash := s.Index, s.Hash
	p.hashes[index] = hash
	p.standing = s
	for _, to := range p.c.peers {
		if to.id != p.id && !p.c.cut[[2]uint64{p.id, to.id}] && !p.c.dropHashes {
			to.events = append(to.events, replica.Event{Kind: replica.PeerStateHash, Peer: p.id, Index: index, Hash: hash})
		}
	}
}

func (p *peer) SetPeers(c *rootv1.Cluster) { p.told = c }

// cluster is some Cores in one goroutine; the test moves time and mail.
type cluster struct {
	t     testing.TB
	peers map[uint64]*peer
	order []uint64
	clock clock.Manual
	cut   map[[2]uint64]bool
	// drop loses single messages.
	drop       func(*raftpb.Message) bool
	dropHashes bool
	snapshots  int
}

const testTick = 20 * time.Millisecond

// testElection is the election timeout by the default settings.
const testElection = 500 * time.Millisecond

func newCluster(t testing.TB, n int, change func(*replica.Config)) *cluster {
	c := &cluster{
		t: t, peers: make(map[uint64]*peer), cut: make(map[[2]uint64]bool),
		clock: clock.Manual{Elapsed: 1, WallMillis: 1_700_000_000_000},
	}
	bootstrap := &rootv1.Cluster{ClusterId: 77, Incarnation: 1}
	for i := 1; i <= n; i++ {
		c.order = append(c.order, uint64(i))
		bootstrap.Peers = append(bootstrap.Peers, &rootv1.RootPeer{NodeId: uint64(i), Incarnation: uint64(100 + i), TransportAddress: fmt.Sprintf("127.0.0.1:%d", i)})
	}
	for _, id := range c.order {
		p := &peer{t: t, c: c, id: id, log: newMemLog(), hashes: make(map[uint64]uint64)}
		cfg := replica.Defaults()
		cfg.NodeID, cfg.Voters, cfg.Bootstrap, cfg.Seed, cfg.Transport = id, c.order, bootstrap, id, p
		cfg.Overdue = func() bool { return p.late }
		if change != nil {
			change(&cfg)
		}
		p.cfg = cfg
		p.log.onAppend = func(entries []*raftpb.Entry) error {
			p.trace = append(p.trace, fmt.Sprintf("append %d", len(entries)))
			p.late = p.overdue
			return nil
		}
		c.peers[id] = p
	}
	for _, id := range c.order {
		c.peers[id].open()
	}
	return c
}

// open starts a Core over what the log holds.
func (p *peer) open() {
	p.t.Helper()
	st, err := replica.LoadState(p.log)
	if err != nil {
		p.t.Fatalf("peer %d: load state: %v", p.id, err)
	}
	p.cfg.Seed += 1000
	if p.core, err = replica.NewCore(p.cfg, p.log, st); err != nil {
		p.t.Fatalf("peer %d: %v", p.id, err)
	}
	p.inbox, p.events, p.tasks, p.err = nil, nil, nil, nil
}

// crash drops the Core; the log stays.
func (p *peer) crash() { p.core = nil }

// turn gives the peer its mail and some requests.
func (p *peer) turn(ticks int, requests ...replica.Request) {
	p.t.Helper()
	if p.core == nil {
		return
	}
	in := replica.Input{Ticks: ticks, Messages: p.inbox, Events: p.events, Requests: requests}
	p.inbox, p.events = nil, nil
	p.take(in)
}

func (p *peer) take(in replica.Input) {
	p.t.Helper()
	p.late = false
	for more := true; more && p.err == nil; {
		in.Now, in.Wall = p.c.clock.Now(), p.c.clock.Wall()
		out, err := p.core.Turn(in)
		p.turns++
		p.err = err
		p.done = append(p.done, out.Done...)
		if out.View != nil {
			p.view = out.View
		}
		in, more = replica.Input{}, out.More
		if out.Checkpoint != nil {
			if p.hold {
				p.tasks = append(p.tasks, out.Checkpoint)
				continue
			}
			in.Checkpointed, more = out.Checkpoint.Write(p.log, func() error { return nil }), true
		}
	}
}

// settle delivers mail until there is none.
func (c *cluster) settle() {
	c.t.Helper()
	for range 1000 {
		idle := true
		for _, id := range c.order {
			if p := c.peers[id]; p.core != nil && p.err == nil && (len(p.inbox) > 0 || len(p.events) > 0) {
				idle = false
				p.turn(0)
			}
		}
		if idle {
			return
		}
	}
	c.t.Fatal("messages without end")
}

// tick moves time by one tick for all and delivers mail.
func (c *cluster) tick(n int) {
	c.t.Helper()
	for range n {
		c.clock.Advance(testTick)
		for _, id := range c.order {
			if p := c.peers[id]; p.err == nil {
				p.turn(1)
			}
		}
		c.settle()
	}
}

func (c *cluster) leader() *peer {
	for _, id := range c.order {
		if p := c.peers[id]; p.core != nil && p.err == nil && p.view != nil && p.view.Role == rootv1.RaftRole_RAFT_ROLE_LEADER && !c.isolated(id) {
			return p
		}
	}
	return nil
}

// elect ticks until one peer leads a bootstrapped cluster.
func (c *cluster) elect() *peer {
	c.t.Helper()
	for range 200 {
		c.tick(1)
		if l := c.leader(); l != nil && l.view.State.Cluster() != nil && l.view.Applied == l.view.LastIndex {
			return l
		}
	}
	c.t.Fatal("nobody leads after 200 ticks")
	return nil
}

// lead makes peer id the leader.
func (c *cluster) lead(id uint64) *peer {
	c.t.Helper()
	if l := c.elect(); l.id != id {
		l.turn(0, replica.NewTransfer(id))
		c.settle()
	}
	c.tick(3)
	l := c.elect()
	if l.id != id {
		c.t.Fatalf("peer %d leads, want %d", l.id, id)
	}
	return l
}

// isolate cuts a peer off from all others, both ways.
func (c *cluster) isolate(id uint64) {
	for _, other := range c.order {
		if other != id {
			c.cut[[2]uint64{id, other}], c.cut[[2]uint64{other, id}] = true, true
		}
	}
}

func (c *cluster) isolated(id uint64) bool {
	for _, other := range c.order {
		if other != id && !c.cut[[2]uint64{other, id}] {
			return false
		}
	}
	return len(c.order) > 1
}

func (c *cluster) heal() { clear(c.cut) }

// command joins a coordinator: a small write that always applies.
func command(id string) *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_CoordinatorJoined{
		CoordinatorJoined: &rootv1.CoordinatorJoined{Id: id, Address: "127.0.0.1:1", Incarnation: 1},
	}}}}
}

func propose(t testing.TB, id string) *replica.Proposal {
	t.Helper()
	p, err := replica.NewProposal([]*rootv1.Command{command(id)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// answered says whether a request was answered by this peer.
func (p *peer) answered(r replica.Request) bool {
	for _, d := range p.done {
		if d == r {
			return true
		}
	}
	return false
}

func wantReason(t testing.TB, err error, want rootv1.Reason) *rootv1.ErrorDetail {
	t.Helper()
	if got := reason.Of(err); got != want {
		t.Fatalf("error %v (%v), want %v", err, got, want)
	}
	return reason.From(err)
}

// same checks that all peers have equal states.
func (c *cluster) same() {
	c.t.Helper()
	var first *peer
	for _, id := range c.order {
		p := c.peers[id]
		if first == nil {
			first = p
		}
		if p.view.Applied != first.view.Applied || p.view.State.Hash() != first.view.State.Hash() {
			c.t.Fatalf("peer %d at %d hash %x, peer %d at %d hash %x", p.id, p.view.Applied, p.view.State.Hash(),
				first.id, first.view.Applied, first.view.State.Hash())
		}
	}
}

var errDisk = errors.New("disk on fire")
