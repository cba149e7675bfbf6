package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/testing/written"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// process is a Holder that runs, until stop or the end of the test.
type process struct {
	*tenure.Holder
	stop func()
}

func startHolder(t testing.TB, r *testRoot, id string, change func(*tenure.Config)) *process {
	t.Helper()
	cfg := tenure.Config{
		ID: id, Incarnation: uint64(len(id)) + 1, Address: id + ":1", TTL: 200 * time.Millisecond,
		IDStart: 1, TSOStart: 1, Root: endpoint{r, id}, Views: endpoint{r, id}, Clock: clock.NewMonotonic(),
	}
	if change != nil {
		change(&cfg)
	}
	h, err := tenure.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := h.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	p := &process{Holder: h, stop: sync.OnceFunc(func() { cancel(); wg.Wait() })}
	t.Cleanup(p.stop)
	return p
}

func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

func must(t *testing.T) func(first, era uint64, err error) (uint64, uint64) {
	return func(first, era uint64, err error) (uint64, uint64) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return first, era
	}
}

func TestHolderServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		r.cut["c1"] = true
		h := startHolder(t, r, "c1", nil)
		begun := time.Now()
		if _, _, err := h.Tso(within(time.Second), 1); reason.Of(err) != rootv1.Reason_REASON_TENURE_NOT_HELD || time.Since(begun) != 0 {
			t.Fatalf("before the era began: %v after %v", err, time.Since(begun))
		}
		r.inspect(func(*machine) { delete(r.cut, "c1") })
		time.Sleep(time.Second)
		synctest.Wait()
		at := time.Now()
		first, era := must(t)(h.Tso(within(time.Second), 10))
		next, _ := must(t)(h.Tso(within(time.Second), 1))
		id, _ := must(t)(h.AllocID(within(time.Second), 5))
		if era != 1 || first>>18 != uint64(at.UnixMilli()) || next != first+10 || id != 1 {
			t.Fatalf("era %d first %d next %d id %d", era, first, next, id)
		}
		if time.Since(at) != 0 {
			t.Fatalf("took %v though confirmed", time.Since(at))
		}
		s := h.Status()
		if s.Stage != rootv1.HandoverStage_HANDOVER_STAGE_CLOSED || !s.Confirmed || s.IDsLeft != 9995 {
			t.Fatalf("status %+v", s)
		}
		r.inspect(func(m *machine) {
			if got := m.handover().Stage; got != rootv1.HandoverStage_HANDOVER_STAGE_CLOSED {
				t.Errorf("handover is at %v", got)
			}
		})
		h.stop()
	})
}

// Between two eras requests wait, at the holder that leaves until it knows its
// successor, and at standbys until one of them has the next era: nobody is sent in circles.
func TestRequestsWaitBetweenEras(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(8 * time.Millisecond)
		a := startHolder(t, r, "c1", nil)
		time.Sleep(time.Second)
		must(t)(a.Tso(within(time.Second), 1))
		b := startHolder(t, r, "c2", func(c *tenure.Config) { c.MaxWaiting = 1 })
		time.Sleep(100 * time.Millisecond)
		var waiting sync.WaitGroup
		begun := time.Now()
		waiting.Go(a.stop)
		synctest.Wait()
		_, _, err := a.Tso(within(time.Second), 1)
		if d := reason.From(err); d.GetReason() != rootv1.Reason_REASON_TENURE_NOT_HELD || d.GetHolderId() != "c2" {
			t.Errorf("at the holder that left: %v", err)
		}
		if took := time.Since(begun); took < r.delay || took >= 50*time.Millisecond {
			t.Errorf("the holder that left answered after %v, the retirement took %v", took, r.delay)
		}
		waiting.Go(func() {
			_, era := must(t)(b.Tso(within(time.Second), 1))
			if took := time.Since(begun); era != 2 || took > 4*r.delay {
				t.Errorf("era %d served after %v", era, took)
			}
		})
		synctest.Wait()
		if _, _, err := b.Tso(within(time.Second), 1); reason.Of(err) != rootv1.Reason_REASON_TENURE_NOT_HELD {
			t.Errorf("more than may wait: %v", err)
		}
		waiting.Wait()
	})
}

