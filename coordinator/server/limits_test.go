package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func limits(change func(*server.Limits)) func(*server.Config) {
	return func(c *server.Config) { change(&c.Limits) }
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := server.New(server.Config{}); err == nil {
		t.Error("an empty configuration was taken")
	}
	l := server.DefaultLimits()
	if err := l.Validate(); err != nil {
		t.Error(err)
	}
	l.MaxWaitingReads = l.MaxInFlight
	if err := l.Validate(); err == nil {
		t.Error("more waiting calls than MaxInFlight were taken")
	}
	l = server.DefaultLimits()
	l.SendTimeout = 0
	if err := l.Validate(); err == nil || !strings.Contains(err.Error(), "SendTimeout") {
		t.Errorf("SendTimeout 0: %v", err)
	}
}

func TestDeadlineIsRequired(t *testing.T) {
	w := start(t)
	_, err := w.client.GetRegionByKey(context.Background(), byKey("a"))
	detail := refused(t, err, rootv1.Reason_REASON_DEADLINE_REQUIRED)
	if !strings.Contains(detail.GetMessage(), "WithTimeout") || status.Code(err) != codes.InvalidArgument {
		t.Errorf("the refusal does not say what to do: %v", err)
	}
	if _, err := w.client.AllocID(context.Background(), &coordinatorv1.AllocIDRequest{Count: 1}); reason.Of(err) != rootv1.Reason_REASON_DEADLINE_REQUIRED {
		t.Errorf("AllocID: %v", err)
	}
}

// What is above MaxWaitingNumbers is refused at once, and reads that do not wait go on.
func TestOverload(t *testing.T) {
	w := routed(t, limits(func(l *server.Limits) {
		l.MaxInFlight, l.MaxWaitingReads, l.MaxWaitingChanges, l.MaxWaitingNumbers = 10, 1, 1, 8
	}))
	release := w.authority.block()
	answers := make(chan error, 4)
	for range 4 {
		go func() {
			_, err := w.client.AllocID(within(t), &coordinatorv1.AllocIDRequest{Count: 1})
			answers <- err
		}()
	}
	for range 4 {
		<-w.authority.arrived
	}
	_, err := w.client.Tso(within(t), &coordinatorv1.TsoRequest{Count: 1})
	detail := refused(t, err, rootv1.Reason_REASON_OVERLOADED)
	if detail.GetLimit() != 8 || detail.GetRetryAfterMillis() == 0 || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("detail %v", detail)
	}
	if _, err := w.client.GetRegionByKey(within(t), byKey("a")); err != nil {
		t.Errorf("a read that waits for nobody: %v", err)
	}
	release()
	for range 4 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if _, err := w.client.AllocID(within(t), &coordinatorv1.AllocIDRequest{Count: 1}); err != nil {
		t.Errorf("after the overload: %v", err)
	}
}

func TestInFlightIsBounded(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	w := routed(t, limits(func(l *server.Limits) {
		l.MaxInFlight, l.MaxWaitingReads, l.MaxWaitingChanges, l.MaxWaitingNumbers = 3, 1, 1, 1
	}), func(c *server.Config) {
		c.RootPeers = func(context.Context) []*coordinatorv1.RootEndpoint {
			arrived <- struct{}{}
			<-release
			return nil
		}
	})
	end := sync.OnceFunc(func() { close(release) })
	defer end()
	answers := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := w.client.Status(within(t), &coordinatorv1.StatusRequest{})
			answers <- err
		}()
	}
	for range 3 {
		<-arrived
	}
	_, err := w.client.GetRegionByKey(within(t), byKey("a"))
	refused(t, err, rootv1.Reason_REASON_OVERLOADED)
	end()
	for range 3 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

func TestStreamsAreCounted(t *testing.T) {
	w := routed(t, limits(func(l *server.Limits) {
		l.MaxWatchStreams, l.MaxTsoStreams, l.MaxRouteStreams, l.MaxPublishStreams = 1, 1, 1, 1
	}))
	type opened interface{ CloseSend() error }
	for name, c := range map[string]struct {
		open func() (opened, error)
		use  func(opened) error
	}{
		"watch": {
			func() (opened, error) { return w.client.WatchRegions(within(t), &coordinatorv1.WatchRegionsRequest{}) },
			func(o opened) error { _, err := o.(coordinatorv1.Coordinator_WatchRegionsClient).Recv(); return err },
		},
		"tso": {
			func() (opened, error) { return w.client.TsoStream(within(t)) },
			func(o opened) error {
				s := o.(coordinatorv1.Coordinator_TsoStreamClient)
				_ = s.Send(&coordinatorv1.TsoRequest{Count: 1})
				_, err := s.Recv()
				return err
			},
		},
		"route": {
			func() (opened, error) { return w.client.RouteStream(within(t)) },
			func(o opened) error {
				s := o.(coordinatorv1.Coordinator_RouteStreamClient)
				_ = s.Send(&coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte("a")}})
				_, err := s.Recv()
				return err
			},
		},
		"publish": {
			func() (opened, error) { return w.client.PublishStream(within(t)) },
			func(o opened) error {
				s := o.(coordinatorv1.Coordinator_PublishStreamClient)
				_ = s.Send(&coordinatorv1.PublishRootEventsRequest{})
				_, err := s.Recv()
				return err
			},
		},
	} {
		first, err := c.open()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.use(first); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		second, err := c.open()
		if err != nil {
			t.Fatal(err)
		}
		refused(t, c.use(second), rootv1.Reason_REASON_OVERLOADED)
	}
}

