package client_test

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hedgeDelay is how long a read waits for one coordinator alone.
const hedgeDelay = 100 * time.Millisecond

// hanging is a coordinator whose process can be stopped: nothing is answered, and
// connections stay.
type hanging struct {
	*fake
	stopped atomic.Bool
}

func newHanging(k *cluster) *hanging {
	h := &hanging{fake: &fake{cluster: k}}
	h.refuse(func(ctx context.Context, _ string) error {
		if h.stopped.Load() {
			<-ctx.Done()
		}
		return ctx.Err()
	})
	return h
}

func (h *hanging) GetRegion(ctx context.Context, _ *coordinatorv1.GetRegionRequest) (*coordinatorv1.GetRegionResponse, error) {
	if err := h.note(ctx, "GetRegion"); err != nil {
		return nil, err
	}
	return &coordinatorv1.GetRegionResponse{Region: region(1, "", "", 1), Disclosure: h.disclosure()}, nil
}

// RouteStream answers requests that need not wait before those that must, as a
// coordinator does.
func (h *hanging) RouteStream(s grpc.BidiStreamingServer[keysRequest, keysResponse]) error {
	var mu sync.Mutex
	for {
		req, err := s.Recv()
		if err != nil {
			return nil
		}
		go func() {
			answer := h.oneByOne
			if h.batch != nil {
				answer = func(_ context.Context, req *keysRequest) (*keysResponse, error) { return h.batch(req) }
			}
			reply, err := answer(s.Context(), req)
			if err != nil {
				reply = &keysResponse{Error: reason.From(err)}
			}
			reply.RequestId = req.GetRequestId()
			mu.Lock()
			defer mu.Unlock()
			_ = s.Send(reply)
		}()
	}
}

// reads are calls that are safe to ask twice.
var reads = map[string]func(context.Context, *client.Client) error{
	"best effort": func(ctx context.Context, c *client.Client) error {
		_, err := c.GetRegionByKey(ctx, []byte("k"))
		return err
	},
	"strong": func(ctx context.Context, c *client.Client) error {
		_, err := c.GetRegionByKey(ctx, []byte("k"), client.Strong())
		return err
	},
	"bounded": func(ctx context.Context, c *client.Client) error {
		_, err := c.GetRegionByKey(ctx, []byte("k"), client.Bounded(0, time.Second))
		return err
	},
	"at a revision": func(ctx context.Context, c *client.Client) error {
		_, err := c.GetRegionByKey(ctx, []byte("k"), client.AtRevision(1))
		return err
	},
	"keys": func(ctx context.Context, c *client.Client) error {
		_, err := c.GetRegionsByKeys(ctx, [][]byte{[]byte("k"), []byte("l")})
		return err
	},
	"many keys": func(ctx context.Context, c *client.Client) error {
		_, err := c.GetRegionsByKeys(ctx, slicesOf(bytes.Repeat([]byte("k"), 4000), 20))
		return err
	},
	"region": func(ctx context.Context, c *client.Client) error {
		_, err := c.GetRegion(ctx, 1)
		return err
	},
	"list": func(ctx context.Context, c *client.Client) error {
		for _, err := range c.ListCoordinators(ctx) {
			return err
		}
		return nil
	},
}

func slicesOf(key []byte, count int) (keys [][]byte) {
	for range count {
		keys = append(keys, key)
	}
	return keys
}

