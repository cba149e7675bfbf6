package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// memNet is a network in memory that works inside a synctest bubble.
type memNet struct {
	mu        sync.Mutex
	listeners map[string]*memListener
	conns     []net.Conn
	dialErr   error
	wrap      func(net.Conn) net.Conn // of the dialing side; nil: none
	folders   map[uint64]*folder
}

// folder is what a workdir keeps of starts.
type folder struct {
	history freshness.History
	memory  *freshness.Memory
}

// begin counts a start of a node's folder in a config.
func (f *folder) begin(cfg *Config) {
	if f.memory == nil {
		f.memory = freshness.NewMemory(nil, nil, nil)
	}
	f.history = f.history.Next(randomWord())
	cfg.Claim, cfg.Memory = freshness.Claim{History: f.history}, f.memory
}

// fresh is a config with the first start of a folder.
func fresh(cfg Config) Config {
	new(folder).begin(&cfg)
	return cfg
}

func newMemNet() *memNet {
	return &memNet{listeners: map[string]*memListener{}, folders: map[uint64]*folder{}}
}

type memListener struct {
	n       *memNet
	address string
	backlog chan net.Conn
	closed  chan struct{}
	once    sync.Once

	mu       sync.Mutex
	deadline chan struct{} // closed when the deadline has passed
}

func (n *memNet) listen(address string) *memListener {
	l := &memListener{n: n, address: address, backlog: make(chan net.Conn, 16), closed: make(chan struct{}), deadline: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[address] = l
	return l
}

func (l *memListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	deadline := l.deadline
	l.mu.Unlock()
	select {
	case c := <-l.backlog:
		return c, nil
	case <-deadline:
		return nil, os.ErrDeadlineExceeded
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.IsZero() {
		l.deadline = make(chan struct{})
	} else {
		close(l.deadline) // Only used with a deadline that has passed.
	}
	return nil
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.n.mu.Lock()
		defer l.n.mu.Unlock()
		if l.n.listeners[l.address] == l {
			delete(l.n.listeners, l.address)
		}
		for {
			select {
			case c := <-l.backlog:
				c.Close()
				continue
			default:
			}
			return
		}
	})
	return nil
}

func (l *memListener) Addr() net.Addr { return memAddr(l.address) }

type memAddr string

func (a memAddr) Network() string { return "mem" }
func (a memAddr) String() string  { return string(a) }

func (n *memNet) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l, err, wrap := n.listeners[address], n.dialErr, n.wrap
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	ours, theirs := net.Pipe()
	select {
	case l.backlog <- theirs:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if wrap != nil {
		ours = wrap(ours)
	}
	n.mu.Lock()
	n.conns = append(n.conns, ours, theirs)
	n.mu.Unlock()
	return ours, nil
}

// cut breaks every connection.
func (n *memNet) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		c.Close()
	}
	n.conns = nil
}

// inbox is a Receiver that remembers.
type inbox struct {
	mu          sync.Mutex
	messages    []*raftpb.Message
	hashes      []string
	refused     []uint64
	unreachable []uint64
	snapshots   []string
}

func (b *inbox) add(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn()
}

func (b *inbox) Deliver(m *raftpb.Message) { b.add(func() { b.messages = append(b.messages, m) }) }
func (b *inbox) PeerRefused(n uint64)      { b.add(func() { b.refused = append(b.refused, n) }) }
func (b *inbox) PeerUnreachable(n uint64)  { b.add(func() { b.unreachable = append(b.unreachable, n) }) }

func (b *inbox) PeerStateHash(n, index, hash uint64) {
	b.add(func() { b.hashes = append(b.hashes, fmt.Sprintf("%d %d %x", n, index, hash)) })
}

func (b *inbox) SnapshotDelivered(n uint64, ok bool) {
	b.add(func() { b.snapshots = append(b.snapshots, fmt.Sprintf("%d %v", n, ok)) })
}

// checkpoints is a Checkpoints of bytes.
type checkpoints struct {
	data []byte
	meta storage.CheckpointMeta

	mu       sync.Mutex
	received []byte
	broken   error
	refuse   error // of who receives whole ones
}

func (c *checkpoints) OpenCheckpoint() (io.ReadCloser, storage.CheckpointMeta, error) {
	if c.data == nil {
		return nil, storage.CheckpointMeta{}, storage.ErrNoCheckpoint
	}
	return io.NopCloser(bytes.NewReader(c.data)), c.meta, nil
}

func (c *checkpoints) ReceiveCheckpoint(r io.Reader) (storage.CheckpointMeta, error) {
	data, err := io.ReadAll(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = err
	if err != nil {
		return storage.CheckpointMeta{}, err
	}
	c.received = data
	return storage.CheckpointMeta{Index: 77, Term: 6, Bytes: uint64(len(data))}, c.refuse
}

func (c *checkpoints) with(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *checkpoints) outcome() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received, c.broken
}

// node is one running transport.
type node struct {
	*Transport
	in   *inbox
	ck   *checkpoints
	log  *written.Text
	stop func()
	// ended gets the error of Run.
	ended chan error
}

// members are the identities of n peers of one cluster.
func members(n uint64) []storage.Identity {
	var peers []storage.Peer
	for id := uint64(1); id <= n; id++ {
		peers = append(peers, storage.Peer{NodeID: id, Incarnation: 100 + id, Address: fmt.Sprintf("n%d", id)})
	}
	var out []storage.Identity
	for _, p := range peers {
		out = append(out, storage.Identity{ClusterID: 0xc1, NodeID: p.NodeID, Incarnation: p.Incarnation, Peers: peers, Member: true})
	}
	return out
}

func (n *memNet) start(t *testing.T, me storage.Identity, change func(*Config)) *node {
	t.Helper()
	out := &node{in: &inbox{}, ck: &checkpoints{}, log: new(written.Text)}
	address := ""
	for _, p := range me.Peers {
		if p.NodeID == me.NodeID {
			address = p.Address
		}
	}
	cfg := Config{
		Identity: me, Address: "grpc-" + address, Listener: n.listen(address), Dial: n.dial, Checkpoints: out.ck,
		Logger: out.log.Logger(hclog.Debug),
	}
	n.mu.Lock() // The peers of a crash test start one another.
	if n.folders[me.NodeID] == nil {
		n.folders[me.NodeID] = &folder{}
	}
	f := n.folders[me.NodeID]
	n.mu.Unlock()
	f.begin(&cfg)
	if change != nil {
		change(&cfg)
	}
	var err error
	if out.Transport, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	out.ended = make(chan error, 1)
	go func() {
		out.ended <- out.Run(ctx, out.in)
		close(out.ended)
	}()
	out.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-out.ended; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("Run = %v", err)
		}
	})
	t.Cleanup(out.stop)
	return out
}

func message(from, to, index uint64, size int) *raftpb.Message {
	return &raftpb.Message{
		Type: raftpb.MsgApp.Enum(), From: proto.Uint64(from), To: proto.Uint64(to), Index: proto.Uint64(index),
		Entries: []*raftpb.Entry{{Data: bytes.Repeat([]byte{'x'}, size)}},
	}
}
