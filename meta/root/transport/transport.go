// Package transport carries messages between root peers over framed TCP, has an
// empty set of workdirs agree to be one cluster, and lets a new one join.
//
// It owns connections, queues and the handshake; what it is handed it may lose,
// delay and repeat, as raft allows. It promises:
//
//  1. Send never blocks. Each peer has one bounded queue; what does not fit is
//     dropped, and the replica is told once until the queue has drained.
//  2. Each peer dials every other one and sends on that connection; connections
//     it accepted are for receiving (signs of life go both ways). Everything that
//     queued up while a write was under way leaves in the next write.
//  3. Before anything else both ends say who they are: protocol versions, of which the
//     highest common one is spoken, feature level, cluster, node ids, incarnations of
//     both workdirs. A mismatch ends the connection. Why, its log says: who calls
//     learns that it is refused, or which versions are spoken; a peer that does not
//     understand the cluster's feature level hears so, and Run ends. Connections that do
//     not say who they are keep nobody out (lobby).
//  4. A frame has a kind with its own length limit, checked before anything is
//     allocated, and a checksum over header and payload. Every read and write has
//     a deadline: a connection that is silent for DeadAfter is closed.
//  5. PeerRefused is told once when a connection that worked breaks and the
//     peer's machine refuses the next one.
//  6. A MsgSnap is delivered after the checkpoint it stands for was received and
//     verified completely; SnapshotDelivered tells the sender how it ended, for
//     every MsgSnap.
//  7. Who the peers are SetPeers says, at any time: connections and goroutines of one
//     that is a peer no more end, and it is refused by name from then on; it hears so
//     itself, by its log or by such a refusal, and Run ends. A node that
//     SetPeers has not named is let in as a guest when it knows the cluster and
//     this workdir: the entry that added it may not have come yet. A guest goes with
//     its last connection, and there are at most 8.
//  8. Who runs on an older copy of its folder, or on a second one, is refused, and hears so:
//     the rules of freshness are kept here. What a peer promises is remembered when it is
//     received, before the replica has it.
//
// # Bootstrap
//
// Agree makes one cluster of workdirs that were started with the same peers and
// nothing else. A peer first makes a random incarnation durable (pending), then
// tells it; it becomes a member, durably, when it knows the incarnations of all
// peers of its map, or when a member lists its own incarnation. The cluster id is
// a function of the (node, incarnation) list.
//
// Why crashes do no harm: an incarnation is durable before anybody hears it, so
// whoever crashes comes back as the one the others counted. Whoever crashes
// between the others' second save and its own is still pending and finds itself
// in their list. A workdir that is wiped comes back with another incarnation:
// members refuse it for good, because their list has the old one, and nobody can
// become a member without a word from every node of the map. If it was wiped while
// peers were pending, they may have heard different incarnations and end with
// different lists: then each list is another cluster id, peers of different lists
// refuse each other, and since every node has one workdir with one list, at most
// one list has a majority: no two clusters can ever serve under one map.
//
// # Joining
//
// With AgreeConfig.Join one workdir becomes a peer of a cluster that there is. It
// makes a random incarnation durable (pending) and knocks with it at every peer it
// knows of. A member that does not know it remembers it as a candidate for 10 s; an
// operator has the leader root its node id, incarnation and address; from then on
// members list it, and it becomes a member, durably, when it hears that.
//
// Why crashes do no harm: before the incarnation is durable nobody has heard of it.
// Whoever crashes later comes back with it and knocks again, whether it is rooted
// by then or not. Whoever crashes between being rooted and its own second save is
// still pending and finds itself listed; until then it has acknowledged nothing and
// votes for nobody. What a member tells may be old, never wrong: the log roots one
// incarnation under a node id, once. So a workdir that was wiped behind its rooting, a
// second process under the same node id and a node that was replaced are refused for good.
package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/mtls"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// Receiver takes what other peers send. *replica.Replica is one. Its methods do
// not block.
type Receiver interface {
	Deliver(m *raftpb.Message)
	PeerStateHash(node, index, hash uint64)
	// PeerRefused: promise 5. PeerUnreachable: messages to the peer were lost.
	PeerRefused(node uint64)
	PeerUnreachable(node uint64)
	SnapshotDelivered(node uint64, ok bool)
}

// Checkpoints are the checkpoint files of the workdir. *storage.Storage is one.
type Checkpoints interface {
	// OpenCheckpoint opens the current one for reading.
	OpenCheckpoint() (io.ReadCloser, storage.CheckpointMeta, error)
	// ReceiveCheckpoint keeps what r holds once it is verified completely.
	ReceiveCheckpoint(r io.Reader) (storage.CheckpointMeta, error)
}

