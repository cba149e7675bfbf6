package client

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/dial"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
)

// maxPeers bounds the peers that answers may add to the configured ones.
const maxPeers = 16

// peer is one root peer. It is never changed once made.
type peer struct {
	id      uint64
	address string
	conn    *grpc.ClientConn
	root    rootv1.RootClient
}

// peerTable holds the addresses and the connections, which open at first use.
type peerTable struct {
	options []grpc.DialOption
	tls     *mtls.Source

	mu        sync.Mutex // guards what follows
	addresses map[uint64]string
	// told are other addresses, of peers that moved since somebody wrote a list:
	// what was given, or what an answer named last. They are tried in turn while the
	// peer is not reached.
	told   map[uint64]string
	open   map[uint64]*peer
	closed bool
}

func newPeerTable(cfg Config) *peerTable {
	options := append(flow.Client(),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(dial.TCP),
		grpc.WithDisableServiceConfig(),
		// The default base delay of 1 s would make every restart of a peer cost seconds.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: cfg.AttemptTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
	)
	return &peerTable{
		options:   append(options, cfg.DialOptions...),
		tls:       cfg.TLS,
		addresses: maps.Clone(cfg.Peers),
		told:      map[uint64]string{},
		open:      map[uint64]*peer{},
	}
}

// maxAnswerBytes bounds one message from a peer: results and tail batches
// hold at most a few MiB.
const maxAnswerBytes = 16 << 20

// ids returns the known node ids in order.
func (t *peerTable) ids() []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.addresses))
}

// learn takes a peer's address from an answer. One that is known stays where it is
// while it is reached there.
func (t *peerTable) learn(id uint64, address string) (known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if has, ok := t.addresses[id]; ok {
		if address != "" && address != has {
			t.told[id] = address
		}
		return true
	}
	if id == 0 || address == "" || len(t.addresses) >= maxPeers {
		return false
	}
	t.addresses[id] = address
	return true
}

// reached says that nothing tells that p cannot be reached where it is dialled.
func (p *peer) reached() bool {
	now := p.conn.GetState()
	return now != connectivity.TransientFailure && now != connectivity.Connecting
}

// turn has a peer dialled at its other address from now on, if there is one. Its
// calls at the old one end.
func (t *peerTable) turn(p *peer) (to string, turned bool) {
	t.mu.Lock()
	to, turned = t.told[p.id]
	if turned = turned && t.open[p.id] == p; turned {
		t.addresses[p.id], t.told[p.id] = to, p.address
		delete(t.open, p.id)
	}
	t.mu.Unlock()
	if turned {
		_ = p.conn.Close() // Only says that it was closed before.
	}
	return to, turned
}

// get returns a peer by id. It opens the connection's bookkeeping but does no
// I/O: gRPC connects at the first call.
func (t *peerTable) get(id uint64) (*peer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if p, ok := t.open[id]; ok {
		return p, nil
	}
	address, ok := t.addresses[id]
	if !ok {
		return nil, fmt.Errorf("root peer %d is not known", id)
	}
	// An address may come of an answer: whoever is there has to be the peer that is meant.
	who := grpc.WithTransportCredentials(t.tls.Client(mtls.Peer{Role: principal.Root, Name: strconv.FormatUint(id, 10)}))
	conn, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{who}, t.options...)...)
	if err != nil {
		return nil, fmt.Errorf("set up connection to root peer %d at %s: %w", id, address, err)
	}
	p := &peer{id: id, address: address, conn: conn, root: rootv1.NewRootClient(conn)}
	t.open[id] = p
	return p, nil
}

func (t *peerTable) close() {
	t.mu.Lock()
	t.closed = true
	open := t.open
	t.open = map[uint64]*peer{}
	t.mu.Unlock()
	for _, p := range open {
		_ = p.conn.Close() // Only says that it was closed before.
	}
}
