package coordinator

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/testing/proctest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// counted counts the connections accepted.
type counted struct {
	net.Listener
	n atomic.Int64
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

func holderAt(t *testing.T, address string) (*counted, *health.Server, *grpc.Server) {
	t.Helper()
	lis, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	l, h, s := &counted{Listener: lis}, health.NewServer(), grpc.NewServer()
	h.SetServingStatus(coordinatorv1.Coordinator_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, h)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l, h, s
}

// patientProber knocks for as long as a busy machine takes.
func patientProber(t *testing.T) *prober {
	p := newProber(nil, nil)
	p.knockFor = 2 * proctest.Patience // half of it for a connection
	t.Cleanup(p.close)
	return p
}

func TestProbesShareOneConnection(t *testing.T) {
	l, h, s := holderAt(t, proctest.Addrs(t, 1)[0])
	address := l.Addr().String()
	p := patientProber(t)
	probe := func() tenure.Health {
		ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
		defer cancel()
		return p.probe(ctx, &rootv1.Tenure{HolderAddress: address})
	}
	for range 20 {
		if got := probe(); got != tenure.HealthServing {
			t.Fatalf("a holder that serves: %v", got)
		}
	}
	if n := l.n.Load(); n != 1 {
		t.Errorf("20 probes took %d connections, want 1", n)
	}
	h.Shutdown()
	if got := probe(); got != tenure.HealthUnknown {
		t.Errorf("a holder that does not serve: %v", got)
	}
	s.Stop()
	if got := probe(); got != tenure.HealthRefused {
		t.Errorf("a holder that is gone, by the first probe: %v", got)
	}
	if got := probe(); got != tenure.HealthRefused {
		t.Errorf("a holder that is gone, by the second probe: %v", got)
	}
	back, _, _ := holderAt(t, address)
	_ = back
	proctest.Eventually(t, proctest.Patience, func() error {
		if got := probe(); got != tenure.HealthServing {
			return fmt.Errorf("a holder that is back: %v", got)
		}
		return nil
	})
}

// A connection that is taken and never answered is no proof of anything.
func TestSilentHolderIsUnknown(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	p := newProber(nil, nil)
	defer p.close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got := p.probe(ctx, &rootv1.Tenure{HolderAddress: lis.Addr().String()}); got != tenure.HealthUnknown {
		t.Errorf("a holder that says nothing: %v", got)
	}
}

// The end of the holder's process is told before anybody asks.
func TestBrokenConnectionRaisesAnAlarm(t *testing.T) {
	l, _, s := holderAt(t, "127.0.0.1:0")
	p := patientProber(t)
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	if got := p.probe(ctx, &rootv1.Tenure{HolderAddress: l.Addr().String()}); got != tenure.HealthServing {
		t.Fatalf("a holder that serves: %v", got)
	}
	select {
	case <-p.broken:
		t.Error("an alarm without a reason")
	default:
	}
	s.Stop()
	select {
	case <-p.broken:
	case <-ctx.Done():
		t.Fatal("nothing told of the end of the holder")
	}
	if got := p.probe(ctx, &rootv1.Tenure{HolderAddress: l.Addr().String()}); got != tenure.HealthRefused {
		t.Errorf("a holder that is gone: %v", got)
	}
}

// A process that dies closes its connections a moment before its port: the
// probe that finds a port still open goes on until it is refused.
func TestDyingHolderIsRefusedByOneProbe(t *testing.T) {
	l, _, s := holderAt(t, proctest.Addrs(t, 1)[0])
	address := l.Addr().String()
	p := patientProber(t)
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	if got := p.probe(ctx, &rootv1.Tenure{HolderAddress: address}); got != tenure.HealthServing {
		t.Fatalf("a holder that serves: %v", got)
	}
	s.Stop()
	dying, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for range 2 { // taken, and dropped without a word
			if c, err := dying.Accept(); err == nil {
				_ = c.Close()
			}
		}
		_ = dying.Close()
	}()
	if got := p.probe(ctx, &rootv1.Tenure{HolderAddress: address}); got != tenure.HealthRefused {
		t.Errorf("a holder that is dying: %v", got)
	}
	<-closed
}
