package assigner_test

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// gather plays a test of members that own a keyspace.
func gather(t *testing.T, settings *rootv1.KeyspaceSettings, members int, test func(t *testing.T, c *crowd)) {
	play(t, func(t *testing.T, w *world) {
		c := newCrowd(w)
		for i := range members {
			c.join(name(i))
		}
		c.claim(self, life)
		for i := range members {
			c.open(name(i))
		}
		c.speak()
		synctest.Wait()
		c.create(settings)
		c.run(time.Second)
		test(t, c)
	})
}

// R-11, scenario 1: a fourth member comes; 32 of 128 regions move to it, 16 at a time, and
// nothing else does, also long after.
func TestA40R11JoinerGetsItsPart(t *testing.T) {
	settings, _ := state.Preset("partitions")
	settings.Ownership = &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH}
	gather(t, settings, 3, func(t *testing.T, c *crowd) {
		c.run(2 * time.Minute)
		if n := len(c.planned()); n != 0 {
			t.Fatalf("%d moves before anybody came", n)
		}
		if p, err := c.a.Plan(t.Context(), &coordinatorv1.PlanRequest{}, anything); err != nil || len(p.GetOperations()) != 0 {
			t.Fatalf("the plan that is asked for has %v, %v", p.GetOperations(), err)
		}
		before := c.counts("m1", "m2", "m3")
		c.come("m4")
		c.most = 0
		c.run(20 * time.Second) // before the interval is over: what has moved makes room for more
		if n := len(c.owned("m4")); n != 32 {
			t.Errorf("the fourth has %d regions in 20 s", n)
		}
		c.run(20 * time.Minute)
		if got := c.counts("m1", "m2", "m3", "m4"); !slices.Equal(got, []int{32, 32, 32, 32}) {
			t.Errorf("the members have %v of 128, before the fourth came %v", got, before)
		}
		moves := c.planned()
		for _, m := range moves {
			if m.GetTo().GetMemberId() != "m4" || m.GetReason() != rootv1.OperationReason_OPERATION_REASON_COUNT {
				t.Errorf("a move is %v", m)
			}
		}
		if v := c.a.Vars(); len(moves) != 32 || c.most > 16 || v.RebalancesCompleted != 32 || v.RebalancesFailed != 0 || v.Rebalances["members"] == 0 || v.Uneven != 0 {
			t.Errorf("%d moves, %d at a time, want 32 and 16 at most: %+v", len(moves), c.most, v)
		}
	})
}

// A region that is hot moves, with the reason, and the round says what it was for.
func TestC30HotRegionsMove(t *testing.T) {
	gather(t, evened(16, byLoad()), 4, func(t *testing.T, c *crowd) {
		hot := c.owned("m1")
		c.load = func(r *state.Region) float64 {
			if r.ID == hot[0].ID || r.ID == hot[1].ID {
				return 100
			}
			return 10
		}
		c.run(10 * time.Minute)
		ids := []state.MemberID{"m1", "m2", "m3", "m4"}
		if sums := c.loads(ids...); slices.Max(sums) > 1.25*340/4*1.4 || slices.Max(sums) > 130 {
			t.Errorf("the members have loads %v", sums)
		}
		owner := func(i int) state.MemberID { return c.now().Region(hot[i].ID).Owners[0].Member }
		if owner(0) == owner(1) {
			t.Errorf("both hot regions are on %s", owner(0))
		}
		for _, m := range c.planned() {
			if r := m.GetReason(); r != rootv1.OperationReason_OPERATION_REASON_LOAD && r != rootv1.OperationReason_OPERATION_REASON_HOT {
				t.Errorf("a move is for %v", r)
			}
		}
		if n := len(c.planned()); n == 0 || n > 8 {
			t.Errorf("%d moves", n)
		}
		rounds := c.a.Rounds()
		if len(rounds) != 1 || rounds[0].GetKeyspace() != "ks" || rounds[0].GetByCount() || rounds[0].GetImbalanceAfterPermille() == 0 {
			t.Errorf("the rounds are %v", rounds)
		}
	})
}