// Reads leave a coordinator whose process was stopped after the hedge delay, also
// when the next one is dead or hangs too, and the reads behind them go where the
// answer came from.
func TestReadsLeaveACoordinatorThatHangs(t *testing.T) {
	for name, read := range reads {
		for other, want := range map[string]time.Duration{"": hedgeDelay, "dead": hedgeDelay, "hangs": time.Second} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				k := newCluster(7)
				a, b, alive := newHanging(k), newHanging(k), newHanging(k)
				b.stopped.Store(other == "hangs")
				w.start("a", a)
				w.start("c", alive)
				endpoints := []string{"a", "c"}
				if other != "" {
					endpoints = []string{"a", "b", "c"}
				}
				if other == "hangs" {
					w.start("b", b)
				}
				c, end := w.client(client.Config{}, endpoints...)
				defer end()
				must(t, read(t.Context(), c))
				a.stopped.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
				defer cancel()
				start := time.Now()
				if err := read(ctx, c); err != nil {
					t.Errorf("%s, other %q: %v", name, other, err)
				}
				wantWithin(t, start, hedgeDelay, want)
				start = time.Now()
				must(t, read(ctx, c))
				wantWithin(t, start, 0, 0)
			})
		}
	}
}

// One that hangs takes all its merged callers' time once, whatever they asked for.
func TestAStreamThatHangsIsLeftByEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := newHanging(k), newHanging(k)
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		must(t, reads["best effort"](t.Context(), c))
		a.stopped.Store(true)
		// While the root is away, a strong read has no answer anywhere.
		b.batch = func(req *keysRequest) (*keysResponse, error) {
			if req.GetRead().GetFreshness() == coordinatorv1.Freshness_FRESHNESS_STRONG {
				time.Sleep(time.Duration(req.GetWaitMillis()) * time.Millisecond)
				return nil, reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "away")
			}
			return b.oneByOne(t.Context(), req)
		}
		start := time.Now()
		var callers sync.WaitGroup
		for _, name := range []string{"strong", "best effort", "bounded", "keys"} {
			for range 20 {
				callers.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					err := reads[name](ctx, c)
					if name == "strong" {
						wantIs(t, err, context.DeadlineExceeded)
						wantWithin(t, start, time.Second, time.Second)
						return
					}
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
		}
		callers.Wait()
		wantWithin(t, start, time.Second, time.Second)
		time.Sleep(time.Second) // of the bubble: what was left comes to its end
	})
}

// Where everybody is slow, few questions are asked twice.
func TestSlowCoordinatorsAreNotAskedTwice(t *testing.T) {
	for name, read := range reads {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			k := newCluster(7)
			a, b := &hanging{fake: &fake{cluster: k}}, &hanging{fake: &fake{cluster: k}}
			var asked atomic.Int64
			slow := func(_ context.Context, method string) error {
				if method != "TsoStream" {
					asked.Add(1)
					time.Sleep(300 * time.Millisecond)
				}
				return nil
			}
			for address, h := range map[string]*hanging{"a": a, "b": b} {
				plain := &fake{cluster: k}
				h.refuse(slow)
				h.batch = func(req *keysRequest) (*keysResponse, error) {
					_ = slow(t.Context(), "")
					return plain.oneByOne(t.Context(), req)
				}
				w.start(address, h)
			}
			c, end := w.client(client.Config{}, "a", "b")
			defer end()
			const rounds = 100
			for range rounds {
				must(t, read(t.Context(), c))
				for range 20 { // answers of another kind pay for nothing
					_, err := c.Now(t.Context())
					must(t, err)
				}
			}
			if twice := asked.Load() - rounds; twice > rounds/10+4 {
				t.Errorf("%s: %d questions beside %d", name, twice, rounds)
			}
			time.Sleep(time.Second) // of the bubble: what was cancelled comes to its end
		})
	}
}

