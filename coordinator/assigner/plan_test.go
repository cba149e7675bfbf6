package assigner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

func anything(string) bool { return true }

// ask asks for a plan that there has to be.
func (c *crowd) ask(req *coordinatorv1.PlanRequest) *coordinatorv1.PlanResponse {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	p, err := c.a.Plan(ctx, req, anything)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// apply applies a plan.
func (c *crowd) apply(id string) (*coordinatorv1.ApplyPlanResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c.a.ApplyPlan(ctx, id, "operator/ann", "ticket 7")
}

// give gives a region to the first of members that does not have it.
func (c *crowd) give(r *state.Region, ids ...string) {
	c.t.Helper()
	if _, has := r.Owner(state.MemberID(ids[0])); has {
		ids = ids[1:]
	}
	c.must(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
		RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: ids[0]}}, Reason: rootv1.OperationReason_OPERATION_REASON_OPERATOR,
	}}}}})
}

// limit changes a setting that nobody breaks.
func (c *crowd) limit() {
	c.t.Helper()
	k := c.now().KeyspaceByName("ks")
	s := state.MergeSettings(k.GetSettings(), &rootv1.KeyspaceSettings{Limits: &rootv1.Limits{MaxRegionsPerMember: 1000}})
	c.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{Name: "ks", ExpectedVersion: k.GetVersion(), Settings: s}}})
}

// row is what a plan says of a member.
func row(p *coordinatorv1.PlanResponse, id string) string {
	for _, m := range p.GetKeyspaces()[0].GetMembers() {
		if m.GetMemberId() == id {
			return fmt.Sprintf("%d -> %d", m.GetRegionsBefore(), m.GetRegionsAfter())
		}
	}
	return "not there"
}

