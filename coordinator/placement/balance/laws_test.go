package balance_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Whatever members and regions there are: nothing goes where it may not, no more is under way than may be,
// the budget is kept, it comes to rest, and nothing moves to and fro on the way.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := balance.Policy{
			By: balance.By(rapid.IntRange(0, 2).Draw(t, "by")), Relative: 1200,
			Gap: rapid.SampledFrom([]uint64{0, 1, 5}).Draw(t, "gap"), Absolute: rapid.SampledFrom([]int{0, 12}).Draw(t, "absolute"),
			PerMember: rapid.SampledFrom([]int{0, 20}).Draw(t, "limit"), OwnersMax: 2,
			Cooldown: rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "cooldown"),
		}
		if rapid.Bool().Draw(t, "ruled") {
			p.Rules = []balance.Rule{{Prefix: "000000", Labels: map[string]string{"tier": "a"}}, {Prefix: "0000001", Labels: map[string]string{"tier": "b"}}}
			p.Spread = rapid.SampledFrom([]string{"", "zone", "host"}).Draw(t, "spread")
		}
		w := newWorld(t, p)
		for i := range rapid.IntRange(2, 9).Draw(t, "members") {
			w.join(1, func(m *member) {
				m.capacity = rapid.SampledFrom([]uint64{0, 1, 3}).Draw(t, "capacity")
				m.labels = map[string]string{"tier": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tier"), "zone": fmt.Sprint(i % 3), "host": fmt.Sprint(i)}
				m.takes = i < 2 || rapid.IntRange(0, 9).Draw(t, "takes") > 0
				m.silent = i >= 2 && rapid.IntRange(0, 9).Draw(t, "silent") == 0
			})
		}
		for _, m := range w.members {
			for range rapid.IntRange(0, 25).Draw(t, "regions") {
				w.own(m, float64(rapid.SampledFrom([]int{0, 1, 1, 2, 3, 50}).Draw(t, "load")))
			}
		}
		w.settle()
		seen := map[state.RegionID]int{}
		for rest := 0; rest < 4; rest++ {
			out := w.plan()
			w.inBudget(out)
			for _, s := range out.Steps {
				rest = -1
				if seen[s.Region]++; seen[s.Region] > 8 {
					t.Fatalf("region %d moves on and on: %+v; %v", s.Region, w.steps, w.loads())
				}
			}
			w.now = w.now.Add(w.takes)
			w.end()
			w.settle()
		}
	})
}

// inBudget fails for a round that moves more than it may: the budget counts whole millionths of all,
// for each move. One exchange may be more than that.
func (w *world) inBudget(out balance.Result) {
	w.Helper()
	for round, permille := range map[balance.Round]uint64{balance.Shed: 50, balance.Limit: 100, balance.Shape: 100} {
		moved, n := uint64(0), 0
		for _, s := range out.Steps {
			if s.Round == round && s.Reason != rootv1.OperationReason_OPERATION_REASON_HOT {
				moved, n = moved+uint64(s.Load.Share(1_000_000, uint64(out.Total))), n+1
			}
		}
		if n > 1 && (moved > 1000*permille || uint64(1000*n) > permille*uint64(len(w.regions))) {
			w.Fatalf("%d of %d regions, %d millionths of the load move in a round of %v", n, len(w.regions), moved, round)
		}
	}
}

// Nobody has anything to do with what is even: the fewest moves are none.
func TestA38EvenIsLeftAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, balance.Policy{By: balance.By(rapid.IntRange(0, 2).Draw(t, "by")), Relative: 1200})
		w.join(rapid.IntRange(1, 30).Draw(t, "members"))
		w.spread(slices.Repeat([]float64{rapid.SampledFrom([]float64{0, 1, 7}).Draw(t, "load")}, rapid.IntRange(30, 300).Draw(t, "regions")))
		w.settle()
		if out := w.plan(); len(out.Steps) != 0 {
			t.Fatalf("%+v", out.Steps)
		}
	})
}

// A member that joins gets its fair part, and nothing else moves: no fewer moves would do.
func TestFillIsMinimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, byCount)
		n, each := rapid.IntRange(1, 12).Draw(t, "members"), rapid.IntRange(1, 60).Draw(t, "regions")
		w.join(n)
		w.spread(ones(n * each))
		w.settle()
		w.join(1, func(m *member) { m.joined = w.now })
		w.run(90*time.Second, time.Second)
		want := n * each / (n + 1)
		if got := w.counts()[n]; got != want || len(w.steps) != want {
			t.Fatalf("it has %d after %d moves, want %d: %v", got, len(w.steps), want, w.counts())
		}
	})
}

