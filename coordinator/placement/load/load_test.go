package load_test

import (
	"math"
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

const start = clock.Instant(time.Hour)

func epoch(conf uint64) state.Epoch { return state.Epoch{Version: 1, ConfVersion: conf} }

func owned(by ...uint64) (owners []state.Owner) {
	for _, n := range by {
		owners = append(owners, state.Owner{Member: state.MemberID(rune('a' + n)), Incarnation: n})
	}
	return owners
}

// newBook has region 1 owned by member 1, which has told that it has 100 by it.
func newBook() *load.Book {
	b := load.NewBook(100)
	b.Follow(1, epoch(1), owned(1), start)
	b.Report(1, 1, epoch(1), 100, start)
	return b
}

func wantPair(t *testing.T, b *load.Book, id state.RegionID, now clock.Instant, low, high float64) {
	t.Helper()
	p, known := b.Region(id, now)
	near := func(a load.Amount, x float64) bool { return math.Abs(float64(a)/1e6-x) < 0.01*x+0.01 }
	if !known || !near(p.Low, low) || !near(p.High, high) {
		t.Fatalf("region %d has %.2f/%.2f (known: %v), want %.2f/%.2f", id, float64(p.Low)/1e6, float64(p.High)/1e6, known, low, high)
	}
}

func TestHalfLives(t *testing.T) {
	b := newBook()
	wantPair(t, b, 1, start.Add(time.Hour), 100, 100)
	now := start.Add(time.Hour)
	b.Report(1, 1, epoch(1), 300, now)
	wantPair(t, b, 1, now, 100, 100)
	wantPair(t, b, 1, now.Add(10*time.Second), 300-200*math.Exp2(-1.0/6), 200)
	wantPair(t, b, 1, now.Add(60*time.Second), 200, 300-200.0/64)
	now = now.Add(time.Hour)
	b.Report(1, 1, epoch(1), 100, now)
	wantPair(t, b, 1, now.Add(25*time.Second), 100+200*math.Exp2(-2.5), 100+200*math.Exp2(-25.0/60))
}

// However often it is told meanwhile, an average is where one is that was told once.
func TestAveragesDoNotDependOnTheFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := newBook(), newBook()
		x := float64(rapid.IntRange(0, 1_000_000).Draw(t, "load")) / 100
		a.Report(1, 1, epoch(1), x, start)
		b.Report(1, 1, epoch(1), x, start)
		now := start
		for range rapid.IntRange(1, 20).Draw(t, "frames") {
			now = now.Add(time.Duration(rapid.IntRange(1, 20_000).Draw(t, "ms")) * time.Millisecond)
			b.Report(1, 1, epoch(1), x, now)
		}
		p, _ := a.Region(1, now)
		q, _ := b.Region(1, now)
		if d := max(p.Low-q.Low, q.Low-p.Low, p.High-q.High, q.High-p.High); d > load.Amount(10*(x+100)) {
			t.Fatalf("%v, and %v with frames", p, q)
		}
	})
}

// What is no load is refused and counted, and changes nothing.
func TestBadLoadsAreRefused(t *testing.T) {
	b := newBook()
	for i, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
		if b.Report(1, 1, epoch(1), x, start) || b.Total(1, x, 0, start) || b.Total(1, 1, x, start) {
			t.Errorf("%v is taken", x)
		}
		if got := b.Counters().BadLoads; got != uint64(3*i+3) {
			t.Errorf("%d are counted", got)
		}
	}
	wantPair(t, b, 1, start, 100, 100)
	if b.Report(1, 1, epoch(1), math.MaxFloat64, start); b.Counters().BadLoads != 13 {
		t.Error("the largest number is a load")
	}
}

// A region that moves is booked at its next owner from the change on, and off the old one; its
// history goes with it, and what the old owner still says is not counted twice.
func TestMovesAreBooked(t *testing.T) {
	b := newBook()
	b.Total(1, 150, 0, start)
	b.Total(2, 50, 0, start)
	now := start.Add(time.Minute)
	b.Follow(1, epoch(2), owned(2), now)
	wantPair(t, b, 1, now, 100, 100)
	want := func(incarnation uint64, all, rest float64) {
		t.Helper()
		m := b.Member(incarnation, now)
		if math.Abs(float64(m.Now)/1e6-all) > 0.01 || math.Abs(float64(m.Rest.High)/1e6-rest) > 0.01 || m.Rest.Low != m.Rest.High {
			t.Fatalf("member %d has %+v, want %v with %v besides", incarnation, m, all, rest)
		}
	}
	want(2, 150, 50)
	// The new owner reports an older epoch, and the old one too: neither counts.
	b.Report(1, 2, epoch(1), 1, now)
	b.Report(1, 1, epoch(1), 500, now)
	wantPair(t, b, 1, now, 100, 100)
	want(2, 150, 50)
	// The old one says that it is gone, and that it has less.
	b.Gone(1, 1, now)
	b.Total(1, 50, 0, now)
	want(1, 50, 50)
	// The new one covers it.
	b.Report(1, 2, epoch(2), 80, now)
	b.Total(2, 130, 0, now)
	want(2, 130, 50)
	// For a while only the slow average counts.
	wantPair(t, b, 1, now.Add(15*time.Second), 80+20*math.Exp2(-0.25), 80+20*math.Exp2(-0.25))
	wantPair(t, b, 1, now.Add(30*time.Second), 80+20*math.Exp2(-3), 80+20*math.Exp2(-0.5))
}

