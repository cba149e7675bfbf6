package balance_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// having is an input by load in which the members m1, m2 ... have regions of such loads.
func having(loads ...[]float64) balance.Input {
	in := balance.Input{Keyspace: 2, Policy: balance.Policy{By: balance.Load, Even: true, Relative: 1200, Cooldown: time.Minute}, Now: clock.Instant(10 * time.Hour)}
	for i, of := range loads {
		m := balance.Member{ID: state.MemberID(fmt.Sprintf("m%d", i+1)), Incarnation: uint64(i + 1), Capacity: 1, Takes: true, Regions: len(of)}
		in.Members = append(in.Members, m)
		for _, l := range of {
			id := state.RegionID(len(in.Regions) + 1)
			w, _ := load.Read(l)
			in.Regions = append(in.Regions, balance.Region{
				ID: id, Start: fmt.Sprintf("%05d", id), End: fmt.Sprintf("%05d", id+1), Owners: []state.Owner{{Member: m.ID, Incarnation: m.Incarnation}},
				Load: load.Same(w), Known: true,
			})
		}
	}
	return in
}

func times(n int, l float64) []float64 { return slices.Repeat([]float64{l}, n) }

// moves are the steps to even out, of which each goes to one of these members, for a reason.
func moves(t *testing.T, out balance.Result, why rootv1.OperationReason, to ...state.MemberID) []balance.Step {
	t.Helper()
	for _, s := range out.Steps {
		if s.Kind != balance.Move || s.Reason != why || !slices.Contains(to, s.To) {
			t.Errorf("%+v, want moves to %v because of %v", s, to, why)
		}
	}
	if len(out.Steps) == 0 {
		t.Errorf("nothing moves: %+v", out.Refusals)
	}
	return out.Steps
}

// The member with least for its weight has as much load as it can take: the next one gets what
// another one has too much.
func TestShedPassesAMemberThatIsFull(t *testing.T) {
	in := having(times(30, 1), times(5, 1), times(5, 1), times(5, 1))
	in.Members[1].Capacity, in.Members[1].Most = 3, 5*load.One
	moves(t, balance.Make(in), rootv1.OperationReason_OPERATION_REASON_LOAD, "m3", "m4")
}

// Nor is one in the way that can take little because it is small.
func TestShedPassesAMemberThatIsSmall(t *testing.T) {
	in := having(times(15, 2), times(1, 1), times(12, 1))
	in.Members[0].Capacity, in.Members[2].Capacity = 10, 10
	moves(t, balance.Make(in), rootv1.OperationReason_OPERATION_REASON_LOAD, "m3")
}

// How much leaves a member is not measured by one that may have nothing of it.
func TestShedPassesAMemberOutsideOfTheRule(t *testing.T) {
	in := having(times(6, 5), times(2, 5), nil)
	in.Policy.Rules = []balance.Rule{{Labels: map[string]string{"tier": "a"}}}
	for i := range in.Members[:2] {
		in.Members[i].Capacity, in.Members[i].Labels = 10, map[string]string{"tier": "a"}
	}
	moves(t, balance.Make(in), rootv1.OperationReason_OPERATION_REASON_LOAD, "m2")
}