// Days of load in seconds: what is hot, how hot, and who is there changes all the time.
func TestDays(t *testing.T) {
	p := byLoad
	p.Cooldown = time.Minute
	w := newWorld(t, p)
	w.takes, w.fails = 3*time.Second, 20
	w.join(12)
	w.spread(w.zipf(300, 0.5, 300))
	w.settle()
	crowds := map[state.RegionID]bool{}
	w.shape = func(r *region, now clock.Instant) float64 {
		day := 2 * math.Pi * float64(now) / float64(24*time.Hour)
		x := 1 + 0.4*math.Sin(day+float64(r.id%24)/4)
		if crowds[r.id] {
			x *= 8
		}
		return x
	}
	var worst []float64
	const days, frame = 3, 15 * time.Second
	for n := range int(days * 24 * time.Hour / frame) {
		switch w.tick(frame); {
		case n%480 == 0: // another crowd every two hours
			clear(crowds)
			for range 3 {
				crowds[w.regions[w.random.IntN(len(w.regions))].id] = true
			}
		case n%300 == 150: // somebody does not tell
			for _, m := range w.members {
				m.silent = w.random.IntN(10) == 0
			}
		case n%300 == 200:
			for _, m := range w.members {
				m.silent = false
			}
		}
		if n%3 == 0 {
			w.plan()
		}
		if n%30 == 29 {
			worst = append(worst, w.worstNow())
		}
	}
	slices.Sort(worst)
	at := func(p int) float64 { return worst[len(worst)*p/100] }
	perHour := w.moved / 300 / (days * 24)
	t.Logf("imbalance p50 %.2f p90 %.2f p99 %.2f; %.1f%% of the load moved an hour, %d moves, %d plans", at(50), at(90), at(99), 100*perHour, len(w.steps), w.plans)
	if at(50) > 1.25 || at(90) > 1.4 || perHour > 0.1 {
		t.Errorf("imbalance p50 %.2f p90 %.2f p99 %.2f; %.1f%% of the load moved an hour", at(50), at(90), at(99), 100*perHour)
	}
	w.noFlapping()
}

// worstNow is worst with what regions have at the moment.
func (w *world) worstNow() float64 {
	was := make([]float64, len(w.regions))
	for i, r := range w.regions {
		was[i] = r.load
		r.load *= w.shape(r, w.now)
	}
	defer func() {
		for i, r := range w.regions {
			r.load = was[i]
		}
	}()
	return w.worst()
}

// noFlapping fails for a region that moved again too soon.
func (w *world) noFlapping() {
	w.Helper()
	for _, r := range w.regions {
		for i := 1; i < len(r.moved); i++ {
			if d := r.moved[i].Sub(r.moved[i-1]); d < 2*time.Minute {
				w.Errorf("region %d moved again after %v", r.id, d)
			}
		}
	}
}

func benchmark(b *testing.B, members, regions int, p balance.Policy) {
	w := newWorld(b, p)
	w.join(members, func(m *member) { m.labels = map[string]string{"host": string(m.id)} })
	w.spread(w.zipf(regions, 0.7, float64(regions)))
	w.settle()
	in := w.input()
	b.ReportAllocs()
	steps := 0
	for b.Loop() {
		steps = len(balance.Make(in).Steps)
	}
	b.ReportMetric(float64(steps), "steps")
}

// Where every member is in a zone of its own, and every region lacks an owner, forty times the
// members are not forty times the work, nor half of that.
func TestWorkIsNotMembersTimesRegions(t *testing.T) {
	takes := func(members int) time.Duration {
		w := newWorld(t, balance.Policy{By: balance.Count, Relative: 1200, OwnersMin: 2, OwnersMax: 2, Spread: "host", InFlight: 1 << 20})
		w.join(members, func(m *member) { m.labels = map[string]string{"host": string(m.id)} })
		w.spread(ones(20_000))
		in := w.input()
		best := time.Hour
		for range 3 {
			begun := time.Now()
			steps := balance.Make(in).Steps
			if best = min(best, time.Since(begun)); len(steps) != 20_000 {
				t.Fatalf("%d regions get an owner", len(steps))
			}
		}
		return best
	}
	if few, many := takes(100), takes(4000); many > 15*few {
		t.Errorf("100 members take %v, 4000 take %v", few, many)
	}
}

// Twice as many members and regions take twice as much memory to even out.
func TestMemoryIsLinear(t *testing.T) {
	takes := func(members int) uint64 {
		w := newWorld(t, byLoad)
		w.join(members)
		w.spread(w.zipf(100*members, 0.7, 1000))
		w.settle()
		in := w.input()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		steps := len(balance.Make(in).Steps)
		runtime.ReadMemStats(&after)
		if steps == 0 {
			t.Fatal("there is nothing to even out")
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	some, more := takes(50), takes(400)
	if more > 8*some*5/4 {
		t.Errorf("50 members take %d bytes, 400 take %d", some, more)
	}
}

// BenchmarkMake is a full rebalance: 200 ms are its bound for 1,000 members with 100,000
// regions, 2 s for ten times as many.
func BenchmarkMake(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmark(b, n, 100*n, byLoad) })
	}
	host := byLoad
	host.Spread = "host"
	b.Run("1000 zones", func(b *testing.B) { benchmark(b, 1000, 100_000, host) })
}

// Where labels leave too few members for some regions, these stay hot, and what is exchanged between
// them is worth it: it does not go round and round for the sake of a little.
func TestHopelessIsLeftAlone(t *testing.T) {
	p := balance.Policy{By: balance.Both, Relative: 1200, Rules: []balance.Rule{
		{Prefix: "000000", Labels: map[string]string{"tier": "a"}}, {Prefix: "0000001", Labels: map[string]string{"tier": "b"}},
	}}
	most := 0
	for seed := range 200 {
		w := newWorld(t, p)
		w.random = rand.New(rand.NewPCG(uint64(seed), 0))
		for _, tier := range []string{"a", "a", "b", "a", "b", "b", "b"} {
			w.join(1, func(m *member) { m.labels = map[string]string{"tier": tier} })
		}
		w.own(w.members[3], 0)
		for range 9 {
			w.own(w.members[4], float64(w.random.IntN(4)))
		}
		w.settle()
		for range 30 {
			w.plan()
			w.now = w.now.Add(w.takes)
			w.end()
			w.settle()
		}
		most = max(most, len(w.steps))
	}
	if most > 15 {
		t.Errorf("%d moves of 10 regions", most)
	}
}
