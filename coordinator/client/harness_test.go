package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// world is an in-memory network of fake coordinators, for a synctest bubble.
type world struct {
	t  testing.TB
	mu sync.Mutex
	at map[string]*bufconn.Listener
	by map[string]*grpc.Server
}

func newWorld(t testing.TB) *world {
	return &world{t: t, at: map[string]*bufconn.Listener{}, by: map[string]*grpc.Server{}}
}

// start serves a fake at an address; stop ends it and its connections.
func (w *world) start(address string, f coordinatorv1.CoordinatorServer, opts ...grpc.ServerOption) {
	if k, ok := f.(*fake); ok {
		gate := clusterid.Gate{Own: func() uint64 { return k.id }, Required: server.NamesCluster}
		opts = append(opts, grpc.ChainUnaryInterceptor(gate.Unary), grpc.ChainStreamInterceptor(gate.Stream))
	}
	l, s := bufconn.Listen(1<<16), grpc.NewServer(opts...)
	coordinatorv1.RegisterCoordinatorServer(s, f)
	w.mu.Lock()
	w.at[address], w.by[address] = l, s
	w.mu.Unlock()
	go func() { _ = s.Serve(l) }()
}

func (w *world) stop(address string) {
	w.mu.Lock()
	s := w.by[address]
	delete(w.at, address)
	delete(w.by, address)
	w.mu.Unlock()
	if s != nil {
		s.Stop()
	}
}

func (w *world) dial(ctx context.Context, address string) (net.Conn, error) {
	w.mu.Lock()
	l := w.at[address]
	w.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: connection refused", address)
	}
	return l.DialContext(ctx)
}

// client makes a client of the world. The caller defers the function returned,
// which ends everything in the bubble.
func (w *world) client(cfg client.Config, endpoints ...string) (*client.Client, func()) {
	w.t.Helper()
	cfg.Endpoints = endpoints
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(w.dial))
	c, err := client.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return c, func() {
		_ = c.Close()
		w.mu.Lock()
		all := make([]string, 0, len(w.by))
		for a := range w.by {
			all = append(all, a)
		}
		w.mu.Unlock()
		for _, a := range all {
			w.stop(a)
		}
	}
}

func notHeld(holder string) error {
	e := reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "coordinator not leader")
	e.Detail.HolderAddress = holder
	return e
}

// on refuses some methods with an error.
func on(err error, methods ...string) func(context.Context, string) error {
	return func(_ context.Context, m string) error {
		for _, want := range methods {
			if m == want {
				return err
			}
		}
		return nil
	}
}

// silent takes calls and never answers them.
func silent(methods ...string) func(context.Context, string) error {
	return func(ctx context.Context, m string) error {
		for _, want := range methods {
			if m == want {
				<-ctx.Done()
				return ctx.Err()
			}
		}
		return nil
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantIs(t testing.TB, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("error %q is not %q", err, target)
		}
	}
}

func wantWithin(t testing.TB, start time.Time, least, most time.Duration) {
	t.Helper()
	if d := time.Since(start); d < least || d > most {
		t.Errorf("took %v, want %v to %v", d, least, most)
	}
}

func dialing(w *world) []grpc.DialOption { return []grpc.DialOption{grpc.WithContextDialer(w.dial)} }
