package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func TestOneOfThreeAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		w.start("c", f)
		c, end := w.client(client.Config{}, "a", "b", "c")
		defer end()
		start := time.Now()
		for range 3 {
			r, err := c.GetRegionByKey(t.Context(), []byte("k"))
			must(t, err)
			if r.Address() != "10.0.0.1:7000" {
				t.Errorf("address %q", r.Address())
			}
		}
		_, err := c.AllocID(t.Context(), 3)
		must(t, err)
		_, err = c.Tso(t.Context(), 3)
		must(t, err)
		_, err = c.PublishEvent(t.Context(), &rootv1.Event{})
		must(t, err)
		wantWithin(t, start, 0, 0)
		if got := c.ClusterID(); got != 7 {
			t.Errorf("cluster %d, want 7", got)
		}
	})
}

func TestGoesToTheHolderAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		standby, holder := &fake{cluster: k}, &fake{cluster: k}
		standby.refuse(on(notHeld("elsewhere:1"), "AllocID", "TsoStream"))
		w.start("a", standby)
		w.start("elsewhere:1", holder)
		c, end := w.client(client.Config{}, "a")
		defer end()
		start := time.Now()
		for range 5 {
			_, err := c.AllocID(t.Context(), 1)
			must(t, err)
			_, err = c.Tso(t.Context(), 1)
			must(t, err)
		}
		wantWithin(t, start, 0, 0)
		if n := standby.called("AllocID"); n != 1 {
			t.Errorf("the standby was asked for ids %d times, want once", n)
		}
		if n := c.Stats().Redirects; n != 1 {
			t.Errorf("%d redirects, want 1", n)
		}
		// A read still goes to the endpoint that was configured.
		_, err := c.GetRegionByKey(t.Context(), []byte("k"))
		must(t, err)
		if standby.called("GetRegionByKey") != 1 {
			t.Error("the read did not go to the configured endpoint")
		}
	})
}

func TestHolderMovesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		w.start("a", a)
		w.start("b", b)
		b.refuse(on(notHeld("a"), "AllocID", "TsoStream"))
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		before, err := c.Tso(t.Context(), 1)
		must(t, err)
		// a dies; b knows only later that it is the holder.
		w.stop("a")
		time.AfterFunc(500*time.Millisecond, func() {
			k.era.Store(2)
			b.refuse(nil)
		})
		start := time.Now()
		after, err := c.Tso(t.Context(), 1)
		must(t, err)
		wantWithin(t, start, 500*time.Millisecond, 520*time.Millisecond)
		if after.First <= before.First || after.Era != 2 {
			t.Errorf("after the move %+v, before %+v", after, before)
		}
	})
}

// A holder that retires is followed within milliseconds; a Tenure that stays
// vacant is not asked for at that pace for ever.
func TestVacantTenureIsAskedForOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		a.refuse(on(notHeld(""), "AllocID", "TsoStream"))
		b.refuse(on(notHeld("a"), "AllocID", "TsoStream"))
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		for _, d := range []time.Duration{5, 50, 200, 800} {
			b.refuse(on(notHeld("a"), "AllocID"))
			time.AfterFunc(d*time.Millisecond, func() { b.refuse(nil) })
			start := time.Now()
			_, err := c.AllocID(t.Context(), 1)
			must(t, err)
			wantWithin(t, start, d*time.Millisecond, (d+min(2*d, 20))*time.Millisecond)
		}
		b.refuse(on(notHeld("a"), "AllocID"))
		before := b.called("AllocID")
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := c.AllocID(ctx, 1)
		wantIs(t, err, context.DeadlineExceeded, client.ErrTenureNotHeld)
		if n := b.called("AllocID") - before; n > 200 {
			t.Errorf("%d tries in 30 s: no backoff", n)
		}
	})
}

func TestRefusalsCirclingEndInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		a.refuse(on(notHeld("b"), "AllocID"))
		b.refuse(on(notHeld("a"), "AllocID"))
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := c.AllocID(ctx, 1)
		wantIs(t, err, context.DeadlineExceeded, client.ErrTenureNotHeld)
		if n := a.called("AllocID") + b.called("AllocID"); n > 250 {
			t.Errorf("%d tries in 30 s: no backoff", n)
		}
	})
}

