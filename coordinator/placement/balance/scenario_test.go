package balance_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/internal/clock"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func ones(n int) []float64 { return slices.Repeat([]float64{1}, n) }

var (
	byCount = balance.Policy{By: balance.Count, Relative: 1200}
	byLoad  = balance.Policy{By: balance.Load, Relative: 1200}
)

// Of 128 regions 32 move when a fourth member joins three, and each has 32.
func TestR08Scenario01JoinMovesTheFairPart(t *testing.T) {
	for _, p := range []balance.Policy{byCount, byLoad} {
		w := newWorld(t, p)
		w.join(3)
		w.spread(ones(128))
		w.settle()
		w.join(1, func(m *member) { m.joined = w.now })
		w.report()
		w.run(30*time.Second, time.Second)
		if got := w.counts(); !slices.Equal(got, []int{32, 32, 32, 32}) {
			t.Errorf("the members have %v", got)
		}
		if len(w.steps) != 32 {
			t.Errorf("%d moves", len(w.steps))
		}
	}
}

func TestScenario02AnyOrderSameBytes(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(20)
	w.spread(w.zipf(2000, 0.8, 2000))
	w.join(2)
	w.settle()
	in := w.input()
	want := fmt.Sprintf("%+v", balance.Make(in))
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 0))
		random.Shuffle(len(in.Members), func(i, j int) { in.Members[i], in.Members[j] = in.Members[j], in.Members[i] })
		random.Shuffle(len(in.Regions), func(i, j int) { in.Regions[i], in.Regions[j] = in.Regions[j], in.Regions[i] })
		before := slices.Clone(in.Regions)
		if got := fmt.Sprintf("%+v", balance.Make(in)); got != want {
			t.Fatalf("another plan:\n%s\n%s", got, want)
		}
		if !reflect.DeepEqual(before, in.Regions) {
			t.Fatal("the input was changed")
		}
	}
}

// So it is where more breaks a rule than may be moved at a time.
func TestScenario02AnyOrderOfWhatBreaksARule(t *testing.T) {
	p := byLoad
	p.Rules = []balance.Rule{{Prefix: "", Labels: map[string]string{"tier": "a"}}}
	w := newWorld(t, p)
	w.join(2, func(m *member) { m.labels = map[string]string{"tier": "a"} })
	w.join(2)
	w.spread(ones(200))
	w.settle()
	in := w.input()
	want := fmt.Sprintf("%+v", balance.Make(in))
	for seed := range uint64(5) {
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(in.Regions), func(i, j int) { in.Regions[i], in.Regions[j] = in.Regions[j], in.Regions[i] })
		if got := fmt.Sprintf("%+v", balance.Make(in)); got != want {
			t.Fatalf("another plan:\n%s\n%s", got, want)
		}
	}
}

// 600 on one of two with a limit of 500: 100 move, a tenth of all in a round; later rounds go on
// to 1.1.
func TestC27C65Scenario03AbsoluteLimitFirst(t *testing.T) {
	for _, inFlight := range []int{0, 1000} {
		p := byCount
		p.Absolute, p.InFlight, p.Cooldown, p.Gap = 500, inFlight, time.Minute, 50
		w := newWorld(t, p)
		w.join(2)
		w.members[1].rests = 0
		w.own(w.members[0], ones(600)...)
		w.own(w.members[1], 1)
		w.settle()
		limits, begun := 0, w.now
		for range 100 {
			out := w.plan()
			if len(out.Steps) > 0 && out.Steps[0].Reason != rootv1.OperationReason_OPERATION_REASON_LIMIT {
				break
			}
			limits += len(out.Steps)
			if w.tick(2 * time.Second); w.now.Sub(begun) < time.Minute && limits > 60 {
				t.Fatalf("%d move in a round because of the limit", limits)
			}
		}
		if limits != 100 {
			t.Errorf("%d move because of the limit", limits)
		}
		w.run(2*time.Hour, 30*time.Second)
		if got := w.counts(); got[0] < 320 || got[0] > 331 {
			t.Errorf("in the end they have %v", got)
		}
	}
}

