package server_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/rpcstats"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// wantCounted checks what was counted of a method.
func wantCounted(t *testing.T, stats *rpcstats.Stats, method string, want map[string]uint64) rpcstats.MethodSnapshot {
	t.Helper()
	got := stats.Snapshot()[method]
	if !maps.Equal(got.Codes, want) {
		t.Errorf("%s: counted %v, want %v", method, got.Codes, want)
	}
	var all uint64
	for _, n := range want {
		all += n
	}
	if got.InFlight != 0 || got.Latency.Count != all {
		t.Errorf("%s: %d in flight, %d latencies, want 0 and %d", method, got.InFlight, got.Latency.Count, all)
	}
	return got
}

// Requests for ids and timestamps in streams count as calls for them do, each with the time
// that it waited for its answer.
func TestRequestsForNumbersInStreamsAreCounted(t *testing.T) {
	for kind, method := range map[string]string{
		"timestamps": coordinatorv1.Coordinator_Tso_FullMethodName, "ids": coordinatorv1.Coordinator_AllocID_FullMethodName,
	} {
		synctest.Test(t, func(t *testing.T) {
			stats := rpcstats.New()
			w := start(t, func(c *server.Config) { c.Stats = stats })
			defer w.end(t)
			s := runStreams(t, w)[kind]
			call := func(n uint64) error {
				if kind == "ids" {
					_, err := w.client.AllocID(within(t), &coordinatorv1.AllocIDRequest{Count: n})
					return err
				}
				_, err := w.client.Tso(within(t), &coordinatorv1.TsoRequest{Count: n})
				return err
			}
			stream := func(n uint64) {
				t.Helper()
				_ = s.send(n)
				if _, err := s.recv(); err != nil {
					t.Fatal(err)
				}
			}
			refuse := func(err error) {
				w.authority.mu.Lock()
				w.authority.err = err
				w.authority.mu.Unlock()
			}

			// The same, by a call and in the stream.
			for _, bad := range []error{nil, reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "it retired"), fmt.Errorf("it is broken")} {
				refuse(bad)
				_ = call(1)
				stream(1)
			}
			refuse(nil)
			_ = call(0)
			stream(0)
			wantCounted(t, stats, method, map[string]uint64{"OK": 2, "FailedPrecondition": 2, "Internal": 2, "InvalidArgument": 2})

			const waiting, wait = 93, 400 * time.Millisecond
			release := w.authority.block()
			for range waiting {
				_ = s.send(1)
			}
			synctest.Wait()
			if n := stats.Snapshot()[method].InFlight; n == 0 {
				t.Errorf("%s: nothing is in flight", kind)
			}
			time.Sleep(wait)
			release()
			for range waiting {
				if _, err := s.recv(); err != nil {
					t.Fatal(err)
				}
			}
			got := wantCounted(t, stats, method, map[string]uint64{"OK": waiting + 2, "FailedPrecondition": 2, "Internal": 2, "InvalidArgument": 2})
			if want := float64(wait.Microseconds()); got.Latency.P50Us != want || got.Latency.MaxUs != want {
				t.Errorf("%s: latency %+v, want %.0f us", kind, got.Latency, want)
			}
		})
	}
}

// A request that its caller does not wait for any more, and one that is refused because the
// time for it is over, are counted as those; the stream as one that its caller ended.
func TestRequestsWithoutAnAnswerAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := rpcstats.New()
		w := start(t, func(c *server.Config) { c.Stats = stats })
		defer w.end(t)
		defer w.authority.block()()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := w.client.TsoStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&coordinatorv1.TsoRequest{Count: 1})
		if got, err := stream.Recv(); err != nil || got.GetError() == nil {
			t.Fatalf("got %v, %v", got, err)
		}
		_ = stream.Send(&coordinatorv1.TsoRequest{Count: 1})
		synctest.Wait()
		method := coordinatorv1.Coordinator_TsoStream_FullMethodName
		if got := stats.Streams()[method]; got.Open != 1 || len(got.Ended) != 0 {
			t.Errorf("streams %+v", got)
		}
		cancel()
		synctest.Wait()
		wantCounted(t, stats, coordinatorv1.Coordinator_Tso_FullMethodName, map[string]uint64{"DeadlineExceeded": 1, "Canceled": 1})
		if got := stats.Streams()[method]; got.Open != 0 || got.Ended["Canceled"] != 1 || len(got.Ended) != 1 {
			t.Errorf("streams %+v", got)
		}
	})
}

