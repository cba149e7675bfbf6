package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
	"go.etcd.io/raft/v3/raftpb"
)

// certificates are those of an authority of the test.
type certificates struct {
	t         testing.TB
	authority *ca.Authority
}

func newCertificates(t testing.TB) certificates { return newCertificatesOf(t, "test") }

func newCertificatesOf(t testing.TB, cluster string) certificates {
	authority, err := ca.New(cluster, time.Now(), ca.DefaultAuthorityLife)
	if err != nil {
		t.Fatal(err)
	}
	return certificates{t, authority}
}

// of makes a certificate and reads it.
func (c certificates) of(role principal.Role, name string) *mtls.Source {
	c.t.Helper()
	dir, err := os.MkdirTemp(c.t.TempDir(), "")
	if err != nil {
		c.t.Fatal(err)
	}
	dir = filepath.Join(dir, "certs")
	pair, err := c.authority.Issue(ca.Request{Role: role, Name: name}, time.Now())
	if err == nil {
		err = pair.Save(dir)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	s, err := mtls.Open(dir, mtls.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (c certificates) root(node uint64) *mtls.Source { return c.of(principal.Root, fmt.Sprint(node)) }

// Peers with certificates of their own talk as those without do.
func TestPeersWithCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids, certs := newMemNet(), members(3), newCertificates(t)
		a := n.start(t, ids[0], func(c *Config) { c.TLS = certs.root(1) })
		b := n.start(t, ids[1], func(c *Config) { c.TLS = certs.root(2) })
		time.Sleep(time.Second)
		a.Send([]*raftpb.Message{message(1, 2, 7, 1000)})
		b.Send([]*raftpb.Message{message(2, 1, 8, 1000)})
		synctest.Wait()
		for _, p := range []*node{a, b} {
			p.in.add(func() {
				if len(p.in.messages) != 1 {
					t.Errorf("%d messages arrived, want 1", len(p.in.messages))
				}
			})
		}
	})
}

// A peer speaks for the node id in its certificate alone, whoever dials; the log of
// the one that refuses says what is wrong, once.
func TestCertificatesOfOthersAreRefused(t *testing.T) {
	for name, wrong := range map[string]func(certificates) *mtls.Source{
		"of another node": func(c certificates) *mtls.Source { return c.root(3) },
		"of another role": func(c certificates) *mtls.Source { return c.of(principal.Coordinator, "2") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, ids, certs := newMemNet(), members(3), newCertificates(t)
				a := n.start(t, ids[0], func(c *Config) { c.TLS = certs.root(1) })
				b := n.start(t, ids[1], func(c *Config) { c.TLS = wrong(certs) })
				time.Sleep(10 * time.Second)
				if a.Connected(2) || b.Connected(1) {
					t.Errorf("connected: %t, %t", a.Connected(2), b.Connected(1))
				}
				a.stop()
				for _, said := range []string{"refused a root peer", "root peer refused"} {
					if got := strings.Count(a.log.String(), said); got != 1 {
						t.Errorf("%q stands %d times in the log, want once:\n%s", said, got, a.log)
					}
				}
			})
		})
	}
}

// Neither side of a connection talks when only one has certificates.
func TestOneSideWithoutCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ids, certs := newMemNet(), members(3), newCertificates(t)
		a := n.start(t, ids[0], func(c *Config) { c.TLS = certs.root(1) })
		b := n.start(t, ids[1], nil)
		time.Sleep(10 * time.Second)
		if a.Connected(2) || b.Connected(1) {
			t.Errorf("connected: %t, %t", a.Connected(2), b.Connected(1))
		}
	})
}

// Founding a cluster takes the certificate of each node id, too.
func TestBootstrapWithCertificates(t *testing.T) {
	for name, third := range map[string]uint64{"own": 3, "of another": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, certs := newMemNet(), newCertificates(t)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				done := make(chan error, 3)
				for id := range threePeers {
					own := certs.root(id)
					if id == 3 {
						own = certs.root(third)
					}
					l := n.listen(threePeers[id])
					defer l.Close()
					go func() {
						_, err := Agree(ctx, AgreeConfig{NodeID: id, Peers: threePeers, Workdir: &workdir{}, Listener: l, Dial: n.dial, TLS: own})
						done <- err
					}()
				}
				agreed := 0
				var last error
				for range threePeers {
					if err := <-done; err == nil {
						agreed++
					} else {
						last = err
					}
				}
				// Who has agreed answers no more here: the last ones may wait for it.
				if (agreed > 0) != (third == 3) {
					t.Errorf("root peer 3 has the certificate of root peer %d: %d agreed; %v", third, agreed, last)
				}
			})
		})
	}
}

// BenchmarkSmallMessages sends messages of 200 bytes over loopback, each on its own.
func BenchmarkSmallMessages(b *testing.B) {
	benchmarkMessages(b, 200)
}

// BenchmarkLargeMessages sends messages of 64 KiB over loopback.
func BenchmarkLargeMessages(b *testing.B) {
	benchmarkMessages(b, 64<<10)
}

func benchmarkMessages(b *testing.B, size int) {
	for _, secure := range []bool{false, true} {
		b.Run(fmt.Sprintf("tls=%t", secure), func(b *testing.B) {
			in := &arrivals{came: make(chan struct{}, 1)}
			tr := pairOnSockets(b, secure, in)
			m := []*raftpb.Message{message(1, 2, 1, size)}
			b.SetBytes(int64(size))
			for b.Loop() {
				tr.Send(m)
				<-in.came
			}
		})
	}
}

// arrivals tells that a message came. Who does not look holds nobody up.
type arrivals struct {
	inbox
	came chan struct{}
}

func (a *arrivals) Deliver(*raftpb.Message) {
	select {
	case a.came <- struct{}{}:
	default:
	}
}

func pairOnSockets(b *testing.B, secure bool, in Receiver) *Transport {
	b.Helper()
	certs := newCertificates(b)
	ids := members(2)
	var listeners []net.Listener
	for i := range ids {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		listeners = append(listeners, lis)
		ids[i].Peers[i].Address = lis.Addr().String()
	}
	receivers := []Receiver{&inbox{}, in}
	var first *Transport
	for i, id := range ids {
		cfg := fresh(Config{Identity: id, Address: "grpc", Listener: listeners[i], Dial: new(TCP).Dial, Checkpoints: &checkpoints{}})
		if secure {
			cfg.TLS = certs.root(uint64(i) + 1)
		}
		tr, err := New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		if i == 0 {
			first = tr
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- tr.Run(ctx, receivers[i]) }()
		b.Cleanup(func() {
			cancel()
			<-done
		})
	}
	for !first.Connected(2) {
		time.Sleep(time.Millisecond)
	}
	return first
}

// A peer that takes connections and says nothing ends the handshake by its deadline,
// again and again, and nothing else.
func TestSilentHandshakeInBootstrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		certs := newCertificates(t)
		n := newMemNet()
		l := n.listen("n1")
		defer l.Close()
		var dials atomic.Int64
		silent := func(ctx context.Context, address string) (net.Conn, error) {
			dials.Add(1)
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			return ours, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := Agree(ctx, AgreeConfig{NodeID: 1, Peers: map[uint64]string{1: "n1", 2: "n2", 3: "n3"}, Workdir: &workdir{}, Listener: l, Dial: silent, TLS: certs.root(1)})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Agree = %v", err)
		}
		if dials := dials.Load(); dials < 4 {
			t.Errorf("%d tries in 10 s with a deadline of 3 s each, want 4 or more of the two others", dials)
		}
	})
}