// Heavy regions for which nobody has room, or that nobody else may have, do not hide light ones.
func TestShedTriesLighterOnes(t *testing.T) {
	full := having(append(times(70, 4), times(70, 1)...), times(20, 1), times(20, 1), times(20, 1), times(20, 1))
	for i := range full.Members {
		full.Members[i].Most = 23 * load.One
	}
	full.Members[0].Most = 1000 * load.One
	ruled := having(append(times(70, 4), times(70, 1)...), times(20, 1), times(20, 1), times(20, 1), times(20, 1))
	ruled.Policy.Rules = []balance.Rule{{Prefix: "000", Labels: map[string]string{"tier": "a"}}}
	ruled.Members[0].Labels = map[string]string{"tier": "a"}
	for i := range ruled.Regions {
		if i >= 70 {
			ruled.Regions[i].Start = "1" + ruled.Regions[i].Start
		}
	}
	for name, in := range map[string]balance.Input{"no room": full, "a rule": ruled} {
		t.Run(name, func(t *testing.T) {
			for _, s := range moves(t, balance.Make(in), rootv1.OperationReason_OPERATION_REASON_LOAD, "m2", "m3", "m4", "m5") {
				if s.Load != load.One {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// Where all have more than they can take, they have the same in the end, and then nothing moves.
func TestOverloadedMembersAreEvenedOutByShare(t *testing.T) {
	p := byLoad
	p.Cooldown = 30 * time.Second
	w := newWorld(t, p)
	w.join(10, func(m *member) { m.most = 0.5 })
	for i, m := range w.members {
		w.own(m, times(map[bool]int{true: 16, false: 7}[i < 5], 0.1)...)
	}
	w.settle()
	w.run(30*time.Minute, 10*time.Second)
	if worst := w.worst(); worst > 1.2 {
		t.Errorf("the fullest has %.2f of the mean: %+v", worst, w.last.Refusals)
	}
	w.steps = nil
	w.run(time.Hour, 10*time.Second)
	if len(w.steps) > 0 {
		t.Errorf("%d moves between members that are even", len(w.steps))
	}
}

// What makes room for a hot region goes where there is room itself.
func TestExchangeFindsRoomElsewhere(t *testing.T) {
	in := having(times(2, 10), times(5, 1), times(4, 1), times(6, 1))
	in.Members[2].Most = 5 * load.One
	out := balance.Make(in)
	moves(t, out, rootv1.OperationReason_OPERATION_REASON_HOT, "m2", "m3", "m4")
	if i := slices.IndexFunc(out.Steps, func(s balance.Step) bool { return s.Load == 10*load.One && s.To == "m2" }); i < 0 {
		t.Errorf("the hot region stays: %+v", out.Steps)
	}
}

// What is where it may not be goes where there is room, and where there is none to who has least.
func TestConstraintsPreferRoom(t *testing.T) {
	for _, c := range []struct {
		most load.Amount
		want state.MemberID
	}{{100 * load.One, "m3"}, {4 * load.One, "m2"}} {
		in := having(times(1, 1), times(2, 1), times(4, 1))
		in.Policy.Rules = []balance.Rule{{Labels: map[string]string{"tier": "a"}}}
		for i := range in.Members[1:] {
			in.Members[i+1].Labels = map[string]string{"tier": "a"}
		}
		in.Members[1].Most, in.Members[2].Most = 2*load.One, c.most
		moves(t, balance.Make(in), rootv1.OperationReason_OPERATION_REASON_LABEL_RULE, c.want)
	}
}

// A member with more load than it can take is relieved while another one has room of its own, however much
// that one has for its capacity; behind that nothing is passed to and fro.
func TestTooMuchLoadGoesWhereThereIsRoomOfItsOwn(t *testing.T) {
	for _, c := range []struct{ small, big int }{{110, 105}, {200, 200}, {130, 800}} {
		t.Run(fmt.Sprint(c.small, " ", c.big), func(t *testing.T) {
			p := byLoad
			p.Cooldown = 30 * time.Second
			w := newWorld(t, p)
			w.join(2)
			w.members[0].most, w.members[1].most = 100, 1000
			w.own(w.members[0], times(c.small, 1)...)
			w.own(w.members[1], times(c.big, 1)...)
			w.settle()
			w.run(30*time.Minute, 10*time.Second)
			if l := w.loads()[0]; l > 100 {
				t.Errorf("it has %v, and can take 100: %+v", l, w.last.Refusals)
			}
			w.steps = nil
			w.run(20*time.Minute, 10*time.Second)
			if len(w.steps) > 0 {
				t.Errorf("%d moves behind that", len(w.steps))
			}
		})
	}
}

// Where the one with most room has much for its capacity, it is found among many without room.
func TestTooMuchLoadFindsTheOneWithRoom(t *testing.T) {
	all := [][]float64{times(120, 1), times(400, 1)}
	for range 20 {
		all = append(all, times(95, 1))
	}
	in := having(all...)
	for i := range in.Members {
		in.Members[i].Most = 100 * load.One
	}
	in.Members[1].Most = 1000 * load.One
	moves(t, balance.Make(in), rootv1.OperationReason_OPERATION_REASON_LIMIT, "m2")
}

// Nobody has room for anything of a member with more load than it can take, which is not much for its
// capacity: that is said.
func TestTooMuchLoadWithoutRoomIsSaid(t *testing.T) {
	in := having(times(110, 1), times(105, 1))
	in.Members[0].Most, in.Members[1].Most = 100*load.One, 110*load.One
	out := balance.Make(in)
	if want := []balance.Refusal{{Member: "m1", Why: balance.NoRoom}}; !slices.Equal(out.Refusals, want) || len(out.Steps) > 0 {
		t.Errorf("%+v is refused, want %+v: %+v", out.Refusals, want, out.Steps)
	}
}

// What is evened out leaves room below what a member can take: it is not taken off it again when all loads rise
// a little.
func TestEveningOutLeavesRoomBelowTheLimit(t *testing.T) {
	p := byLoad
	p.Cooldown = 30 * time.Second
	w := newWorld(t, p)
	w.join(2)
	w.members[0].most, w.members[1].most = 100, 1000
	w.own(w.members[0], times(60, 1)...)
	w.own(w.members[1], times(300, 1)...)
	w.shape = func(_ *region, now clock.Instant) float64 {
		return 1 + 0.03*math.Sin(float64(now)/float64(5*time.Minute))
	}
	w.settle()
	w.run(time.Hour, 10*time.Second)
	w.steps = nil
	w.run(time.Hour, 10*time.Second)
	if len(w.steps) > 0 {
		t.Errorf("%d moves to and fro, such as %+v", len(w.steps), w.steps[0])
	}
}