// The fullest has 1.2 of the mean at most, after three rounds, and little more has moved than had to.
func TestScenario04Zipf06(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(100)
	w.spread(w.zipf(10_000, 0.6, 10_000))
	w.settle()
	excess, was := w.excess(), w.worst()
	for range 3 {
		w.round()
	}
	t.Logf("%.3f -> %.3f of the mean, moved %.0f, excess %.0f, %d moves", was, w.worst(), w.moved, excess, len(w.steps))
	if w.worst() > 1.2 {
		t.Errorf("the fullest has %.3f of the mean", w.worst())
	}
	if w.moved > 1.2*excess {
		t.Errorf("%.0f moved, %.0f had to", w.moved, excess)
	}
}

// Where regions are hotter than what members have on average, only those are over that are alone.
func TestScenario05Zipf09(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(100)
	w.spread(w.zipf(10_000, 0.9, 10_000))
	w.settle()
	for range 12 {
		w.round()
	}
	w.onlyAloneAreOver(12)
	t.Logf("%.3f of the mean, moved %.0f in %d moves", w.worst(), w.moved, len(w.steps))
}

func (w *world) onlyAloneAreOver(rounds int) {
	w.Helper()
	counts := w.counts()
	loads := w.loads()
	mean := 0.0
	for _, l := range loads {
		mean += l / float64(len(loads))
	}
	for i, l := range loads {
		hot := 0.0
		for _, r := range w.regions {
			if r.owners[0] == w.members[i] {
				hot = max(hot, r.load)
			}
		}
		if l > 1.2*mean && l-hot > 0.02*mean {
			w.Errorf("after %d rounds %s has %.2f of the mean with %d regions", rounds, w.members[i].id, l/mean, counts[i])
		}
	}
}

func TestScenario06HotKeysPermuted(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(100)
	w.spread(w.zipf(10_000, 0.6, 10_000))
	w.settle()
	for range 3 {
		w.round()
	}
	loads := w.zipf(10_000, 0.6, 10_000)
	for i, r := range w.regions {
		r.load = loads[i]
	}
	w.settle()
	was := w.worst()
	w.moved = 0
	for range 3 {
		w.round()
	}
	t.Logf("%.3f -> %.3f of the mean, moved %.0f", was, w.worst(), w.moved)
	if w.worst() > 1.2 {
		t.Errorf("the fullest has %.3f of the mean", w.worst())
	}
}

func TestScenario07Capacities(t *testing.T) {
	for _, p := range []balance.Policy{byCount, byLoad} {
		w := newWorld(t, p)
		for i := range 12 {
			w.join(1, func(m *member) { m.capacity = 1 << (i % 3) })
		}
		w.spread(ones(1200))
		w.settle()
		for range 20 {
			w.round()
		}
		if w.worst() > 1.2 {
			t.Errorf("by %d the fullest has %.3f of its part: %v", p.By, w.worst(), w.counts())
		}
	}
}

func TestScenario08SpikeMovesNothing(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(10)
	w.spread(ones(200))
	w.settle()
	from := w.now
	w.shape = func(r *region, now clock.Instant) float64 {
		if r.id == 7 && now > from.Add(60*time.Second) && now <= from.Add(65*time.Second) {
			return 20
		}
		return 1
	}
	w.run(5*time.Minute, time.Second)
	if len(w.steps) != 0 {
		t.Errorf("%d moves: %+v", len(w.steps), w.steps[0])
	}
}

// A square wave of half of the members' regions with the period of a round.
func TestScenario09SquareWave(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(10)
	w.spread(ones(200))
	w.settle()
	w.shape = func(r *region, now clock.Instant) float64 {
		up := int64(now)/int64(15*time.Second)%2 == 0
		if (r.id%10 < 5) == up {
			return 1.3
		}
		return 0.7
	}
	w.run(time.Hour, 30*time.Second)
	for _, r := range w.regions {
		for i := 1; i < len(r.moved); i++ {
			if r.moved[i].Sub(r.moved[i-1]) < 10*time.Minute {
				t.Fatalf("region %d moved again after %v", r.id, r.moved[i].Sub(r.moved[i-1]))
			}
		}
	}
	t.Logf("%d moves", len(w.steps))
}

func TestScenario10NoiseMovesNothing(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(10)
	w.spread(ones(200))
	w.settle()
	w.shape = func(*region, clock.Instant) float64 { return 0.85 + 0.3*w.random.Float64() }
	w.run(time.Hour, 10*time.Second)
	if len(w.steps) != 0 {
		t.Errorf("%d moves", len(w.steps))
	}
}

