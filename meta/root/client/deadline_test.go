package client_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// clogged is a network that stops taking anything: writes wait.
type clogged struct {
	mu    sync.Mutex
	stuck bool
}

type cloggedConn struct {
	net.Conn
	net    *clogged
	closed chan struct{}
	once   sync.Once
}

func (c *cloggedConn) Write(b []byte) (int, error) {
	c.net.mu.Lock()
	stuck := c.net.stuck
	c.net.mu.Unlock()
	if stuck {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *cloggedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (n *clogged) set(stuck bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stuck = stuck
}

// Every call ends with its context, also while the peer reads nothing of what others
// have sent it before.
func TestCallsEndWithTheirContext(t *testing.T) {
	const deadline = 50 * time.Millisecond
	era := &rootv1.ConfirmTenureRequest{Era: 1, HolderId: "c"}
	for name, call := range map[string]func(context.Context, *client.Client) error{
		"Propose": func(ctx context.Context, c *client.Client) error {
			_, err := c.Propose(ctx, command(1))
			return err
		},
		"ReadIndex": func(ctx context.Context, c *client.Client) error {
			_, err := c.ReadIndex(ctx)
			return err
		},
		"Confirm": func(ctx context.Context, c *client.Client) error {
			_, err := c.Confirm(ctx, era)
			return err
		},
		"Claim": func(ctx context.Context, c *client.Client) error {
			_, err := c.Claim(ctx, &rootv1.TenureClaimed{})
			return err
		},
		"Transfer": func(ctx context.Context, c *client.Client) error {
			_, err := c.Transfer(ctx, 2)
			return err
		},
		"Replace": func(ctx context.Context, c *client.Client) error {
			_, err := c.Replace(ctx, &rootv1.ReplacePeerRequest{With: 4})
			return err
		},
		"Tail": func(ctx context.Context, c *client.Client) error {
			stream, err := c.Tail(ctx, state.Token{})
			for err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"Snapshot": func(ctx context.Context, c *client.Client) error {
			return c.Snapshot(ctx, func(*rootv1.SnapshotChunk) error { return nil })
		},
		"Status": func(ctx context.Context, c *client.Client) error {
			return c.Status(ctx)[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newFakeRoot(t, 3)
				network := &clogged{}
				cfg := r.config()
				cfg.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
					conn, err := r.dial(ctx, addr)
					if err != nil {
						return nil, err
					}
					return &cloggedConn{Conn: conn, net: network, closed: make(chan struct{})}, nil
				})}
				cfg.AttemptTimeout = 10 * time.Second // Nothing but the caller's deadline ends it.
				c := r.start(cfg)
				warm, done := context.WithTimeout(t.Context(), time.Second)
				defer done()
				if _, err := c.Propose(warm, command(1)); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Confirm(warm, era); err != nil {
					t.Fatal(err)
				}
				network.set(true)
				// Others fill what a stream and a connection may hold.
				others, end := context.WithTimeout(t.Context(), time.Minute)
				var filling sync.WaitGroup
				for range 100 {
					filling.Go(func() {
						_, _ = c.Propose(others, &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: strings.Repeat("n", 100<<10)}}}}})
					})
				}
				time.Sleep(10 * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				defer cancel()
				start := time.Now()
				err := call(ctx, c)
				if took := time.Since(start); err == nil || took > deadline+time.Millisecond {
					t.Errorf("%v after %v, the deadline is %v", err, took, deadline)
				}
				end()
				filling.Wait()
			})
		})
	}
}
