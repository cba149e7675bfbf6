package member_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/fakecoordinator"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
)

// probed is what a process at a probe address says.
func probed(t *testing.T, address string, secure func(context.Context, net.Conn) (net.Conn, error)) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if secure != nil {
		if conn, err = secure(ctx, conn); err != nil {
			return "", err
		}
	}
	line, err := io.ReadAll(conn)
	return string(line), err
}

func runProbed(t *testing.T, certs *mtls.Source, a *app) (m *member.Member, cluster *fakecoordinator.Cluster, stop func()) {
	t.Helper()
	m, cluster, end := runEnding(t, certs, a)
	return m, cluster, func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}

// runEnding runs a member until end is called, which tells how Run ended.
func runEnding(t *testing.T, certs *mtls.Source, a *app) (m *member.Member, cluster *fakecoordinator.Cluster, end func() error) {
	t.Helper()
	cluster = fakecoordinator.New(games)
	cluster.Start("c1")
	c, err := client.New(client.Config{Endpoints: []string{"c1"}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(cluster.Dial)}})
	if err != nil {
		t.Fatal(err)
	}
	m, err = member.New(member.Config{ID: "m1", Address: "127.0.0.1:7000", Client: c, ProbeAddress: "127.0.0.1:0", TLS: certs})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, a) }()
	cluster.Show("m1", own(17, 3))
	await, done := context.WithTimeout(t.Context(), proctest.Patience)
	defer done()
	for cluster.Member("m1") == nil {
		if err := cluster.Await(await, "m1", func(fakecoordinator.Reported) bool { return cluster.Member("m1") != nil }); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Show("m1", own(17, 3))
	if err := cluster.Await(await, "m1", func(r fakecoordinator.Reported) bool { return r.Phase(17) == serving }); err != nil {
		t.Fatal(err)
	}
	return m, cluster, func() error {
		cancel()
		err := <-ended
		_ = c.Close()
		cluster.Stop()
		return err
	}
}

// Rule 6: the probe tells the incarnation while anything is served, also while the last
// region is released, and refuses behind it.
func TestRule6ProbeTellsTheIncarnation(t *testing.T) {
	a := &app{}
	_, cluster, stop := runProbed(t, nil, a)
	address := cluster.Member("m1").GetProbeAddress()
	if host, port, err := net.SplitHostPort(address); err != nil || host != "127.0.0.1" || port == "0" {
		t.Fatalf("registered probe address %q", address)
	}
	if line, err := probed(t, address, nil); line != "nokv-member m1 1\n" || err != nil {
		t.Errorf("the probe says %q, %v", line, err)
	}
	a.mu.Lock()
	a.do = func(_ context.Context, call string, _ member.Region) error {
		if line, err := probed(t, address, nil); call == "release" && (line != "nokv-member m1 1\n" || err != nil) {
			t.Errorf("while a region is released the probe says %q, %v", line, err)
		}
		return nil
	}
	a.mu.Unlock()
	stop()
	if a.called("release 17@1.3 f3") != 1 {
		t.Errorf("it was asked %q", a.calls)
	}
	if _, err := probed(t, address, nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("behind the end: %v", err)
	}
}

// Who holds a probe's connection open keeps nothing from being told, nor the member
// from ending.
func TestProbeIsBounded(t *testing.T) {
	_, cluster, stop := runProbed(t, nil, &app{})
	address := cluster.Member("m1").GetProbeAddress()
	for range 200 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if line, err := probed(t, address, nil); line != "nokv-member m1 1\n" || err != nil {
		t.Errorf("the probe says %q, %v", line, err)
	}
	stop()
}

