package client_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// span is one call as its caller saw it, on one order of all starts and ends.
type span struct{ began, ended, first, last uint64 }

// Numbers are unique, and if one call ended before another began, its
// timestamps are lower. Streams break all the time.
func TestMergedTimestampsAreUniqueAndOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		var n atomic.Uint64
		flaky := func(context.Context, string) error {
			if n.Add(1)%97 == 0 {
				return reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "no quorum")
			}
			return nil
		}
		a.refuse(flaky)
		b.refuse(flaky)
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{BackoffMin: time.Microsecond, BackoffMax: time.Microsecond}, "a", "b")
		defer end()
		var step atomic.Uint64
		spans := make([][]span, 64)
		var wg sync.WaitGroup
		for i := range spans {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				for range 300 {
					count := 1 + r.Uint64N(5)
					if r.IntN(50) == 0 {
						count = client.MaxTsoCount - r.Uint64N(3) // fills a batch alone
					}
					began := step.Add(1)
					ts, err := c.Tso(t.Context(), count)
					if err != nil {
						t.Error(err)
						return
					}
					spans[i] = append(spans[i], span{began, step.Add(1), uint64(ts.First), uint64(ts.Last())})
					if ts.Count != count {
						t.Errorf("asked for %d, got %+v", count, ts)
					}
				}
			})
		}
		wg.Wait()
		checkOrder(t, slices.Concat(spans...))
		if s := c.Stats(); s.TsoCallers < 64*300 || s.TsoRequests == s.TsoCallers || s.StreamBreaks == 0 {
			t.Errorf("nothing was merged, or nothing broke: %+v", s)
		}
	})
}

func checkOrder(t *testing.T, all []span) {
	slices.SortFunc(all, func(a, b span) int { return int(int64(a.first) - int64(b.first)) })
	for i := 1; i < len(all); i++ {
		if all[i].first <= all[i-1].last {
			t.Fatalf("%+v and %+v overlap", all[i-1], all[i])
		}
	}
	// In order of timestamps, nothing may have ended before an earlier one began.
	var latestBegin uint64
	for _, s := range all {
		if s.ended < latestBegin {
			t.Fatalf("%+v ended before one with lower timestamps began at %d", s, latestBegin)
		}
		latestBegin = max(latestBegin, s.began)
	}
}

// A batch that has been sent takes nobody in: who asks while it is under way
// gets a timestamp of the next request.
func TestNobodyJoinsABatchUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		counts := make(chan uint64, 10)
		release := make(chan struct{})
		f.tso = func(req *coordinatorv1.TsoRequest) *coordinatorv1.TsoResponse {
			counts <- req.GetCount()
			<-release
			return &coordinatorv1.TsoResponse{First: f.take(req.GetCount()), Count: req.GetCount(), Era: 1, ClusterId: 7}
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		var wg sync.WaitGroup
		ask := func(n uint64) {
			wg.Go(func() {
				if _, err := c.Tso(t.Context(), n); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		ask(1)
		ask(10)
		ask(100)
		if got := <-counts; got != 1 {
			t.Errorf("the first request asks for %d, want 1", got)
		}
		release <- struct{}{}
		if got := <-counts; got != 110 {
			t.Errorf("the second request asks for %d, want 110", got)
		}
		release <- struct{}{}
		wg.Wait()
	})
}

func TestMergedIDsAreUnique(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("a", &fake{cluster: newCluster(7)})
		c, end := w.client(client.Config{}, "a")
		defer end()
		var mu sync.Mutex
		var all []client.IDs
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				for j := range 200 {
					ids, err := c.AllocID(t.Context(), uint64(1+(i+j)%7))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					all = append(all, ids)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		slices.SortFunc(all, func(a, b client.IDs) int { return int(int64(a.First) - int64(b.First)) })
		for i := 1; i < len(all); i++ {
			if all[i].First <= all[i-1].Last() {
				t.Fatalf("%+v and %+v overlap", all[i-1], all[i])
			}
		}
	})
}

func TestCallerThatStopsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.refuse(silent("TsoStream", "AllocID", "PublishStream"))
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		for _, call := range []func(context.Context) error{
			func(ctx context.Context) error { _, err := c.Tso(ctx, 1); return err },
			func(ctx context.Context) error { _, err := c.AllocID(ctx, 1); return err },
			func(ctx context.Context) error { _, err := c.PublishEvent(ctx, &rootv1.Event{}); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					start := time.Now()
					wantIs(t, call(ctx), context.DeadlineExceeded)
					wantWithin(t, start, 300*time.Millisecond, 300*time.Millisecond)
				})
			}
			wg.Wait()
			cancel()
		}
		// They harmed nobody, and nobody waits for what they asked.
		f.refuse(nil)
		start := time.Now()
		_, err := c.AllocID(t.Context(), 1)
		must(t, err)
		wantWithin(t, start, 0, time.Second)
		_, err = c.Tso(t.Context(), 1)
		must(t, err)
	})
}

func TestPublishIsRetriedUntilKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		applied := map[uint64]bool{}
		commit := func(cmd *rootv1.Command) *rootv1.CommandResult {
			era := cmd.GetRequireEra()
			out := rootv1.Outcome_OUTCOME_APPLIED
			if applied[era] {
				out = rootv1.Outcome_OUTCOME_ALREADY_APPLIED
			}
			applied[era] = true
			return &rootv1.CommandResult{Outcome: out, Token: &rootv1.RootToken{Index: era}}
		}
		// a applies and dies without a word.
		a.commit = func(cmd *rootv1.Command) *rootv1.CommandResult {
			r := commit(cmd)
			go w.stop("a")
			<-t.Context().Done()
			return r
		}
		b.commit = commit
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		r, err := c.Publish(t.Context(), &rootv1.Command{RequireEra: 3, Events: []*rootv1.Event{{}}})
		must(t, err)
		if r.GetOutcome() != rootv1.Outcome_OUTCOME_ALREADY_APPLIED {
			t.Errorf("outcome %v", r.GetOutcome())
		}
	})
}

func TestPublishTellsEachCallerItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.commit = func(cmd *rootv1.Command) *rootv1.CommandResult {
			at := &rootv1.RootToken{Incarnation: 1, Index: cmd.GetRequireEra()}
			if cmd.GetRequireEra()%3 == 0 {
				return &rootv1.CommandResult{
					Outcome: rootv1.Outcome_OUTCOME_REJECTED, Token: at,
					Error: &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_RANGE_OVERLAP, Message: "in the way", Region: &rootv1.Region{Id: cmd.GetRequireEra()}},
				}
			}
			return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Token: at}
		}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() {
				n := uint64(i + 1)
				r, err := c.Publish(t.Context(), &rootv1.Command{RequireEra: n, Events: []*rootv1.Event{{}}})
				if r.GetToken().GetIndex() != n {
					t.Errorf("command %d got the result of %d", n, r.GetToken().GetIndex())
				}
				if n%3 == 0 {
					wantIs(t, err, client.ErrRangeOverlap)
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if s := c.Stats(); s.PublishCallers != 2000 || s.PublishRequests == 2000 {
			t.Errorf("nothing was merged: %+v", s)
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		w.start("a", f)
		c, end := w.client(client.Config{DiscoverEvery: time.Second}, "a")
		_, err := c.Tso(t.Context(), 1)
		must(t, err)
		_, err = c.PublishEvent(t.Context(), &rootv1.Event{})
		must(t, err)
		f.refuse(silent("TsoStream", "AllocID", "PublishStream", "GetRegionByKey"))
		var wg sync.WaitGroup
		for _, call := range []func() error{
			func() error { _, err := c.Tso(t.Context(), 1); return err },
			func() error { _, err := c.AllocID(t.Context(), 1); return err },
			func() error { _, err := c.PublishEvent(t.Context(), &rootv1.Event{}); return err },
			func() error { _, err := c.GetRegionByKey(t.Context(), []byte("k")); return err },
			func() error {
				for _, err := range c.WatchRegions(t.Context(), zero) {
					if err != nil {
						return err
					}
				}
				return nil
			},
		} {
			for range 3 {
				wg.Go(func() { wantIs(t, call(), client.ErrClosed) })
			}
		}
		synctest.Wait()
		start := time.Now()
		end()
		wg.Wait()
		wantWithin(t, start, 0, 0)
		// The bubble fails if a goroutine is left.
	})
}