// A holder that leaves is still named by who has not heard of it: the caller asks
// again in milliseconds, and not the one that has just said that it holds nothing.
func TestLeavingHolderIsNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		a.refuse(on(notHeld(""), "AllocID"))
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		b.refuse(on(notHeld("a"), "AllocID"))
		time.AfterFunc(5*time.Millisecond, func() { b.refuse(nil) })
		start := time.Now()
		if _, err := c.AllocID(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		wantWithin(t, start, 5*time.Millisecond, 15*time.Millisecond) // pauses of up to 2.5, 5 and 10 ms
		if n := a.called("AllocID"); n > b.called("AllocID") {
			t.Errorf("the one that left was asked %d times, the other one %d times", n, b.called("AllocID"))
		}
	})
}

func TestErrorSaysWhoSaidWhat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		f.refuse(on(reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "no quorum answered"), "GetRegionByKey"))
		w.start("b", f)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		_, err := c.GetRegionByKey(ctx, []byte("k"))
		wantIs(t, err, context.DeadlineExceeded, client.ErrRootUnavailable)
		wantWithin(t, start, 3*time.Second, 3*time.Second)
		for _, part := range []string{"GetRegionByKey", "a: unavailable", "connection refused", "b: root_unavailable: no quorum answered"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
		var e *client.Error
		if !errors.As(err, &e) || e.Endpoint == "" || len(e.Tries) != 2 || e.Detail.GetReason() != rootv1.Reason_REASON_ROOT_UNAVAILABLE {
			t.Errorf("error %+v", e)
		}
		if n := f.called("GetRegionByKey"); n < 4 || n > 20 {
			t.Errorf("%d tries in 3 s", n)
		}
	})
}

// Where nobody is named, nothing stands for the name.
func TestErrorOfOneAnswerOfSeveral(t *testing.T) {
	err := &client.Error{Op: "Claim", Tries: []client.Try{{Times: 1, Said: "no_active_members: nobody"}}}
	if got, want := err.Error(), "Claim: no_active_members: nobody"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Who refused is who is named, also when the first one asked said nothing and
// is still the favourite.
func TestARefusalNamesWhoSaidIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		k.log.Store(5)
		taken := &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_RANGE_OVERLAP, Message: "taken"}
		a, b := newHanging(k), newHanging(k)
		b.commit = func(*rootv1.Command) *rootv1.CommandResult {
			return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: taken}
		}
		b.batch = func(*keysRequest) (*keysResponse, error) {
			return &keysResponse{Disclosure: b.disclosure(), RegionOfKey: []uint32{0}}, nil
		}
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		_, err := c.Status(t.Context(), "")
		must(t, err)
		a.stopped.Store(true)
		_, err = c.PublishEvent(t.Context(), removal(1))
		wantIs(t, err, client.ErrRangeOverlap)
		wantEndpoint(t, err, "b")
		_, err = c.GetRegionByKey(t.Context(), []byte("k"))
		wantIs(t, err, client.ErrNotFound)
		wantEndpoint(t, err, "b")
	})
}

func wantEndpoint(t testing.TB, err error, address string) {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Endpoint != address || len(e.Tries) == 0 || e.Tries[len(e.Tries)-1].Endpoint != address {
		t.Errorf("%q does not name %s", err, address)
	}
}

// A position that nobody reaches: the error is the refusal, which says how far
// coordinators are, however short the caller's patience.
func TestAPositionThatNobodyReaches(t *testing.T) {
	far := client.AtLeast(rooted.Token{Incarnation: 1, Term: 1, Index: 99})
	refuse := func(ctx context.Context, deadline time.Time) error { // as coordinators do, a little before the deadline
		select {
		case <-time.After(time.Until(deadline) * 7 / 8):
			return reason.New(rootv1.Reason_REASON_REQUIRED_TOKEN, "the view is at 1.1.5, 1.1.99 was asked for")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for name, read := range map[string]func(context.Context, *client.Client) error{
		"GetRegionByKey": func(ctx context.Context, c *client.Client) error {
			_, err := c.GetRegionByKey(ctx, []byte("k"), far)
			return err
		},
		"GetRegionsByKeys": func(ctx context.Context, c *client.Client) error {
			_, err := c.GetRegionsByKeys(ctx, [][]byte{[]byte("k")}, far)
			return err
		},
		"ListCoordinators": func(ctx context.Context, c *client.Client) error { return c.Discover(ctx) },
	} {
		for _, patience := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, 10 * time.Second} {
			t.Run(fmt.Sprint(name, " ", patience), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					k := newCluster(7)
					for _, address := range []string{"a", "b"} {
						f := &fake{cluster: k}
						f.refuse(func(ctx context.Context, method string) error {
							if deadline, ok := ctx.Deadline(); ok && method != "Status" {
								return refuse(ctx, deadline)
							}
							return nil
						})
						f.batch = func(req *keysRequest) (*keysResponse, error) {
							return nil, refuse(t.Context(), time.Now().Add(time.Duration(req.GetWaitMillis())*time.Millisecond))
						}
						w.start(address, f)
					}
					c, end := w.client(client.Config{}, "a", "b")
					defer end()
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					err := read(ctx, c)
					wantIs(t, err, client.ErrRequiredToken)
					if !strings.Contains(err.Error(), "the view is at 1.1.5") {
						t.Errorf("%q does not say how far who is", err)
					}
					time.Sleep(2 * time.Second) // of the bubble: what was left comes to its end
				})
			})
		}
	}
}

func TestDefaultTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, end := newWorld(t).client(client.Config{DefaultTimeout: 2 * time.Second}, "a", "b")
		defer end()
		calls := map[string]func(context.Context) error{
			"route":   func(ctx context.Context) error { _, err := c.GetRegionByKey(ctx, []byte("k")); return err },
			"routes":  func(ctx context.Context) error { _, err := c.GetRegionsByKeys(ctx, [][]byte{{1}}); return err },
			"id":      func(ctx context.Context) error { _, err := c.AllocID(ctx, 1); return err },
			"tso":     func(ctx context.Context) error { _, err := c.Tso(ctx, 1); return err },
			"publish": func(ctx context.Context) error { _, err := c.PublishEvent(ctx, &rootv1.Event{}); return err },
		}
		for name, call := range calls {
			start := time.Now()
			err := call(context.Background())
			wantIs(t, err, context.DeadlineExceeded)
			if d := time.Since(start); d < time.Second || d > 4*time.Second {
				t.Errorf("%s took %v", name, d)
			}
			if err != nil && !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("%s: %q does not say why", name, err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			start = time.Now()
			err = call(ctx)
			cancel()
			wantIs(t, err, context.DeadlineExceeded)
			wantWithin(t, start, 5*time.Second, 5*time.Second)
		}
	})
}

func TestRefusalsAreNotRetried(t *testing.T) {
	for r, want := range map[rootv1.Reason]error{
		rootv1.Reason_REASON_NOT_FOUND:         client.ErrNotFound,
		rootv1.Reason_REASON_INVALID_REQUEST:   client.ErrInvalidRequest,
		rootv1.Reason_REASON_VERSION_STALE:     client.ErrVersionStale,
		rootv1.Reason_REASON_CAPACITY_EXCEEDED: client.ErrCapacityExceeded,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			k := newCluster(7)
			a, b := &fake{cluster: k}, &fake{cluster: k}
			for name, f := range map[string]*fake{"a": a, "b": b} {
				f.refuse(on(reason.New(r, "no"), "GetRegionByKey"))
				w.start(name, f)
			}
			c, end := w.client(client.Config{}, "a", "b")
			defer end()
			start := time.Now()
			_, err := c.GetRegionByKey(t.Context(), []byte("k"))
			wantIs(t, err, want)
			wantWithin(t, start, 0, 0)
			if n := a.called("GetRegionByKey") + b.called("GetRegionByKey"); n != 1 {
				t.Errorf("%v: asked %d times, want once", r, n)
			}
		})
	}
}

func TestLagIsAskedForOnceElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		lag := on(reason.New(rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, "12 entries behind"), "GetRegionByKey")
		a.refuse(lag)
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		_, err := c.GetRegionByKey(t.Context(), []byte("k"), client.Bounded(3, time.Second))
		must(t, err)
		b.refuse(lag)
		_, err = c.GetRegionByKey(t.Context(), []byte("k"), client.Bounded(3, time.Second))
		wantIs(t, err, client.ErrRootLagExceeded)
	})
}

func TestOverloadedWaitsAsLongAsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fake{cluster: newCluster(7)}
		busy := reason.New(rootv1.Reason_REASON_OVERLOADED, "queue full")
		busy.Detail.RetryAfterMillis = 700
		f.refuse(on(busy, "GetRegionByKey"))
		w.start("a", f)
		c, end := w.client(client.Config{}, "a")
		defer end()
		time.AfterFunc(500*time.Millisecond, func() { f.refuse(nil) })
		start := time.Now()
		_, err := c.GetRegionByKey(t.Context(), []byte("k"))
		must(t, err)
		wantWithin(t, start, 700*time.Millisecond, 700*time.Millisecond)
		if n := f.called("GetRegionByKey"); n != 2 {
			t.Errorf("asked %d times, want 2", n)
		}
	})
}

func TestSilentCoordinatorIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		a.refuse(silent("GetRegionByKey", "AllocID", "TsoStream", "PublishStream"))
		w.start("a", a)
		w.start("b", b)
		for name, call := range map[string]func(*client.Client) error{
			"route":   func(c *client.Client) error { _, err := c.GetRegionByKey(t.Context(), []byte("k")); return err },
			"id":      func(c *client.Client) error { _, err := c.AllocID(t.Context(), 1); return err },
			"tso":     func(c *client.Client) error { _, err := c.Tso(t.Context(), 1); return err },
			"publish": func(c *client.Client) error { _, err := c.PublishEvent(t.Context(), &rootv1.Event{}); return err },
		} {
			c, err := client.New(client.Config{Endpoints: []string{"a", "b"}, DialOptions: dialing(w)})
			must(t, err)
			start := time.Now()
			must(t, call(c))
			want := time.Second // the try timeout
			if name == "route" {
				want = hedgeDelay
			}
			if d := time.Since(start); d != want {
				t.Errorf("%s: answered after %v, want after %v", name, d, want)
			}
			// The next call knows better.
			start = time.Now()
			must(t, call(c))
			wantWithin(t, start, 0, 0)
			must(t, c.Close())
		}
		w.stop("a")
		w.stop("b")
	})
}

func TestAllSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		for _, name := range []string{"a", "b", "c"} {
			f := &fake{cluster: k}
			f.refuse(silent("GetRegionByKey"))
			w.start(name, f)
		}
		c, end := w.client(client.Config{}, "a", "b", "c")
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		start := time.Now()
		_, err := c.GetRegionByKey(ctx, []byte("k"))
		wantWithin(t, start, 4*time.Second, 4*time.Second)
		wantIs(t, err, context.DeadlineExceeded)
		for _, part := range []string{"a: no answer", "b: no answer", "c: no answer"} {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
	})
}

func TestDiscoverKeepsTheConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		f := &fake{cluster: k, list: []*rootv1.Coordinator{{Id: "c2", Address: "b"}}}
		w.start("a", f)
		w.start("b", &fake{cluster: k})
		c, end := w.client(client.Config{DiscoverEvery: time.Minute}, "a")
		defer end()
		synctest.Wait()
		if got := strings.Join(c.Endpoints(), " "); got != "a b" {
			t.Fatalf("endpoints %q, want a b", got)
		}
		w.stop("a")
		_, err := c.GetRegionByKey(t.Context(), []byte("k"))
		must(t, err)
	})
}

func TestMisuse(t *testing.T) {
	if _, err := client.New(client.Config{}); err == nil {
		t.Error("a client without endpoints")
	}
	if _, err := client.New(client.Config{Endpoints: []string{"a", "a"}}); err == nil {
		t.Error("an endpoint twice")
	}
	for _, address := range []string{"10.0.0.1", "coordinator", "c1:", "c1:0", "c1:port", "c1:65536", "::1", "a b:1", "http//c1:1"} {
		if _, err := client.New(client.Config{Endpoints: []string{"c2:1", address}}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q: want host:port", address)) {
			t.Errorf("endpoint %q: %v", address, err)
		}
	}
	for _, address := range []string{"10.0.0.1:2379", "c1:2379", "[::1]:2379", "dns:///c1:2379", "unix:/run/nokv", "unix:///run/nokv"} {
		c, err := client.New(client.Config{Endpoints: []string{address}})
		must(t, err)
		must(t, c.Close())
	}
	c, err := client.New(client.Config{Endpoints: []string{"a:1"}})
	must(t, err)
	_, err = c.Tso(t.Context(), 0)
	wantIs(t, err, client.ErrInvalidRequest)
	_, err = c.Tso(t.Context(), client.MaxTsoCount+1)
	wantIs(t, err, client.ErrInvalidRequest)
	_, err = c.AllocID(t.Context(), client.MaxIDCount+1)
	wantIs(t, err, client.ErrInvalidRequest)
	_, err = c.Publish(t.Context(), &rootv1.Command{})
	wantIs(t, err, client.ErrInvalidRequest)
	_, err = c.GetRegionsByKeys(t.Context(), nil)
	wantIs(t, err, client.ErrInvalidRequest)
	_, err = c.PublishRegion(t.Context(), nil)
	wantIs(t, err, client.ErrInvalidRequest)
	must(t, c.Close())
	must(t, c.Close())
	_, err = c.Tso(t.Context(), 1)
	wantIs(t, err, client.ErrClosed)
	_, err = c.GetRegionByKey(t.Context(), []byte("k"))
	wantIs(t, err, client.ErrClosed)
}