// Rule 6: a closed probe is taken for the death of its process. If something in the process
// breaks the listener, then the process serves nothing any more before it says why.
func TestRule6LostProbeEndsTheMember(t *testing.T) {
	m, cluster, end := runEnding(t, nil, &app{})
	address := cluster.Member("m1").GetProbeAddress()
	did := m.Do(t.Context(), member.Request{Region: 17, Epoch: epoch(3)}, func(ctx context.Context, r member.Region) error {
		breakListener(t, address)
		select {
		case <-r.Leaving():
		case <-time.After(proctest.Patience):
			t.Error("it goes on behind a probe that refuses")
		}
		return nil
	})
	if did == nil {
		t.Error("a request is said to be good behind a probe that refuses")
	}
	if _, err := probed(t, address, nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the listener is broken: %v", err)
	}
	good := func(context.Context, member.Region) error { return nil }
	if err := m.Do(t.Context(), member.Request{Region: 17, Epoch: epoch(3)}, good); err == nil {
		t.Error("a request is let in behind a probe that refuses")
	}
	if err := end(); !errors.Is(err, member.ErrProbeLost) {
		t.Errorf("Run ended with %v", err)
	}
}

// breakListener ends the socket of this process that listens at an address, as code would
// that closes a file descriptor which is not its own.
func breakListener(t *testing.T, address string) {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for fd := 3; fd < 4096; fd++ {
		listens, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
		if err != nil || listens == 0 {
			continue
		}
		at, err := syscall.Getsockname(fd)
		if at, ok := at.(*syscall.SockaddrInet4); err == nil && ok && strconv.Itoa(at.Port) == port {
			if err := syscall.Shutdown(fd, syscall.SHUT_RDWR); err != nil {
				t.Skipf("no listener can be broken here: %v", err)
			}
			return
		}
	}
	t.Fatalf("nobody listens at %s", address)
}

func TestProbeAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := client.New(client.Config{Endpoints: []string{"c1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := member.New(member.Config{ID: "m1", Address: "127.0.0.1:7000", Client: c, ProbeAddress: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Run(t.Context(), &app{}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the address is in use: %v", err)
	}
}

