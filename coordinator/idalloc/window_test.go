package idalloc_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/idalloc"
	"github.com/nokv/nokv/internal/clock"
	"pgregory.net/rapid"
)

// rooted is a Window with the fence that the root has.
type rooted struct {
	*idalloc.Window
	fence uint64
}

func newWindow(inherited, start, size uint64) *rooted {
	return &rooted{idalloc.New(inherited, start, size), inherited}
}

// give is what the root does.
func (w *rooted) give(floor, size uint64) (from, to uint64) {
	from = max(w.fence, floor)
	w.fence = from + size
	return from, w.fence
}

func extend(t *testing.T, w *rooted, waiting uint64, now clock.Instant) (from, to uint64) {
	t.Helper()
	floor, size, want := w.NeedExtend(waiting, now)
	if !want {
		t.Fatal("NeedExtend wants nothing")
	}
	from, to = w.give(floor, size)
	if err := w.Extended(from, to); err != nil {
		t.Fatal(err)
	}
	return from, to
}

func TestNothingBeforeTheFirstWindow(t *testing.T) {
	w := newWindow(7, 1, 10)
	if first, ok := w.Take(1); ok {
		t.Fatalf("served %d from nothing", first)
	}
	if from, to := extend(t, w, 0, 0); from != 7 || to != 17 {
		t.Fatalf("window (%d, %d]", from, to)
	}
	if first, ok := w.Take(10); !ok || first != 8 {
		t.Fatalf("first %d %v", first, ok)
	}
	if w.Consumed() != 17 || w.Left() != 0 {
		t.Fatalf("consumed %d left %d", w.Consumed(), w.Left())
	}
}

func TestStartFlag(t *testing.T) {
	w := newWindow(0, 1000, 10)
	if from, to := extend(t, w, 0, 0); from != 999 || to != 1009 {
		t.Fatalf("window (%d, %d]", from, to)
	}
	if w.Left() != 10 || w.Consumed() != 999 {
		t.Fatalf("left %d consumed %d", w.Left(), w.Consumed())
	}
	if first, _ := w.Take(1); first != 1000 {
		t.Fatalf("first id %d", first)
	}
}

// Where ids were given before, the root lets no window begin far ahead: a start that
// is further is gone to in steps, and nothing below it is served.
func TestStartFarAhead(t *testing.T) {
	w := newWindow(500, 5<<40, 10)
	floor, _, want := w.NeedExtend(0, 0)
	if !want || floor != 5<<40-1 {
		t.Fatalf("asks above %d %v: a cluster's first ids may begin anywhere", floor, want)
	}
	w.Refused(500)
	at, steps := uint64(500), 0
	for w.Left() == 0 {
		if _, ok := w.Take(1); ok {
			t.Fatal("an id below the start was served")
		}
		from, to := extend(t, w, 1, 0)
		if from > at+idalloc.MaxSkip {
			t.Fatalf("window (%d, %d], the fence was %d", from, to, at)
		}
		at = to
		if steps++; steps > 5 {
			t.Fatalf("after %d steps it is at %d", steps, at)
		}
	}
	if first, ok := w.Take(1); !ok || first != 5<<40 {
		t.Fatalf("first id %d %v", first, ok)
	}
}

// The root gave ids itself: the rest of the window stays usable, and what
// reaches beyond it comes from the next run as a whole.
func TestOthersRaiseTheFence(t *testing.T) {
	w := newWindow(0, 1, 10)
	extend(t, w, 0, 0)
	w.Take(8)
	w.fence += 2
	if from, _ := extend(t, w, 0, 0); from != 12 || w.Consumed() != 12 {
		t.Fatalf("extends from %d, consumed %d: ids up to 12 are the root's", from, w.Consumed())
	}
	if first, ok := w.Take(1); !ok || first != 9 {
		t.Fatalf("rest of the first run: %d %v", first, ok)
	}
	if first, ok := w.Take(3); !ok || first != 13 {
		t.Fatalf("next run: %d %v", first, ok)
	}
	if first, ok := w.Take(1); !ok || first != 16 {
		t.Fatalf("behind it: %d %v", first, ok)
	}
}