func TestScenario11IdleMembersOutside(t *testing.T) {
	p := byLoad
	p.Rules = []balance.Rule{{Prefix: "", Labels: map[string]string{"tier": "data"}}}
	w := newWorld(t, p)
	w.join(10, func(m *member) { m.labels = map[string]string{"tier": "data"} })
	w.spread(w.zipf(500, 0.7, 500))
	w.settle()
	want := balance.Make(w.input())
	if len(want.Steps) == 0 {
		t.Fatal("there is nothing to even out")
	}
	w.join(30, func(m *member) { m.labels = map[string]string{"tier": "cache"} })
	w.report()
	got := balance.Make(w.input())
	if !reflect.DeepEqual(got, want) {
		t.Errorf("with idle members the plan is %+v, without it is %+v", got, want)
	}
}

func TestScenario12OneTinyLoad(t *testing.T) {
	for _, most := range []float64{0, 100} {
		w := newWorld(t, byLoad)
		w.join(10, func(m *member) { m.most = most })
		w.spread(slices.Repeat([]float64{0}, 100))
		w.regions[3].load = 0.01
		w.settle()
		w.run(10*time.Minute, 10*time.Second)
		if len(w.steps) != 0 {
			t.Errorf("capacity %v: %d moves", most, len(w.steps))
		}
	}
}

func TestScenario13TwoHotOnesAreParted(t *testing.T) {
	for _, n := range []int{6, 40} {
		w := newWorld(t, byLoad)
		w.join(n)
		w.own(w.members[0], 0.9, 0.9)
		for _, m := range w.members[1:] {
			w.own(m, slices.Repeat([]float64{0.1}, 10)...)
		}
		w.settle()
		for range 6 {
			w.round()
		}
		if w.regions[0].owners[0] == w.regions[1].owners[0] {
			t.Errorf("of %d members, one still has both: %+v", n, w.last.Refusals)
		}
		if w.worst() > 1.2 {
			t.Errorf("of %d members, the fullest has %.2f of the mean: %+v", n, w.worst(), w.last.Refusals)
		}
	}
}

func TestScenario14SilentMembersAreLetBe(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(10)
	w.spread(w.zipf(500, 0.7, 500))
	w.settle()
	for _, m := range w.members[:3] {
		m.silent = true
	}
	for range 5 {
		w.round()
	}
	if len(w.steps) == 0 {
		t.Fatal("nothing moves")
	}
	for _, s := range w.steps {
		if w.find(s.From).silent || w.find(s.To).silent {
			t.Errorf("%+v", s)
		}
	}
}

func TestScenario15FirstReport(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(4)
	w.spread(ones(100))
	w.frames = false
	for _, r := range w.regions {
		r.quiet = true
	}
	w.settle()
	if out := w.plan(); len(out.Steps) != 0 || !out.ByCount {
		t.Errorf("without loads: %+v", out)
	}
	w.regions[4].quiet, w.regions[4].load = false, 50
	w.settle()
	if out := w.plan(); len(out.Steps) != 0 || len(out.Refusals) != 1 || out.Refusals[0].Why != balance.LoadUnknown {
		t.Errorf("with one load: %+v", out)
	}
}

// Where every region's load is nothing, regions are counted.
func TestP46NoLoadAtAllIsCounted(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(3)
	w.spread(slices.Repeat([]float64{0}, 30))
	w.settle()
	w.join(2, func(m *member) { m.joined = w.now })
	w.report()
	w.run(10*time.Second, time.Second)
	if got := w.counts(); !slices.Equal(got, []int{6, 6, 6, 6, 6}) {
		t.Errorf("they have %v", got)
	}
}

// A rule nobody satisfies: the owner is kept, and it is said.
func TestP55Scenario20RuleNobodySatisfies(t *testing.T) {
	w := newWorld(t, byCount)
	w.join(4)
	w.spread(ones(40))
	w.policy.Rules = []balance.Rule{{Prefix: "000000", Labels: map[string]string{"tier": "gold"}}}
	w.settle()
	out := w.plan()
	if len(out.Steps) != 0 || len(out.Refusals) == 0 || out.Refusals[0].Why != balance.NoneMatches {
		t.Fatalf("the plan is %+v", out)
	}
	n := 0
	for _, f := range out.Refusals {
		n += f.Regions
	}
	if n != 10 {
		t.Errorf("%d regions are refused, want 10: %+v", n, out.Refusals)
	}
	w.members[2].labels = map[string]string{"tier": "gold"}
	for range 5 {
		w.round()
	}
	for _, r := range w.regions[:10] {
		if r.owners[0] != w.members[2] {
			t.Errorf("region %d is %s's", r.id, r.owners[0].id)
		}
	}
}

