package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func TestAnotherClusterIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("a", &fake{cluster: newCluster(7)})
		w.start("b", &fake{cluster: newCluster(8)})
		c, end := w.client(client.Config{DefaultTimeout: time.Second}, "a", "b")
		defer end()
		_, err := c.GetRegionByKey(t.Context(), []byte("k"))
		must(t, err)
		w.stop("a")
		_, err = c.GetRegionByKey(t.Context(), []byte("k"))
		if err == nil || !strings.Contains(err.Error(), "0000000000000008") {
			t.Errorf("error %v", err)
		}
		if _, err := c.Tso(t.Context(), 1); err == nil {
			t.Error("took a timestamp of another cluster")
		}
		if _, err := c.AllocID(t.Context(), 1); err == nil {
			t.Error("took an id of another cluster")
		}
		if c.Stats().OtherClusters == 0 {
			t.Error("nothing was counted")
		}
	})
}

// While a client is idle, another cluster may come to an address that it knows:
// nothing is carried out there.
func TestChangesDoNotReachAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("a", &fake{cluster: newCluster(7)})
		c, end := w.client(client.Config{DefaultTimeout: 5 * time.Second}, "a")
		defer end()
		region := func(ctx context.Context) error { _, err := c.RemoveRegion(ctx, 1, rooted.Epoch{}); return err }
		publish := func(ctx context.Context) error { _, err := c.PublishEvent(ctx, removal(1)); return err }
		must(t, publish(t.Context()))
		w.stop("a")
		synctest.Wait() // the connection breaks while nobody uses it
		other := &fake{cluster: newCluster(8)}
		w.start("a", other)
		for _, change := range []func(context.Context) error{publish, region} {
			start := time.Now()
			wantIs(t, change(t.Context()), client.ErrClusterMismatch)
			wantWithin(t, start, 0, time.Second)
		}
		if n := other.log.Load(); n != 0 {
			t.Errorf("%d changes were carried out in the other cluster", n)
		}
	})
}

// A client that knows its cluster is told of another one by the first call.
func TestConfiguredClusterMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("a", &fake{cluster: newCluster(8)})
		w.start("b", &fake{cluster: newCluster(8)})
		c, end := w.client(client.Config{ClusterID: 7}, "a", "b")
		defer end()
		for name, call := range map[string]func(context.Context) error{
			"read":    func(ctx context.Context) error { _, err := c.GetRegionByKey(ctx, []byte("k")); return err },
			"many":    func(ctx context.Context) error { _, err := c.GetRegionsByKeys(ctx, [][]byte{[]byte("k")}); return err },
			"ids":     func(ctx context.Context) error { _, err := c.AllocID(ctx, 1); return err },
			"tso":     func(ctx context.Context) error { _, err := c.Tso(ctx, 1); return err },
			"change":  func(ctx context.Context) error { _, err := c.RemoveRegion(ctx, 1, rooted.Epoch{}); return err },
			"publish": func(ctx context.Context) error { _, err := c.PublishEvent(ctx, removal(1)); return err },
		} {
			start := time.Now()
			err := call(t.Context())
			if !errors.Is(err, client.ErrClusterMismatch) || time.Since(start) > time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(start))
			}
		}
	})
}

func removal(id uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}}
}

// Another cluster may answer at an address that was checked before, without
// the connection telling.
func TestIDsAndTimestampsSayTheirCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := &fake{cluster: newCluster(7)}, &fake{cluster: newCluster(7)}
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		_, err := c.AllocID(t.Context(), 1)
		must(t, err)
		_, err = c.Tso(t.Context(), 1)
		must(t, err)
		if n := a.called("Status"); n != 1 {
			t.Errorf("%d round trips to ask for the cluster, want one before the first call, which names it", n)
		}
		other := newCluster(8)
		other.era.Store(1000)
		other.next.Add(1 << 40)
		a.cluster = other
		ids, err := c.AllocID(t.Context(), 1)
		must(t, err)
		ts, err := c.Tso(t.Context(), 1)
		must(t, err)
		if ids.First > b.next.Load() || uint64(ts.First) > b.next.Load() || ids.Era != 1 || ts.Era != 1 {
			t.Errorf("id %+v and timestamp %+v are of the other cluster", ids, ts)
		}
		if s := c.Stats(); s.OtherClusters == 0 || s.Era != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// An era in a refusal by a coordinator whose cluster is not known must not
// raise the floor: no id of this cluster would ever be taken again.
func TestEraOfAnotherClusterIsNoFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := &fake{cluster: newCluster(8)}, &fake{cluster: newCluster(7)}
		e := reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "coordinator not leader")
		e.Detail.Era = 1000
		a.refuse(on(e, "AllocID", "TsoStream"))
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{ClusterID: 7}, "a", "b")
		defer end()
		_, err := c.AllocID(t.Context(), 1)
		must(t, err)
		_, err = c.Tso(t.Context(), 1)
		must(t, err)
	})
}

func TestEraFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		old, now := newCluster(7), newCluster(7)
		now.era.Store(5)
		now.next.Add(1 << 30)
		a, b := &fake{cluster: old}, &fake{cluster: now}
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		// Era 1 is as good as any, until 5 has been seen in a reply to something else.
		_, err := c.AllocID(t.Context(), 1)
		must(t, err)
		_, err = c.Status(t.Context(), "b")
		must(t, err)
		ids, err := c.AllocID(t.Context(), 1)
		must(t, err)
		ts, err := c.Tso(t.Context(), 1)
		must(t, err)
		if ids.Era != 5 || ts.Era != 5 {
			t.Errorf("ids of era %d, timestamps of era %d, want 5", ids.Era, ts.Era)
		}
		if s := c.Stats(); s.LowerEras == 0 || s.Era != 5 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestTimestampsNeverGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		broken, good := &fake{cluster: k}, &fake{cluster: k}
		broken.tso = func(req *coordinatorv1.TsoRequest) *coordinatorv1.TsoResponse {
			return &coordinatorv1.TsoResponse{First: 77, Count: req.GetCount(), Era: 1, ClusterId: 7}
		}
		w.start("a", broken)
		w.start("b", good)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		first, err := c.Now(t.Context())
		must(t, err)
		second, err := c.Now(t.Context())
		must(t, err)
		if first != 77 || second <= first {
			t.Errorf("got %d, then %d", first, second)
		}
		if n := c.Stats().OrderViolations; n != 1 {
			t.Errorf("%d violations counted, want 1", n)
		}
	})
}
