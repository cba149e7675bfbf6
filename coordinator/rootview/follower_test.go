package rootview_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// bubble runs a follower over a fake root in virtual time.
func bubble(t *testing.T, change func(*rootview.Config), body func(t *testing.T, f *rootview.Follower, r *fakeRoot)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newFakeRoot(t)
		cfg := rootview.Config{Root: r, ReadIndexer: r, Clock: clock.NewMonotonic()}
		if change != nil {
			change(&cfg)
		}
		f, err := rootview.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() {
			if err := f.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		synctest.Wait()
		body(t, f, r)
		cancel()
		run.Wait()
	})
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func refused(t *testing.T, err error, want rootv1.Reason) *rootv1.ErrorDetail {
	t.Helper()
	if reason.Of(err) != want {
		t.Fatalf("%v, want %v", err, want)
	}
	return reason.From(err)
}

func TestWaitForEndsWhenTheViewIsThere(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		at := state.Token{Incarnation: 1, Term: 1, Index: 4}
		var waits sync.WaitGroup
		for i := range 3 {
			waits.Go(func() {
				want := state.Token{Incarnation: 1, Term: 1, Index: 3 + uint64(i)}
				if v, err := f.WaitFor(within(t, time.Minute), want); err != nil || v.Token.Compare(want) < 0 {
					t.Errorf("WaitFor(%s): %v", want, err)
				}
			})
		}
		for range 3 { // one after the other, so that who is woken too early is seen
			synctest.Wait()
			r.grow(1)
		}
		waits.Wait()
		if v, err := f.WaitFor(t.Context(), at); err != nil || v.Token.Compare(at) < 0 {
			t.Fatalf("WaitFor of the past: %v", err)
		}
	})
}

func TestWaitForRefusesInTime(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		start := time.Now()
		_, err := f.WaitFor(within(t, 2*time.Second), state.Token{Incarnation: 1, Term: 1, Index: 99})
		d := refused(t, err, rootv1.Reason_REASON_REQUIRED_TOKEN)
		if d.GetCurrentToken().GetIndex() != 2 {
			t.Fatalf("detail %v", d)
		}
		if waited := time.Since(start); waited != 1980*time.Millisecond {
			t.Fatalf("refused after %s: the refusal must come before the deadline", waited)
		}
		if _, err := f.WaitFor(t.Context(), state.Token{}); err != nil {
			t.Fatalf("no position: %v", err)
		}
		for _, foreign := range []state.Token{{Incarnation: 2, Term: 1, Index: 1}, {Incarnation: 0, Term: 1, Index: 2}, {Incarnation: 1, Term: 7, Index: 2}} {
			_, err := f.WaitFor(within(t, time.Second), foreign)
			refused(t, err, rootv1.Reason_REASON_CLUSTER_MISMATCH)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.WaitFor(ctx, state.Token{Incarnation: 1, Index: 99}); !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
	})
}

func TestWaitingIsBounded(t *testing.T) {
	bubble(t, func(c *rootview.Config) { c.MaxWaiting = 2 }, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		ctx, cancel := context.WithCancel(t.Context())
		var waits sync.WaitGroup
		for range 2 {
			waits.Go(func() { _, _ = f.WaitFor(ctx, state.Token{Incarnation: 1, Index: 99}) })
		}
		synctest.Wait()
		_, err := f.WaitFor(t.Context(), state.Token{Incarnation: 1, Index: 99})
		refused(t, err, rootv1.Reason_REASON_OVERLOADED)
		cancel()
		waits.Wait()
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = f.WaitFor(ctx, state.Token{Incarnation: 1, Index: 99})
		refused(t, err, rootv1.Reason_REASON_REQUIRED_TOKEN) // those who left made room
	})
}

// Requests that came before a read index was asked for share it; one that comes
// while it is in flight gets the next.
func TestStrongSharesNoReadIndexInFlight(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		gate := make(chan struct{})
		r.set(func(r *fakeRoot) { r.gate = gate })
		var calls sync.WaitGroup
		strong := func(want uint64) {
			calls.Go(func() {
				if at, err := f.Strong(within(t, time.Second)); err != nil || at.Index < want || f.View().Token.Compare(at) < 0 {
					t.Errorf("Strong: %s, %v; view %s", at, err, f.View().Token)
				}
			})
			synctest.Wait()
		}
		strong(2) // goes out alone and hangs at the gate
		at := r.commitOne(region(7, "a", "b", 1))
		for range 50 {
			strong(at.Index)
		}
		if _, _, reads := r.counts(); reads != 1 {
			t.Fatalf("%d read indexes while one was in flight", reads)
		}
		close(gate)
		calls.Wait()
		if _, _, reads := r.counts(); reads != 2 {
			t.Fatalf("%d read indexes for two waves", reads)
		}
	})
}

