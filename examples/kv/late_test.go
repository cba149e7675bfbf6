package main

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nokv/nokv/nokvtest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// forgetful is a store in memory that applies a write and loses the answer.
type forgetful struct {
	storev1.UnimplementedStoreServer

	mu sync.Mutex
	// Guarded by mu.
	values  map[string]*storev1.Entry
	version uint64
	applied int
	lose    func(ctx context.Context, put int) error // of the answer to this write
	puts    int
}

func (f *forgetful) Get(_ context.Context, r *storev1.GetRequest) (*storev1.GetResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.values[string(r.GetKey())]
	return &storev1.GetResponse{Found: e != nil, Value: e.GetValue(), Version: e.GetVersion()}, nil
}

func (f *forgetful) Put(ctx context.Context, r *storev1.PutRequest) (*storev1.PutResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.puts++
	key := string(r.GetKey())
	if r.ExpectedVersion == nil {
		return nil, status.Error(codes.InvalidArgument, "a write that names no version may be applied twice")
	}
	if f.values[key].GetVersion() != r.GetExpectedVersion() {
		s, err := status.New(codes.FailedPrecondition, "another version").WithDetails(&rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_VERSION_STALE})
		if err != nil {
			return nil, err
		}
		return nil, s.Err()
	}
	f.version++
	f.applied++
	f.values[key] = &storev1.Entry{Value: r.GetValue(), Version: f.version}
	if err := f.lose(ctx, f.puts); err != nil {
		return nil, err
	}
	return &storev1.PutResponse{Version: f.version}, nil
}

// A write whose answer is late or lost may have been applied, and may be sent again: it is applied
// once all the same, and the transaction ends as if all answers had come, or says that it does not
// know.
func TestN15AWriteWhoseAnswerIsLostIsAppliedOnce(t *testing.T) {
	lost := status.Error(codes.Unavailable, "the connection ended")
	late := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for _, row := range []struct {
		name    string
		lose    func(context.Context, int) error
		unknown bool
	}{
		{"none", func(context.Context, int) error { return nil }, false},
		{"of the first lock", func(_ context.Context, put int) error { return only(put == 1, lost) }, false},
		{"of every write", func(context.Context, int) error { return lost }, false},
		{"of the commit, which is late", func(ctx context.Context, put int) error {
			if put == 3 {
				return late(ctx)
			}
			return nil
		}, true},
	} {
		t.Run(row.name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { losing(t, row.lose, row.unknown) }) })
	}
}

// losing commits a transaction at a store that loses answers.
func losing(t *testing.T, lose func(context.Context, int) error, unknown bool) {
	c := nokvtest.Start(t)
	r, err := router.New(router.Config{Client: c.Client(), Hold: 2 * holdOn})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	defer running.Wait()
	defer cancel()
	if _, err := c.Client().RegisterMember(ctx, &rootv1.Member{Id: "s1", Address: "s1:1", StartNonce: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client().PublishRegion(ctx, &rooted.Region{ID: 7, Keyspace: 1, Epoch: rooted.Epoch{Version: 1, ConfVersion: 1}, Owners: []rooted.Owner{{Member: "s1"}}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Resolve(ctx, []byte("a"), router.Options{Strong: true}); err != nil { // the router has heard of it
		t.Fatal(err)
	}
	store := &forgetful{values: map[string]*storev1.Entry{}, lose: lose}
	lis, s := bufconn.Listen(1<<16), grpc.NewServer()
	storev1.RegisterStoreServer(s, store)
	go func() { _ = s.Serve(lis) }()
	defer s.Stop()
	conn, err := grpc.NewClient("passthrough:///s1", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	k := &kv{control: c.Client(), routes: r, lockLife: time.Hour, conns: map[string]*grpc.ClientConn{"s1:1": conn}}
	tx, err := k.begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b"} {
		if _, err := tx.get(ctx, key); err != nil {
			t.Fatal(err)
		}
		tx.put(key, []byte("new"))
	}
	if err := tx.commit(ctx); (err != nil) != unknown {
		t.Errorf("the commit says %v", err)
	}
	seen, err := k.begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b"} { // who did not hear of it finds it committed, and ends it
		if got, err := seen.get(ctx, key); err != nil || string(got) != "new" {
			t.Errorf("%s is %q, %v", key, got, err)
		}
		if r, err := k.get(ctx, key); err != nil || len(r.Versions) != 1 || r.Lock != nil {
			t.Errorf("%s has %+v, %v: it was written once", key, r, err)
		}
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	if store.applied != 5 { // two locks, the commit, the other lock, and that the primary forgets
		t.Errorf("%d writes were applied of %d that were sent, want 5", store.applied, store.puts)
	}
}

func only(when bool, err error) error {
	if when {
		return err
	}
	return nil
}