func TestMessageSizeIsBounded(t *testing.T) {
	w := start(t)
	big := &coordinatorv1.GetRegionsByKeysRequest{}
	for range 1281 {
		big.Keys = append(big.Keys, make([]byte, 4096))
	}
	_, err := w.client.GetRegionsByKeys(within(t), big)
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("5 MiB and more: %v", err)
	}
}

// A connection more than the limit is closed while a call is open on each of the
// others, and takes the place of one without.
func TestConnectionsAreBounded(t *testing.T) {
	w := start(t, limits(func(l *server.Limits) { l.MaxConnections = 1 }))
	busy, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	call, err := w.client.TsoStream(busy)
	if err != nil {
		t.Fatal(err)
	}
	_ = call.Send(&coordinatorv1.TsoRequest{Count: 1})
	_, _ = call.Recv()
	other := w.dial(t)
	defer other.Close()
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := coordinatorv1.NewCoordinatorClient(other).Status(soon, &coordinatorv1.StatusRequest{}); err == nil {
		t.Error("a second connection was served")
	}
	hangUp()
	if _, err := coordinatorv1.NewCoordinatorClient(other).Status(within(t), &coordinatorv1.StatusRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("with the first one idle: %v", err)
	}
}

// A stream whose client says nothing is closed; one whose client reads nothing
// is cut. Both end without the client's help.
func TestSilentAndSlowStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t, limits(func(l *server.Limits) {
			l.StreamIdle, l.SendTimeout, l.MaxRouteStreams = time.Minute, 10*time.Second, 1
		}))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		idle, err := w.client.TsoStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if _, err := idle.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("a silent stream ended with %v", err)
		}
		if took := time.Since(begun); took < time.Minute || took > 70*time.Second {
			t.Errorf("a silent stream ended after %s", took)
		}

		slow, err := w.client.RouteStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for slow.Send(&coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte("a")}}) == nil { // nobody reads the answers
			}
		}()
		time.Sleep(30 * time.Second)
		next, err := w.client.RouteStream(ctx) // there is room for one
		if err != nil {
			t.Fatal(err)
		}
		_ = next.CloseSend()
		if _, err := next.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("after a reader of nothing: %v", err)
		}
		if _, err := drain(slow.Recv); reason.Of(err) != rootv1.Reason_REASON_OVERLOADED {
			t.Errorf("a reader of nothing was cut with %v", err)
		}
		cancel()
		w.conn.Close()
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A stop ends streams with a reason and is over in time, even when a call hangs.
func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t, limits(func(l *server.Limits) { l.StreamWait = time.Hour }))
		watch, err := w.client.WatchRegions(t.Context(), &coordinatorv1.WatchRegionsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		w.authority.block()
		hanging := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			_, err := w.client.AllocID(ctx, &coordinatorv1.AllocIDRequest{Count: 1})
			hanging <- err
		}()
		synctest.Wait()
		begun := time.Now()
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("the stop took %s", took)
		}
		if _, err := drain(watch.Recv); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "stopping") {
			t.Errorf("the watch ended with %v", err)
		}
		if err := <-hanging; status.Code(err) != codes.Unavailable {
			t.Errorf("the hanging call ended with %v", err)
		}
		w.conn.Close()
	})
}

// A listener that fails ends Run with the reason.
func TestListenerFails(t *testing.T) {
	w := start(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lis.Close()
	other, err := server.New(server.Config{
		ID: "c2", Address: "a:1", Incarnation: 1, Views: w.follower, Authority: w.authority, Root: w.root,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Run(t.Context(), lis); err == nil || !strings.Contains(err.Error(), lis.Addr().String()) {
		t.Errorf("Run = %v", err)
	}
}

// What is read ahead is bounded in bytes too: big requests are answered all the same.
func TestBigRequestsOnAStream(t *testing.T) {
	w := routed(t, limits(func(l *server.Limits) { l.MaxMessageBytes = 64 << 10 }))
	stream, err := w.client.RouteStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	const requests = 50
	go func() {
		key := []byte(strings.Repeat("a", 4000))
		for range requests {
			if stream.Send(&coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{key, key, key, key, key, key, key, key, key}}) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	if got, err := drain(stream.Recv); err != nil || len(got) != requests {
		t.Errorf("%d answers, %v", len(got), err)
	}
}

// A reader that takes nothing costs a coordinator no more than a few parts of
// answers, however many of its lookups waited for the root: 16 requests of 10 KB,
// where 256 may wait.
func TestAnswersOfLookupsThatWaitedAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		req := &coordinatorv1.GetRegionsByKeysRequest{Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}}
		long := strings.Repeat("k", server.MaxKeyBytes-8)
		for i := range server.MaxKeys {
			key := fmt.Sprintf("%04d", i)
			w.root.must(t, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
				KeyspaceId: 1, StartKey: []byte(key + "a" + long), EndKey: []byte(key + "z" + long), Frontier: []byte(long),
			}}}})
			req.Keys = append(req.Keys, []byte(key+"m"))
		}
		w.catchUp(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := w.client.RouteStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		heap := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		for id := range uint64(16) {
			req.RequestId = id
			if err := stream.Send(req); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second) // all have looked up, and the stream is not cut yet
		if grown := int64(heap()) - int64(before); grown > 16<<20 {
			t.Errorf("16 lookups of a reader that takes nothing hold %d MB", grown>>20)
		}
	})
}