func TestStrongRefusals(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		r.set(func(r *fakeRoot) { r.visible = 2 })
		r.grow(5)
		_, err := f.Strong(within(t, time.Second))
		if d := refused(t, err, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED); d.GetRootLag() != 5 {
			t.Fatalf("detail %v", d)
		}
		r.set(func(r *fakeRoot) { r.visible = -1 })
		synctest.Wait()
		r.set(func(r *fakeRoot) { r.gate = make(chan struct{}) })
		_, err = f.Strong(within(t, time.Second))
		refused(t, err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
		r.set(func(r *fakeRoot) { close(r.gate); r.gate = nil; r.down = true })
		_, err = f.Strong(within(t, time.Minute))
		refused(t, err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
	})
}

// A view that stands still is asked again and again: who gave up leaves no
// trace in what is bounded.
func TestStrongRequestsThatGiveUpMakeRoom(t *testing.T) {
	bubble(t, func(c *rootview.Config) { c.MaxWaiting = 2 }, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		r.set(func(r *fakeRoot) { r.visible = 2 })
		for range 5 {
			r.grow(1)
			_, err := f.Strong(within(t, time.Second))
			refused(t, err, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	r := newFakeRoot(t)
	for _, c := range []rootview.Config{
		{},
		{Root: r, ReadIndexer: r},
		{Root: r, ReadIndexer: r, Clock: clock.NewMonotonic(), RetryMin: time.Second, RetryMax: time.Millisecond},
		{Root: r, ReadIndexer: r, Clock: clock.NewMonotonic(), MaxWaiting: -1},
	} {
		if _, err := rootview.New(c); err == nil {
			t.Errorf("taken: %+v", c)
		}
	}
}

func TestStrongAfterTheEndIsRefusedAtOnce(t *testing.T) {
	var f *rootview.Follower
	bubble(t, nil, func(_ *testing.T, follower *rootview.Follower, _ *fakeRoot) { f = follower })
	_, err := f.Strong(t.Context())
	refused(t, err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
}

func TestServeByFreshness(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		serve := func(o *coordinatorv1.ReadOptions) (*rootview.View, coordinatorv1.ServingClass, error) {
			return f.Serve(within(t, time.Second), o)
		}
		must := func(o *coordinatorv1.ReadOptions, index uint64, class coordinatorv1.ServingClass) {
			t.Helper()
			v, got, err := serve(o)
			if err != nil || v.Token.Index != index || got != class {
				t.Fatalf("Serve(%v): class %v, %v", o, got, err)
			}
		}
		no := func(o *coordinatorv1.ReadOptions, want rootv1.Reason) *rootv1.ErrorDetail {
			t.Helper()
			_, _, err := serve(o)
			return refused(t, err, want)
		}
		const (
			best    = coordinatorv1.ServingClass_SERVING_CLASS_BEST_EFFORT
			bounded = coordinatorv1.ServingClass_SERVING_CLASS_BOUNDED
			linear  = coordinatorv1.ServingClass_SERVING_CLASS_LINEARIZABLE
		)
		number := func(n uint64) *uint64 { return &n }
		strongly := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}
		exactly := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED, MaxRootLag: number(0)}
		entries := func(n uint64) *coordinatorv1.ReadOptions {
			return &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED, MaxRootLag: &n}
		}
		age := func(n uint64) *coordinatorv1.ReadOptions {
			return &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED, MaxRootLagMillis: &n}
		}
		token := func(index uint64, fresh coordinatorv1.Freshness) *coordinatorv1.ReadOptions {
			return &coordinatorv1.ReadOptions{Freshness: fresh, RequiredRootToken: &rootv1.RootToken{Incarnation: 1, Term: 1, Index: index}}
		}

		must(nil, 2, best)
		must(&coordinatorv1.ReadOptions{}, 2, best)
		must(strongly, 2, linear)
		must(exactly, 2, bounded)
		must(token(2, 0), 2, bounded)
		must(&coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT, RequiredRootToken: &rootv1.RootToken{}}, 2, best)
		no(&coordinatorv1.ReadOptions{Freshness: 9}, rootv1.Reason_REASON_INVALID_REQUEST)
		no(&coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED}, rootv1.Reason_REASON_INVALID_REQUEST) // absent is no bound
		if d := no(age(0), rootv1.Reason_REASON_INVALID_REQUEST); !strings.Contains(d.GetMessage(), "FRESHNESS_STRONG") {
			t.Errorf("an age of 0 is refused without a way out: %v", d)
		}
		no(token(9, 0), rootv1.Reason_REASON_REQUIRED_TOKEN)
		no(token(9, coordinatorv1.Freshness_FRESHNESS_STRONG), rootv1.Reason_REASON_REQUIRED_TOKEN)
		no(&coordinatorv1.ReadOptions{RequiredRootToken: &rootv1.RootToken{Incarnation: 3, Index: 1}}, rootv1.Reason_REASON_CLUSTER_MISMATCH)

		// The root goes on, the tail does not.
		r.set(func(r *fakeRoot) { r.visible, r.commit = 2, 7 })
		r.grow(5)
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()
		must(nil, 2, best)
		if d := no(exactly, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED); d.GetRootLag() != 5 || d.GetCurrentToken().GetIndex() != 2 {
			t.Fatalf("detail %v", d)
		}
		no(entries(4), rootv1.Reason_REASON_ROOT_LAG_EXCEEDED)
		must(entries(5), 2, bounded)
		no(age(100), rootv1.Reason_REASON_ROOT_LAG_EXCEEDED)
		must(age(60_000), 2, bounded)
		no(&coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED, MaxRootLag: number(4), MaxRootLagMillis: number(60_000)}, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED)
		no(strongly, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED)

		// The root is away: what cannot be known is not promised.
		r.set(func(r *fakeRoot) { r.down = true })
		time.Sleep(2 * time.Second)
		must(nil, 2, best)
		no(exactly, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
		no(entries(1<<40), rootv1.Reason_REASON_ROOT_UNAVAILABLE)
		must(age(60_000), 2, bounded)
		no(strongly, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
		must(token(2, 0), 2, bounded)

		r.set(func(r *fakeRoot) { r.down, r.visible, r.commit = false, -1, 0 })
		must(strongly, 7, linear)
		must(age(1), 7, bounded)
		both := entries(0)
		both.RequiredRootToken = token(7, 0).GetRequiredRootToken()
		must(both, 7, bounded)
	})
}

