package server_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"
)

// farAhead is a read that waits for a position that does not come.
func (w *world) farAhead() *coordinatorv1.GetRegionByKeyRequest {
	at := w.root.token()
	at.Index += 1 << 20
	req := byKey("a")
	req.Read = &coordinatorv1.ReadOptions{RequiredRootToken: at.Proto()}
	return req
}

// Reads for a position that never comes, with deadlines of weeks, fill the places
// of reads: those are refused, and nobody else.
func TestReadsThatWaitAreInNobodysWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t, limits(func(l *server.Limits) { l.MaxWaitingReads = 64 }))
		defer w.end(t)
		flood, stop := context.WithTimeout(t.Context(), 1000*time.Hour)
		defer stop()
		for range 256 {
			go func() { _, _ = w.client.GetRegionByKey(flood, w.farAhead()) }()
		}
		synctest.Wait()
		strong := byKey("a")
		strong.Read = &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}
		_, err := w.client.GetRegionByKey(within(t), strong)
		if detail := refused(t, err, rootv1.Reason_REASON_OVERLOADED); detail.GetRetryAfterMillis() == 0 {
			t.Errorf("refusal: %v", detail)
		}
		for name, call := range map[string]func(context.Context) error{
			"timestamp": func(ctx context.Context) error {
				_, err := w.client.Tso(ctx, &coordinatorv1.TsoRequest{Count: 1})
				return err
			},
			"id": func(ctx context.Context) error {
				_, err := w.client.AllocID(ctx, &coordinatorv1.AllocIDRequest{Count: 1})
				return err
			},
			"publish": func(ctx context.Context) error {
				_, err := w.client.PublishRootEvent(ctx, &coordinatorv1.PublishRootEventRequest{Event: publish(1, 1, "", "g", 2, "m1")})
				return err
			},
			"read that waits for nobody": func(ctx context.Context) error {
				_, err := w.client.GetRegionByKey(ctx, byKey("a"))
				return err
			},
			"health": func(ctx context.Context) error {
				_, err := healthpb.NewHealthClient(w.conn).Check(ctx, &healthpb.HealthCheckRequest{})
				return err
			},
		} {
			if err := call(within(t)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		stop()
		synctest.Wait()
	})
}

// Fewer reads wait than may by count when there is memory for fewer.
func TestReadsThatWaitFitTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t, func(c *server.Config) { c.Budget = budget.New(8 << 20) }) // 1 MiB for what waits
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		refused := 0
		var calls sync.WaitGroup
		var mu sync.Mutex
		for range 64 {
			calls.Go(func() {
				if _, err := w.client.GetRegionByKey(ctx, w.farAhead()); reason.Of(err) == rootv1.Reason_REASON_OVERLOADED {
					mu.Lock()
					refused++
					mu.Unlock()
				}
			})
		}
		calls.Wait()
		if refused != 32 {
			t.Errorf("%d of 64 reads of 16 KiB each were refused, half of the 64 places are one caller's", refused)
		}
	})
}

// However far its deadline is, a read is told after ReadWait where the view is.
func TestLongestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		revision := byKey("a")
		revision.Read = &coordinatorv1.ReadOptions{RequiredDescriptorRevision: 1 << 40}
		for _, req := range []*coordinatorv1.GetRegionByKeyRequest{w.farAhead(), revision} {
			begun := time.Now()
			_, err := w.client.GetRegionByKey(ctx, req)
			detail := refused(t, err, rootv1.Reason_REASON_REQUIRED_TOKEN)
			if waited := time.Since(begun); waited > server.DefaultLimits().ReadWait || detail.GetCurrentToken().GetIndex() == 0 {
				t.Errorf("after %v: %v", waited, detail)
			}
		}
	})
}

// streams are what a caller can open of each kind. Each says whether the stream was
// taken; a sign of life of it comes at once.
var streams = map[string]func(context.Context, *grpc.ClientConn) error{
	"watch": func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := coordinatorv1.NewCoordinatorClient(conn).WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{})
		return answered(s, err, nil)
	},
	"timestamps": func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := coordinatorv1.NewCoordinatorClient(conn).TsoStream(ctx)
		return answered(s, err, &coordinatorv1.TsoRequest{Count: 1})
	},
	"ids": func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := coordinatorv1.NewCoordinatorClient(conn).AllocIDStream(ctx)
		return answered(s, err, &coordinatorv1.AllocIDRequest{Count: 1})
	},
	"routes": func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := coordinatorv1.NewCoordinatorClient(conn).RouteStream(ctx)
		return answered(s, err, &coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte("a")}})
	},
	"publish": func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := coordinatorv1.NewCoordinatorClient(conn).PublishStream(ctx)
		return answered(s, err, &coordinatorv1.PublishRootEventsRequest{})
	},
	"health": func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
		return answered(s, err, nil)
	},
}

// answered sends a stream a request, if there is one, and waits for the answer.
func answered(s grpc.ClientStream, err error, request any) error {
	if err == nil && request != nil {
		err = s.SendMsg(request)
	}
	if err == nil || errors.Is(err, io.EOF) { // It was refused before it was asked.
		err = s.RecvMsg(&emptypb.Empty{}) // whatever it says
	}
	return err
}

// Who opens all the streams that it may leaves some to others, of every kind; what it
// gives back it may have again.
func TestStreamsAreInNobodysWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t, limits(func(l *server.Limits) {
			l.MaxWatchStreams, l.MaxTsoStreams, l.MaxIDStreams, l.MaxRouteStreams, l.MaxPublishStreams, l.MaxHealthStreams = 8, 8, 8, 8, 8, 8
		}))
		defer w.end(t)
		conn := w.dial(t)
		defer conn.Close()
		for kind, open := range streams {
			greedy, hangUp := context.WithCancel(t.Context())
			for range 2 {
				for i := range 4 {
					if err := open(greedy, conn); err != nil {
						t.Fatalf("%s: stream %d of 8: %v", kind, i, err)
					}
				}
				if detail := refused(t, open(greedy, conn), rootv1.Reason_REASON_OVERLOADED); detail.GetLimit() != 8 || detail.GetRetryAfterMillis() == 0 {
					t.Errorf("%s: refusal %v", kind, detail)
				}
				if err := open(within(t), w.conn); err != nil {
					t.Errorf("%s of another caller: %v", kind, err)
				}
				hangUp()
				synctest.Wait()
				greedy, hangUp = context.WithCancel(t.Context())
			}
			hangUp()
		}
	})
}

// A proxy with one connection watches for 10,000, when nobody else wants to.
func TestOneConnectionWatchesForMany(t *testing.T) {
	w := routed(t)
	ctx := within(t)
	watches := make([]coordinatorv1.Coordinator_WatchRegionsClient, 10_000)
	for i := range watches {
		var err error
		if watches[i], err = w.client.WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{}); err != nil {
			t.Fatalf("watch %d: %v", i, err)
		}
	}
	for i, watch := range watches {
		if err := watch.RecvMsg(&emptypb.Empty{}); err != nil {
			t.Fatalf("watch %d: %v", i, err)
		}
	}
}
