package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/gate"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// maxLines bounds the connections that the process has with itself, one a caller.
	maxLines = 256
	// lineIdle is how long one stays open that has no call.
	lineIdle = time.Minute
	// lineWindow is what a stream may have sent that its caller has not read, in bytes;
	// maxInsideBytes is the longest answer.
	lineWindow     = 64 << 10
	maxInsideBytes = 16 << 20
)

// inside is a listener for connections that the process has with itself: what comes in
// another way than by gRPC is called through everything that a call from outside goes
// through.
type inside struct {
	came  chan net.Conn
	ended chan struct{}
	end   sync.Once

	mu sync.Mutex
	// Guarded by mu.
	lines  map[string]*line
	closed bool
}

// line is the connection for the calls of one caller.
type line struct {
	conn  *grpc.ClientConn
	calls int // guarded by inside.mu
}

func newInside() *inside {
	return &inside{came: make(chan net.Conn), ended: make(chan struct{}), lines: map[string]*line{}}
}

// Accept implements net.Listener.
func (i *inside) Accept() (net.Conn, error) {
	select {
	case c := <-i.came:
		return c, nil
	case <-i.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (i *inside) Close() error {
	i.end.Do(func() { close(i.ended) })
	return nil
}

// Addr implements net.Listener.
func (i *inside) Addr() net.Addr { return &net.UnixAddr{Name: "inside", Net: "inside"} }

// shut closes the connections.
func (i *inside) shut() {
	_ = i.Close()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	for _, l := range i.lines {
		_ = l.conn.Close()
	}
	clear(i.lines)
}

var errStopping = errors.New("the coordinator stops")

func (i *inside) dial(ctx context.Context, p principal.Principal, from net.Addr) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case i.came <- &gate.Inside{Conn: far, As: p, From: from}:
		return near, nil
	case <-i.ended:
		return nil, errStopping
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// As is a connection whose calls are those of a caller that another listener of the
// process knows: they are judged, counted and bounded like those that come by gRPC. A
// caller who is nobody in particular is told from others by the host that it is at. done
// must follow.
func (s *Server) As(p principal.Principal, host string) (conn grpc.ClientConnInterface, done func(), err error) {
	i, key, from := s.inside, p.Actor(), &net.TCPAddr{IP: net.ParseIP(host)}
	if !p.Known() {
		key = from.IP.String()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil, nil, reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "coordinator %s is stopping: use another one", s.cfg.ID)
	}
	l := i.lines[key]
	if l == nil {
		if !i.roomLocked() {
			refused := reason.New(rootv1.Reason_REASON_OVERLOADED, "%d callers are served over HTTP: try again, or use gRPC", maxLines)
			refused.Detail.Limit, refused.Detail.RetryAfterMillis = maxLines, 1000
			return nil, nil, refused
		}
		c, err := grpc.NewClient("passthrough:///inside",
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(lineIdle), grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return i.dial(ctx, p, from) }),
			grpc.WithStaticStreamWindowSize(lineWindow), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxInsideBytes)),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}, MinConnectTimeout: time.Second}))
		if err != nil {
			return nil, nil, err
		}
		l = &line{conn: c}
		i.lines[key] = l
	}
	l.calls++
	return l.conn, sync.OnceFunc(func() {
		i.mu.Lock()
		l.calls--
		i.mu.Unlock()
	}), nil
}

// roomLocked makes room for one more line, of those that have no call.
func (i *inside) roomLocked() bool {
	if len(i.lines) < maxLines {
		return true
	}
	for key, l := range i.lines {
		if l.calls == 0 {
			_ = l.conn.Close()
			delete(i.lines, key)
			return true
		}
	}
	return false
}
