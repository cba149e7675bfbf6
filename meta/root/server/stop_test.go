package server_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/server"
	"google.golang.org/grpc/test/bufconn"
)

// stopped is how long Serve goes on when its context ends for that reason, while
// somebody has connected who never says a word.
func stopped(t *testing.T, why error) time.Duration {
	t.Helper()
	r := newFakeReplica(t)
	s, err := server.New(server.Config{NodeID: 1, ClusterID: cluster, Address: "a:1", Replica: r, Log: r, Peers: fakePeers{}, Clock: r.clock})
	if err != nil {
		t.Fatal(err)
	}
	lis := bufconn.Listen(1 << 16)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, lis) }()
	silent, err := lis.DialContext(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	synctest.Wait()
	began := time.Now()
	cancel(why)
	if err := <-done; err != nil {
		t.Errorf("Serve = %v", err)
	}
	return time.Since(began)
}

// Whoever connects and stays silent does not hold up an orderly stop for longer
// than StopTimeout, and nobody holds up the stop of a peer that has failed.
func TestSilentConnectionDoesNotDelayTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if took := stopped(t, nil); took > 2*time.Second {
			t.Errorf("an orderly stop took %v, StopTimeout is 2 s", took)
		}
		if took := stopped(t, errors.New("the disk failed")); took != 0 {
			t.Errorf("the stop of a failed peer took %v", took)
		}
	})
}
