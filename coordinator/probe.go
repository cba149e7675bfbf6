package coordinator

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/flow"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
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
	// knockFor bounds the knocks at a lost holder.
	knockFor time.Duration
	dialer   func(ctx context.Context, address string) (net.Conn, error)
	// certs are this process's; nil: none.
	certs *mtls.Source

	mu sync.Mutex
	// Guarded by mu.
	at   place
	conn *grpc.ClientConn
}

// newProber makes a prober; a nil dial is TCP.
func newProber(certs *mtls.Source, dial func(ctx context.Context, address string) (net.Conn, error)) *prober {
	if dial == nil {
		dial = dialTCP
	}
	return &prober{broken: make(chan struct{}, 1), knockFor: knockFor, dialer: dial, certs: certs}
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// probe implements tenure.Config.Probe.
func (p *prober) probe(ctx context.Context, holder *rootv1.Tenure) tenure.Health {
	at := place{state.CoordinatorID(holder.GetHolderId()), holder.GetHolderAddress()}
	cc, err := p.connect(at)
	if err != nil {
		return tenure.HealthUnknown
	}
	r, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{Service: coordinatorv1.Coordinator_ServiceDesc.ServiceName})
	switch {
	case err == nil && r.Status == healthpb.HealthCheckResponse_SERVING:
		return tenure.HealthServing
	case status.Code(err) == codes.Unavailable || status.Code(err) == codes.DeadlineExceeded:
		// Time of its own: what was sent to a process while it died may be lost,
		// and the call has then waited for all of its time.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.knockFor)
		defer cancel()
		if p.refuses(ctx, at.address, p.knockFor/2) {
			return tenure.HealthRefused
		}
	}
	return tenure.HealthUnknown
}

// How a lost holder is knocked at.
const (
	knocks     = 10
	knockPause = 2 * time.Millisecond
	// knockFor bounds all knocks, half of it one and the connection of the probes:
	// TCP repeats a lost packet only after 200 ms to 1 s.
	knockFor = 50 * time.Millisecond
)

// refuses says whether nobody listens at an address. A process that dies closes
// its connections a moment before its port, so an open one is tried again.
func (p *prober) refuses(ctx context.Context, address string, within time.Duration) bool {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for range knocks {
		select {
		case <-ctx.Done():
			return false
		case <-pause.C:
		}
		attempt, cancel := context.WithTimeout(ctx, within)
		conn, err := p.dialer(attempt, address)
		cancel()
		if errors.Is(err, syscall.ECONNREFUSED) {
			return true
		}
		if err == nil {
			_ = conn.Close() // nothing was asked on it
		}
		pause.Reset(knockPause)
	}
	return false
}

// dial is the dialer of the connection.
func (p *prober) dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.knockFor/2)
	defer cancel()
	conn, err := p.dialer(ctx, address)
	if err != nil {
		return nil, err
	}
	return &watchedConn{conn, p.broken}, nil
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

// probePace has a holder that is back be found by the next probe.
func probePace(connectFor time.Duration) grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: knockFor, Multiplier: 1, MaxDelay: knockFor},
		MinConnectTimeout: max(time.Second, connectFor),
	})
}

func (p *prober) connect(at place) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil && p.at == at {
		return p.conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+at.address, append(flow.Client(), grpc.WithTransportCredentials(p.certs.Client(at.peer())),
		grpc.WithContextDialer(p.dial), probePace(p.knockFor), grpc.WithDisableServiceConfig())...)
	if err != nil {
		return nil, err
	}
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.at, p.conn = at, conn
	return conn, nil
}

func (p *prober) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		_ = p.conn.Close()
	}
}

// answers asks who answers at a coordinator's address.
func answers(certs *mtls.Source, more ...grpc.DialOption) func(ctx context.Context, address string) (state.CoordinatorID, error) {
	ask := askStatus(certs, more...)
	return func(ctx context.Context, address string) (state.CoordinatorID, error) {
		reply, err := ask(ctx, address)
		return state.CoordinatorID(reply.GetCoordinatorId()), err
	}
}

// askStatus asks the coordinator at an address who it is.
func askStatus(certs *mtls.Source, more ...grpc.DialOption) func(ctx context.Context, address string) (*coordinatorv1.StatusResponse, error) {
	options := append(flow.Client(), grpc.WithTransportCredentials(certs.Client(mtls.Peer{Role: principal.Coordinator})), grpc.WithDisableServiceConfig()) // who is there is asked
	options = append(options, more...)
	return func(ctx context.Context, address string) (*coordinatorv1.StatusResponse, error) {
		conn, err := grpc.NewClient("passthrough:///"+address, options...)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		return coordinatorv1.NewCoordinatorClient(conn).Status(ctx, &coordinatorv1.StatusRequest{Brief: true})
	}
}
