package server_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc"
)

// crowdOf opens n watches of the default keyspace that nobody reads yet but for
// their snapshots.
func crowdOf(t *testing.T, w *world, ctx context.Context, n int) ([]*mirror, []coordinatorv1.Coordinator_WatchRegionsClient) {
	t.Helper()
	return crowdOn(t, ctx, n, w.client)
}

// crowdOn is crowdOf in turns on several connections.
func crowdOn(t *testing.T, ctx context.Context, n int, clients ...coordinatorv1.CoordinatorClient) ([]*mirror, []coordinatorv1.Coordinator_WatchRegionsClient) {
	t.Helper()
	crowd := make([]*mirror, n)
	streams := make([]coordinatorv1.Coordinator_WatchRegionsClient, n)
	for i := range crowd {
		var err error
		if streams[i], err = clients[i%len(clients)].WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: "default", Members: true}); err != nil {
			t.Fatal(err)
		}
		crowd[i] = newMirror()
		crowd[i].load(t, streams[i])
	}
	synctest.Wait()
	return crowd, streams
}

// What a crowd is given comes connection by connection.
func TestACrowdIsVisitedByConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		clients := make([]coordinatorv1.CoordinatorClient, 4)
		for i := range clients {
			conn := w.dial(t)
			defer conn.Close()
			clients[i] = coordinatorv1.NewCoordinatorClient(conn)
		}
		const each = 256
		crowd, streams := crowdOn(t, ctx, len(clients)*each, clients...)
		time.Sleep(200 * time.Millisecond) // the watches have all been visited
		begun := time.Now()
		at := state.TokenFromProto(w.must(t, publish(1, 1, "", "g", 2, "m1")).GetToken())
		var mu sync.Mutex
		spans := make([]struct{ first, last time.Duration }, len(clients))
		var all sync.WaitGroup
		for i := range crowd {
			all.Go(func() {
				crowd[i].until(t, streams[i], at)
				mu.Lock()
				defer mu.Unlock()
				after, span := time.Since(begun), &spans[i%len(clients)]
				if span.last == 0 {
					span.first = after
				}
				span.last = after
			})
		}
		all.Wait()
		slices.SortFunc(spans, func(a, b struct{ first, last time.Duration }) int { return cmp.Compare(a.first, b.first) })
		for i := range spans[1:] {
			if spans[i+1].first < spans[i].last {
				t.Errorf("two connections are given something in turns: %v", spans)
				break
			}
		}
	})
}

// One change is given to a crowd by and by, so that whoever else calls finds a
// processor, and reaches all of it soon.
func TestACrowdIsVisitedInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		crowd, streams := crowdOf(t, w, ctx, 1000)
		time.Sleep(200 * time.Millisecond) // the watches have all been visited
		begun := time.Now()
		at := state.TokenFromProto(w.must(t, publish(1, 1, "", "g", 2, "m1")).GetToken())
		var mu sync.Mutex
		came := map[time.Duration]int{}
		var all sync.WaitGroup
		for i := range crowd {
			all.Go(func() {
				crowd[i].until(t, streams[i], at)
				mu.Lock()
				defer mu.Unlock()
				came[time.Since(begun)]++
			})
		}
		all.Wait()
		for after, n := range came {
			if n > 300 || after > 250*time.Millisecond {
				t.Errorf("%d of %d watches had the change after %v", n, len(crowd), after)
			}
		}
	})
}

// What gathers between two rounds of a crowd costs each of it one message, and rounds of many
// changes are far apart.
func TestACrowdGetsWhatGatheredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		crowd, streams := crowdOf(t, w, ctx, 300)
		for i := range crowd {
			crowd[i].batches = 0
		}
		var at state.Token
		for i := range 80 {
			at = state.TokenFromProto(w.must(t, publish(1, 1, "", "g", uint64(i+2), "m1")).GetToken())
			time.Sleep(time.Millisecond)
		}
		for i := range crowd {
			crowd[i].until(t, streams[i], at)
			crowd[i].check(t, w, 0)
			if crowd[i].batches > 5 {
				t.Fatalf("80 changes in 80 ms came in %d messages", crowd[i].batches)
			}
		}
	})
}

