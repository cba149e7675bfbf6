package nokvtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/nokv/nokv/coordinator"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/rooted"
)

// Outside is the host of the test itself: of Client, ClientConfig and Dial.
const Outside = "test"

const (
	// patience is how long what Start and Await wait for may take, in virtual time in a bubble.
	patience = 2 * time.Minute
	// pace is how often it is looked whether something has come true.
	pace = 2 * time.Millisecond
	// electionTimeout of a cluster of one, and of more: who is alone has nobody to hear.
	electionTimeoutOfOne = 20 * time.Millisecond
	electionTimeout      = 100 * time.Millisecond
	segmentBytes         = 1 << 20
)

// Cluster is what Start started.
type Cluster struct {
	options *options
	net     *network
	outside *host
	client  *client.Client
	roots   map[uint64]string // gRPC addresses
	frozen  atomic.Bool
	running sync.WaitGroup // of root peers

	mu sync.Mutex
	// Guarded by mu.
	coordinators map[string]*coordinatorProcess // the last of each id
	started      []*coordinatorProcess
	members      []*Member
	ended        bool
	// broken is why something ended that nobody ended.
	broken []error
}

// coordinatorProcess is one start of a coordinator.
type coordinatorProcess struct {
	id, address string
	host        *host
	stop        context.CancelFunc
	ended       chan struct{}
}

// Start starts a cluster, waits until it serves, and ends it at the end of the test.
func Start(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	o, err := newOptions(opts)
	if err != nil {
		t.Fatalf("nokvtest: start a cluster: %v", err)
	}
	c := &Cluster{options: o, net: newNetwork(), outside: &host{name: Outside}, roots: map[uint64]string{}, coordinators: map[string]*coordinatorProcess{}}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { c.end(t, stop) })
	if err := c.start(ctx); err != nil {
		t.Fatalf("nokvtest: start a cluster: %v", err)
	}
	return c
}