// wantReason checks why something was refused.
func wantReason(t *testing.T, what string, err error, want rootv1.Reason) {
	t.Helper()
	if got := reason.Of(err); got != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// C-48, C-47: a keyspace that never evens out by itself is evened out by who asks for it: what
// was shown is what is begun, in one command with the caller's name and the planner's reasons,
// and goes on by itself. The round is remembered.
func TestC47C48PlanIsAppliedAsShown(t *testing.T) {
	settings := evened(32, nil)
	settings.Ownership = &rootv1.Ownership{MaxOwners: 1, Fence: rootv1.Fence_FENCE_EPOCH}
	gather(t, settings, 3, func(t *testing.T, c *crowd) {
		c.come("m4")
		c.run(2 * time.Minute)
		if n := len(c.planned()); n != 0 {
			t.Fatalf("%d moves that nobody asked for", n)
		}
		p := c.ask(&coordinatorv1.PlanRequest{Keyspace: "ks"})
		k := p.GetKeyspaces()[0]
		if p.GetPlanId() == "" || len(p.GetOperations()) != 8 || k.GetEvens() || !k.GetByCount() || row(p, "m4") != "0 -> 8" ||
			k.GetImbalanceBeforePermille() < 1333 || k.GetImbalanceAfterPermille() != 1000 || k.GetRegions() != 32 {
			t.Fatalf("the plan is %v", p)
		}
		for _, o := range p.GetOperations() {
			if o.GetOperation() != "plan_move" || o.GetReason() != rootv1.OperationReason_OPERATION_REASON_COUNT || !o.GetEvens() || !slices.Equal(o.GetTo(), []string{"m4"}) || o.GetEpoch().GetConfVersion() == 0 || len(o.GetStartKey())+len(o.GetEndKey()) == 0 {
				t.Errorf("an operation is %v", o)
			}
		}
		if n := len(c.planned()); n != 0 {
			t.Fatalf("%d moves by asking", n)
		}
		done, err := c.apply(p.GetPlanId())
		if err != nil || done.GetOperations() != 8 || done.GetToken().GetIndex() == 0 {
			t.Fatalf("applied: %v, %v", done, err)
		}
		last := c.commands()[len(c.commands())-1]
		if last.GetActor() != "operator/ann" || last.GetWhy() != "ticket 7" || last.GetRequireEra() != 1 || len(last.GetEvents()) != 8 {
			t.Errorf("the command is %v", last)
		}
		for i, e := range last.GetEvents() {
			if m, o := e.GetMovePlanned(), p.GetOperations()[i]; m.GetRegionId() != o.GetRegionId() || m.GetTo().GetMemberId() != "m4" || m.GetReason() != o.GetReason() {
				t.Errorf("event %d is %v, shown was %v", i, e, o)
			}
		}
		again, err := c.apply(p.GetPlanId())
		if err != nil || again.GetToken().GetIndex() != done.GetToken().GetIndex() || len(c.planned()) != 8 {
			t.Errorf("asked for again: %v, %v, %d moves", again, err, len(c.planned()))
		}
		c.run(30 * time.Second)
		if got := c.counts("m1", "m2", "m3", "m4"); !slices.Equal(got, []int{8, 8, 8, 8}) {
			t.Errorf("the members have %v", got)
		}
		p = c.ask(&coordinatorv1.PlanRequest{Keyspace: "ks"})
		if p.GetPlanId() != "" || p.GetNotApplicable() == "" || len(p.GetOperations()) != 0 {
			t.Errorf("behind it there is %v", p)
		}
		if h := p.GetKeyspaces()[0].GetHistory(); len(h) != 1 || h[0].GetTrigger() != "operator" || h[0].GetBegun()[0].GetCount() != 8 {
			t.Errorf("what was is %v", h)
		}
		if v := c.a.Vars(); v.Rebalances["operator"] != 1 || v.RebalancesCompleted != 8 {
			t.Errorf("%+v", v)
		}
	})
}

// A plan is applied whole in the era that it was made in, while the settings are those that it was made of,
// every region of it is at its epoch with nothing under way, and every member may take what it is to get; else
// nothing is.
func TestPlanAppliedAfterTheWorldMovedOn(t *testing.T) {
	for what, x := range map[string]struct {
		moves func(c *crowd, p *coordinatorv1.PlanResponse)
		want  rootv1.Reason
	}{
		"a region changed": {func(c *crowd, p *coordinatorv1.PlanResponse) {
			r := c.now().Region(state.RegionID(p.GetOperations()[3].GetRegionId()))
			c.give(r, "m1", "m2")
		}, rootv1.Reason_REASON_EPOCH_STALE},
		"one changed, and no view has it": {func(c *crowd, p *coordinatorv1.PlanResponse) {
			c.root.mu.Lock()
			c.root.muted = true
			c.root.mu.Unlock()
			r := c.now().Region(state.RegionID(p.GetOperations()[3].GetRegionId()))
			c.give(r, "m1", "m2")
		}, rootv1.Reason_REASON_EPOCH_STALE},
		"the settings are others": {func(c *crowd, _ *coordinatorv1.PlanResponse) { c.limit() }, rootv1.Reason_REASON_VERSION_STALE},
		"the settings are others, and no view has them": {func(c *crowd, _ *coordinatorv1.PlanResponse) {
			c.root.mu.Lock()
			c.root.muted = true
			c.root.mu.Unlock()
			c.limit()
		}, rootv1.Reason_REASON_VERSION_STALE},
		"a region is under way": {func(c *crowd, p *coordinatorv1.PlanResponse) {
			c.clinging["m1"], c.clinging["m2"], c.clinging["m3"] = true, true, true
			r := c.now().Region(state.RegionID(p.GetOperations()[0].GetRegionId()))
			to := name(0)
			if r.Owners[0].Member == to {
				to = name(1)
			}
			c.must(&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
				RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), From: r.Owners[0].Proto(), To: &rootv1.Owner{MemberId: string(to)},
				DeadlineMillis: 60_000, PrepareMaxMillis: 1000, Reason: rootv1.OperationReason_OPERATION_REASON_OPERATOR,
			}}})
		}, rootv1.Reason_REASON_RANGE_CHANGE_PENDING},
		"a member is not heard": {func(c *crowd, _ *coordinatorv1.PlanResponse) {
			c.world.mu.Lock()
			c.probe = func(ctx context.Context, _ liveness.Probe) liveness.ProbeResult {
				<-ctx.Done()
				return liveness.NoAnswer
			}
			c.world.mu.Unlock()
			c.close("m4")
			c.gone["m4"] = true
		}, rootv1.Reason_REASON_UNHEALTHY_MEMBER},
		"a member's process is another one": {func(c *crowd, _ *coordinatorv1.PlanResponse) {
			c.come("m4")
			c.run(time.Second)
		}, rootv1.Reason_REASON_UNHEALTHY_MEMBER},
		"the Tenure went away and came back": {func(c *crowd, _ *coordinatorv1.PlanResponse) {
			c.claim(other, 7)
			c.claim(self, life)
		}, rootv1.Reason_REASON_ERA_STALE},
		"the Tenure is another one's": {func(c *crowd, _ *coordinatorv1.PlanResponse) { c.claim(other, 7) }, rootv1.Reason_REASON_TENURE_NOT_HELD},
		"too much time passed":        {func(c *crowd, _ *coordinatorv1.PlanResponse) { c.run(11 * time.Minute) }, rootv1.Reason_REASON_NOT_FOUND},
	} {
		t.Run(what, func(t *testing.T) {
			gather(t, evened(32, nil), 3, func(t *testing.T, c *crowd) {
				c.come("m4")
				c.run(time.Second)
				p := c.ask(&coordinatorv1.PlanRequest{})
				if len(p.GetOperations()) != 8 {
					t.Fatalf("the plan is %v", p)
				}
				x.moves(c, p)
				synctest.Wait()
				before := len(c.planned())
				_, err := c.apply(p.GetPlanId())
				wantReason(t, "applied", err, x.want)
				if x.want != rootv1.Reason_REASON_TENURE_NOT_HELD && !strings.Contains(err.Error(), "plan again") {
					t.Errorf("it says %v, and not what to do", err)
				}
				synctest.Wait()
				pending := 0
				c.now().Transitions(func(x *rootv1.Transition) bool {
					if x.GetStatus() == rootv1.TransitionStatus_TRANSITION_STATUS_PENDING && x.GetCause() == rootv1.OperationReason_OPERATION_REASON_COUNT {
						pending++
					}
					return true
				})
				if pending != 0 {
					t.Errorf("%d moves are under way, %d were asked for", pending, len(c.planned())-before)
				}
				_, err = c.apply(p.GetPlanId())
				if err == nil {
					t.Error("it was applied when it was asked for again")
				}
			})
		})
	}
}