// Nobody waits until a crowd has been given what it gets.
func TestACrowdDelaysNoOtherWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		defer w.end(t)
		w.must(t, created("other"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		stream, err := w.client.WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: "other"})
		if err != nil {
			t.Fatal(err)
		}
		alone := newMirror()
		alone.load(t, stream)
		crowdOf(t, w, ctx, 2000)
		for i := range uint64(20) {
			w.must(t, publish(1, 1, "", "g", i+2, "m1"))
			begun := time.Now()
			at := state.TokenFromProto(w.must(t, publish(50, 2, "", "g", i+1, "m1")).GetToken())
			alone.until(t, stream, at)
			if took := time.Since(begun); took > 5*time.Millisecond {
				t.Fatalf("change %d came after %v", i, took)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// A crowd that was none for a while misses nothing of that time.
func TestACrowdThatComesAgainMissesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		// It takes nothing meanwhile: its window is full.
		conn := w.dial(t, grpc.WithInitialWindowSize(64<<10))
		defer conn.Close()
		stream, err := coordinatorv1.NewCoordinatorClient(conn).WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: "default", Members: true})
		if err != nil {
			t.Fatal(err)
		}
		slow := newMirror()
		slow.load(t, stream)
		epoch := uint64(1)
		change := func(end string) state.Token {
			epoch++
			at := w.must(t, publish(1, 1, "", end, epoch, "m1")).GetToken()
			time.Sleep(150 * time.Millisecond)
			return state.TokenFromProto(at)
		}
		some, leave := context.WithCancel(ctx)
		crowdOf(t, w, some, 300)
		for i := range 40 {
			change(strings.Repeat("f", 4000-i))
		}
		leave()
		time.Sleep(100 * time.Millisecond)
		w.must(t, publish(2, 1, "g", "n", 2, "m2", "m1"))
		time.Sleep(100 * time.Millisecond)
		crowdOf(t, w, ctx, 300)
		at := change("f")
		slow.until(t, stream, at)
		slow.check(t, w, 0)
	})
}

// Watches that open together are sent their snapshots by and by.
func TestSnapshotsOfACrowdArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		defer w.end(t)
		w.must(t, create("big", slots(16384)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		load := func() (bytes int) {
			stream, err := w.client.WatchRegions(ctx, &coordinatorv1.WatchRegionsRequest{Keyspace: "big"})
			if err != nil {
				t.Error(err)
				return 0
			}
			for {
				resp, err := stream.Recv()
				if err != nil {
					t.Error(err)
					return bytes
				}
				if bytes += len(resp.GetChanges()); !resp.GetPartial() {
					return bytes
				}
			}
		}
		begun := time.Now()
		load()
		alone := time.Since(begun)
		begun = time.Now()
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				if n := load(); n != 16384 {
					t.Errorf("a snapshot of %d regions", n)
				}
			})
		}
		all.Wait()
		// At 80 MB a second or so; one alone has nothing to wait for.
		if took := time.Since(begun); alone > 0 || took < 100*time.Millisecond || took > 5*time.Second {
			t.Errorf("a snapshot took %v, 64 together %v", alone, took)
		}
	})
}

// Signs of life come in time to a crowd too.
func TestSignsOfLifeOfACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(c *server.Config) { c.Limits.MaxWatchStreams = 1 << 15 })
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		crowd, streams := crowdOf(t, w, ctx, 600)
		var all sync.WaitGroup
		for i := range crowd {
			all.Go(func() {
				for range 3 {
					begun := time.Now()
					if _, err := streams[i].Recv(); err != nil {
						t.Error(err)
						return
					}
					if took := time.Since(begun); took > 1100*time.Millisecond {
						t.Errorf("silent for %v", took)
					}
				}
			})
		}
		all.Wait()
	})
}

// A crowd has what changed while it was given something else a round later, not at the next
// look at all watches.
func TestACrowdHasTheSecondChangeARoundLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := routed(t)
		defer w.end(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		crowd, streams := crowdOf(t, w, ctx, 300)
		worst := time.Duration(0)
		for i := range uint64(10) {
			time.Sleep(time.Second + time.Duration(i)*23*time.Millisecond)
			w.must(t, publish(1, 1, "", "g", 2*i+2, "m1"))
			time.Sleep(time.Millisecond) // its round is under way: turns of 64 watches
			at := state.TokenFromProto(w.must(t, publish(1, 1, "", "g", 2*i+3, "m1")).GetToken())
			begun := time.Now()
			for j := range crowd {
				crowd[j].until(t, streams[j], at)
			}
			worst = max(worst, time.Since(begun))
		}
		t.Logf("the second change is there after %v at most", worst)
		if worst > 120*time.Millisecond {
			t.Errorf("the second change of two took %v, a round is 100 ms", worst)
		}
	})
}