// A new holder moves nothing before it has heard everything that all members have, or 10 s
// have passed.
func TestNewHolderDoesNotMoveByIgnorance(t *testing.T) {
	for name, whole := range map[string]bool{"all have said all": true, "one has not": false} {
		t.Run(name, func(t *testing.T) {
			gather(t, evened(12, byLoad()), 3, func(t *testing.T, c *crowd) {
				hot := c.owned("m1")
				c.load = func(r *state.Region) float64 {
					if slices.ContainsFunc(hot, func(h *state.Region) bool { return h.ID == r.ID }) {
						return 50
					}
					return 10
				}
				c.claim(other, 7)
				c.run(2 * time.Minute)
				if n := len(c.planned()); n != 0 {
					t.Fatalf("%d moves without the Tenure", n)
				}
				if !whole { // its stream is a new one
					c.gone["m2"] = true
					c.close("m2")
					c.open("m2")
				}
				c.claim(self, life)
				c.run(5 * time.Second)
				rounds := c.a.Vars().Rebalances["era"]
				if moved := len(c.planned()) > 0; moved != whole || rounds > 0 != whole {
					t.Errorf("in 5 s it planned moves: %v, in %d rounds", moved, rounds)
				}
			})
		})
	}
}

// A move that was given up costs as one that was made, and its region rests for 5 minutes.
func TestA24GivenUpMovesRest(t *testing.T) {
	settings := evened(8, byLoad())
	settings.Moves = &rootv1.Moves{PrepareMaxMillis: 1000, DeadlineMillis: 5000}
	gather(t, settings, 2, func(t *testing.T, c *crowd) {
		hot := c.owned("m1")
		c.load = func(r *state.Region) float64 {
			if o, _ := r.Owner("m1"); o.Member != "" && slices.ContainsFunc(hot, func(h *state.Region) bool { return h.ID == r.ID }) {
				return 40
			}
			return 10
		}
		c.clinging["m1"] = true
		c.run(4 * time.Minute)
		tried := map[uint64]int{}
		for _, m := range c.planned() {
			if tried[m.GetRegionId()]++; tried[m.GetRegionId()] > 1 {
				t.Errorf("region %d is tried again in 4 minutes", m.GetRegionId())
			}
		}
		if v := c.a.Vars(); len(tried) == 0 || int(v.RebalancesFailed) < len(tried)-1 || v.RebalancesCompleted != 0 {
			t.Errorf("%d moves were tried: %+v", len(tried), v)
		}
		c.run(6 * time.Minute)
		again := 0
		for _, m := range c.planned() {
			if tried[m.GetRegionId()]--; tried[m.GetRegionId()] < 0 {
				again++
			}
		}
		if again == 0 {
			t.Error("nothing is tried again behind 5 minutes")
		}
	})
}

// C-62: what is no load, and what is not told at all, moves nothing.
func TestC62MadAndMissingLoadsMoveNothing(t *testing.T) {
	gather(t, evened(12, byLoad()), 3, func(t *testing.T, c *crowd) {
		c.run(3 * time.Minute)
		for _, x := range []float64{math.NaN(), math.Inf(1), -1} {
			c.frame("m1", func(f *server.HeardFrame) {
				f.Load = &coordinatorv1.MemberLoad{Load: x}
				for _, r := range c.owned("m1") {
					f.Loads = append(f.Loads, server.RegionLoad{Region: r.ID, Epoch: r.Epoch, Load: x})
				}
			})
			c.run(time.Minute)
		}
		c.silent["m2"], c.silent["m3"] = true, true
		c.gone["m3"] = true // it is connected, and nobody hears it
		c.run(5 * time.Second)
		if n := len(c.planned()); n != 0 {
			t.Errorf("%d moves: %v", n, c.planned()[0])
		}
	})
}

// An era that is lost ends it: what was not begun is not begun by this holder.
func TestLostEraEndsBalancing(t *testing.T) {
	settings := evened(128, &rootv1.Rebalance{InFlight: 2})
	gather(t, settings, 3, func(t *testing.T, c *crowd) {
		c.come("m4")
		c.run(time.Second)
		n := len(c.planned())
		if n == 0 || n >= 32 {
			t.Fatalf("%d moves are planned in the first second", n)
		}
		c.claim(other, 7)
		n = len(c.planned())
		c.run(5 * time.Minute)
		if m := len(c.planned()); m != n || len(c.a.Rounds()) != 0 {
			t.Errorf("%d moves were planned behind the era, and %d rounds are shown", m-n, len(c.a.Rounds()))
		}
	})
}