// A holder that leaves keeps nobody for long when no successor comes, and ends.
func TestLeavingHolderLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(8 * time.Millisecond)
		a := startHolder(t, r, "c1", nil)
		time.Sleep(time.Second)
		must(t)(a.Tso(within(time.Second), 1))
		var waiting sync.WaitGroup
		begun := time.Now()
		waiting.Go(a.stop)
		synctest.Wait()
		_, _, err := a.Tso(within(time.Second), 1)
		if d := reason.From(err); d.GetReason() != rootv1.Reason_REASON_TENURE_NOT_HELD || d.GetHolderId() != "" {
			t.Errorf("%v", err)
		}
		waiting.Wait()
		if took := time.Since(begun); took != r.delay+10*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		begun = time.Now()
		if _, _, err := a.Tso(within(time.Second), 1); reason.Of(err) != rootv1.Reason_REASON_TENURE_NOT_HELD || time.Since(begun) != 0 {
			t.Errorf("behind its end: %v after %v", err, time.Since(begun))
		}
	})
}

// An era that comes with its first windows asks for none before it serves.
func TestFirstWindowsComeWithTheEra(t *testing.T) {
	for _, without := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newTestRoot(time.Millisecond)
			r.noFirst = without
			h := startHolder(t, r, "c1", nil)
			time.Sleep(time.Second)
			must(t)(h.Tso(within(time.Second), 1))
			must(t)(h.AllocID(within(time.Second), 1))
			want := 0
			if without {
				want = 2
			}
			h.stop()
			if r.extends != want || h.Counters().IDExtensions.Load() != 1 || h.Counters().TsoExtensions.Load() != 1 {
				t.Errorf("without windows %v: %d commands asked for windows, want %d", without, r.extends, want)
			}
		})
	}
}

// Of windows that are not what the claim asked for nothing is served: others are asked
// for.
func TestForeignFirstWindows(t *testing.T) {
	for name, change := range map[string]func(*rootv1.Window){
		"of another era":  func(w *rootv1.Window) { w.Era++ },
		"below the fence": func(w *rootv1.Window) { w.From, w.To = w.From-1, w.To-1 },
		"larger":          func(w *rootv1.Window) { w.To++ },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTestRoot(time.Millisecond)
				first := startHolder(t, r, "c1", nil)
				time.Sleep(time.Second)
				must(t)(first.AllocID(within(time.Second), 1))
				first.stop()
				r.changeFirst = change
				h := startHolder(t, r, "c2", nil)
				time.Sleep(100 * time.Millisecond)
				if again, _ := must(t)(h.AllocID(within(time.Second), 1)); again <= idalloc.DefaultWindow {
					t.Errorf("%d is served: it is of the window that came with the claim", again)
				}
				must(t)(h.Tso(within(time.Second), 1))
				if n := h.Counters().Violations.Inheritance.Load(); n != 1 || r.extends != 2 {
					t.Errorf("%d violations were counted, %d windows asked for", n, r.extends)
				}
				h.stop()
			})
		})
	}
}

// Commands that somebody publishes under the numbers that the Tenure shows are not
// taken for the holder's: no id is given to two.
func TestCommandsUnderTheIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		publish := func(n uint64, identity *rootv1.CommandIdentity) uint64 {
			key := func(n uint64) []byte { return fmt.Appendf(nil, "%08d", n) }
			result := r.applyLocked(&rootv1.Command{Identity: identity, Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{
				RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{KeyspaceId: 1, StartKey: key(n), EndKey: key(n + 1)}},
			}}}})
			if result.GetError() != nil {
				t.Fatal(result)
			}
			return result.Events[0].Region.Id
		}
		const incarnation = 77
		h := startHolder(t, r, "c1", func(c *tenure.Config) { c.Incarnation, c.IDWindow = incarnation, 10 })
		time.Sleep(time.Second)
		taken := map[uint64]bool{}
		serve := func(n int) {
			for range n {
				id, _ := must(t)(h.AllocID(within(time.Second), 1))
				if taken[id] {
					t.Errorf("id %d was served, and given before", id)
				}
				taken[id] = true
			}
		}
		serve(1)
		r.inspect(func(m *machine) {
			for n := range uint64(100) {
				taken[publish(n, &rootv1.CommandIdentity{Origin: incarnation, Sequence: n + 1, KnownIndex: m.index})] = true
			}
		})
		serve(100)
		if n := h.Counters().Violations.Total(); n != 0 {
			t.Errorf("%d violations: somebody else's commands reach the holder", n)
		}
		h.stop()
	})
}

// An idle holder renews its confirmations and writes nothing.
func TestIdleHolderWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		h := startHolder(t, r, "c1", nil)
		time.Sleep(time.Second)
		var before uint64
		r.inspect(func(m *machine) { before = m.index })
		time.Sleep(time.Minute)
		r.inspect(func(m *machine) {
			if m.index != before {
				t.Errorf("%d entries in an idle minute", m.index-before)
			}
		})
		h.stop()
	})
}

func TestBadCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHolder(t, newTestRoot(0), "c1", nil)
		time.Sleep(time.Second)
		for _, n := range []uint64{0, 1<<18 + 1, 1 << 63} {
			if _, _, err := h.Tso(within(time.Second), n); reason.Of(err) != rootv1.Reason_REASON_INVALID_REQUEST {
				t.Errorf("Tso(%d): %v", n, err)
			}
		}
		for _, n := range []uint64{0, 1_000_001, 1 << 63} {
			if _, _, err := h.AllocID(within(time.Second), n); reason.Of(err) != rootv1.Reason_REASON_INVALID_REQUEST {
				t.Errorf("AllocID(%d): %v", n, err)
			}
		}
		must(t)(h.AllocID(within(time.Second), 1_000_000))
		must(t)(h.Tso(within(time.Second), 1<<18))
		h.stop()
	})
}

// Rule 4: an orderly end retires with exact frontiers, and the successor takes
// over at once and skips nothing.
func TestRetireOnShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		a := startHolder(t, r, "c1", nil)
		time.Sleep(time.Second)
		b := startHolder(t, r, "c22", nil)
		time.Sleep(100 * time.Millisecond)
		last, _ := must(t)(a.AllocID(within(time.Second), 7))
		stamp, _ := must(t)(a.Tso(within(time.Second), 7))
		if _, _, err := b.AllocID(within(time.Second), 1); reason.From(err).GetHolderAddress() != "c1:1" {
			t.Fatalf("standby says %v", err)
		}
		began := time.Now()
		a.stop()
		if took := time.Since(began); took > 10*time.Millisecond {
			t.Fatalf("stopping took %v", took)
		}
		if _, _, err := a.AllocID(within(time.Second), 1); err == nil {
			t.Fatal("serves after its end")
		}
		time.Sleep(10 * time.Millisecond)
		first, era := must(t)(b.AllocID(within(time.Second), 1))
		second, _ := must(t)(b.Tso(within(time.Second), 1))
		if era != 2 || first != last+7 || second < stamp+7 {
			t.Fatalf("era %d first %d after %d, stamp %d after %d", era, first, last, second, stamp)
		}
		r.inspect(func(m *machine) {
			if l := m.handover().Legacy; !l.Exact || l.Consumed.AllocId != last+6 {
				t.Errorf("legacy %v", l)
			}
		})
		b.stop()
	})
}

// A holder that is cut off stops when its confirmation has run out, and the
// standby serves soon after.
func TestA45StandbyTakesOverFromAHolderCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		a := startHolder(t, r, "c1", nil)
		time.Sleep(time.Second)
		b := startHolder(t, r, "c22", func(c *tenure.Config) {
			c.Probe = func(context.Context, *rootv1.Tenure) tenure.Health { return tenure.HealthRefused }
		})
		time.Sleep(500 * time.Millisecond)
		stamp, _ := must(t)(a.Tso(within(time.Second), 1))
		r.mu.Lock()
		r.cut["c1"] = true
		r.mu.Unlock()
		cut := time.Now()
		for {
			first, era, err := b.Tso(within(time.Second), 1)
			if err == nil {
				if era != 2 || first <= stamp {
					t.Fatalf("era %d: %d after %d", era, first, stamp)
				}
				break
			}
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(cut); took > 280*time.Millisecond {
			t.Errorf("takeover took %v", took)
		}
		if first, era, err := a.Tso(within(100*time.Millisecond), 1); err == nil {
			t.Errorf("the old holder served %d of era %d", first, era)
		}
		a.stop()
		b.stop()
	})
}

// Rule 6: a lapsed confirmation means waiting, not failing.
func TestLapseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		h := startHolder(t, r, "c1", nil)
		time.Sleep(time.Second)
		r.mu.Lock()
		r.cut["c1"] = true
		r.mu.Unlock()
		time.Sleep(300 * time.Millisecond)
		if _, _, err := h.AllocID(within(100*time.Millisecond), 1); reason.Of(err) != rootv1.Reason_REASON_ROOT_UNAVAILABLE {
			t.Fatalf("lapsed: %v", err)
		}
		time.AfterFunc(100*time.Millisecond, func() {
			r.mu.Lock()
			r.cut["c1"] = false
			r.mu.Unlock()
		})
		began := time.Now()
		must(t)(h.AllocID(within(5*time.Second), 1))
		if time.Since(began) < 100*time.Millisecond {
			t.Fatal("served without a confirmation")
		}
		if h.Counters().Lapses.Load() == 0 || h.Counters().GateRejections.Load() != 1 {
			t.Fatal("not counted")
		}
		h.stop()
	})
}

