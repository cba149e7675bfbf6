package server

import (
	"context"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Health probes ask the root, but not more often and not for longer than this.
const (
	healthFresh    = 200 * time.Millisecond
	healthTimeout  = time.Second
	healthInterval = time.Second
)

// health serves grpc.health.v1. Serving means that the root's leader answered just
// now with a quorum behind it, a read index or a confirmation of the era that is
// held: a coordinator that cannot do that gives stale routes,
// ids of no era, and no changes.
type health struct {
	healthpb.UnimplementedHealthServer
	server *Server
	// turn is held by the one who asks the root; the rest wait for the answer.
	turn chan struct{}
	// Owned by who holds turn.
	asked   bool
	askedAt clock.Instant
	serving bool
}

func newHealth(s *Server) *health {
	return &health{server: s, turn: make(chan struct{}, 1)}
}

var healthServices = []string{"", coordinatorv1.Coordinator_ServiceDesc.ServiceName}

// Healthy returns nil when the service would answer SERVING.
func (s *Server) Healthy(ctx context.Context) error {
	st, err := s.health.probe(ctx)
	if err == nil && st != healthpb.HealthCheckResponse_SERVING {
		err = reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "coordinator %s got no read index of the root", s.cfg.ID)
	}
	return err
}

// Check implements healthpb.HealthServer.
func (h *health) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if !knownService(req.GetService()) {
		return nil, status.Errorf(codes.NotFound, "unknown service %q", req.GetService())
	}
	st, err := h.probe(ctx)
	if err != nil {
		return nil, err
	}
	return &healthpb.HealthCheckResponse{Status: st}, nil
}

// List implements healthpb.HealthServer.
func (h *health) List(ctx context.Context, _ *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	st, err := h.probe(ctx)
	if err != nil {
		return nil, err
	}
	out := &healthpb.HealthListResponse{Statuses: map[string]*healthpb.HealthCheckResponse{}}
	for _, name := range healthServices {
		out.Statuses[name] = &healthpb.HealthCheckResponse{Status: st}
	}
	return out, nil
}

// Watch implements healthpb.HealthServer: it sends each change.
func (h *health) Watch(req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	return h.server.run(stream.Context(), h.server.healthStreams, func(l *live) error {
		return h.watch(l, req.GetService(), stream)
	})
}

func (h *health) watch(l *live, service string, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	last := healthpb.HealthCheckResponse_UNKNOWN
	for {
		st := healthpb.HealthCheckResponse_SERVICE_UNKNOWN
		if knownService(service) {
			var err error
			if st, err = h.probe(l.ctx); err != nil {
				return err
			}
		}
		l.received.Add(1) // a watcher is never idle
		if st != last {
			if err := l.send(stream, &healthpb.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
			last = st
		}
		select {
		case <-ticker.C:
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
}

func knownService(name string) bool {
	return name == healthServices[0] || name == healthServices[1]
}

// probe asks the root for a read index, or takes an answer that is fresh. It
// fails only when the caller's own time is over.
func (h *health) probe(ctx context.Context) (healthpb.HealthCheckResponse_ServingStatus, error) {
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, status.FromContextError(ctx.Err()).Err()
	}
	defer func() { <-h.turn }()
	now := h.server.cfg.Clock.Now()
	if at := h.server.cfg.Authority.Status().ConfirmedAt; at != 0 && now.Sub(at) <= healthFresh {
		h.asked, h.askedAt, h.serving = true, at, true
	}
	if !h.asked || now.Sub(h.askedAt) > healthFresh {
		ask, cancel := context.WithTimeout(ctx, healthTimeout)
		defer cancel()
		_, err := h.server.cfg.Root.ReadIndex(ask)
		if err != nil && ctx.Err() != nil {
			return 0, status.FromContextError(ctx.Err()).Err()
		}
		h.asked, h.askedAt, h.serving = true, h.server.cfg.Clock.Now(), err == nil
	}
	if h.serving && !h.server.stopping.Load() {
		return healthpb.HealthCheckResponse_SERVING, nil
	}
	return healthpb.HealthCheckResponse_NOT_SERVING, nil
}