// Whom another holder moved lately is let be by the next one, which saw it: with the
// members' loads as they are it would move it at once.
func TestNextHolderKnowsWhatWasMoved(t *testing.T) {
	gather(t, evened(4, byLoad()), 2, func(t *testing.T, c *crowd) {
		c.claim(other, 7)
		regions := slices.Concat(c.owned("m1"), c.owned("m2"))
		for _, r := range regions { // the other one has moved all of them to the first
			if r.Owners[0].Member == "m2" {
				c.must(&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
					RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), From: &rootv1.Owner{MemberId: "m2"}, To: &rootv1.Owner{MemberId: "m1"},
					Reason: rootv1.OperationReason_OPERATION_REASON_LOAD,
				}}})
				c.must(&rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{
					TransitionId: c.now().PendingTransition(r.ID).GetId(), SetFrontier: true,
				}}})
			}
		}
		synctest.Wait()
		moved := map[uint64]bool{}
		for _, r := range c.owned("m1") {
			moved[uint64(r.ID)] = r.Epoch.ConfVersion > 2
		}
		c.run(time.Second)
		c.claim(self, life)
		c.run(90 * time.Second)
		for _, m := range c.planned() {
			if moved[m.GetRegionId()] {
				t.Errorf("region %d is moved again at once", m.GetRegionId())
			}
		}
		if len(c.planned()) == 0 {
			t.Error("nothing is moved to a member that has nothing")
		}
	})
}

// What another holder moved counts with the next one by its load, and not by how few regions it
// were.
func TestNextHolderKnowsTheLoadOfWhatWasMoved(t *testing.T) {
	gather(t, evened(40, byLoad()), 2, func(t *testing.T, c *crowd) {
		heavy := map[state.RegionID]bool{}
		for _, r := range c.owned("m2")[:3] {
			heavy[r.ID] = true
		}
		c.load = func(r *state.Region) float64 {
			if heavy[r.ID] {
				return 10
			}
			return 1
		}
		c.claim(other, 7)
		c.run(15 * time.Minute) // nobody is a newcomer any more
		for id := range heavy {
			c.must(&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
				RegionId: uint64(id), ExpectedEpoch: c.now().Region(id).Epoch.Proto(), From: &rootv1.Owner{MemberId: "m2"}, To: &rootv1.Owner{MemberId: "m1"},
				Reason: rootv1.OperationReason_OPERATION_REASON_LOAD,
			}}})
			c.must(&rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{
				TransitionId: c.now().PendingTransition(id).GetId(), SetFrontier: true,
			}}})
		}
		c.run(time.Second)
		c.claim(self, life)
		c.run(10 * time.Minute)
		sum := 0.0
		for _, m := range c.planned() {
			sum += c.load(c.now().Region(state.RegionID(m.GetRegionId())))
		}
		if sum > 4 { // half of 67 in an hour, of which 30 were moved by the other one
			t.Errorf("%v of a load of 67 moves besides the 30 that another holder moved", sum)
		}
		c.run(time.Hour)
		if len(c.planned()) == 0 {
			t.Error("nothing moves in the next hour")
		}
	})
}

// A rolling restart with goodbyes: no region is left without an owner but while its
// process is away, and balance moves no region twice in a row.
func TestScenario19RollingRestart(t *testing.T) {
	gather(t, evened(64, &rootv1.Rebalance{MeanPermille: 1200, IntervalMillis: 10_000}), 4, func(t *testing.T, c *crowd) {
		ids := []state.MemberID{"m1", "m2", "m3", "m4"}
		for _, id := range ids {
			c.frame(id, func(f *server.HeardFrame) {
				f.Goodbye = &coordinatorv1.Goodbye{DeadlineMillis: 30_000, Reason: "an upgrade"}
			})
			c.run(24 * time.Second)
			if n := len(c.owned(id)); n != 0 {
				t.Errorf("%s has %d regions when its time is over", id, n)
			}
			c.frame(id, func(f *server.HeardFrame) { f.Goodbye = &coordinatorv1.Goodbye{Gone: true} })
			c.close(id)
			c.come(id)
			c.run(30 * time.Second)
		}
		c.run(5 * time.Minute)
		if got := c.counts(ids...); slices.Max(got) > 17 || slices.Min(got) < 15 {
			t.Errorf("the members have %v of 64", got)
		}
		by := map[rootv1.OperationReason]int{}
		for _, m := range c.planned() {
			by[m.GetReason()]++
		}
		if drains := by[rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING]; drains < 64 || len(c.planned()) > 64*23/10 {
			t.Errorf("moves by reason: %v; want at most 2.3 times the regions", by)
		}
	})
}

