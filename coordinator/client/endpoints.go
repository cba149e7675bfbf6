package client

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/dial"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

// maxLearned is the most endpoints kept beside the configured ones.
const maxLearned = 32

// endpoint is one coordinator's address and connection.
type endpoint struct {
	address string
	// id is the coordinator that has to answer there; empty: any, as at a configured address.
	id         rooted.CoordinatorID
	configured bool
	conn       *grpc.ClientConn
	rpc        coordinatorv1.CoordinatorClient

	// shunUntil is when it is as good as others again, Unix nanoseconds; 0: it is.
	shunUntil atomic.Int64
	// era is the last one that it served ids or timestamps of; 0: none.
	era atomic.Uint64
	// failures in a row.
	failures atomic.Uint32
}

// endpoints is the set of coordinators known.
type endpoints struct {
	cfg Config
	// cluster names the cluster in every call.
	cluster clusterid.Caller
	// list is replaced, never changed.
	list atomic.Pointer[[]*endpoint]
	// near answers whatever any coordinator can; holder is asked for authority.
	near, holder atomic.Pointer[endpoint]

	mu     sync.Mutex // writers of list
	closed bool
}

func newEndpoints(cfg Config, cluster clusterid.Caller) (*endpoints, error) {
	s := &endpoints{cfg: cfg, cluster: cluster}
	addresses := slices.Clone(cfg.Endpoints)
	if cfg.Shuffle {
		rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	}
	list := make([]*endpoint, 0, len(addresses))
	for _, a := range addresses {
		e, err := s.dial("", a)
		if err != nil {
			closeAll(list)
			return nil, err
		}
		e.configured = true
		list = append(list, e)
	}
	s.list.Store(&list)
	s.near.Store(list[0])
	s.holder.Store(list[0])
	return s, nil
}

// dial prepares a connection; it is made when first used.
func (s *endpoints) dial(id rooted.CoordinatorID, address string) (*endpoint, error) {
	options := append(append(flow.Client(), s.cluster.Options()...),
		grpc.WithTransportCredentials(s.cfg.TLS.Client(mtls.Peer{Role: principal.Coordinator, Name: string(id)})),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		// The default base delay of 1 s would be how long a restarted
		// coordinator goes unnoticed.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 25 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
	)
	target := address
	if !hasScheme(address) {
		target = "passthrough:///" + address
		options = append(options, grpc.WithContextDialer(dial.TCP))
	}
	conn, err := grpc.NewClient(target, append(options, s.cfg.DialOptions...)...)
	if err != nil {
		return nil, err
	}
	return &endpoint{address: address, id: id, conn: conn, rpc: coordinatorv1.NewCoordinatorClient(conn)}, nil
}

// learn returns the endpoint of a coordinator at an address that an answer has, making it if there is
// room. When there is none the oldest learned one goes. An id that is empty: whoever is there. nil: the
// address is not usable.
func (s *endpoints) learn(id rooted.CoordinatorID, address string) *endpoint {
	// Where another one was learned before, it is not any more.
	another := func(e *endpoint) bool { return s.cfg.TLS != nil && e != nil && id != "" && e.id != "" && e.id != id }
	if e := s.find(address); e != nil && !another(e) {
		return e
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.find(address)
	if had != nil && !another(had) || s.closed {
		return had
	}
	e, err := s.dial(id, address)
	if err != nil {
		return nil
	}
	list := slices.Clone(*s.list.Load())
	if had != nil {
		_ = had.conn.Close()
		list = slices.DeleteFunc(list, func(e *endpoint) bool { return e == had })
	}
	if len(list)-len(s.cfg.Endpoints) >= maxLearned {
		oldest := slices.IndexFunc(list, func(e *endpoint) bool { return !e.configured })
		_ = list[oldest].conn.Close()
		list = slices.Delete(list, oldest, oldest+1)
	}
	list = append(list, e)
	s.list.Store(&list)
	return e
}

func (s *endpoints) find(address string) *endpoint {
	for _, e := range *s.list.Load() {
		if e.address == address {
			return e
		}
	}
	return nil
}

// pick returns the endpoint to try next: first choice, then those in good
// standing in order of the list from the first choice on, then the one that
// has been shunned longest. nil when all have been tried.
func (s *endpoints) pick(first *endpoint, tried []*endpoint) *endpoint {
	list := *s.list.Load()
	from := max(slices.Index(list, first), 0)
	now := time.Now().UnixNano()
	var shunned []*endpoint
	for i := range list {
		e := list[(from+i)%len(list)]
		if slices.Contains(tried, e) {
			continue
		}
		if e.shunUntil.Load() <= now {
			return e
		}
		shunned = append(shunned, e)
	}
	if len(shunned) == 0 {
		return nil
	}
	return slices.MinFunc(shunned, func(a, b *endpoint) int { return cmp.Compare(a.shunUntil.Load(), b.shunUntil.Load()) })
}

// shun makes others preferred for a while, longer with each failure in a row.
func (s *endpoints) shun(e *endpoint) {
	n := min(e.failures.Add(1), 16)
	pause := min(s.cfg.BackoffMax, s.cfg.BackoffMin<<n)
	e.shunUntil.Store(time.Now().Add(pause).UnixNano())
}

// answered notes that e is alive.
func (s *endpoints) answered(e *endpoint) {
	if e.failures.Load() != 0 {
		e.failures.Store(0)
		e.shunUntil.Store(0)
	}
}

func (s *endpoints) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	closeAll(*s.list.Load())
}

func closeAll(list []*endpoint) {
	for _, e := range list {
		_ = e.conn.Close()
	}
}

// Endpoints returns the addresses in use: the configured ones, then those
// learned from ListCoordinators and from refusals.
func (c *Client) Endpoints() []string {
	var out []string
	for _, e := range *c.ends.list.Load() {
		out = append(out, e.address)
	}
	return out
}

// Discover asks for the list of coordinators and adds those not known yet.
// Configured endpoints are never dropped.
func (c *Client) Discover(ctx context.Context) error {
	for k, err := range c.ListCoordinators(ctx) {
		if err != nil {
			return err
		}
		if a := k.GetAddress(); a != "" {
			c.ends.learn(rooted.CoordinatorID(k.GetId()), a)
		}
	}
	return nil
}