func (c *Cluster) start(ctx context.Context) error {
	transports := map[uint64]string{}
	for id := range uint64(c.options.roots) {
		transports[id+1], c.roots[id+1] = fmt.Sprintf("root-%d:7001", id+1), fmt.Sprintf("root-%d:7000", id+1)
	}
	for id := range transports {
		if err := c.startRoot(ctx, id, transports); err != nil {
			return err
		}
	}
	for i := range c.options.coordinators {
		if _, err := c.startCoordinator(fmt.Sprintf("c%d", i+1), ""); err != nil {
			return err
		}
	}
	cfg := c.ClientConfig()
	cfg.BackoffMin = pace // the first answers are that nobody is in charge yet
	var err error
	if c.client, err = client.New(cfg); err != nil {
		return err
	}
	if err := c.followed(rooted.Token{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, k := range c.options.keyspaces {
		r, err := c.client.CreateKeyspace(ctx, k.name, k.preset, k.settings)
		if err != nil {
			return fmt.Errorf("make keyspace %q: %w", k.name, err)
		}
		if err := c.followed(rooted.TokenFromProto(r.GetToken())); err != nil {
			return err
		}
	}
	if _, err := c.client.Tso(ctx, 1); err != nil {
		return fmt.Errorf("it does not serve: %w", err)
	}
	return nil
}

// followed waits until each coordinator has heard of all others from the root, and of what was rooted at a
// position: what is rooted from here on each of them sees as it happens, and knows when it was.
func (c *Cluster) followed(at rooted.Token) error {
	err := c.await(func(ctx context.Context) (bool, error) {
		for _, address := range c.Addresses() {
			st, err := c.client.Status(ctx, address)
			if err != nil || len(st.GetCoordinators()) < c.options.coordinators ||
				rooted.TokenFromProto(st.GetDisclosure().GetServedRootToken()).Compare(at) < 0 {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("a coordinator does not follow the root: %w", err)
	}
	return nil
}

// startRoot starts a root peer on a disk in memory.
func (c *Cluster) startRoot(ctx context.Context, id uint64, transports map[uint64]string) error {
	h := &host{name: fmt.Sprintf("root-%d", id)}
	d := disk.NewFake(id)
	timeout := electionTimeout
	if len(transports) == 1 {
		timeout = electionTimeoutOfOne
	}
	peer, err := root.Open(root.Config{
		NodeID: id, Peers: transports, Workdir: "/root", Advertise: c.roots[id], ElectionTimeout: timeout,
		Storage: storage.Options{
			FS: d, ReadRegisters: d.ReadRegisters, SegmentBytes: segmentBytes, Recycle: -1,
			OpenRegisters: func(path string) (storage.Registers, error) { return d.OpenRegisters(path) },
		},
		Clock: clock.NewMonotonic(), Dial: c.dialer(h), Logger: c.options.logger.Named(h.name),
	})
	if err != nil {
		return err
	}
	lis, err := c.net.listen(h, c.roots[id], nil)
	if err != nil {
		return err
	}
	peerLis, err := c.net.listen(h, transports[id], nil)
	if err != nil {
		return err
	}
	c.running.Go(func() { c.ends(ctx, h, peer.Run(ctx, lis, peerLis)) })
	return nil
}

// ends notes that a process has ended.
func (c *Cluster) ends(ctx context.Context, h *host, err error) {
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = append(c.broken, fmt.Errorf("%s ended by itself: %w", h.name, err))
}

// startCoordinator starts a coordinator; at an address that it had, if there is one.
func (c *Cluster) startCoordinator(id, at string) (*coordinatorProcess, error) {
	p := &coordinatorProcess{id: id, address: at, host: &host{name: id}, ended: make(chan struct{})}
	var door net.Listener
	if c.options.loopback {
		if at == "" {
			at = "127.0.0.1:0"
		}
		var err error
		if door, err = net.Listen("tcp", at); err != nil {
			return nil, err
		}
		p.address = door.Addr().String()
	} else if at == "" {
		p.address = id + ":7100"
	}
	lis, err := c.net.listen(p.host, p.address, door)
	if err != nil {
		return nil, err
	}
	k, err := coordinator.New(coordinator.Config{
		ID: id, Incarnation: rand.Uint64() | 1, Advertise: p.address, RootPeers: c.roots, TenureTTL: c.options.ttl, IDStart: 1, TSOStart: 1,
		Version: "nokvtest", Frozen: c.frozen.Load, Clock: clock.NewMonotonic(), Dial: c.dialer(p.host), Logger: c.options.logger.Named(id),
	})
	if err != nil {
		_ = lis.Close()
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() {
		defer close(p.ended)
		c.ends(ctx, p.host, k.Run(ctx, lis))
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.coordinators[id], c.started = p, append(c.started, p)
	return p, nil
}

// end ends everything: members first, because they give back what they have.
func (c *Cluster) end(t testing.TB, stopRoots context.CancelFunc) {
	c.net.change(func() {
		clear(c.net.cut)
		clear(c.net.paused)
	})
	c.mu.Lock()
	c.ended = true
	members, coordinators, broken := slices.Clone(c.members), slices.Clone(c.started), c.broken
	c.mu.Unlock()
	for _, err := range broken {
		t.Errorf("nokvtest: %v", err)
	}
	for _, m := range members {
		m.stop()
	}
	for _, m := range members {
		<-m.ended
		_ = m.client.Close()
	}
	if c.client != nil {
		_ = c.client.Close()
	}
	for _, p := range coordinators {
		p.stop()
	}
	for _, p := range coordinators {
		<-p.ended
	}
	stopRoots()
	c.running.Wait()
}

// dialer is how a host dials.
func (c *Cluster) dialer(h *host) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) { return c.net.dial(ctx, h, address) }
}

// Client is a client of the cluster, until the test ends.
func (c *Cluster) Client() *client.Client { return c.client }

// ClientConfig is how a client of the test's own reaches the cluster.
func (c *Cluster) ClientConfig() client.Config { return c.clientConfig(c.outside) }

func (c *Cluster) clientConfig(h *host) client.Config {
	return client.Config{Endpoints: c.Addresses(), DialOptions: []grpc.DialOption{grpc.WithContextDialer(c.dialer(h))}}
}

// Addresses are those of the coordinators, c1 first. They are names of the network in memory,
// and with Loopback ports of 127.0.0.1.
func (c *Cluster) Addresses() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]string, 0, len(c.coordinators))
	for i := range c.options.coordinators {
		if p := c.coordinators[fmt.Sprintf("c%d", i+1)]; p != nil {
			list = append(list, p.address)
		}
	}
	return list
}

// Dial connects to a process of the cluster, or to a loopback address of the machine. It is a
// dialer for gRPC.
func (c *Cluster) Dial(ctx context.Context, address string) (net.Conn, error) {
	return c.net.dial(ctx, c.outside, address)
}

// Listen has a member listen at host:port, where host is its id, for what it serves itself.
func (m *Member) Listen(ctx context.Context, port string) (net.Listener, error) {
	return m.listen(ctx, "memory", m.id+":"+port)
}