// What does not fit in one command, or is of what is not there, is refused with the way out.
func TestPlanThatCannotBeApplied(t *testing.T) {
	settings := evened(2000, nil)
	settings.Moves = &rootv1.Moves{InFlight: 2000}
	gather(t, settings, 1, func(t *testing.T, c *crowd) {
		c.run(5 * time.Second)
		c.come(name(1))
		c.run(time.Second)
		p := c.ask(&coordinatorv1.PlanRequest{Keyspace: "ks", Limit: 10, MemberLimit: 1})
		if p.GetPlanId() != "" || !strings.Contains(p.GetNotApplicable(), "--max-moves 768") || len(p.GetOperations()) != 10 || p.GetMoreOperations() < 800 ||
			len(p.GetKeyspaces()[0].GetMembers()) != 1 || p.GetKeyspaces()[0].GetMoreMembers() != 1 {
			t.Errorf("the plan is %v", p)
		}
		p = c.ask(&coordinatorv1.PlanRequest{Keyspace: "ks", MaxMoves: 100})
		if p.GetPlanId() == "" || len(p.GetOperations()) != 100 {
			t.Errorf("100 at most: %d, %q", len(p.GetOperations()), p.GetNotApplicable())
		}
		if _, err := c.apply(p.GetPlanId()); err != nil || len(c.planned()) != 100 {
			t.Errorf("applied: %v, %d moves", err, len(c.planned()))
		}
		_, err := c.apply("no such plan")
		wantReason(t, "a plan that there is not", err, rootv1.Reason_REASON_NOT_FOUND)
	})
}

