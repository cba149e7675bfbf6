package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/server"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/meta/root/transport"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// cluster is three real root peers in this process: real disks, real sockets.
type cluster struct {
	t         testing.TB
	transport map[uint64]string
	grpc      map[uint64]string
	dirs      map[uint64]string
	peers     map[uint64]*rootPeer
	change    func(*replica.Config)
	log       hclog.Logger // shown when the test fails
}

// rootPeer is one running peer.
type rootPeer struct {
	store   *storage.Storage
	replica *replica.Replica
	wire    *transport.Transport
	stop    func() // returns when everything has stopped
}

func newCluster(t testing.TB, change func(*replica.Config)) *cluster {
	c := &cluster{t: t, transport: map[uint64]string{}, grpc: map[uint64]string{}, dirs: map[uint64]string{}, peers: map[uint64]*rootPeer{}, change: change}
	var out written.Text
	c.log = hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Debug, TimeFormat: "05.000"})
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out.String())
		}
	})
	addrs := proctest.Addrs(t, 6)
	for id := uint64(1); id <= 3; id++ {
		c.transport[id], c.grpc[id], c.dirs[id] = addrs[2*id-2], addrs[2*id-1], t.TempDir()
	}
	var starting sync.WaitGroup
	var mu sync.Mutex
	for id := uint64(1); id <= 3; id++ {
		starting.Go(func() {
			p, err := c.start(id)
			if err != nil {
				t.Errorf("start peer %d: %v", id, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			c.peers[id] = p
		})
	}
	starting.Wait()
	t.Cleanup(func() {
		for _, p := range c.peers {
			p.stop()
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return c
}

// start runs one peer as cmd/nokv does: agree, then replica, transport, server.
func (c *cluster) start(id uint64) (*rootPeer, error) {
	store, err := storage.Open(c.dirs[id], storage.Options{})
	if err != nil {
		return nil, err
	}
	peers, err := net.Listen("tcp", c.transport[id])
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
	defer cancel()
	identity, err := transport.Agree(ctx, transport.AgreeConfig{
		NodeID: id, Peers: c.transport, Workdir: store, Listener: peers.(*net.TCPListener), Dial: (&transport.TCP{}).Dial,
	})
	if err != nil {
		return nil, errors.Join(err, peers.Close(), store.Close())
	}
	store.SetVoters([]uint64{1, 2, 3})
	claim, err := store.Begin()
	if err != nil {
		return nil, errors.Join(err, peers.Close(), store.Close())
	}
	wire, err := transport.New(transport.Config{Identity: identity, Claim: claim, Memory: store.Memory(), Address: c.grpc[id], Listener: peers, Checkpoints: store, Logger: c.log.Named(fmt.Sprintf("transport%d", id))})
	if err != nil {
		return nil, err
	}
	boot := &rootv1.Cluster{ClusterId: identity.ClusterID, Incarnation: 1}
	for _, p := range identity.Peers {
		boot.Peers = append(boot.Peers, &rootv1.RootPeer{NodeId: p.NodeID, Incarnation: p.Incarnation, TransportAddress: p.Address})
	}
	cfg := replica.Config{NodeID: id, Voters: []uint64{1, 2, 3}, Bootstrap: boot, Transport: wire, Logger: c.log.Named(fmt.Sprintf("replica%d", id))}
	if c.change != nil {
		c.change(&cfg)
	}
	clk := clock.NewMonotonic()
	rep, err := replica.New(cfg, store, clk)
	if err != nil {
		return nil, err
	}
	srv, err := server.New(server.Config{
		NodeID: id, ClusterID: identity.ClusterID, Address: c.grpc[id], Replica: rep, Log: store, Peers: wire, Clock: clk,
	})
	if err != nil {
		return nil, err
	}
	lis, err := net.Listen("tcp", c.grpc[id])
	if err != nil {
		return nil, err
	}
	return c.run(store, rep, wire, srv, lis), nil
}

func (c *cluster) run(store *storage.Storage, rep *replica.Replica, wire *transport.Transport, srv *server.Server, lis net.Listener) *rootPeer {
	var running sync.WaitGroup
	begin := func(run func(context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		running.Go(func() {
			defer close(done)
			if err := run(ctx); err != nil && ctx.Err() == nil {
				c.t.Errorf("peer stopped: %v", err)
			}
		})
		return func() { cancel(); <-done }
	}
	stopStore := begin(store.Run)
	stopWire := begin(func(ctx context.Context) error { return wire.Run(ctx, rep) })
	stopReplica := begin(rep.Run)
	stopServer := begin(func(ctx context.Context) error { return srv.Serve(ctx, lis) })
	return &rootPeer{store: store, replica: rep, wire: wire, stop: sync.OnceFunc(func() {
		stopServer()
		stopReplica()
		stopWire()
		stopStore()
		running.Wait()
		if err := store.Close(); err != nil {
			c.t.Errorf("close: %v", err)
		}
	})}
}

// restart stops a peer and starts it on the same workdir.
func (c *cluster) restart(id uint64) {
	c.t.Helper()
	c.peers[id].stop()
	p, err := c.start(id)
	if err != nil {
		c.t.Fatalf("restart peer %d: %v", id, err)
	}
	c.peers[id] = p
}

func (c *cluster) client() *client.Client {
	cl, err := client.New(client.Config{Peers: c.grpc})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = cl.Run(ctx); close(done) }()
	c.t.Cleanup(func() { cancel(); <-done })
	return cl
}

func TestRealClusterConforms(t *testing.T) {
	conform(t, newCluster(t, nil).client())
}

// Every peer is restarted under load: nothing acknowledged is lost, and one that
// was away for longer than the log is retained comes back by a checkpoint.
func TestRestartsUnderLoad(t *testing.T) {
	c := newCluster(t, func(cfg *replica.Config) { cfg.CheckpointEntries, cfg.RetainEntries = 50, 20 })
	cl := c.client()
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
	defer cancel()
	var acknowledged atomic.Int64
	load, stopLoad := context.WithCancel(ctx)
	var callers sync.WaitGroup
	for n := range 8 {
		callers.Go(func() {
			for i := 0; load.Err() == nil; i++ {
				results, err := cl.Propose(ctx, member(fmt.Sprintf("m%d-%d", n, i)))
				if err != nil || results[0].Outcome == rootv1.Outcome_OUTCOME_REJECTED {
					t.Errorf("Propose = %v, %v", results, err)
					return
				}
				acknowledged.Add(1)
			}
		})
	}
	more := func(n int64) {
		for until := acknowledged.Load() + n; acknowledged.Load() < until && ctx.Err() == nil && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
	}
	for id := uint64(1); id <= 3; id++ {
		c.restart(id)
		more(200)
	}
	c.peers[2].stop()
	more(2000)
	c.restart(2)
	more(200)
	stopLoad()
	callers.Wait()
	token, err := cl.ReadIndex(ctx)
	if err != nil {
		t.Fatal(err)
	}
	checkPeers(ctx, t, c, token, int(acknowledged.Load()))
}

// checkPeers waits until every peer is at token and compares them.
func checkPeers(ctx context.Context, t *testing.T, c *cluster, token state.Token, want int) {
	t.Helper()
	hashes := map[uint64]uint64{}
	for id, p := range c.peers {
		for {
			changed := p.replica.Changed()
			v := p.replica.View()
			if v.Applied >= token.Index {
				hashes[id] = v.State.Hash()
				if got := v.State.MemberCount(); got < want {
					t.Errorf("peer %d has %d members, %d were acknowledged", id, got, want)
				}
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("peer %d is at %d, want %v", id, v.Applied, token)
			}
		}
	}
	if hashes[1] != hashes[2] || hashes[1] != hashes[3] {
		t.Errorf("state hashes differ: %x", hashes)
	}
}

func BenchmarkPropose(b *testing.B) {
	for _, callers := range []int{1, 64, 1000} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			cl := newCluster(b, nil).client()
			ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
			defer cancel()
			if _, err := cl.Propose(ctx, member("first")); err != nil {
				b.Fatal(err)
			}
			var next atomic.Int64
			b.ResetTimer()
			var all sync.WaitGroup
			for n := range callers {
				all.Go(func() {
					id := fmt.Sprintf("m%d", n)
					for next.Add(1) <= int64(b.N) {
						if _, err := cl.Propose(ctx, member(id)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
		})
	}
}

func BenchmarkReadIndex(b *testing.B) {
	cl := newCluster(b, nil).client()
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
	defer cancel()
	if _, err := cl.ReadIndex(ctx); err != nil {
		b.Fatal(err)
	}
	var next atomic.Int64
	var all sync.WaitGroup
	b.ResetTimer()
	for range 256 {
		all.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if _, err := cl.ReadIndex(ctx); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}