// A request that is refused as a whole because of one caller's command is
// sent again command by command: the others do not pay for it.
func TestOneBadCommandHarmsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.malformed = func(cmd *rootv1.Command) bool { return cmd.GetRequireEra() == 13 }
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				_, err := c.Publish(t.Context(), &rootv1.Command{RequireEra: uint64(i), Events: []*rootv1.Event{{}}})
				if i == 13 {
					wantIs(t, err, client.ErrInvalidRequest)
				} else if err != nil {
					t.Errorf("command %d: %v", i, err)
				}
			})
		}
		wg.Wait()
	})
}

// A stream that a coordinator ends while nobody uses it is no failure.
func TestIdleStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k, idle: time.Minute}, &fake{cluster: k}
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		for range 3 {
			_, err := c.Tso(t.Context(), 1)
			must(t, err)
			time.Sleep(2 * time.Minute) // of the bubble
		}
		if n := b.called("TsoStream"); n != 0 || c.Stats().StreamBreaks != 3 || c.Stats().Retries != 0 {
			t.Errorf("b was asked %d times; %+v", n, c.Stats())
		}
	})
}

// A caller who shares a batch with others is not held by it when its context
// ends: at most a few milliseconds, whether the one who leads the batch waits
// on or has gone itself.
func TestCallersOfASharedBatchLeaveInTime(t *testing.T) {
	const soon = 5 * time.Millisecond
	for _, leader := range []struct {
		name  string
		stays time.Duration
	}{{"leader waits", time.Second}, {"leader goes at once", time.Millisecond}} {
		t.Run(leader.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := &fake{cluster: newCluster(7)}
				f.refuse(silent("TsoStream"))
				w.start("a", f)
				c, end := w.client(client.Config{}, "a")
				defer end()
				var wg sync.WaitGroup
				// The first one has the slot; the second one leads the batch behind it.
				for _, stays := range []time.Duration{time.Second, leader.stays, 2 * time.Millisecond, 10 * time.Millisecond} {
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), stays)
						defer cancel()
						begun := time.Now()
						_, err := c.Tso(ctx, 1)
						if took := time.Since(begun); err == nil || took < stays || took > stays+soon {
							t.Errorf("a caller who waits %v at most returned after %v: %v", stays, took, err)
						}
					})
					synctest.Wait()
				}
				wg.Wait()
			})
		})
	}
}

// A request asks for what its callers want: not for one who found no room in it,
// and for nobody when all have gone.
func TestNothingIsTakenForCallersSentAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		counts := make(chan uint64, 10)
		release := make(chan struct{})
		f.tso = func(req *coordinatorv1.TsoRequest) *coordinatorv1.TsoResponse {
			counts <- req.GetCount()
			<-release
			return &coordinatorv1.TsoResponse{First: f.take(req.GetCount()), Count: req.GetCount(), Era: 1, ClusterId: 7}
		}
		w.start("a", f)
		c, end := w.client(client.Config{TryTimeout: time.Hour}, "a")
		defer end()
		var wg sync.WaitGroup
		ask := func(ctx context.Context, n uint64) {
			wg.Go(func() { _, _ = c.Tso(ctx, n) })
			synctest.Wait()
		}
		want := func(n uint64) {
			t.Helper()
			if got := <-counts; got != n {
				t.Errorf("a request for %d, want %d", got, n)
			}
		}
		ask(t.Context(), 1)
		want(1)
		ask(t.Context(), 10)
		ask(t.Context(), client.MaxTsoCount)
		release <- struct{}{}
		want(10)
		release <- struct{}{}
		want(client.MaxTsoCount)
		short, cancel := context.WithCancel(t.Context())
		ask(short, 7)
		ask(short, 8)
		time.Sleep(time.Second) // of the bubble: they heed their contexts
		cancel()
		synctest.Wait()
		release <- struct{}{}
		ask(t.Context(), 3)
		want(3)
		release <- struct{}{}
		wg.Wait()
	})
}