// The question that is asked twice is the caller's own: an answer that is not
// what it asked for, and a refusal that others may not share, do not end it.
func TestAHedgeKeepsWhatWasAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := &fake{cluster: k}, &fake{cluster: k}
		slow := 500 * time.Millisecond
		a.batch = func(req *keysRequest) (*keysResponse, error) {
			time.Sleep(slow)
			return a.oneByOne(t.Context(), req)
		}
		var questions atomic.Int64
		b.batch = func(req *keysRequest) (*keysResponse, error) {
			questions.Add(1)
			if req.GetRead().GetMaxRootLag() != 3 || req.GetRead().GetRequiredRootToken().GetIndex() != 1 || req.GetKeyspace() != "other" {
				t.Errorf("asked for in %q under %v", req.GetKeyspace(), req.GetRead())
			}
			return nil, reason.New(rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, "behind")
		}
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		options := []client.ReadOption{client.In("other"), client.MaxLag(3), client.AtLeast(rooted.Token{Incarnation: 1, Term: 1, Index: 1})}
		start := time.Now()
		_, err := c.GetRegionByKey(t.Context(), []byte("k"), options...)
		must(t, err)
		wantWithin(t, start, slow, slow)
		if n := questions.Load(); n == 0 || n > 3 {
			t.Errorf("b was asked %d times", n)
		}
		if n := c.Stats().StreamBreaks; n != 0 {
			t.Errorf("%d streams were left", n)
		}
		// What is wrong is wrong everywhere.
		b.batch = func(*keysRequest) (*keysResponse, error) {
			return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "wrong")
		}
		slow = 800 * time.Millisecond
		start = time.Now()
		_, err = c.GetRegionByKey(t.Context(), []byte("k"))
		wantIs(t, err, client.ErrInvalidRequest)
		wantWithin(t, start, hedgeDelay, hedgeDelay)
		time.Sleep(slow) // of the bubble: what was left comes to its end
	})
}

// A root that elects a leader meanwhile does not make a client's pauses grow: the
// successor is found soon after there is one.
func TestALateSuccessorIsFoundSoon(t *testing.T) {
	for _, after := range []time.Duration{230, 270, 320, 410, 560, 730, 890} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			k := newCluster(7)
			a, b := newHanging(k), newHanging(k)
			b.tenure = &rootv1.Tenure{Era: 1, HolderId: "c1", HolderAddress: "a", TtlMillis: 200}
			w.start("a", a)
			w.start("b", b)
			c, end := w.client(client.Config{}, "a", "b")
			defer end()
			_, err := c.Tso(t.Context(), 1)
			must(t, err)
			a.stopped.Store(true)
			time.AfterFunc(after*time.Millisecond, func() {
				k.era.Store(2)
				b.mu.Lock()
				defer b.mu.Unlock()
				b.tenure = &rootv1.Tenure{Era: 2, HolderId: "c2", HolderAddress: "b", TtlMillis: 200}
			})
			start := time.Now()
			r, err := c.Tso(t.Context(), 1)
			must(t, err)
			if r.Era != 2 {
				t.Errorf("of era %d", r.Era)
			}
			wantWithin(t, start, after*time.Millisecond, (after+100)*time.Millisecond)
		})
	}
}

// A read whose first coordinator fails while the second one hangs goes on to the
// third within TryTimeout, as it does when the first hangs as well.
func TestAFailedFirstDoesNotWaitForAHangingHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b, alive := newHanging(k), newHanging(k), newHanging(k)
		w.start("a", a)
		w.start("b", b)
		w.start("c", alive)
		c, end := w.client(client.Config{}, "a", "b", "c")
		defer end()
		_, err := c.GetRegion(t.Context(), 1)
		must(t, err)
		b.stopped.Store(true)
		a.refuse(func(ctx context.Context, _ string) error {
			time.Sleep(150 * time.Millisecond)
			return status.Error(codes.Unavailable, "going down")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		start := time.Now()
		_, err = c.GetRegion(ctx, 1)
		if took := time.Since(start); err != nil || took > 2*time.Second {
			t.Errorf("after %v, c having been asked %d times: %v", took, alive.called("GetRegion"), err)
		}
	})
}

