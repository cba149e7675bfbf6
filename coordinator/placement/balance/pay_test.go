package balance_test

import (
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

// spending is what plans of an hour cost, by rounds of half a minute and in all, in parts of all
// load and of all regions.
type spending struct {
	*world
	round, hour [2]float64
	last        map[state.RegionID]clock.Instant
	began       clock.Instant
	worst       float64
}

// spend has a plan each five seconds for an hour, of which all is done, and fails for a region
// that is moved again too soon.
func spend(w *world) *spending {
	s := &spending{world: w, last: map[state.RegionID]clock.Instant{}}
	for range int(time.Hour / (5 * time.Second)) {
		total, n := 0.0, float64(len(w.regions))
		for _, r := range w.regions {
			total += r.load
		}
		if w.now.Sub(s.began) >= 30*time.Second {
			s.round, s.began = [2]float64{}, w.now
		}
		for _, step := range w.plan().Steps {
			if step.Round == balance.Constrain {
				continue
			}
			if last, moved := s.last[step.Region]; moved && w.now.Sub(last) < 2*time.Minute {
				w.Fatalf("region %d again after %v: %+v", step.Region, w.now.Sub(last), step)
			}
			s.last[step.Region] = w.now
			for i, part := range [2]float64{float64(step.Load) / float64(load.One) / total, 1 / n} {
				s.round[i] += part
				s.hour[i] += part
				s.worst = max(s.worst, s.round[i])
			}
		}
		w.tick(5 * time.Second)
	}
	return s
}

// Whatever the reason is, but for what has to be: a round moves a part of all, an hour half of
// it, and a region that moved is let be.
func TestEverythingPays(t *testing.T) {
	evens := balance.Policy{By: balance.Load, Relative: 1200, Cooldown: 30 * time.Second}
	for name, c := range map[string]struct {
		world func(t *testing.T, p balance.Policy) *world
		// round is what a round may move, of all.
		round float64
		least int
	}{
		"relieving a member": {func(t *testing.T, p balance.Policy) *world {
			w := newWorld(t, p)
			w.join(10)
			w.own(w.members[0], times(300, 1)...)
			w.spread(ones(10))
			return w
		}, 0.05, 100},
		"three members get nine more": {func(t *testing.T, p balance.Policy) *world {
			w := newWorld(t, p)
			w.join(3)
			w.spread(ones(240))
			w.join(9)
			return w
		}, 0.09, 100},
		"ten of twenty were restarted": {func(t *testing.T, p balance.Policy) *world {
			w := newWorld(t, p)
			w.join(10)
			w.spread(ones(2000))
			w.join(10, func(m *member) { m.joined = w.now.Add(20 * time.Minute) })
			return w
		}, 0.05, 900},
		"more regions than the limit": {func(t *testing.T, p balance.Policy) *world {
			p.By, p.Absolute, p.Relative = balance.Count, 30, 0
			w := newWorld(t, p)
			w.join(10)
			w.own(w.members[0], times(250, 1)...)
			w.spread(ones(10))
			return w
		}, 0.1, 100},
		"more load than a member can take": {func(t *testing.T, p balance.Policy) *world {
			p.Relative = 0
			w := newWorld(t, p)
			w.join(10, func(m *member) { m.most = 30 })
			w.own(w.members[0], times(250, 1)...)
			w.spread(ones(10))
			return w
		}, 0.1, 100},
		"owners of regions that cooled down": {func(t *testing.T, p balance.Policy) *world {
			p.OwnersMax = 2
			w := newWorld(t, p)
			w.join(10)
			w.spread(ones(200))
			for i, r := range w.regions {
				r.owners = append(r.owners, w.members[(i+1)%10])
				r.cool = w.now
				w.follow(r)
			}
			return w
		}, 0.1, 50},
		"saturated regions": {func(t *testing.T, p balance.Policy) *world {
			p.OwnersMax = 2
			w := newWorld(t, p)
			w.join(10)
			w.spread(ones(200))
			for _, r := range w.regions {
				r.saturated = true
			}
			return w
		}, 0.1, 150},
		"cold neighbours": {func(t *testing.T, p balance.Policy) *world {
			p.Ranges = true
			w := newWorld(t, p)
			w.join(4)
			w.own(w.members[0], 20_000)
			for _, m := range w.members {
				w.own(m, times(250, 0.1)...)
			}
			for _, r := range w.regions[1:] {
				r.cool = w.now
			}
			return w
		}, 0.1, 100},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.world(t, evens)
			w.settle()
			s := spend(w)
			if s.worst > c.round*1.02 {
				t.Errorf("a round moved %.3f of all, %.2f may", s.worst, c.round)
			}
			// Nobody loses anything by one owner more; others pay for the hour.
			if most := 0.51; name != "saturated regions" && max(s.hour[0], s.hour[1]) > most {
				t.Errorf("%.2f of the load, %.2f of the regions in an hour", s.hour[0], s.hour[1])
			}
			if len(w.steps) < c.least {
				t.Errorf("%d steps in an hour, want %d: %+v", len(w.steps), c.least, w.last.Refusals)
			}
		})
	}
}

