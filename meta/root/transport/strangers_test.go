package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"go.etcd.io/raft/v3/raftpb"
)

// cut is a connection that sends so many bytes and then nothing more.
type cut struct {
	net.Conn
	left int
}

func (c *cut) Write(b []byte) (int, error) {
	n := min(len(b), c.left)
	c.left -= n
	if n > 0 {
		if _, err := c.Conn.Write(b[:n]); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// TestStrangersAtTheTransportPort: on real sockets nobody is welcomed who has not the
// certificate of the root peer that he says he is; each connection is closed in the end,
// and none keeps the real peer out.
func TestStrangersAtTheTransportPort(t *testing.T) {
	const each = 20
	certs, foreign := newCertificates(t), newCertificates(t)
	alien := newCertificatesOf(t, "other")
	ids := members(2)
	var listeners []net.Listener
	for i := range ids {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, lis)
		ids[0].Peers[i].Address = lis.Addr().String() // The identities share their peers.
	}
	folder := certs.root(1)
	alien.believedBy(folder)
	own, err := mtls.Open(folder.Dir(), mtls.Options{})
	if err != nil {
		t.Fatal(err)
	}
	start := func(i int, tls *mtls.Source, in Receiver) *Transport {
		tr, err := New(fresh(Config{
			Identity: ids[i], Address: "grpc", Listener: listeners[i], Dial: new(TCP).Dial, TLS: tls, Checkpoints: &checkpoints{}, HandshakeTimeout: time.Second,
		}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- tr.Run(ctx, in) }()
		t.Cleanup(func() {
			cancel()
			<-done
		})
		return tr
	}
	in := &arrivals{came: make(chan struct{}, 1)}
	start(0, own, in)
	me := ids[1]
	says := hello{
		speaks: spoken, level: 3, purpose: forMessages, from: 2, to: 1, cluster: me.ClusterID, fromIncarnation: me.Incarnation, toIncarnation: ids[0].Incarnation,
		peerMap: peerMapHash(me.Peers), address: "grpc", transport: me.Peers[1].Address,
	}
	believed := x509.NewCertPool()
	raw, err := os.ReadFile(filepath.Join(own.Dir(), mtls.CAFile))
	if err != nil || !believed.AppendCertsFromPEM(raw) {
		t.Fatalf("no CA in %s: %v", own.Dir(), err)
	}
	// by shows a certificate of its own, and believes the listener's.
	by := func(source *mtls.Source) func(context.Context, net.Conn) error {
		pair, err := tls.LoadX509KeyPair(filepath.Join(source.Dir(), mtls.CertFile), filepath.Join(source.Dir(), mtls.KeyFile))
		if err != nil {
			t.Fatal(err)
		}
		return func(_ context.Context, c net.Conn) error {
			_, err := greet(tls.Client(c, &tls.Config{
				RootCAs: believed, ServerName: "localhost", GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
			}), says, proctest.Patience)
			return err
		}
	}
	sends := func(b []byte) func(context.Context, net.Conn) error {
		return func(_ context.Context, c net.Conn) error {
			if _, err := c.Write(b); err != nil {
				return err
			}
			_, err := io.Copy(io.Discard, c)
			return orEnded(err)
		}
	}
	var all sync.WaitGroup
	strangers := map[string]func(context.Context, net.Conn) error{
		"no certificate":          func(_ context.Context, c net.Conn) error { _, err := greet(c, says, proctest.Patience); return err },
		"another node's":          by(certs.root(3)),
		"a coordinator's":         by(certs.of(principal.Coordinator, "2")),
		"an operator's":           by(certs.of(principal.Operator, "2")),
		"another cluster's":       by(alien.root(2)),
		"of an unknown authority": by(foreign.root(2)),
		"garbage":                 sends(bytes.Repeat([]byte{0xde, 0xad}, 4096)),
		"nothing":                 sends(nil),
		"half a handshake": func(_ context.Context, c net.Conn) error {
			return tls.Client(&cut{c, 100}, &tls.Config{RootCAs: believed, ServerName: "localhost"}).Handshake()
		},
	}
	for name, stranger := range strangers {
		for range each {
			all.Go(func() {
				c, err := net.Dial("tcp", listeners[0].Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
				defer cancel()
				if err := c.SetDeadline(time.Now().Add(proctest.Patience)); err != nil {
					t.Error(err)
				}
				err = stranger(ctx, c)
				if timeout, ok := err.(net.Error); err == nil || ok && timeout.Timeout() {
					t.Errorf("%s: %v, want that the connection is closed without a welcome", name, err)
				}
			})
		}
	}
	began := time.Now()
	real := start(1, certs.root(2), &inbox{})
	for arrived := false; !arrived; {
		real.Send([]*raftpb.Message{message(2, 1, 1, 100)})
		select {
		case <-in.came:
			arrived = true
		case <-time.After(10 * time.Millisecond): // sent before the connection was there
			if time.Since(began) > proctest.Patience {
				t.Fatal("the real peer is kept out")
			}
		}
	}
	took := time.Since(began)
	all.Wait()
	c, err := net.Dial("tcp", listeners[0].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	says.claim = real.cfg.Claim
	if err := by(certs.root(2))(t.Context(), c); err != nil {
		t.Errorf("who says all that with the right certificate: %v", err)
	}
	testreport.Linef(t, "root transport: %d strangers of %d kinds on a real socket, none welcomed; the real peer was in after %s", each*len(strangers), len(strangers), took.Round(time.Millisecond))
}

// orEnded is the end of a connection as an error.
func orEnded(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}

// believedBy has who opened a folder believe the authority, too.
func (c certificates) believedBy(s *mtls.Source) {
	c.t.Helper()
	theirs, err := os.ReadFile(filepath.Join(c.root(9).Dir(), mtls.CAFile))
	if err != nil {
		c.t.Fatal(err)
	}
	file := filepath.Join(s.Dir(), mtls.CAFile)
	own, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(own, theirs...), 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}
