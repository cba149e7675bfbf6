package client_test

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// teller is a coordinator that tells what is revoked until it lags.
type teller struct {
	coordinatorv1.UnimplementedCoordinatorServer
	certificates []string
	lags         chan struct{}
	asked        atomic.Int64
}

func (k *teller) WatchRevoked(_ *coordinatorv1.WatchRevokedRequest, s grpc.ServerStreamingServer[coordinatorv1.WatchRevokedResponse]) error {
	k.asked.Add(1)
	select {
	case <-k.lags:
	default:
		if err := s.Send(&coordinatorv1.WatchRevokedResponse{Certificates: k.certificates}); err != nil {
			return err
		}
		select {
		case <-k.lags:
		case <-s.Context().Done():
		}
	}
	return reason.New(rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, "the view is old")
}

// What is revoked is heard of a coordinator once something listens; where that one lags, of the next one, and while none knows, what was
// heard last counts, without many questions.
func TestWhatIsRevokedIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		certs := proctest.NewCertificates(t, "test")
		own, web := certs.Open(principal.Member, "m1"), certs.Open(principal.Client, "web")
		takes := func() bool {
			near, far := net.Pipe()
			done := make(chan error, 1)
			go func() {
				c, _, err := own.ServerConn(t.Context(), far)
				if err == nil {
					_ = c.Close()
				}
				done <- err
			}()
			c, _, err := web.ClientConn(t.Context(), near, mtls.Peer{Role: principal.Member})
			if err == nil {
				_, _ = c.Read(make([]byte, 1))
				_ = c.Close()
			}
			return errors.Join(err, <-done) == nil
		}
		a, b := &teller{lags: make(chan struct{})}, &teller{lags: make(chan struct{}), certificates: []string{"client/web"}}
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b", "away")
		defer end()
		c.KeepRevoked(own)
		time.Sleep(time.Minute)
		if a.asked.Load()+b.asked.Load() != 0 {
			t.Error("a process that does not listen asks what is revoked")
		}
		_ = own.Server()
		time.Sleep(time.Second)
		if a.asked.Load() != 1 || b.asked.Load() != 0 || !takes() {
			t.Fatalf("a is asked %d times, b %d; what nobody revoked is taken: %t", a.asked.Load(), b.asked.Load(), takes())
		}
		close(a.lags)
		time.Sleep(time.Second)
		if b.asked.Load() != 1 || takes() {
			t.Fatalf("b is asked %d times; what is revoked is taken: %t", b.asked.Load(), takes())
		}
		close(b.lags)
		a.asked.Store(0)
		time.Sleep(5 * time.Minute)
		if n := a.asked.Load(); takes() || n < 30 || n > 100 {
			t.Errorf("while no coordinator knows, what was revoked is taken: %t; one is asked %d times in 5 minutes", takes(), n)
		}
		w.start("away", &teller{lags: make(chan struct{})})
		time.Sleep(30 * time.Second)
		if !takes() {
			t.Error("what was taken back is refused")
		}
	})
}
