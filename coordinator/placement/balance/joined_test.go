package balance_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
)

// A member that has had its part is a newcomer no more: when hot keys change, what moves to
// it counts against the budget, as with anybody else.
func TestR08WhoHadItsPartIsNoNewcomer(t *testing.T) {
	p := byLoad
	p.Cooldown = time.Minute
	w := newWorld(t, p)
	w.join(3)
	w.spread(ones(120))
	w.settle()
	w.join(1, func(m *member) { m.joined = w.now })
	w.report()
	w.run(4*time.Minute, time.Second)
	if w.steps = nil; w.counts()[3] < 28 {
		t.Fatalf("the newcomer did not get its part: %v", w.counts())
	}
	w.regions[0].load = 200 // of a member that was there before
	w.run(30*time.Second, time.Second)
	filled := 0
	for _, s := range w.steps {
		if s.Round == balance.Fill {
			filled++
		}
	}
	if filled > 0 {
		t.Errorf("%d of 120 regions move to who had its part, and %d in all: %v", filled, len(w.steps), w.counts())
	}
}

// Who gets nothing for a while after it recovered, or joined, is named with the time when it
// does.
func TestC28WhoRestsIsRefused(t *testing.T) {
	for _, p := range []balance.Policy{byCount, byLoad} {
		p.Settle = time.Minute
		w := newWorld(t, p)
		w.join(2)
		w.spread(ones(40))
		w.settle()
		w.join(1, func(m *member) { m.joined = w.now })
		w.join(1, func(m *member) { m.rests = w.now.Add(2 * time.Minute) })
		w.report()
		out := w.plan()
		want := []balance.Refusal{
			{Member: "m0002", Why: balance.Joined, At: w.now.Add(time.Minute)}, {Member: "m0003", Why: balance.Recovered, At: w.now.Add(2 * time.Minute)},
		}
		if len(out.Steps) != 0 || !slices.Contains(out.Refusals, want[0]) || !slices.Contains(out.Refusals, want[1]) {
			t.Errorf("%v, and refused %+v, want %+v", out.Steps, out.Refusals, want)
		}
		w.now = w.now.Add(3 * time.Minute)
		w.report()
		if out := w.plan(); slices.ContainsFunc(out.Refusals, func(f balance.Refusal) bool { return f.Why == balance.Joined || f.Why == balance.Recovered }) || len(out.Steps) == 0 {
			t.Errorf("behind that %v, and refused %+v", out.Steps, out.Refusals)
		}
	}
}

// A member that has nothing, and of which nobody knows when it joined, gets all of its part
// and not only as much as moves at a time; also when the holder changes in between.
func TestR08WhoHadNothingGetsItsWholePart(t *testing.T) {
	for _, p := range []balance.Policy{{By: balance.Count}, {By: balance.Load}} {
		for _, forgets := range []bool{false, true} {
			w := newWorld(t, p)
			w.join(3)
			w.spread(ones(384))
			w.settle()
			w.join(1)
			w.report()
			for range 60 {
				w.run(time.Second, time.Second)
				if forgets {
					w.budget = balance.Budget{}
				}
			}
			want := 96
			if forgets {
				want = 80 // enough: it has three quarters of its part
			}
			if got := w.counts(); got[3] != want || len(w.steps) != want {
				t.Errorf("by load %v, the holder changes %v: %v after %d moves", p.By == balance.Load, forgets, got, len(w.steps))
			}
		}
	}
}

// A member lacks its part while every region that it could have rests: it is named, with when
// the first of them may move again, and gets it behind that.
func TestC54WhoWaitsForRegionsThatRestIsNamed(t *testing.T) {
	w := newWorld(t, byCount)
	w.join(2)
	w.spread(ones(12))
	w.settle()
	w.join(1)
	w.report()
	var moved []balance.Past
	for i, r := range w.regions {
		moved = append(moved, balance.Past{Region: r.id, At: w.now.Add(-time.Duration(i+1) * time.Second), Round: balance.Shed, Failed: true})
	}
	spacing := 2 * time.Minute
	w.policy.Backoff = spacing
	w.budget = balance.Recall(moved, 0, 12, w.policy, w.now)
	out := w.plan()
	if want := (balance.Refusal{Member: "m0002", Why: balance.Resting, At: w.now.Add(spacing - 12*time.Second)}); len(out.Steps) != 0 || !slices.Contains(out.Refusals, want) {
		t.Errorf("%v, and refused %+v, want %+v", out.Steps, out.Refusals, want)
	}
	w.now = w.now.Add(spacing)
	w.report()
	if out = w.plan(); len(out.Steps) != 4 || len(out.Refusals) > 0 {
		t.Errorf("behind that %v, and refused %+v, want 4 steps", out.Steps, out.Refusals)
	}
}