func TestWindowAdaptsToDemand(t *testing.T) {
	w := newWindow(0, 1, 0)
	now, last := clock.Instant(1), uint64(0)
	for i := range 20 {
		from, to := extend(t, w, 0, now)
		if got, want := to-from, min(uint64(10_000)<<i, idalloc.MaxWindow); got != want {
			t.Fatalf("window %d is %d, want %d", i, got, want)
		}
		w.Take(w.Left())
		now, last = now.Add(time.Millisecond), to-from
	}
	for range 20 {
		now = now.Add(time.Minute)
		from, to := extend(t, w, 0, now)
		if to-from > last {
			t.Fatalf("window grew to %d while hardly used", to-from)
		}
		w.Take(w.Left())
		last = to - from
	}
	if last != idalloc.DefaultWindow {
		t.Fatalf("window is %d after a quiet time", last)
	}
}

func TestLargestRequest(t *testing.T) {
	w := newWindow(0, 1, 10)
	extend(t, w, 0, 0)
	extend(t, w, idalloc.MaxCount, 0)
	if first, ok := w.Take(idalloc.MaxCount); !ok || first != 1 {
		t.Fatalf("first %d %v", first, ok)
	}
}

func TestExhausted(t *testing.T) {
	w := newWindow(idalloc.MaxID-3, 1, 10)
	if _, to := extend(t, w, 0, 0); to != idalloc.MaxID {
		t.Fatalf("window to %d", to)
	}
	if _, ok := w.Take(4); ok {
		t.Fatal("served beyond the last id")
	}
	if first, ok := w.Take(3); !ok || first != idalloc.MaxID-2 {
		t.Fatalf("first %d %v", first, ok)
	}
	if _, _, want := w.NeedExtend(1, 0); want || !w.Exhausted() {
		t.Fatal("wants more than there is")
	}
}

func TestOverlappingWindowIsRefused(t *testing.T) {
	w := newWindow(100, 1, 10)
	for _, bad := range [][2]uint64{{99, 200}, {0, 50}, {100, 100}, {110, 105}} {
		if err := w.Extended(bad[0], bad[1]); err == nil {
			t.Errorf("took window %v in", bad)
		}
	}
	extend(t, w, 0, 0)
	if err := w.Extended(100, 110); err == nil {
		t.Error("took the same window in twice")
	}
}

// Whatever the order of requests, extensions and refusals: ids are disjoint,
// growing, contiguous, inside the rooted windows, above the frontier, and
// Consumed bounds them exactly.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inherited := rapid.Uint64Range(0, 1000).Draw(t, "inherited")
		start := rapid.Uint64Range(0, 1200).Draw(t, "start")
		w := newWindow(inherited, start, rapid.Uint64Range(1, 50).Draw(t, "size"))
		rooted := map[uint64]bool{}
		last, now := inherited, clock.Instant(0)
		var floor, size uint64
		pending := false
		var ends []uint64
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "dt")))
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0, 1:
				n := rapid.Uint64Range(1, 80).Draw(t, "count")
				first, ok := w.Take(n)
				if !ok {
					continue
				}
				if first <= last || first < start {
					t.Fatalf("served %d after %d (start %d)", first, last, start)
				}
				for v := first; v < first+n; v++ {
					if !rooted[v] {
						t.Fatalf("served %d, which is not rooted for us", v)
					}
				}
				last = first + n - 1
				if w.Consumed() < last {
					t.Fatalf("consumed %d, served %d", w.Consumed(), last)
				}
			case 2:
				if !pending {
					floor, size, pending = w.NeedExtend(rapid.Uint64Range(0, 100).Draw(t, "waiting"), now)
				} else if _, _, again := w.NeedExtend(1, now); again {
					t.Fatal("two extensions at once")
				}
			case 3:
				if !pending {
					continue
				}
				pending = false
				if rapid.IntRange(0, 3).Draw(t, "refuse") == 0 {
					w.Refused(w.fence)
					continue
				}
				from, to := w.give(floor, size)
				ends = append(ends, to)
				for v := from + 1; v <= to; v++ {
					rooted[v] = true
				}
				if err := w.Extended(from, to); err != nil {
					t.Fatal(err)
				}
			case 4:
				w.fence += rapid.Uint64Range(0, 3).Draw(t, "foreign")
			}
			// An orderly end is refused below the third last end, as the root knows it.
			known := len(ends) - 3
			if pending {
				known++ // given, maybe, and not known here
			}
			if known >= 0 && w.Consumed() < ends[known] {
				t.Fatalf("consumed %d of windows that end at %d, pending %v", w.Consumed(), ends, pending)
			}
		}
	})
}

func BenchmarkTake(b *testing.B) {
	w := newWindow(0, 1, idalloc.MaxWindow)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := w.Take(1); !ok {
			floor, size, _ := w.NeedExtend(1, 0)
			if err := w.Extended(w.give(floor, size)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
