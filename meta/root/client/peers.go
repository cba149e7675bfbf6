package client

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/dial"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/internal/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
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

	mu        sync.Mutex // guards what follows
	addresses map[uint64]string
	open      map[uint64]*peer
	closed    bool
}

func newPeerTable(cfg Config) *peerTable {
	options := append(flow.Client(),
		grpc.WithTransportCredentials(cfg.TLS.Client(principal.Root)),
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
		addresses: maps.Clone(cfg.Peers),
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

// learn adds a peer that an answer named; addresses that were given stay.
func (t *peerTable) learn(id uint64, address string) (known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.addresses[id]; ok {
		return true
	}
	if id == 0 || address == "" || len(t.addresses) >= maxPeers {
		return false
	}
	t.addresses[id] = address
	return true
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
	conn, err := grpc.NewClient("passthrough:///"+address, t.options...)
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