// Config configures a Transport. Zero durations and limits take the defaults.
type Config struct {
	// Identity is who this peer is: what Agree returned. The peers' addresses are
	// where their transports listen; this one's is told to the others.
	Identity storage.Identity
	// Claim is what this peer says of its folder, and Memory what it remembers of the
	// others': what storage.Begin returned, and that storage's Memory.
	Claim  freshness.Claim
	Memory *freshness.Memory
	// Addresses are where to dial other peers, by node id, whatever else is known of
	// them.
	Addresses map[uint64]string
	// Address is this peer's gRPC address, told to the others.
	Address string
	// Listener accepts the other peers; Run closes it.
	Listener net.Listener
	// Dial reaches them.
	Dial Dial
	// TLS makes every connection one between root peers of the same cluster, each
	// with a certificate of its own node id. Nil: nobody can be told from anybody.
	TLS         *mtls.Source
	Checkpoints Checkpoints
	// Logger hears of connections and checkpoints. Nil: nothing is logged.
	Logger hclog.Logger

	// HandshakeTimeout bounds dialing and the handshake. Default 2 s.
	HandshakeTimeout time.Duration
	// FeatureLevel is the highest that this peer understands, told to the others.
	// Default 1.
	FeatureLevel uint32
	// AliveEvery is the pause between signs of life on a connection; DeadAfter the
	// silence after which it is closed. Defaults 2 s and 5 s.
	AliveEvery, DeadAfter time.Duration
	// MinRedial and MaxRedial bound the jittered pause between two tries to reach
	// a peer. Defaults 10 ms and 500 ms.
	MinRedial, MaxRedial time.Duration
	// MaxQueued bounds the messages that wait for one peer. Default 8,192.
	MaxQueued int
	// CheckpointTimeout is how long the receiver of a checkpoint may take to verify
	// it behind the last byte. Default 1 min.
	CheckpointTimeout time.Duration

	// speaks are the protocol versions; those of this build unless a test says.
	speaks versions
}

func (c *Config) setDefaults() {
	c.Logger = cmp.Or(c.Logger, hclog.NewNullLogger())
	if c.Dial == nil {
		c.Dial = (&TCP{}).Dial
	}
	c.speaks = cmp.Or(c.speaks, spoken)
	c.FeatureLevel = cmp.Or(c.FeatureLevel, 1)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 2*time.Second)
	c.AliveEvery = cmp.Or(c.AliveEvery, 2*time.Second)
	c.DeadAfter = cmp.Or(c.DeadAfter, 5*time.Second)
	c.MinRedial = cmp.Or(c.MinRedial, 10*time.Millisecond)
	c.MaxRedial = cmp.Or(c.MaxRedial, 500*time.Millisecond)
	c.MaxQueued = cmp.Or(c.MaxQueued, 8192)
	c.CheckpointTimeout = cmp.Or(c.CheckpointTimeout, time.Minute)
}

// TCP dials over TCP without delay for small writes.
type TCP struct{}

// Dial implements Dial.
func (*TCP) Dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer // Go sets TCP_NODELAY itself.
	return d.DialContext(ctx, "tcp", address)
}

// Transport connects one member to the others. Make it with New.
type Transport struct {
	cfg Config
	log hclog.Logger

	// peers are the others by node id; changed is a level: it is another set.
	peers   atomic.Pointer[map[uint64]*remote]
	changed chan struct{}
	// over gets why this peer cannot go on; capacity 1.
	over chan error

	// said is what this peer said of itself last; nil: nothing yet.
	said atomic.Pointer[replica.Standing]

	candidates candidates
	refusals   refusalLog

	receiver Receiver    // set by Run before anything runs
	running  atomic.Bool // receiver is set

	mu      sync.Mutex      // guards what follows
	cluster *rootv1.Cluster // who the peers are; nil: the identity says it
	warned  map[uint64]bool // nodes whose replacement was logged
	let     []*remote       // peers that are none any more, for follow to end
}

// New checks the configuration and returns a transport that is not connected.
func New(cfg Config) (*Transport, error) {
	cfg.setDefaults()
	if !cfg.Identity.Member {
		return nil, fmt.Errorf("transport: root peer %d has not finished its bootstrap", cfg.Identity.NodeID)
	}
	if cfg.Listener == nil || cfg.Checkpoints == nil {
		return nil, errors.New("transport: listener and checkpoints are needed")
	}
	if cfg.Memory == nil || !cfg.Claim.Valid() {
		return nil, errors.New("transport: a counted start of the workdir and its memory are needed")
	}
	t := &Transport{cfg: cfg, log: cfg.Logger, changed: make(chan struct{}, 1), over: make(chan error, 1), warned: map[uint64]bool{}}
	peers := map[uint64]*remote{}
	for _, p := range cfg.Identity.Peers {
		if p.NodeID != cfg.Identity.NodeID {
			p.Address = t.reach(p.NodeID, p.Address)
			peers[p.NodeID] = newRemote(t, p)
		}
	}
	t.peers.Store(&peers)
	return t, nil
}