// Lookups and changes in streams count as calls for them do, and the streams as none.
func TestLookupsAndChangesInStreamsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := rpcstats.New()
		w := routed(t, func(c *server.Config) { c.Stats = stats })
		defer w.end(t)
		routes, err := w.client.RouteStream(within(t))
		if err != nil {
			t.Fatal(err)
		}
		strong := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}
		for _, req := range []*coordinatorv1.GetRegionsByKeysRequest{
			{Keys: [][]byte{[]byte("a"), []byte("b")}},
			{Keys: [][]byte{[]byte("a")}, Read: strong},
			{Keys: [][]byte{[]byte("a")}, Keyspace: "nobody"},
			{Keys: [][]byte{[]byte("a")}, Keyspace: "nobody", Read: strong},
			{},
		} {
			_, _ = w.client.GetRegionsByKeys(within(t), req)
			_ = routes.Send(req)
			if _, err := routes.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		wantCounted(t, stats, coordinatorv1.Coordinator_GetRegionsByKeys_FullMethodName, map[string]uint64{"OK": 4, "NotFound": 4, "InvalidArgument": 2})

		changes, err := w.client.PublishStream(within(t))
		if err != nil {
			t.Fatal(err)
		}
		change := func(events ...*rootv1.Event) {
			t.Helper()
			req := &coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{{Events: events}}}
			_, _ = w.client.PublishRootEvents(within(t), req)
			_ = changes.Send(req)
			if _, err := changes.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		change(publish(1, 1, "", "g", 2, "m1"))
		change()
		w.root.setDown(true)
		change(publish(1, 1, "", "g", 3, "m1"))
		wantCounted(t, stats, coordinatorv1.Coordinator_PublishRootEvents_FullMethodName, map[string]uint64{"OK": 2, "InvalidArgument": 2, "Unavailable": 2})

		for name := range stats.Snapshot() {
			if strings.HasSuffix(name, "Stream") {
				t.Errorf("%s is counted as a request", name)
			}
		}
		_ = routes.CloseSend()
		_ = changes.CloseSend()
		synctest.Wait()
		for _, name := range []string{coordinatorv1.Coordinator_RouteStream_FullMethodName, coordinatorv1.Coordinator_PublishStream_FullMethodName} {
			if got := stats.Streams()[name]; got.Open != 0 || got.Ended["OK"] != 1 {
				t.Errorf("%s: %+v", name, got)
			}
		}
	})
}

// A refusal of a request in a stream counts for its caller as that of a call does.
func TestRefusalsInStreamsAreTheCallers(t *testing.T) {
	w := secureWorld(t)
	p := impersonate.Named(principal.Operator, "op")
	c := coordinatorv1.NewCoordinatorClient(w.as(t, p))
	lookup, count, change := &coordinatorv1.GetRegionsByKeysRequest{Keys: [][]byte{[]byte("a")}, Keyspace: "nobody"}, &coordinatorv1.TsoRequest{}, &coordinatorv1.PublishRootEventsRequest{}
	routes, err1 := c.RouteStream(within(t))
	numbers, err2 := c.TsoStream(within(t))
	changes, err3 := c.PublishStream(within(t))
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	refusals := func() (map[string]uint64, uint64) {
		m := w.server.Access()
		return maps.Clone(m.Refused[p.Role.String()]), m.Principals[p.String()].Refused
	}
	_, byCall1 := c.GetRegionsByKeys(within(t), lookup)
	_, byCall2 := c.Tso(within(t), count)
	_, byCall3 := c.PublishRootEvents(within(t), change)
	reasons, all := refusals()
	if byCall1 == nil || byCall2 == nil || byCall3 == nil || reasons["not_found"] != 1 || reasons["invalid_request"] != 2 || all != 3 {
		t.Fatalf("by calls %v, %d of %s", reasons, all, p)
	}
	err1, err2, err3 = routes.Send(lookup), numbers.Send(count), changes.Send(change)
	_, got1 := routes.Recv()
	_, got2 := numbers.Recv()
	_, got3 := changes.Recv()
	if err := errors.Join(err1, err2, err3, got1, got2, got3); err != nil {
		t.Fatal(err)
	}
	now, of := refusals()
	for name, n := range reasons {
		if now[name] != 2*n {
			t.Errorf("%s: %d refusals, want %d", name, now[name], 2*n)
		}
	}
	if of != 2*all {
		t.Errorf("%d refusals of %s, want %d", of, p, 2*all)
	}
}
