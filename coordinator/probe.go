package coordinator

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"

	"github.com/nokv/nokv/coordinator/tenure"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// prober asks the Tenure holder how it is: a refused connection is proof that
// nobody listens; serving means that its own health check passes.
type prober struct {
	mu sync.Mutex
	// Guarded by mu: the connection to the last address probed.
	address string
	conn    *grpc.ClientConn
}

func newProber() *prober { return &prober{} }

// probe implements tenure.Config.Probe.
func (p *prober) probe(ctx context.Context, address string) tenure.Health {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return tenure.HealthRefused
		}
		return tenure.HealthUnknown
	}
	_ = conn.Close()
	cc, err := p.connect(address)
	if err != nil {
		return tenure.HealthUnknown
	}
	r, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{Service: coordinatorv1.Coordinator_ServiceDesc.ServiceName})
	if err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		return tenure.HealthUnknown
	}
	return tenure.HealthServing
}

func (p *prober) connect(address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil && p.address == address {
		return p.conn, nil
	}
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.address, p.conn = address, cc
	return cc, nil
}

func (p *prober) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		_ = p.conn.Close()
	}
}