// What if members were there, or not, or settings were others: it is answered, and changes
// nothing.
func TestPlanOfWhatIsNot(t *testing.T) {
	settings := evened(30, nil)
	gather(t, settings, 3, func(t *testing.T, c *crowd) {
		c.run(time.Second)
		at := c.now().Token()
		for what, x := range map[string]struct {
			req  *coordinatorv1.PlanRequest
			m1   string
			rest string
		}{
			"two more, one at a time":  {&coordinatorv1.PlanRequest{WithMembers: []*coordinatorv1.PlannedMember{{Id: "x1"}, {Id: "x2", Capacity: 1}}}, "10 -> 8", "x2 0 -> 6"},
			"a bigger one":             {&coordinatorv1.PlanRequest{WithMembers: []*coordinatorv1.PlannedMember{{Id: "x1", Capacity: 3}}}, "10 -> 5", "x1 0 -> 15"},
			"one less":                 {&coordinatorv1.PlanRequest{WithoutMembers: []string{"m1"}}, "10 -> 0", "m2 10 -> 15"},
			"one for another":          {&coordinatorv1.PlanRequest{WithoutMembers: []string{"m1"}, WithMembers: []*coordinatorv1.PlannedMember{{Id: "x1"}}}, "10 -> 0", "x1 0 -> 10"},
			"a bigger one for another": {&coordinatorv1.PlanRequest{WithoutMembers: []string{"m1"}, WithMembers: []*coordinatorv1.PlannedMember{{Id: "x1", Capacity: 4}}}, "10 -> 0", "x1 0 -> 20"},
			"limits":                   {&coordinatorv1.PlanRequest{Keyspace: "ks", Settings: &rootv1.KeyspaceSettings{Limits: &rootv1.Limits{MaxRegionsPerMember: 12}}, WithoutMembers: []string{"m1"}}, "10 -> 0", "m2 10 -> 12"},
		} {
			p := c.ask(x.req)
			id, want, _ := strings.Cut(x.rest, " ")
			if row(p, "m1") != x.m1 || row(p, id) != want || p.GetPlanId() != "" || !strings.Contains(p.GetNotApplicable(), "register the members") {
				t.Errorf("%s: m1 %s, %s %s: %v", what, row(p, "m1"), id, row(p, id), p)
			}
		}
		for what, req := range map[string]*coordinatorv1.PlanRequest{
			"a member that is there":     {WithMembers: []*coordinatorv1.PlannedMember{{Id: "m1"}}},
			"a member twice":             {WithMembers: []*coordinatorv1.PlannedMember{{Id: "x"}, {Id: "x"}}},
			"without one who is not":     {WithoutMembers: []string{"m9"}},
			"without an id":              {WithMembers: []*coordinatorv1.PlannedMember{{}}},
			"settings that cannot count": {Keyspace: "ks", Settings: &rootv1.KeyspaceSettings{Policy: &rootv1.Policy{Rebalance: &rootv1.Rebalance{By: 99}}}},
		} {
			if p, err := c.a.Plan(t.Context(), req, anything); reason.Of(err) != rootv1.Reason_REASON_INVALID_REQUEST {
				t.Errorf("%s: %v, %v", what, p, err)
			}
		}
		if now := c.now().Token(); now != at {
			t.Errorf("the root is at %s, and was at %s", now, at)
		}
	})
}

