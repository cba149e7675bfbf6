package coordinator

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// prober asks the Tenure holder how it is: a refused connection is proof that
// nobody listens; serving means that its own health check passes. It keeps one
// connection, to the holder probed last, and makes another one only when that
// is lost. The end of a connection is the first that is seen of a process that
// dies: it is told at once, so that nobody waits for the next probe.
type prober struct {
	// broken is a level: a connection has ended.
	broken chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	address string
	conn    *probed
}

// probed is the connection to one holder.
type probed struct {
	*grpc.ClientConn
	broken chan<- struct{}
	// refused: nobody listened when it was last dialled.
	refused atomic.Bool
}

func newProber() *prober { return &prober{broken: make(chan struct{}, 1)} }

// probe implements tenure.Config.Probe.
func (p *prober) probe(ctx context.Context, address string) tenure.Health {
	cc, err := p.connect(address)
	if err != nil {
		return tenure.HealthUnknown
	}
	r, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{Service: coordinatorv1.Coordinator_ServiceDesc.ServiceName})
	switch {
	case err == nil && r.Status == healthpb.HealthCheckResponse_SERVING:
		return tenure.HealthServing
	case status.Code(err) == codes.Unavailable && cc.lost(ctx):
		return tenure.HealthRefused
	default:
		return tenure.HealthUnknown
	}
}

// lost says whether the connection is gone and could not be made again because
// nobody listens. A call may fail a moment before the connection is seen to have
// broken, which is dialled again first.
func (c *probed) lost(ctx context.Context) bool {
	for s := c.GetState(); ; s = c.GetState() {
		switch s {
		case connectivity.TransientFailure:
			return c.refused.Load()
		case connectivity.Idle:
			c.Connect()
		}
		if !c.WaitForStateChange(ctx, s) {
			return false
		}
	}
}

// dial is the dialer of the connection.
func (c *probed) dial(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	c.refused.Store(errors.Is(err, syscall.ECONNREFUSED))
	if err != nil {
		return nil, err
	}
	return &watchedConn{conn, c.broken}, nil
}

// watchedConn tells when its connection ends: gRPC reads it at all times.
type watchedConn struct {
	net.Conn
	broken chan<- struct{}
}

// Read implements net.Conn.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		select {
		case c.broken <- struct{}{}:
		default:
		}
	}
	return n, err
}

// A holder that is back is to be found by the next probe.
var probePace = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: tenure.DefaultProbeEvery, Multiplier: 1, MaxDelay: tenure.DefaultProbeEvery},
	MinConnectTimeout: time.Second,
}

func (p *prober) connect(address string) (*probed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil && p.address == address {
		return p.conn, nil
	}
	c := &probed{broken: p.broken}
	var err error
	c.ClientConn, err = grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(c.dial), grpc.WithConnectParams(probePace), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, err
	}
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.address, p.conn = address, c
	return c, nil
}

func (p *prober) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		_ = p.conn.Close()
	}
}