// Rule 6 with a ttl of 0: every batch waits for a confirmation of its own or a
// shared one, and callers share.
func TestNoClockTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(10 * time.Millisecond)
		h := startHolder(t, r, "c1", func(c *tenure.Config) { c.TTL = 0 })
		time.Sleep(time.Second)
		r.mu.Lock()
		before := r.confirms
		r.mu.Unlock()
		began := time.Now()
		must(t)(h.Tso(within(time.Second), 1))
		if took := time.Since(began); took != 10*time.Millisecond {
			t.Fatalf("took %v, want one round trip", took)
		}
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() { must(t)(h.Tso(within(time.Second), 1)) })
		}
		wg.Wait()
		if took := time.Since(began); took > 40*time.Millisecond {
			t.Errorf("1000 callers took %v", took)
		}
		r.mu.Lock()
		n := r.confirms - before
		r.mu.Unlock()
		if n > 5 {
			t.Errorf("%d confirmations for 1001 callers in two waves", n)
		}
		h.stop()
	})
}

func TestSupersededHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		h := startHolder(t, r, "c1", nil)
		time.Sleep(time.Second)
		h.OnSuperseded()
		if _, _, err := h.Tso(within(time.Second), 1); reason.Of(err) != rootv1.Reason_REASON_COORDINATOR_SUPERSEDED {
			t.Fatalf("superseded: %v", err)
		}
		time.Sleep(time.Second)
		r.inspect(func(m *machine) {
			if !m.s.Tenure().Retired {
				t.Error("the era is not retired")
			}
		})
		h.stop()
	})
}

// The root gives ids itself: windows go around them.
func TestRootTakesIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		h := startHolder(t, r, "c1", func(c *tenure.Config) { c.IDWindow = 10 })
		time.Sleep(time.Second)
		r.mu.Lock()
		given := r.applyLocked(&rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{
			RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{KeyspaceId: 1}},
		}}}}).Events[0].Region.Id
		r.mu.Unlock()
		last := uint64(0)
		for range 100 {
			first, _ := must(t)(h.AllocID(within(time.Second), 3))
			if first <= last || given >= first && given < first+3 {
				t.Fatalf("ids from %d after %d; the root gave %d", first, last, given)
			}
			last = first + 2
		}
		h.stop()
	})
}

// A clock far ahead of the root's does not stop timestamps.
func TestClockAheadOfTheRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		c := &shiftedClock{Clock: clock.NewMonotonic()}
		h := startHolder(t, r, "c1", func(cfg *tenure.Config) { cfg.Clock = c })
		time.Sleep(time.Second)
		first, _ := must(t)(h.Tso(within(time.Second), 1))
		r.mu.Lock()
		r.wall = uint64(time.Now().UnixMilli()) + 60_000
		r.mu.Unlock()
		c.set(3_600_000)
		next, _ := must(t)(h.Tso(within(time.Second), 1))
		if next <= first || next>>18 > first>>18+3_000 {
			t.Fatalf("%d ms after %d ms", next>>18, first>>18)
		}
		if h.Counters().ClockRefusals.Load() == 0 {
			t.Fatal("not counted")
		}
		h.stop()
	})
}

type shiftedClock struct {
	clock.Clock
	mu    sync.Mutex
	shift uint64
}

func (c *shiftedClock) set(shift uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shift = shift
}

func (c *shiftedClock) Wall() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Clock.Wall() + c.shift
}

// Waiting is bounded in number.
func TestOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(50 * time.Millisecond)
		h := startHolder(t, r, "c1", func(c *tenure.Config) { c.TTL, c.MaxWaiting = 0, 10 })
		time.Sleep(time.Second)
		var mu sync.Mutex
		served, refused := 0, 0
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				_, _, err := h.Tso(within(time.Second), 1)
				mu.Lock()
				defer mu.Unlock()
				if reason.Of(err) == rootv1.Reason_REASON_OVERLOADED {
					refused++
				} else if err == nil {
					served++
				}
			})
		}
		wg.Wait()
		if served != 10 || refused != 20 {
			t.Fatalf("%d served, %d refused", served, refused)
		}
		h.stop()
	})
}

