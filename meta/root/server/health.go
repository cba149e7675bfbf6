package server

import (
	"context"
	"sync"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// health answers gRPC health checks with a read index: what is healthy can be
// read from, linearizably, right now.
type health struct {
	healthv1.UnimplementedHealthServer
	replica  Judge
	timeout  time.Duration
	keep     time.Duration
	stopping <-chan struct{}

	mu      sync.Mutex // guards what follows
	at      time.Time  // when the newest probe ended
	serving bool       // what it found
	running chan struct{}
}

// Check implements healthv1.HealthServer.
func (h *health) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if !offers(req.GetService()) {
		return nil, status.Errorf(codes.NotFound, "no service %q here", req.GetService())
	}
	st, err := h.status(ctx)
	if err != nil {
		return nil, err
	}
	return &healthv1.HealthCheckResponse{Status: st}, nil
}

// List implements healthv1.HealthServer.
func (h *health) List(ctx context.Context, _ *healthv1.HealthListRequest) (*healthv1.HealthListResponse, error) {
	st, err := h.status(ctx)
	if err != nil {
		return nil, err
	}
	one := &healthv1.HealthCheckResponse{Status: st}
	return &healthv1.HealthListResponse{Statuses: map[string]*healthv1.HealthCheckResponse{
		"": one, rootv1.Root_ServiceDesc.ServiceName: one,
	}}, nil
}

// Watch implements healthv1.HealthServer: a probe a second, a message a change.
func (h *health) Watch(req *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	last := healthv1.HealthCheckResponse_UNKNOWN
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		st := healthv1.HealthCheckResponse_SERVICE_UNKNOWN
		if offers(req.GetService()) {
			var err error
			if st, err = h.status(stream.Context()); err != nil {
				return err
			}
		}
		if st != last {
			if err := stream.Send(&healthv1.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
			last = st
		}
		select {
		case <-tick.C:
		case <-h.stopping:
			return status.Error(codes.Unavailable, errStopping.Error())
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func offers(service string) bool {
	return service == "" || service == rootv1.Root_ServiceDesc.ServiceName
}

// status is the newest answer that is not older than keep, or that of a probe
// which all who ask meanwhile share.
func (h *health) status(ctx context.Context) (healthv1.HealthCheckResponse_ServingStatus, error) {
	h.mu.Lock()
	if !h.at.IsZero() && time.Since(h.at) <= h.keep {
		defer h.mu.Unlock()
		return servingStatus(h.serving), nil
	}
	running := h.running
	if running == nil {
		h.running = make(chan struct{})
		h.mu.Unlock()
		return servingStatus(h.probe()), nil
	}
	h.mu.Unlock()
	select {
	case <-running:
		h.mu.Lock()
		defer h.mu.Unlock()
		return servingStatus(h.serving), nil
	case <-ctx.Done():
		return 0, status.FromContextError(ctx.Err()).Err()
	}
}

// probe asks for a read index. It does not end with the caller's context: others
// wait for it.
func (h *health) probe() bool {
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	defer cancel()
	_, err := h.replica.ReadIndex(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at, h.serving = time.Now(), err == nil
	close(h.running)
	h.running = nil
	return err == nil
}

func servingStatus(serving bool) healthv1.HealthCheckResponse_ServingStatus {
	if serving {
		return healthv1.HealthCheckResponse_SERVING
	}
	return healthv1.HealthCheckResponse_NOT_SERVING
}