// Each id of a source is given once, and what was fetched and not given is said
// at the end.
func TestIDSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		ids := c.IDs(100)
		given := make([][]uint64, 8)
		var callers sync.WaitGroup
		for i := range given {
			callers.Go(func() {
				for range 1234 {
					id, err := ids.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					given[i] = append(given[i], id)
				}
			})
		}
		callers.Wait()
		unused := ids.Close()
		if _, err := ids.Next(t.Context()); !errors.Is(err, client.ErrClosed) || strings.Contains(err.Error(), "client") {
			t.Errorf("after Close of the source: %v", err)
		}
		all := slices.Concat(given...)
		for _, r := range unused {
			for id := r.First; id <= r.Last(); id++ {
				all = append(all, id)
			}
		}
		slices.Sort(all)
		if fetched := c.Stats().AllocIDCallers * 100; uint64(len(all)) != fetched || len(slices.Compact(all)) != int(fetched) {
			t.Errorf("%d ids given or unused, %d of them different, and %d fetched", len(all), len(slices.Compact(all)), fetched)
		}
		if more := ids.Close(); more != nil {
			t.Errorf("closed twice: %v", more)
		}
	})
}

// A source without a coordinator says so within its caller's deadline, and serves
// when one is back.
func TestIDSourceWithoutACoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.refuse(silent("AllocID"))
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		ids := c.IDs(10)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := ids.Next(ctx)
		wantIs(t, err, context.DeadlineExceeded)
		wantWithin(t, start, 300*time.Millisecond, 300*time.Millisecond)
		f.refuse(nil)
		_, err = ids.Next(t.Context())
		must(t, err)
		if unused := ids.Close(); len(unused) != 1 || unused[0].Count != 9 {
			t.Errorf("unused %v", unused)
		}
	})
}

// A holder that was stopped is left for its successor about when there is one,
// and not before.
func TestAHolderThatHangsIsLeftForItsSuccessor(t *testing.T) {
	for name, ask := range map[string]func(*client.Client, context.Context) (uint64, error){
		"timestamps": func(c *client.Client, ctx context.Context) (uint64, error) {
			r, err := c.Tso(ctx, 1)
			return uint64(r.Era), err
		},
		"ids": func(c *client.Client, ctx context.Context) (uint64, error) {
			r, err := c.AllocID(ctx, 1)
			return uint64(r.Era), err
		},
	} {
		for _, after := range []time.Duration{210, 260, 330, 700, 1200, 2600} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				k := newCluster(7)
				a, b := &fake{cluster: k}, &fake{cluster: k}
				first := &rootv1.Tenure{Era: 1, HolderId: "c1", HolderAddress: "a", TtlMillis: 200}
				b.tenure = first
				b.refuse(on(notHeld("a"), "AllocID", "TsoStream"))
				w.start("a", a)
				w.start("b", b)
				c, end := w.client(client.Config{}, "a", "b")
				defer end()
				_, err := ask(c, t.Context())
				must(t, err)
				a.refuse(silent("AllocID", "TsoStream", "Status"))
				time.AfterFunc(after*time.Millisecond, func() {
					k.era.Store(2)
					b.mu.Lock()
					b.tenure = &rootv1.Tenure{Era: 2, HolderId: "c2", HolderAddress: "b", TtlMillis: 200}
					b.mu.Unlock()
					b.refuse(nil)
				})
				start := time.Now()
				era, err := ask(c, t.Context())
				must(t, err)
				if era != 2 {
					t.Errorf("%s: of era %d", name, era)
				}
				wantWithin(t, start, after*time.Millisecond, max(260, after+after/2)*time.Millisecond)
				if after >= 1000 {
					return // past TryTimeout, a stream moves on without being told
				}
				if n := b.called("AllocID") + b.called("TsoStream"); n != 1 {
					t.Errorf("%s: the standby was asked %d times", name, n)
				}
				if n := b.called("Status"); n > 12 {
					t.Errorf("%s: %d questions about the holder", name, n)
				}
			})
		}
	}
}