func TestScenario21HotRange(t *testing.T) {
	p := byLoad
	p.Ranges = true
	w := newWorld(t, p)
	w.join(4)
	for i, n := range []int{10, 10, 10, 6} {
		w.own(w.members[i], ones(n)...)
	}
	w.regions[0].load, w.regions[0].median = 3, "0000000m"
	w.settle()
	w.plan()
	w.settle()
	if len(w.steps) != 1 || w.steps[0].Kind != balance.Split || w.steps[0].Key != "0000000m" {
		t.Fatalf("the first round is %+v", w.steps)
	}
	for range 3 {
		w.round()
	}
	if len(w.steps) != 2 || w.steps[1].Kind != balance.Move || w.steps[1].Load < 1_490_000 {
		t.Fatalf("the steps are %+v, want a move then; %v", w.steps, w.loads())
	}

	w = newWorld(t, p)
	w.join(4)
	for _, m := range w.members {
		w.own(m, ones(10)...)
	}
	hot := w.regions[0]
	hot.load, hot.median, hot.hot, hot.permille = 15, "0000000m", "0000000k", 800
	w.settle()
	for range 4 {
		w.round()
	}
	if w.steps[0].Kind != balance.Split || w.steps[0].Key != "0000000k" || w.steps[1].Kind != balance.Split || w.steps[1].Key != "0000000k\x00" {
		t.Fatalf("the steps are %+v", w.steps)
	}
	i := slices.IndexFunc(w.regions, func(r *region) bool { return r.start == "0000000k" })
	if got := w.regions[i]; got.end != "0000000k\x00" {
		t.Errorf("the hot key is in [%q, %q)", got.start, got.end)
	}
}

// One owner more when one is saturated, one less after it cooled, never less than the least.
func TestP50P51Scenario22SaturatedAndCool(t *testing.T) {
	p := byLoad
	p.OwnersMax = 3
	w := newWorld(t, p)
	w.join(4)
	w.spread(ones(8))
	w.settle()
	r := w.regions[0]
	r.saturated = true
	w.plan()
	w.plan() // it is under way
	if len(w.steps) != 1 || w.steps[0].Kind != balance.Add || w.steps[0].Region != r.id {
		t.Fatalf("the steps are %+v", w.steps)
	}
	w.tick(2 * time.Second)
	r.saturated, r.cool = false, w.now
	w.run(9*time.Minute, 10*time.Second)
	if len(w.steps) != 1 {
		t.Fatalf("the steps are %+v", w.steps)
	}
	w.run(30*time.Minute, 10*time.Second)
	if len(w.steps) != 2 || w.steps[1].Kind != balance.Remove || len(r.owners) != 1 {
		t.Fatalf("the steps are %+v", w.steps)
	}
}

// Quarantined regions stay where they are, visibly.
func TestScenario23QuarantinedStay(t *testing.T) {
	w := newWorld(t, byLoad)
	w.join(4)
	w.own(w.members[0], ones(40)...)
	w.settle()
	in := w.input()
	in.Regions[5].Quarantined = true
	out := balance.Make(in)
	i := slices.IndexFunc(out.Refusals, func(f balance.Refusal) bool { return f.Why == balance.PoisonSuspected })
	if i < 0 || out.Refusals[i].Region != 6 || len(out.Steps) == 0 {
		t.Fatalf("the plan is %+v", out)
	}
	for _, s := range out.Steps {
		if s.Region == 6 {
			t.Errorf("%+v", s)
		}
	}
}

// A planner that knows nothing of the one before goes on where that one was.
func TestScenario24NextHolderGoesOn(t *testing.T) {
	w := newWorld(t, byLoad)
	w.takes = 20 * time.Second
	w.join(8)
	w.spread(w.zipf(400, 0.8, 400))
	w.join(2, func(m *member) { m.joined = w.now })
	w.settle()
	out := w.plan()
	for _, s := range w.steps[len(w.steps)/2:] { // it dies before it has rooted these
		r := w.region(s.Region)
		r.from, r.to, r.moved = nil, nil, nil
	}
	if len(out.Steps) < 4 {
		t.Fatalf("the plan is %+v", out)
	}
	w.budget = balance.Budget{}
	w.run(10*time.Minute, 5*time.Second)
	for _, r := range w.regions {
		if len(r.moved) > 1 {
			t.Errorf("region %d moved %d times", r.id, len(r.moved))
		}
	}
	if w.worst() > 1.2 {
		t.Errorf("in the end it is %.2f", w.worst())
	}
}