// The same with two coordinators, the first of which is back 20 ms after its
// connection broke.
func TestARestartedFirstIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := newHanging(k), newHanging(k)
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		_, err := c.GetRegion(t.Context(), 1)
		must(t, err)
		a.stopped.Store(true)
		b.stopped.Store(true)
		time.AfterFunc(150*time.Millisecond, func() {
			w.stop("a")
			time.Sleep(20 * time.Millisecond)
			w.start("a", newHanging(k))
		})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		start := time.Now()
		_, err = c.GetRegion(ctx, 1)
		if took := time.Since(start); err != nil || took > 2*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// One that takes 150 ms, as a read index may, answers a lookup whose coordinator
// hangs as it does a unary read: not a whole TryTimeout later.
func TestAStreamHedgeWaitsForItsAnswer(t *testing.T) {
	for name, read := range map[string]string{"unary": "region", "stream": "strong"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				k := newCluster(7)
				a, b := newHanging(k), newHanging(k)
				w.start("a", a)
				w.start("b", b)
				c, end := w.client(client.Config{}, "a", "b")
				defer end()
				must(t, reads[read](t.Context(), c))
				a.stopped.Store(true)
				var asked atomic.Int64
				b.refuse(func(ctx context.Context, _ string) error {
					asked.Add(1)
					select {
					case <-time.After(150 * time.Millisecond):
					case <-ctx.Done():
					}
					return ctx.Err()
				})
				start := time.Now()
				must(t, reads[read](t.Context(), c))
				if took := time.Since(start); took > 500*time.Millisecond {
					t.Errorf("%v, and b was asked %d times", took, asked.Load())
				}
				time.Sleep(time.Second)
			})
		})
	}
}

// What is not asked is not paid for: a stream with one coordinator beside its own
// asks it once, and the reads behind it have the rest of the allowance.
func TestAStreamHedgePaysForWhatIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := newHanging(k), newHanging(k)
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		must(t, reads["best effort"](t.Context(), c))
		must(t, reads["region"](t.Context(), c))
		a.stopped.Store(true)
		b.refuse(func(ctx context.Context, method string) error { // answers all but lookups of keys
			if method != "GetRegion" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		go func() { _ = reads["best effort"](t.Context(), c) }()
		time.Sleep(890 * time.Millisecond)
		asked := c.Stats().Hedges
		start := time.Now()
		must(t, reads["region"](t.Context(), c))
		if took := time.Since(start); took > 2*hedgeDelay {
			t.Errorf("%v, %d question beside the stream's own having been asked before", took, asked)
		}
		time.Sleep(2 * time.Second)
	})
}

// The allowance bounds the questions, however many coordinators there are.
func TestEachHedgedQuestionIsPaidFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		slow := newHanging(k)
		slow.refuse(func(context.Context, string) error { time.Sleep(300 * time.Millisecond); return nil })
		w.start("a", slow)
		var asked atomic.Int64
		endpoints := []string{"a"}
		for _, address := range []string{"b", "c", "d", "e", "f", "g"} {
			h := newHanging(k)
			h.refuse(func(context.Context, string) error {
				asked.Add(1)
				return reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "away")
			})
			w.start(address, h)
			endpoints = append(endpoints, address)
		}
		c, end := w.client(client.Config{}, endpoints...)
		defer end()
		const rounds = 100
		for range rounds {
			must(t, reads["region"](t.Context(), c))
		}
		if n := asked.Load(); n > rounds/10+4 {
			t.Errorf("%d questions beside %d: one in 10 is allowed, and 4", n, rounds)
		}
	})
}

// One that is down when a read begins and back while the other one hangs is asked
// again.
func TestWhoIsBackIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := newCluster(7)
		a, b := newHanging(k), newHanging(k)
		w.start("a", a)
		w.start("b", b)
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		must(t, reads["region"](t.Context(), c))
		began := time.Now()
		a.refuse(func(context.Context, string) error {
			if time.Since(began) < 500*time.Millisecond {
				return status.Error(codes.Unavailable, "going down")
			}
			return nil
		})
		b.stopped.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		must(t, reads["region"](ctx, c))
		wantWithin(t, began, time.Second, 2*time.Second)
	})
}