// An orderly end is bounded even when the root is away.
func TestShutdownWithoutRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		h := startHolder(t, r, "c1", nil)
		time.Sleep(time.Second)
		r.mu.Lock()
		r.cut["c1"] = true
		r.mu.Unlock()
		time.Sleep(300 * time.Millisecond)
		go h.AllocID(within(time.Hour), 1)
		synctest.Wait()
		began := time.Now()
		h.stop()
		if took := time.Since(began); took > 2*time.Second+10*time.Millisecond {
			t.Fatalf("stopping took %v", took)
		}
	})
}

func TestCancelledCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(50 * time.Millisecond)
		h := startHolder(t, r, "c1", func(c *tenure.Config) { c.TTL = 0 })
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(10*time.Millisecond, cancel)
		if _, _, err := h.Tso(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
		h.stop()
	})
}

// A clock that the root refuses is reported, and not a thousand times.
func TestRefusedClockIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		r.wall = uint64(time.Now().UnixMilli())
		var said written.Text
		h := startHolder(t, r, "c1", func(c *tenure.Config) {
			c.TSOStart = (r.wall + 3_600_000) << 18
			c.Logger = said.Logger(hclog.Warn)
		})
		time.Sleep(time.Second)
		for range 10 {
			if _, _, err := h.Tso(within(2*time.Second), 1); err == nil {
				t.Fatal("a timestamp ahead of the root's clock")
			}
		}
		h.stop()
		if n := h.Counters().ClockRefusals.Load(); n < 100 {
			t.Errorf("%d refusals, want many", n)
		}
		if n := strings.Count(said.String(), "check this machine's clock"); n != 3 {
			t.Errorf("reported %d times in 20 s, want 3:\n%s", n, &said)
		}
	})
}

// Who waits for timestamps that the root finds too far ahead of its clock is told
// so, and so is who looks; ids are served meanwhile. When the clock is corrected,
// timestamps are.
func TestTimestampsTooFarAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		r.wall = uint64(time.Now().UnixMilli()) + 600_000
		p := startHolder(t, r, "a", func(c *tenure.Config) { c.TSOStart = (r.wall + 86_400_000) << 18 })
		time.Sleep(time.Second)
		if _, _, err := p.AllocID(within(time.Second), 1); err != nil {
			t.Errorf("an id: %v", err)
		}
		if _, _, err := p.Tso(within(time.Second), 1); reason.Of(err) != rootv1.Reason_REASON_CLOCK_BOUND {
			t.Errorf("a timestamp: %v", err)
		}
		if s := p.Status(); !s.ClockBound || s.Phase != tenure.Holding {
			t.Errorf("%+v", s)
		}
		r.mu.Lock()
		r.wall += 2 * 86_400_000
		r.mu.Unlock()
		if _, _, err := p.Tso(within(time.Second), 1); err != nil || p.Status().ClockBound {
			t.Errorf("the clock is right: %v, %+v", err, p.Status())
		}
	})
}

// A holder whose callers come every 20 ms confirms each third of its ttl, so that two
// confirmations may be lost.
func TestBusyHolderIsConfirmedOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		h := startHolder(t, r, "c1", nil)
		time.Sleep(time.Second)
		before := h.Counters().Confirmations.Load()
		for range 500 {
			time.Sleep(20 * time.Millisecond)
			must(t)(h.AllocID(within(time.Second), 1))
		}
		if n := h.Counters().Confirmations.Load() - before; n < 120 {
			t.Errorf("%d confirmations in 10 s with a caller each 20 ms, want about 150: 15 a second", n)
		}
		h.stop()
	})
}

// One probe that takes 160 ms, of a holder that answers all others, is no reason to
// take its era: without a ttl the root grants it at once.
func TestOneSlowProbeIsNoReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(time.Millisecond)
		untimed := func(c *tenure.Config) { c.TTL = 0 }
		a := startHolder(t, r, "c1", untimed)
		time.Sleep(time.Second)
		var probes atomic.Int64
		b := startHolder(t, r, "c22", func(c *tenure.Config) {
			untimed(c)
			c.Probe = func(ctx context.Context, _ *rootv1.Tenure) tenure.Health {
				took := time.Millisecond
				if probes.Add(1) == 10 {
					took = 160 * time.Millisecond
				}
				select {
				case <-time.After(took):
					return tenure.HealthServing
				case <-ctx.Done():
					return tenure.HealthUnknown
				}
			}
		})
		time.Sleep(10 * time.Second)
		if era := b.Status().Era; era != 0 {
			t.Errorf("the standby took era %d from a holder that answered %d of %d probes", era, probes.Load()-1, probes.Load())
		}
		a.stop()
		b.stop()
	})
}
