package balance_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
)

// One region says that its load is a thousand million: the other members are as even as without
// it, one that has nothing gets its part, and nothing is joined because all else is small beside it.
func TestOneMadLoadSpoilsNothing(t *testing.T) {
	p := byLoad
	p.Ranges, p.Cooldown = true, 30*time.Second
	w := newWorld(t, p)
	w.join(12)
	w.own(w.members[0], append(times(10, 1), 1e9)...)
	w.own(w.members[1], times(30, 1)...)
	for _, m := range w.members[2:11] {
		w.own(m, times(20, 1)...)
	}
	w.settle()
	for _, r := range w.regions {
		r.cool = w.now.Add(-time.Hour)
	}
	w.run(40*time.Minute, 10*time.Second)
	loads := w.loads()[1:]
	mean := 0.0
	for _, l := range loads {
		mean += l / float64(len(loads))
	}
	if most := slices.Max(loads); most > 1.2*mean || slices.Min(loads) < 0.7*mean {
		t.Errorf("members without it have %v: %.2f of their mean", loads, most/mean)
	}
	for _, s := range w.steps {
		if s.Kind != balance.Move {
			t.Fatalf("%+v", s)
		}
	}
}

// The same where it is a region of another keyspace, of which nobody here knows more than that
// its member says so.
func TestOneMadMemberSpoilsNothing(t *testing.T) {
	in := having(times(10, 1), times(30, 1), times(10, 1), times(10, 1), times(10, 1))
	in.Members[0].Other = load.Same(load.One * 1_000_000_000)
	in.Policy.Round, in.Policy.Hour = 1000, 1000
	out := balance.Make(in)
	if !slices.ContainsFunc(out.Steps, func(s balance.Step) bool { return s.From == "m2" }) {
		in.Members[0].Takes, in.Members[0].Other = false, load.Pair{}
		t.Errorf("m2 keeps three times its part: %+v, and without m1 %+v", out, balance.Make(in))
	}
	if i := slices.IndexFunc(out.Steps, func(s balance.Step) bool { return s.To == "m1" }); i >= 0 {
		t.Errorf("%+v", out.Steps[i])
	}
}

// scaleOf is the scale of what an input has, and of so many regions of which nobody knows the load.
func scaleOf(in balance.Input, unknown int) balance.Scale {
	told := make([]balance.Told, unknown)
	for _, x := range in.Regions {
		told = append(told, balance.Told{Start: x.Start, Load: x.Load, Known: true})
	}
	return balance.ScaleOf(in.Policy, in.Members, len(told), slices.Values(told))
}

// What all weigh is the sum of what each weighs, also where the reserve is most of it.
func TestTotalIsTheSumOfWeights(t *testing.T) {
	for _, by := range []balance.By{balance.Load, balance.Both} {
		in := having(times(5, 1), times(5, 1))
		in.Policy.By = by
		for i := range in.Members {
			in.Members[i].Most = 1000 * load.One
		}
		scale, want := scaleOf(in, 0), load.Amount(0)
		for i := range in.Regions {
			want += scale.Weight(in.Regions[i].Load, true, 1).High
		}
		if out := balance.Make(in); out.Total != want || want < 40*load.One {
			t.Errorf("by %v: the total is %d, the weights are %d together", by, out.Total, want)
		}
	}
}

// A region that three share weighs a third of it on each, and one of which nobody knows the load
// what others weigh.
func TestScaleWeighsSharedAndUnknown(t *testing.T) {
	in := having(times(5, 6), times(5, 6))
	scale := scaleOf(in, 1)
	if got := scale.Weight(load.Same(6*load.One), true, 3); got != load.Same(2*load.One) {
		t.Errorf("a third of 6 is %+v", got)
	}
	if got := scale.Weight(load.Pair{}, false, 1); got != load.Same(6*load.One) {
		t.Errorf("what is not known weighs %+v", got)
	}
}