// An idle coordinator plans nothing: behind the last change, rounds end.
func TestIdleCoordinatorPlansNothing(t *testing.T) {
	gather(t, evened(10_000, byLoad()), 100, func(t *testing.T, c *crowd) {
		count := func() (n uint64) {
			for _, x := range c.a.Vars().Rebalances {
				n += x
			}
			return n
		}
		idle := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); synctest.Wait() {
				time.Sleep(2 * time.Second)
				for i := range 100 {
					c.frame(name(i))
				}
			}
		}
		c.run(5 * time.Second)
		idle(20 * time.Minute)
		before, moves := count(), len(c.planned())
		idle(10 * time.Minute)
		if n := count(); n != before || len(c.planned()) != moves {
			t.Errorf("%d rounds in 10 minutes without a change", n-before)
		}
	})
}

// However long the root takes, and whatever happens meanwhile, what is on its way to it is
// not planned again.
func TestRoundsWaitForWhatIsOnItsWay(t *testing.T) {
	gather(t, evened(128, &rootv1.Rebalance{}), 3, func(t *testing.T, c *crowd) {
		c.root.mu.Lock()
		slow := make(chan struct{})
		c.slow = slow
		c.root.mu.Unlock()
		c.come("m4")
		c.run(time.Second)
		for range 3 { // each time it is a reason for another round
			c.close("m4")
			c.open("m4")
			c.told["m4"] = nil
			c.run(time.Second)
		}
		c.root.mu.Lock()
		c.slow = nil
		c.root.mu.Unlock()
		close(slow)
		c.run(time.Minute)
		if n := len(c.planned()); n != 32 || c.most > 16 {
			t.Errorf("%d moves, %d at a time, want 32 and 16 at most", n, c.most)
		}
	})
}

// A member that drains no more gets its part soon: nobody says anything anew.
func TestUndrainedMemberGetsItsPart(t *testing.T) {
	gather(t, evened(40, &rootv1.Rebalance{}), 4, func(t *testing.T, c *crowd) {
		set := func(to rootv1.MemberState) {
			c.must(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m4", State: to, Reason: "test"}}})
		}
		set(rootv1.MemberState_MEMBER_STATE_DRAINING)
		c.run(20 * time.Second)
		if n := len(c.owned("m4")); n != 0 {
			t.Fatalf("a member that drains has %d regions", n)
		}
		c.run(20 * time.Minute)
		set(rootv1.MemberState_MEMBER_STATE_ACTIVE)
		c.run(10 * time.Second)
		if n := len(c.owned("m4")); n != 10 {
			t.Errorf("10 s after it drains no more it has %d regions, want 10", n)
		}
	})
}

// What is moved off members that have too much keeps within the part of an hour, however
// many rounds that has.
func TestShedKeepsWithinTheHour(t *testing.T) {
	settings := evened(100, byLoad())
	settings.Policy.Rebalance.HourPermille, settings.Policy.Rebalance.RoundPermille = 40, 20
	gather(t, settings, 2, func(t *testing.T, c *crowd) {
		c.run(15 * time.Minute) // nobody is a newcomer any more
		hot := map[state.RegionID]bool{}
		for _, r := range c.owned("m1") {
			hot[r.ID] = true
		}
		c.load = func(r *state.Region) float64 {
			if hot[r.ID] {
				return 30
			}
			return 10
		}
		c.run(50 * time.Minute)
		n := len(c.planned())
		if n == 0 || n > 4 {
			t.Errorf("%d of 100 regions moved in an hour, want 4 at most", n)
		}
		refused := c.a.Rounds()[0].GetRefused()
		if len(refused) != 1 || refused[0].GetWhy() != "budget_spent" {
			t.Errorf("what is refused is %v", refused)
		}
		c.run(time.Hour)
		if len(c.planned()) <= n {
			t.Error("nothing moves in the next hour")
		}
	})
}