// With certificates only a coordinator is answered.
func TestProbeWithCertificates(t *testing.T) {
	certificates := proctest.NewCertificates(t, "test")
	open := func(role principal.Role, name string) *mtls.Source {
		s, err := mtls.Open(certificates.Of(role, name), mtls.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	_, cluster, stop := runProbed(t, open(principal.Member, "m1"), &app{})
	defer stop()
	address := cluster.Member("m1").GetProbeAddress()
	by := func(s *mtls.Source) func(context.Context, net.Conn) (net.Conn, error) {
		return func(ctx context.Context, c net.Conn) (net.Conn, error) {
			secure, _, err := s.ClientConn(ctx, c, mtls.Peer{Role: principal.Member, Name: "m1"})
			return secure, err
		}
	}
	if line, err := probed(t, address, by(open(principal.Coordinator, "c1"))); line != "nokv-member m1 1\n" {
		t.Errorf("a coordinator is told %q, %v", line, err)
	}
	if line, _ := probed(t, address, by(open(principal.Client, "somebody"))); line != "" {
		t.Errorf("a client is told %q", line)
	}
	if line, _ := probed(t, address, nil); line != "" {
		t.Errorf("who shows no certificate is told %q", line)
	}
	_, revoked, _ := strings.Cut(fakecoordinator.Revoked, "/")
	proctest.Eventually(t, proctest.Patience, func() error { // it hears of that
		if line, _ := probed(t, address, by(open(principal.Coordinator, revoked))); line != "" {
			return fmt.Errorf("who was revoked is told %q", line)
		}
		return nil
	})
}

func ExampleMember_Do() {
	// The cluster here is one of the tests'. Real programs make a client with
	//
	//	client.New(client.Config{Endpoints: []string{"10.0.0.1:7100", "10.0.0.2:7100"}})
	cluster := fakecoordinator.New(games)
	cluster.Start("c1")
	defer cluster.Stop()
	c, _ := client.New(client.Config{Endpoints: []string{"c1"}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(cluster.Dial)}})
	defer c.Close()

	m, err := member.New(member.Config{ID: "worker-1", Address: "10.0.0.7:7000", Client: c})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	store := &store{ready: make(chan struct{}, 1)}
	go func() { ended <- m.Run(ctx, store) }()
	for cluster.Member("worker-1") == nil {
		_ = cluster.Await(ctx, "worker-1", func(fakecoordinator.Reported) bool { return cluster.Member("worker-1") != nil })
	}
	cluster.Show("worker-1", own(17, 3))
	<-store.ready

	// A request comes with the epoch that the caller's route has.
	err = m.Do(ctx, member.Request{Keyspace: "games", Key: []byte("k17"), Epoch: epoch(3)}, func(_ context.Context, r member.Region) error {
		fmt.Printf("served by region %d at epoch %s\n", r.ID, r.Epoch)
		return nil
	})
	fmt.Println(err)

	// A caller whose route is old is told what to do.
	err = m.Do(ctx, member.Request{Region: 17, Epoch: epoch(2)}, nil)
	if stale, ok := errors.AsType[*member.EpochStale](err); ok {
		fmt.Println("ask again, the epoch is", stale.Current)
	}
	cancel()
	fmt.Println(<-ended)
	// Output:
	// acquire region 17 from "f3"
	// served by region 17 at epoch 1.3
	// <nil>
	// ask again, the epoch is 1.3
	// release region 17
	// <nil>
}

// store is the smallest application.
type store struct{ ready chan struct{} }

func (s *store) Acquire(_ context.Context, r member.Region) error {
	fmt.Printf("acquire region %d from %q\n", r.ID, r.Frontier)
	defer func() { s.ready <- struct{}{} }()
	return nil
}

func (s *store) Release(_ context.Context, r member.Region) ([]byte, error) {
	fmt.Printf("release region %d\n", r.ID)
	return []byte("offset 42"), nil
}

// Rule 6: what is registered is the address that the listener is bound to, also when it was asked
// for by a name. What is no single socket, or another machine's, is refused before anything is
// registered, and the error says what to do.
func TestRule6ProbeAddressIsThatOfTheListener(t *testing.T) {
	c, err := client.New(client.Config{Endpoints: []string{"c1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, x := range []struct{ address, probe, want string }{
		{"10.0.0.7:7000", "0.0.0.0:7001", "all addresses of this machine"},
		{"10.0.0.7:7000", "[::]:7001", "all addresses of this machine"},
		{"10.0.0.7:7000", ":7001", "all addresses of this machine"},
		{"10.0.0.7:7000", "127.0.0.1:0", "each machine's own"},
		{"m1:7000", "localhost:0", "each machine's own"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		m, err := member.New(member.Config{ID: "m1", Address: x.address, Client: c, ProbeAddress: x.probe, Listen: func(_ context.Context, network, address string) (net.Listener, error) {
			cancel() // whoever would register is not let
			return net.Listen(network, address)
		}})
		if err == nil {
			err = m.Run(ctx, &app{})
		}
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("probe address %s beside %s: %v, want %q", x.probe, x.address, err, x.want)
		}
		cancel()
	}
}

// A name is resolved when it is listened at: one socket is registered.
func TestRule6ProbeAddressOfANameIsRegisteredAsAnAddress(t *testing.T) {
	cluster := fakecoordinator.New(games)
	cluster.Start("c1")
	defer cluster.Stop()
	c, err := client.New(client.Config{Endpoints: []string{"c1"}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(cluster.Dial)}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := member.New(member.Config{ID: "m1", Address: "localhost:7000", Client: c, ProbeAddress: "localhost:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, &app{}) }()
	if err := cluster.Await(ctx, "m1", func(fakecoordinator.Reported) bool { return cluster.Member("m1") != nil }); err != nil {
		t.Fatal(err)
	}
	address := cluster.Member("m1").GetProbeAddress()
	if at, err := netip.ParseAddrPort(address); err != nil || !at.Addr().IsLoopback() || at.Port() == 0 {
		t.Errorf("registered probe address %q: %v", address, err)
	}
	if line, err := probed(t, address, nil); !strings.HasPrefix(line, "nokv-member m1 ") || err != nil {
		t.Errorf("the probe says %q, %v", line, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