func TestNothingLoadedIsRefused(t *testing.T) {
	bubble(t, func(c *rootview.Config) { c.Root.(*fakeRoot).down = true }, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		for _, o := range []*coordinatorv1.ReadOptions{nil, {Freshness: coordinatorv1.Freshness_FRESHNESS_BOUNDED, MaxRootLag: new(uint64)}, {Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}} {
			_, _, err := f.Serve(within(t, time.Second), o)
			refused(t, err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
		}
	})
}

func TestAtRevision(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		v := f.View()
		if got, err := f.AtRevision(t.Context(), v, 2, 2); got != v || err != nil {
			t.Fatalf("enough: %v", err)
		}
		_, err := f.AtRevision(t.Context(), v, 1, 2)
		refused(t, err, rootv1.Reason_REASON_REQUIRED_TOKEN)
		_, err = f.AtRevision(within(t, time.Second), v, 2, 3)
		refused(t, err, rootv1.Reason_REASON_REQUIRED_TOKEN)
		r.grow(1)
		got, err := f.AtRevision(within(t, time.Second), v, 2, 3)
		if err != nil || got.Token.Index != 3 {
			t.Fatalf("a later view: %v", err)
		}
	})
}

func TestBestEffortDoesNotAllocate(t *testing.T) {
	bubble(t, nil, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		o := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT}
		if n := testing.AllocsPerRun(100, func() {
			if _, _, err := f.Serve(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Fatalf("%v allocations", n)
		}
	})
}

// before answers read indexes as a root does whose first entry is not there yet.
type before struct{}

func (before) ReadIndex(context.Context) (state.Token, error) {
	return state.Token{Term: 1, Index: 1}, nil
}

// Whoever asks while the cluster is being made may get a position from before there was
// one: it is behind everything, and no reason to refuse. Later it is.
func TestStrongBesideTheFirstEntry(t *testing.T) {
	early := func(c *rootview.Config) {
		c.ReadIndexer = before{}
		c.Root.(*fakeRoot).down = true
	}
	bubble(t, early, func(t *testing.T, f *rootview.Follower, r *fakeRoot) {
		strong := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}
		var call sync.WaitGroup
		call.Go(func() {
			if _, _, err := f.Serve(within(t, 10*time.Second), strong); err != nil {
				t.Errorf("a read that was begun before there was a cluster: %v", err)
			}
		})
		synctest.Wait()
		r.set(func(r *fakeRoot) { r.down = false })
		call.Wait()
		if _, err := f.WaitFor(within(t, 10*time.Second), state.Token{Incarnation: 1, Term: 1, Index: 2}); err != nil {
			t.Fatal(err)
		}
		_, _, err := f.Serve(within(t, time.Second), strong)
		refused(t, err, rootv1.Reason_REASON_CLUSTER_MISMATCH)
	})
}