// Run connects to the peers and hands what they send to receiver, until ctx ends,
// accepting fails, or this peer is none any more, too old, or runs on an older copy of
// its folder: a *ReplacedError, a *TooOldError or a *freshness.StaleError. It may be
// called once.
func (t *Transport) Run(ctx context.Context, receiver Receiver) error {
	t.receiver = receiver
	t.running.Store(true)
	// The port closes before the connections do: peers that see a connection end
	// try again at once, and are refused.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { t.follow(inner) })
	accepted := make(chan error, 1)
	running.Go(func() { accepted <- t.accept(inner) })
	var err error
	select {
	case err = <-accepted:
		err = fmt.Errorf("accept root peers on %s: %w", t.cfg.Listener.Addr(), err)
	case err = <-t.over:
	case <-ctx.Done():
	}
	closeErr := t.cfg.Listener.Close()
	cancel()
	running.Wait()
	if err == nil && closeErr != nil {
		err = fmt.Errorf("close listener of root peers: %w", closeErr)
	}
	return err
}

// Send queues messages for their peers; promises 1 and 6. It may be called
// before Run and while it runs, and keeps the messages.
func (t *Transport) Send(messages []*raftpb.Message) {
	peers := t.remotes()
	for _, m := range messages {
		p, snap := peers[m.GetTo()], m.GetType() == raftpb.MsgSnap
		switch {
		case p != nil && snap:
			p.offerCheckpoint(m)
		case p != nil:
			p.put(item{message: m})
		case snap && t.running.Load():
			t.receiver.SnapshotDelivered(m.GetTo(), false)
		}
	}
}

// Address is a peer's gRPC address as it told in a handshake; empty before.
func (t *Transport) Address(node uint64) string {
	if node == t.cfg.Identity.NodeID {
		return t.cfg.Address
	}
	if p, ok := t.remotes()[node]; ok {
		return p.grpcAddress()
	}
	return ""
}

// Reached is where a peer's transport is reached from here; empty: nowhere now.
func (t *Transport) Reached(node uint64) string {
	if node == t.cfg.Identity.NodeID {
		return addressOf(t.cfg.Identity.Peers, node)
	}
	if p, ok := t.remotes()[node]; ok && p.connected.Load() {
		return p.at()
	}
	return ""
}

// FeatureLevel is the highest that a peer understands, as it said when its
// connection began; 0: there is none.
func (t *Transport) FeatureLevel(node uint64) uint32 {
	if node == t.cfg.Identity.NodeID {
		return t.cfg.FeatureLevel
	}
	if p, ok := t.remotes()[node]; ok && (p.connected.Load() || p.talks()) {
		return p.level.Load()
	}
	return 0
}

// Connected says that messages to a peer find a connection.
func (t *Transport) Connected(node uint64) bool {
	p, ok := t.remotes()[node]
	return ok && p.connected.Load()
}

// PeerMetrics are the numbers of one peer's outgoing side.
type PeerMetrics struct {
	// Connected says that there is a connection now; Connects counts them.
	Connected bool   `json:"connected"`
	Connects  uint64 `json:"connects"`
	// Version is the protocol version that is spoken with it, FeatureLevel the
	// highest that it understands.
	Version      uint32 `json:"version"`
	FeatureLevel uint32 `json:"feature_level"`
	// Sent and Dropped count messages, Writes the writes they left in, Bytes their size.
	Sent    uint64 `json:"sent"`
	Dropped uint64 `json:"dropped"`
	Writes  uint64 `json:"writes"`
	Bytes   uint64 `json:"bytes"`
}

// Metrics returns the numbers by node id.
func (t *Transport) Metrics() map[uint64]PeerMetrics {
	peers := t.remotes()
	out := make(map[uint64]PeerMetrics, len(peers))
	for id, p := range peers {
		out[id] = PeerMetrics{
			Version: p.version.Load(), FeatureLevel: p.level.Load(),
			Connected: p.connected.Load(), Connects: p.connects.Load(), Sent: p.sent.Load(),
			Dropped: p.dropped.Load(), Writes: p.writes.Load(), Bytes: p.bytes.Load(),
		}
	}
	return out
}

func (t *Transport) hello(p storage.Peer, why purpose) hello {
	me := t.cfg.Identity
	return hello{
		speaks: t.cfg.speaks, level: t.cfg.FeatureLevel, purpose: why, from: me.NodeID, to: p.NodeID, cluster: me.ClusterID,
		fromIncarnation: me.Incarnation, toIncarnation: p.Incarnation, peerMap: peerMapHash(me.Peers),
		address: t.cfg.Address, transport: addressOf(me.Peers, me.NodeID), claim: t.cfg.Claim,
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
