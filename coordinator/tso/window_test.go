package tso_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/tso"
	"github.com/nokv/nokv/internal/clock"
	"pgregory.net/rapid"
)

const wall = uint64(1_800_000_000_000)

// rooted is a Window with the fence that the root has.
type rooted struct {
	*tso.Window
	fence uint64
}

func newWindow(inherited, start uint64, ahead time.Duration) *rooted {
	return &rooted{tso.New(inherited, start, ahead), inherited}
}

// give is what the root does.
func (w *rooted) give(floor, size uint64) (from, to uint64) {
	from = max(w.fence, floor)
	w.fence = from + size
	return from, w.fence
}

func extend(t *testing.T, w *rooted, waiting, wallMillis uint64, now clock.Instant) (from, to uint64) {
	t.Helper()
	floor, size, want := w.NeedExtend(waiting, wallMillis, now)
	if !want {
		t.Fatal("NeedExtend wants nothing")
	}
	from, to = w.give(floor, size)
	if err := w.Extended(from, to); err != nil {
		t.Fatal(err)
	}
	return from, to
}

func take(t *testing.T, w *rooted, count, wallMillis uint64) uint64 {
	t.Helper()
	first, ok := w.Take(count, wallMillis)
	if !ok {
		t.Fatalf("no room for %d at %d", count, wallMillis)
	}
	return first
}

func TestFirstTimestampTellsTheTime(t *testing.T) {
	w := newWindow(0, 1, 0)
	if _, ok := w.Take(1, wall); ok {
		t.Fatal("served before the first fence")
	}
	from, to := extend(t, w, 0, wall, 0)
	if tso.Millis(from+1) != wall || tso.Millis(to) != wall+3000 {
		t.Fatalf("window (%d, %d ms]", from, tso.Millis(to))
	}
	if got := take(t, w, 5, wall); got != tso.Compose(wall, 0) {
		t.Fatalf("first %d", got)
	}
	if got := take(t, w, 1, wall); got != tso.Compose(wall, 5) {
		t.Fatalf("second %d", got)
	}
	if w.Consumed() != tso.Compose(wall, 5) {
		t.Fatalf("consumed %d", w.Consumed())
	}
}

func TestInheritedFrontierAheadOfTheWall(t *testing.T) {
	inherited := tso.Compose(wall+60_000, 17)
	w := newWindow(inherited, 1, 0)
	extend(t, w, 0, wall, 0)
	if got := take(t, w, 1, wall); got != inherited+1 {
		t.Fatalf("first %d, want %d", got, inherited+1)
	}
}

func TestStartFlag(t *testing.T) {
	start := tso.Compose(wall+1, 3)
	w := newWindow(0, start, 0)
	extend(t, w, 0, wall, 0)
	if got := take(t, w, 1, wall); got != start {
		t.Fatalf("first %d, want %d", got, start)
	}
}

func TestWallJumpsBack(t *testing.T) {
	w := newWindow(0, 1, 0)
	extend(t, w, 0, wall, 0)
	a := take(t, w, 1, wall)
	if b := take(t, w, 1, wall-3_600_000); b != a+1 {
		t.Fatalf("after the jump %d, before it %d", b, a)
	}
}

func TestWallJumpsBeyondTheFence(t *testing.T) {
	w := newWindow(0, 1, 0)
	extend(t, w, 0, wall, 0)
	take(t, w, 1, wall)
	if _, ok := w.Take(1, wall+3_600_000); ok {
		t.Fatal("served beyond the fence")
	}
	extend(t, w, 1, wall+3_600_000, 0)
	if got := take(t, w, 1, wall+3_600_000); tso.Millis(got) != wall+3_600_000 {
		t.Fatalf("got %d ms", tso.Millis(got))
	}
}

// A clock that the root refuses does not stop service, and is used again once
// it is right.
func TestRefusedClock(t *testing.T) {
	w := newWindow(0, 1, 0)
	extend(t, w, 0, wall, 0)
	last := take(t, w, 1, wall)
	mad := wall + 3_600_000
	if _, ok := w.Take(1, mad); ok {
		t.Fatal("served beyond the fence")
	}
	if _, _, want := w.NeedExtend(1, mad, 0); !want {
		t.Fatal("wants nothing")
	}
	w.ClockRefused(0)
	if got := take(t, w, 1, mad); got != last+1 {
		t.Fatalf("got %d, want %d: the clock is refused", got, last+1)
	}
	if _, _, want := w.NeedExtend(0, mad, clock.Instant(time.Millisecond)); want {
		t.Fatal("offers the refused clock again at once")
	}
	right := wall + 10_000
	if got := take(t, w, 1, right); got != last+2 {
		t.Fatalf("got %d, want %d", got, last+2)
	}
	extend(t, w, 0, right, clock.Instant(2*time.Second))
	if got := take(t, w, 1, right); tso.Millis(got) != right {
		t.Fatalf("the right clock is not used again: %d ms", tso.Millis(got))
	}
}