// Both have to hold before one gives because it has more than others: it has more than its
// share of the mean, and more than the gap above who would take.
func TestC28MoreThanTheMeanAndTheGap(t *testing.T) {
	p := byCount
	p.Gap = 50
	for _, c := range []struct {
		has, other int
		moves      bool
	}{
		{40, 5, false},    // 1.8 of the mean, and 35 more
		{300, 240, false}, // 60 more, and 1.1 of the mean
		{51, 1, false},    // just the gap
		{130, 60, true},   // 1.4 of the mean, and 70 more
	} {
		w := newWorld(t, p)
		w.join(2)
		w.own(w.members[0], ones(c.has)...)
		w.own(w.members[1], ones(c.other)...)
		w.settle()
		if out := w.plan(); len(out.Steps) > 0 != c.moves {
			t.Errorf("of %d and %d the plan is %+v", c.has, c.other, out)
		}
	}
}

// Who is given a hot region keeps what it has, where that is better already: to pass it on to who has
// more would have it come back.
func TestWhatAnExchangeDoesNotNeedStays(t *testing.T) {
	p := byLoad
	p.Rules = []balance.Rule{{Prefix: "", Labels: map[string]string{"tier": "a"}}}
	w := newWorld(t, p)
	for i, tier := range []string{"a", "a", "a", "b"} {
		pin := map[string]string{"pin": fmt.Sprint(i)}
		w.policy.Rules = append(w.policy.Rules, balance.Rule{Prefix: fmt.Sprintf("%07d", i), Labels: pin})
		w.join(1, func(m *member) { m.labels = map[string]string{"tier": tier, "pin": fmt.Sprint(i)} })
	}
	for i, pinned := range []float64{60, 30, 50, 1} {
		w.own(w.members[i], pinned)
	}
	w.own(w.members[0], 10)
	w.own(w.members[1], 10)
	w.settle()
	for range 4 {
		w.plan()
		w.now = w.now.Add(w.takes)
		w.end()
		w.settle()
	}
	if got := w.loads(); len(w.steps) != 1 || !slices.Equal(got, []float64{60, 50, 50, 1}) {
		t.Errorf("they have %v after %+v, want one move to who has least", got, w.steps)
	}
}

// Five regions and four, of members that can take more than others can on average: to move one would
// only have them change places.
func TestOneMoreIsLeftAloneWhateverTheCapacity(t *testing.T) {
	p := byCount
	p.Rules = []balance.Rule{{Prefix: "", Labels: map[string]string{"tier": "a"}}, {Prefix: "0000009", Labels: map[string]string{"tier": "b"}}}
	w := newWorld(t, p)
	w.join(2, func(m *member) { m.labels, m.capacity = map[string]string{"tier": "a"}, 3 })
	w.join(2, func(m *member) { m.labels = map[string]string{"tier": "b"} })
	w.members[3].silent = true
	w.own(w.members[0], ones(5)...)
	w.own(w.members[1], ones(4)...)
	w.own(w.members[3], 1)
	w.settle()
	if out := w.plan(); len(out.Steps) != 0 {
		t.Errorf("the plan is %+v", out.Steps)
	}
}

// What is saturated gets one more owner: the coldest of those that have none of it.
func TestP49SaturatedGetsTheColdest(t *testing.T) {
	p := byLoad
	p.OwnersMax = 2
	for coldest := 1; coldest < 5; coldest++ {
		w := newWorld(t, p)
		w.join(5)
		for i, m := range w.members {
			n := 10
			if i == coldest {
				n = 9
			}
			w.own(m, ones(n)...)
		}
		w.settle()
		w.regions[0].saturated = true
		w.plan()
		if len(w.steps) != 1 || w.steps[0].Kind != balance.Add || w.steps[0].To != w.members[coldest].id {
			t.Errorf("the steps are %+v, want one more owner, %s", w.steps, w.members[coldest].id)
		}
	}
}