// Settings that are whole take back what they leave out, but for the layout.
func TestPlanOfSettingsThatAreWhole(t *testing.T) {
	settings := evened(30, nil)
	settings.Limits = &rootv1.Limits{MaxRegionsPerMember: 12}
	gather(t, settings, 3, func(t *testing.T, c *crowd) {
		c.run(time.Second)
		bare := proto.CloneOf(settings)
		bare.Limits, bare.Layout = nil, nil
		for whole, want := range map[bool]string{false: "10 -> 12", true: "10 -> 15"} {
			p := c.ask(&coordinatorv1.PlanRequest{Keyspace: "ks", Settings: bare, Whole: whole, WithoutMembers: []string{"m1"}})
			if row(p, "m2") != want {
				t.Errorf("whole %t: m2 has %s, want %s", whole, row(p, "m2"), want)
			}
		}
	})
}

// What may not be read is not there, what is reported is refused, and who does not hold the
// Tenure does not answer. One who waits for others waits as long as its context lasts.
func TestPlanRefusals(t *testing.T) {
	gather(t, evened(8, nil), 2, func(t *testing.T, c *crowd) {
		_, err := c.a.Plan(t.Context(), &coordinatorv1.PlanRequest{Keyspace: "nobody"}, anything)
		wantReason(t, "no keyspace", err, rootv1.Reason_REASON_NOT_FOUND)
		nothing := func(string) bool { return false }
		_, err = c.a.Plan(t.Context(), &coordinatorv1.PlanRequest{Keyspace: "ks"}, nothing)
		wantReason(t, "one that may not be read", err, rootv1.Reason_REASON_NOT_FOUND)
		if p, err := c.a.Plan(t.Context(), &coordinatorv1.PlanRequest{}, nothing); err != nil || len(p.GetKeyspaces()) != 0 || len(p.GetOperations()) != 0 {
			t.Errorf("all that may be read, which is nothing: %v, %v", p, err)
		}
		kv, _ := state.Preset("kv")
		c.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "kv", Settings: kv}}})
		synctest.Wait()
		_, err = c.a.Plan(t.Context(), &coordinatorv1.PlanRequest{Keyspace: "kv"}, anything)
		wantReason(t, "a reported one", err, rootv1.Reason_REASON_LAYOUT_MISMATCH)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first := make(chan error)
		go func() {
			_, err := c.a.Plan(t.Context(), &coordinatorv1.PlanRequest{}, func(string) bool {
				<-ctx.Done()
				time.Sleep(time.Second)
				return true
			})
			first <- err
		}()
		synctest.Wait()
		if _, err := c.a.Plan(ctx, &coordinatorv1.PlanRequest{}, anything); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("beside another one: %v", err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
		c.claim(other, 7)
		_, err = c.a.Plan(t.Context(), &coordinatorv1.PlanRequest{}, anything)
		wantReason(t, "without the Tenure", err, rootv1.Reason_REASON_TENURE_NOT_HELD)
	})
}

// Who takes less goes on: what is left is planned again, also for a newcomer that has something
// by now.
func TestPlanInParts(t *testing.T) {
	gather(t, evened(100, nil), 3, func(t *testing.T, c *crowd) {
		c.run(time.Minute)
		c.come("m4")
		c.run(time.Second)
		for _, n := range []int{10, 10, 5} {
			p := c.ask(&coordinatorv1.PlanRequest{Keyspace: "ks", MaxMoves: 10})
			if len(p.GetOperations()) != n {
				t.Fatalf("%d changes, want %d: %v", len(p.GetOperations()), n, p.GetKeyspaces())
			}
			if _, err := c.apply(p.GetPlanId()); err != nil {
				t.Fatal(err)
			}
			c.run(5 * time.Second)
		}
		if got := c.counts("m1", "m2", "m3", "m4"); !slices.Equal(got, []int{25, 25, 25, 25}) {
			t.Errorf("the members have %v", got)
		}
	})
}