func TestNotExtendedWhileNobodyAsks(t *testing.T) {
	w := newWindow(0, 1, 0)
	extend(t, w, 0, wall, 0)
	for i := range uint64(100) {
		if _, _, want := w.NeedExtend(0, wall+i*1000, clock.Instant(i)); want {
			t.Fatalf("extends at %d s though nobody asks", i)
		}
	}
	take(t, w, 1, wall+2000)
	if _, _, want := w.NeedExtend(0, wall+2000, 0); !want {
		t.Fatal("does not extend though somebody asked and the fence is near")
	}
}

func TestCounterRunsOverIntoTheNextMillisecond(t *testing.T) {
	w := newWindow(0, 1, 0)
	extend(t, w, 0, wall, 0)
	last := uint64(0)
	for range 100 {
		first := take(t, w, tso.MaxCount, wall)
		if first <= last {
			t.Fatalf("%d after %d", first, last)
		}
		last = first + tso.MaxCount - 1
	}
	if tso.Millis(last) != wall+99 {
		t.Fatalf("last is in %d ms, want %d", tso.Millis(last), wall+99)
	}
	for {
		first, ok := w.Take(tso.MaxCount, wall)
		if !ok {
			break
		}
		last = first + tso.MaxCount - 1
	}
	if tso.Millis(last) > wall+3000 {
		t.Fatalf("ran beyond the fence: %d ms", tso.Millis(last))
	}
}

func TestEndOfTime(t *testing.T) {
	w := newWindow(tso.Max-2, 1, 0)
	if _, to := extend(t, w, 0, 1<<63, 0); to != tso.Max {
		t.Fatalf("window to %d", to)
	}
	if first := take(t, w, 2, wall); first != tso.Max-1 {
		t.Fatalf("first %d", first)
	}
	if _, ok := w.Take(1, wall); ok || !w.Exhausted() {
		t.Fatal("served beyond the end")
	}
	if _, _, want := w.NeedExtend(1, wall, 0); want {
		t.Fatal("wants more than there is")
	}
}

// Whatever the wall clock does, and whatever becomes of extensions:
// timestamps strictly grow, lie inside rooted windows and above the frontier,
// and are not behind a wall clock that the root accepts.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := uint64(1_000_000)
		inherited := tso.Compose(base+rapid.Uint64Range(0, 100).Draw(t, "inherited"), 5)
		start := tso.Compose(base+rapid.Uint64Range(0, 100).Draw(t, "start"), 0)
		w := newWindow(inherited, start, 20*time.Millisecond)
		last, now, clockNow := inherited, clock.Instant(0), base
		var floor, size uint64
		pending, refused := false, false
		type run struct{ from, to uint64 }
		var rooted []run
		var ends []uint64
		newest, gaveUp := inherited, uint64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "dt")))
			clockNow = uint64(int64(clockNow) + rapid.Int64Range(-50, 60).Draw(t, "jump"))
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0, 1:
				n := rapid.Uint64Range(1, tso.MaxCount).Draw(t, "count")
				first, ok := w.Take(n, clockNow)
				if !ok {
					continue
				}
				if first <= last || first < start {
					t.Fatalf("served %d after %d", first, last)
				}
				if !refused && tso.Millis(first) < clockNow {
					t.Fatalf("served %d ms at %d ms", tso.Millis(first), clockNow)
				}
				last = first + n - 1
				inside := false
				for _, r := range rooted {
					inside = inside || first > r.from && last <= r.to
				}
				if !inside {
					t.Fatalf("served [%d, %d] outside every window", first, last)
				}
				if w.Consumed() < last || !slices.ContainsFunc(rooted, func(r run) bool { return w.Consumed() == max(last, r.from, gaveUp) }) {
					t.Fatalf("consumed %d, served %d", w.Consumed(), last)
				}
			case 2:
				if !pending {
					floor, size, pending = w.NeedExtend(rapid.Uint64Range(0, 1000).Draw(t, "waiting"), clockNow, now)
					if pending {
						gaveUp = newest
					}
				}
			case 3:
				if !pending {
					continue
				}
				pending = false
				if rapid.IntRange(0, 3).Draw(t, "refuse") == 0 {
					w.ClockRefused(now)
					refused = true
					continue
				}
				from, to := w.give(floor, size)
				ends, newest = append(ends, to), from
				if n := len(rooted); n > 0 && rooted[n-1].to == from {
					rooted[n-1].to = to
				} else {
					rooted = append(rooted, run{from, to})
				}
				if err := w.Extended(from, to); err != nil {
					t.Fatal(err)
				}
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
	w := newWindow(0, 1, 0)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := w.Take(1, wall); !ok {
			floor, size, _ := w.NeedExtend(1, wall, 0)
			if err := w.Extended(w.give(floor, size)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
