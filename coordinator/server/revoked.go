package server

import (
	"context"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc"
)

const (
	// revokedEvery is the time between two looks at what is revoked.
	revokedEvery = 250 * time.Millisecond
	// revokedMaxAge is how old a view may be that says it, in milliseconds: where it is older, whoever is told
	// here asks another coordinator. An election at the root is over by then as a rule: not all ask at once.
	revokedMaxAge = uint64(3000)
)

// revoked is what is revoked, as far as this coordinator knows. Nobody writes it again.
type revoked struct {
	version      uint64
	certificates []string
	lags         error         // the view is too old to say; nil: it is not
	changed      chan struct{} // closed when there is another one
}

// followRevoked has this process believe no certificate that is revoked, and tells the others, until ctx ends.
func (s *Server) followRevoked(ctx context.Context) {
	age := revokedMaxAge
	fresh := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED, MaxRootLagMillis: &age}
	tick := time.NewTicker(revokedEvery)
	defer tick.Stop()
	for {
		old := s.revoked.Load()
		now := &revoked{version: old.version, certificates: old.certificates, changed: make(chan struct{})}
		if view := s.view(); view.Loaded() {
			now.version, now.certificates = view.State.RevokedCertificates()
		}
		_, now.lags = s.serve(ctx, fresh)
		if now.version != old.version {
			s.cfg.TLS.Revoke(now.certificates)
		}
		if now.version != old.version || (now.lags == nil) != (old.lags == nil) {
			s.revoked.Store(now)
			close(old.changed)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// WatchRevoked implements coordinatorv1.CoordinatorServer.
func (s *Server) WatchRevoked(_ *coordinatorv1.WatchRevokedRequest, stream grpc.ServerStreamingServer[coordinatorv1.WatchRevokedResponse]) error {
	return s.run(stream.Context(), s.revokedStreams, func(l *live) error {
		alive := time.NewTicker(s.cfg.Limits.StreamIdle / 2)
		defer alive.Stop()
		for {
			now := s.revoked.Load()
			if now.lags != nil {
				return now.lags
			}
			if err := l.send(stream, &coordinatorv1.WatchRevokedResponse{Certificates: now.certificates}); err != nil {
				return err
			}
			for waits := true; waits; {
				select {
				case <-now.changed:
					waits = false
				case <-alive.C:
					l.received.Add(1) // a watcher is never idle
				case <-l.ctx.Done():
					return l.ctx.Err()
				}
			}
		}
	})
}