// Members whose load is just what they can take, a little more and a little less in turn, pass
// nothing to and fro.
func TestMembersAtTheirLimitPassNothingToAndFro(t *testing.T) {
	p := byLoad
	p.Relative, p.Cooldown = 0, 30*time.Second
	w := newWorld(t, p)
	w.join(6, func(m *member) { m.most = 40 })
	w.spread(times(240, 1))
	w.shape = func(r *region, now clock.Instant) float64 {
		if (int64(now)/int64(3*time.Minute)+int64(r.id%6))%2 == 0 {
			return 1.02
		}
		return 0.97
	}
	w.settle()
	w.run(2*time.Hour, 5*time.Second)
	if len(w.steps) > 0 {
		t.Errorf("%d moves: %+v", len(w.steps), w.steps[0])
	}
}

// One that has more than it can take gets rid of it, down to a little less than that, where there is
// room.
func TestTooMuchLoadGoesWhereThereIsRoom(t *testing.T) {
	p := byLoad
	p.Relative, p.Cooldown = 0, 30*time.Second
	w := newWorld(t, p)
	w.join(3, func(m *member) { m.most = 100 })
	w.own(w.members[0], times(105, 1)...)
	w.own(w.members[1], times(89, 1)...)
	w.own(w.members[2], times(85, 1)...)
	w.settle()
	w.run(20*time.Minute, 5*time.Second)
	if got := w.loads(); got[0] > 100 || got[1] > 90 || got[2] > 90 {
		t.Errorf("they have %v", got)
	}
}

// Only neighbours of one member become one, and a member keeps 32 regions.
func TestMergesStayOnOneMember(t *testing.T) {
	p := byLoad
	p.Ranges, p.Cooldown = true, time.Second
	w := newWorld(t, p)
	w.join(3)
	w.own(w.members[0], 4000) // what the others have is cold beside it
	w.own(w.members[0], times(60, 0.1)...)
	for i := range 120 {
		w.own(w.members[1+i%2], 0.1)
	}
	w.settle()
	for _, r := range w.regions[1:] {
		r.cool = w.now.Add(-time.Hour)
	}
	for range 4 {
		w.run(time.Hour, 5*time.Second)
	}
	merged := 0
	for _, s := range w.steps {
		switch s.Kind {
		case balance.Merge:
			merged++
		default:
			t.Errorf("%+v", s)
		}
	}
	if got := w.counts(); got[0] != 32 || got[1] != 60 || got[2] != 60 || merged != 29 {
		t.Errorf("behind %d merges they have %v, want 32, and 60 and 60 that have no neighbours", merged, got)
	}
}

// What is booked is what may come to the target, by the higher one of the two averages.
func TestBookedAtTheHigherAverage(t *testing.T) {
	in := having(times(85, 1), times(5, 1), times(5, 1))
	for i := range in.Regions {
		in.Regions[i].Load.High = 3 * load.One
	}
	out := balance.Make(in)
	if len(out.Steps) != 3 { // a twentieth of 190 is nine and a half
		t.Errorf("%d moves of 3 each, of 190 in all", len(out.Steps))
	}
	for _, s := range out.Steps {
		if s.Load != 3*load.One {
			t.Errorf("%+v", s)
		}
	}
}

// A keyspace that is new has nothing to lose: who joins it gets its part, however much that is.
func TestMembersThatJoinANewKeyspaceGetTheirPart(t *testing.T) {
	for _, young := range []bool{true, false} {
		in := owned(balance.Policy{By: balance.Count, InFlight: 1000}, 120, 0, 0, 0)
		in.Young = young
		moved := 0
		for range 10 {
			out := balance.Make(in)
			in.Budget, in.Now = out.Budget, in.Now.Add(3*time.Minute)
			for _, s := range out.Steps {
				moved++
				in.Regions[s.Region-1].Owners = []state.Owner{{Member: s.To, Incarnation: 1}}
			}
		}
		if want := map[bool]int{true: 90, false: 61}[young]; moved != want {
			t.Errorf("young %v: %d of 120 move, want %d", young, moved, want)
		}
	}
}