// An owner dies: what it had is known until somebody else reports, and is booked there.
func TestHistoryOutlivesTheOwner(t *testing.T) {
	b := newBook()
	b.ForgetMember(1)
	now := start.Add(time.Minute)
	wantPair(t, b, 1, now, 100, 100)
	b.Follow(1, epoch(2), owned(3), now)
	if m := b.Member(3, now); m.Now != 100*load.One {
		t.Errorf("the next owner has %v", m.Now)
	}
	b.ForgetMember(3)
	b.Follow(1, epoch(3), owned(4), now)
	if m := b.Member(4, now); m.Now != 100*load.One {
		t.Errorf("the one after that has %v", m.Now)
	}
}

// Owners of a shared region each tell their part.
func TestSharedRegionsAreSums(t *testing.T) {
	b := load.NewBook(10)
	b.Follow(1, epoch(1), owned(1, 2), start)
	b.Report(1, 1, epoch(1), 30, start)
	b.Report(1, 2, epoch(1), 50, start)
	wantPair(t, b, 1, start.Add(time.Hour), 80, 80)
	now := start.Add(time.Hour)
	b.Follow(1, epoch(2), owned(2), now)
	wantPair(t, b, 1, now.Add(time.Hour), 50, 50)
}

// No region has more than its member has in all.
func TestRegionsAreWithinTheTotal(t *testing.T) {
	b := newBook()
	b.Total(1, 40, 0, start)
	wantPair(t, b, 1, start, 40, 40)
	b.Total(1, 140, 0, start)
	wantPair(t, b, 1, start, 100, 100)
}

func TestSplitAndMergeKeepTheSum(t *testing.T) {
	b := newBook()
	b.Split(1, 2, 300, start)
	wantPair(t, b, 1, start, 70, 70)
	wantPair(t, b, 2, start, 30, 30)
	if m := b.Member(1, start); m.Now != 100*load.One {
		t.Errorf("the owner has %v", m.Now)
	}
	b.Report(2, 1, epoch(1), 35, start)
	b.Merge(1, 2, start)
	if _, known := b.Region(2, start); known || b.Len() != 1 {
		t.Error("the region that is gone is known")
	}
	wantPair(t, b, 1, start.Add(time.Hour), 105, 105)
	if m := b.Member(1, start); m.Now != 105*load.One {
		t.Errorf("the owner has %v", m.Now)
	}
}

// Whatever happens, what members have is what their regions have.
func TestNothingIsCountedTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := load.NewBook(8)
		conf, now := uint64(1), start
		owners := map[state.RegionID]uint64{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			id, who := state.RegionID(rapid.IntRange(1, 10).Draw(t, "region")), uint64(rapid.IntRange(1, 3).Draw(t, "member"))
			now = now.Add(time.Second)
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				conf++
				b.Follow(id, epoch(conf), owned(who), now)
				owners[id] = who
			case 1, 2:
				b.Report(id, who, epoch(conf), float64(rapid.IntRange(0, 9).Draw(t, "load")), now)
			case 3:
				b.Gone(id, who, now)
			case 4:
				b.Forget(id, now)
				delete(owners, id)
			}
		}
		now = now.Add(10 * time.Hour)
		sums := map[uint64]load.Amount{}
		for id, who := range owners {
			for other := range uint64(4) {
				if other != who {
					b.Gone(id, other, now)
				}
			}
			p, _ := b.Region(id, now)
			sums[who] += p.High
		}
		for who := range uint64(4) {
			if got := b.Member(who, now).Now; got != sums[who] {
				t.Fatalf("member %d has %v, its regions %v", who, got, sums[who])
			}
		}
	})
}

// More regions than there is room for are not known, and counted; each takes few bytes.
func TestMemoryIsBounded(t *testing.T) {
	const n = 100_000
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	b := load.NewBook(n)
	for i := range state.RegionID(n + 10) {
		owners := owned(uint64(i % 100))
		b.Follow(i, epoch(1), owners, start)
		b.Report(i, owners[0].Incarnation, epoch(1), 1, start)
	}
	if b.Len() != n || b.Counters().Unbooked != 10 {
		t.Errorf("%d regions, %d without room", b.Len(), b.Counters().Unbooked)
	}
	if each := (heap() - before) / n; each > 160 {
		t.Errorf("%d bytes a region", each)
	} else {
		t.Logf("%d bytes a region", each)
	}
	runtime.KeepAlive(b)
}

// However many regions a member says are as hot as can be, the sums stay sums.
func TestSumsOfHugeLoadsStaySums(t *testing.T) {
	const regions = 1 << 14
	b := load.NewBook(regions)
	b.Total(1, 1, 0, start)
	for id := state.RegionID(1); id <= regions; id++ {
		b.Follow(id, epoch(1), owned(1), start)
		b.Report(id, 1, epoch(1), 1e300, start)
	}
	m := b.Member(1, start.Add(time.Minute))
	if m.Now < load.Most || m.Rest.Low < 0 || m.Rest.High > load.One {
		t.Errorf("%+v", m)
	}
	for id := state.RegionID(1); id <= regions; id++ { // all of them go to somebody who has nothing else
		b.Follow(id, epoch(2), owned(2), start)
	}
	if m := b.Member(2, start.Add(time.Minute)); m.Now < load.Most {
		t.Errorf("booked: %+v", m)
	}
	for id := state.RegionID(1); id <= regions; id++ {
		b.Forget(id, start.Add(time.Minute))
	}
	for _, incarnation := range []uint64{1, 2} {
		if m := b.Member(incarnation, start.Add(2*time.Minute)); m.Now > load.One {
			t.Errorf("with nothing, member %d has %+v", incarnation, m)
		}
	}
}
