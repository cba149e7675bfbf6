package assigner_test

import (
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// crowd are members of a world that do what they are shown, and tell the load of what they
// have.
type crowd struct {
	*world
	load func(r *state.Region) float64
	// clinging members let go of nothing, silent ones tell no load, gone ones say nothing.
	clinging, silent, gone map[state.MemberID]bool
	told                   map[state.MemberID]map[state.RegionID]float64
	totals                 map[state.MemberID]float64
	most                   int
}

func newCrowd(w *world) *crowd {
	return &crowd{
		world: w, load: func(*state.Region) float64 { return 1 },
		clinging: map[state.MemberID]bool{}, silent: map[state.MemberID]bool{}, gone: map[state.MemberID]bool{},
		told: map[state.MemberID]map[state.RegionID]float64{}, totals: map[state.MemberID]float64{},
	}
}

// evened is a keyspace of slots with an epoch fence, evened out as said.
func evened(slots uint32, r *rootv1.Rebalance) *rootv1.KeyspaceSettings {
	s := state.DefaultSettings()
	s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: slots}}}
	s.Policy.Rebalance = r
	return s
}

func byLoad() *rootv1.Rebalance {
	return &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD, MeanPermille: 1200, IntervalMillis: 10_000}
}

// create makes keyspace 2.
func (c *crowd) create(s *rootv1.KeyspaceSettings) {
	c.t.Helper()
	c.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "ks", Settings: s}}})
	synctest.Wait()
}

// come has members join that have streams.
func (c *crowd) come(ids ...state.MemberID) {
	c.t.Helper()
	for _, id := range ids {
		c.join(id)
		c.told[id] = nil
		c.open(id)
	}
}

// speak has each member say what has changed, on a new stream all.
func (c *crowd) speak() {
	st := c.now()
	st.Members(func(m *rootv1.Member) bool {
		id := state.MemberID(m.GetId())
		if m.GetState() != rootv1.MemberState_MEMBER_STATE_FAILED && !c.gone[id] {
			c.frame(id, func(f *server.HeardFrame) { c.say(st, id, f) })
		}
		return true
	})
}

func (c *crowd) say(st *state.State, id state.MemberID, f *server.HeardFrame) {
	f.Complete = c.told[id] == nil
	before, all, sum := c.told[id], map[state.RegionID]float64{}, 0.0
	st.MemberRegionsAfter(id, 0, func(r *state.Region) bool {
		if o, _ := r.Owner(id); st.Acts(o) && !c.silent[id] {
			x := c.load(r) / float64(len(r.Owners))
			all[r.ID], sum = x, sum+x
			if old, ok := before[r.ID]; !ok || old != x {
				f.Loads = append(f.Loads, server.RegionLoad{Region: r.ID, Epoch: r.Epoch, Load: x})
				if st.PendingTransition(r.ID) == nil {
					c.report(id, r.Proto(), func(p *coordinatorv1.RegionReport) { p.Load = x })
				}
			}
		}
		return true
	})
	for region := range before {
		if _, ok := all[region]; !ok {
			f.Gone = append(f.Gone, region)
		}
	}
	if old, ok := c.totals[id]; !c.silent[id] && (!ok || f.Complete || old != sum) {
		f.Load, c.totals[id] = &coordinatorv1.MemberLoad{Load: sum}, sum
	}
	c.told[id] = all
}

// obey has members do their part of what is under way.
func (c *crowd) obey() {
	st := c.now()
	c.world.mu.Lock()
	c.shown = st.Token()
	c.world.mu.Unlock()
	st.Transitions(func(x *rootv1.Transition) bool {
		r := st.Region(state.RegionID(x.GetRegionId()))
		if x.GetStatus() != rootv1.TransitionStatus_TRANSITION_STATUS_PENDING || r == nil {
			return true
		}
		who, phase := state.MemberID(x.GetOwner().GetMemberId()), coordinatorv1.RegionPhase_REGION_PHASE_READY
		if x.GetReadyAt() != nil || x.GetFrom() == nil {
			who, phase = state.MemberID(x.GetFrom().GetMemberId()), coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
			if x.GetFrom() == nil && len(r.Owners) == 1 {
				who = r.Owners[0].Member
			}
		}
		if m := st.Member(who); c.clinging[who] && phase == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED || c.gone[who] ||
			m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED || m.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED {
			return true
		}
		c.report(who, r.Proto(), func(p *coordinatorv1.RegionReport) {
			p.Phase, p.TransitionId, p.SetFrontier = phase, x.GetId(), phase == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED
		})
		c.frame(who, func(f *server.HeardFrame) { f.Turned = append(f.Turned, r.ID) })
		return true
	})
}

// run lets time pass.
func (c *crowd) run(d time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		c.speak()
		c.obey()
		synctest.Wait()
		c.most = max(c.most, c.a.Vars().Moves)
	}
}

// planned are the moves that were planned, by region and reason.
func (c *crowd) planned() (all []*rootv1.MovePlanned) {
	for _, cmd := range c.commands() {
		for _, e := range cmd.GetEvents() {
			if m := e.GetMovePlanned(); m != nil {
				all = append(all, m)
			}
		}
	}
	return all
}

// counts are how many regions members have.
func (c *crowd) counts(ids ...state.MemberID) (n []int) {
	for _, id := range ids {
		n = append(n, len(c.owned(id)))
	}
	return n
}

// loads are the loads of members.
func (c *crowd) loads(ids ...state.MemberID) (sums []float64) {
	for _, id := range ids {
		sum := 0.0
		for _, r := range c.owned(id) {
			sum += c.load(r)
		}
		sums = append(sums, sum)
	}
	return sums
}
