package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/testreport"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// presets makes a keyspace of each preset, with frames at a pace for tests and probes;
// regions of kv are the operator's to give, those of points and ranges belong to the last worker.
func (h *hosting) presets() (regions int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), hostedWithin)
	defer cancel()
	for _, name := range []string{"tenants", "games", "actors", "kv", "partitions"} {
		settings := &rootv1.KeyspaceSettings{
			Placement: rootv1.Placement_PLACEMENT_ASSIGNED,
			Liveness:  &rootv1.Liveness{IntervalMillis: 200, Probe: true, ClosedStream: rootv1.ClosedStream_CLOSED_STREAM_DEAD},
		}
		ks, err := h.client.CreateKeyspace(ctx, name, name, settings)
		if err != nil {
			h.t.Fatal(err)
		}
		id := ks.GetKeyspace().GetId()
		if n := ks.GetKeyspace().GetSettings().GetLayout().GetSlots().GetCount(); n > 0 {
			regions += int(n)
			continue
		}
		regions++
		if _, err := h.client.PublishRegion(ctx, &rooted.Region{Keyspace: rooted.KeyspaceID(id), Start: "k", Owners: []rooted.Owner{{Member: rooted.MemberID(worker0(len(h.workers) - 1))}}}); err != nil {
			h.t.Fatalf("%s: %v", name, err)
		}
	}
	return regions
}

// hosts says whether so many regions are held by these workers, by what they say.
func (h *hosting) hosts(regions int, workers ...int) error {
	held := map[uint64]bool{}
	for _, i := range workers {
		for id := range h.held(i) {
			held[id] = true
		}
	}
	if len(held) != regions {
		return fmt.Errorf("%d of %d regions are held by workers %v", len(held), regions, workers)
	}
	return nil
}

// ask asks a worker for a key, at an epoch or, without one, as it is held.
func (h *hosting) ask(worker int, path string) (status int, answer string) {
	h.t.Helper()
	r, err := http.Get("http://" + h.said(worker)[0].Address + "/" + path)
	if err != nil {
		h.t.Error(err)
		return 0, ""
	}
	defer r.Body.Close()
	b, err := io.ReadAll(io.LimitReader(r.Body, 4096))
	if err != nil {
		h.t.Error(err)
	}
	return r.StatusCode, strings.TrimSpace(string(b))
}

// Workers host keyspaces of every preset, with slots, points, ranges, ttls and several
// owners: each region gets an owner; a range is split and merged under requests, with its owner kept;
// and a worker that is killed loses its regions to the others, also those with a fence of 90 s.
func TestA01WorkersHostEveryPreset(t *testing.T) {
	t.Parallel()
	h := startWorkers(t, 3)
	regions := h.presets()
	h.eventually(func(context.Context) error {
		for i := range h.workers { // a worker that comes late gets its third behind the first plan
			if n := len(h.held(i)); n < 1024/3 {
				return fmt.Errorf("worker %d has %d of %d regions", i+1, n, regions)
			}
		}
		return h.hosts(regions, 0, 1, 2)
	})

	h.splitAndMerge("kv")

	begin := time.Now()
	h.workers[2].Kill()
	h.eventually(func(context.Context) error { return h.hosts(regions, 0, 1) }) // the longest that a preset waits for a worker to come back is 30 s
	last, n := h.lastAcquired(begin, 0, 1)
	h.oneOwnerAnEpoch()
	testreport.Linef(t, "presets: %d regions of five keyspaces on 3 workers; %d served elsewhere %s after kill -9, ttl of up to 90s", regions, n, last.Sub(begin).Round(time.Millisecond))
}

// splitAndMerge splits the region of a keyspace that the last worker has, and merges it
// again, while callers ask for keys of both parts.
func (h *hosting) splitAndMerge(ks string) {
	t := h.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hostedWithin)
	defer cancel()
	at := len(h.workers) - 1
	whole, err := h.client.GetRegionByKey(ctx, []byte("k"), client.In(ks), client.Strong())
	if err != nil {
		t.Fatal(err)
	}
	id := whole.Region.ID
	asking, stop := context.WithCancel(ctx)
	var callers sync.WaitGroup
	var asked atomic.Int64
	for _, key := range []string{"kv/ka", "kv/kz"} {
		callers.Go(func() {
			for asking.Err() == nil {
				if status, answer := h.ask(at, key); status != http.StatusOK {
					t.Errorf("%s: %d %s", key, status, answer)
				}
				asked.Add(1)
			}
		})
	}
	// What a region got to, as rooted: each time it is let go of, that comes with it.
	got := func(r *rooted.Region) int {
		n, _ := strconv.Atoi(r.Frontier)
		return n
	}
	const rounds = 3
	before := whole.Region
	for range rounds {
		parts, err := h.client.SplitRegion(ctx, id, []byte("km"), 0)
		if err != nil {
			t.Fatal(err)
		}
		h.owned(at, parts.Left, parts.Right)
		if got(parts.Left) < got(before) || got(parts.Left) != got(parts.Right) {
			t.Errorf("what was %+v is %+v and %+v", before, parts.Left, parts.Right)
		}
		if _, err := h.client.MergeRegions(ctx, id, parts.Right.ID); err != nil {
			t.Fatal(err)
		}
		merged, err := h.client.GetRegion(ctx, id, client.Strong())
		if err != nil {
			t.Fatal(err)
		}
		h.owned(at, merged.Region)
		if got(merged.Region) < got(parts.Left) {
			t.Errorf("of %+v became %+v", parts.Left, merged.Region)
		}
		before = merged.Region
	}
	stop()
	callers.Wait()
	if last, err := h.client.GetRegion(ctx, id, client.Strong()); err != nil || got(last.Region) == 0 || last.Region.Epoch.ConfVersion != whole.Region.Epoch.ConfVersion {
		t.Errorf("the region is %+v, %v", last.Region, err)
	}
	for _, key := range []string{"kv/ka", "kv/kz"} {
		status, answer := h.ask(at, key+"?epoch="+showEpoch(whole.Region.Epoch))
		if status != http.StatusMisdirectedRequest || !strings.Contains(answer, "ask a coordinator for its route again") {
			t.Errorf("%s of the old epoch: %d %s", key, status, answer)
		}
	}
	testreport.Linef(t, "ranges: %d splits and merges with their owner kept, %d requests meanwhile without an error", 2*rounds, asked.Load())
}

// owned waits until a worker has regions as rooted, with the frontiers that it gave.
func (h *hosting) owned(worker int, regions ...*rooted.Region) {
	h.t.Helper()
	h.eventually(func(context.Context) error {
		held := h.held(worker)
		for _, r := range regions {
			if e := held[uint64(r.ID)]; e.Epoch != showEpoch(r.Epoch) || e.Key != showKey([]byte(r.Start)) {
				return fmt.Errorf("region %d at %s is held as %+v", r.ID, showEpoch(r.Epoch), e)
			}
		}
		return nil
	})
}
