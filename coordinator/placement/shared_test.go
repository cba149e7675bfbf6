package placement_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// together has a keyspace of so many regions, each owned by the same members, of at least min and at most
// max owners. They serve.
func (c *cluster) together(regions, least, most uint32, owners ...string) state.KeyspaceID {
	c.Helper()
	s := sharedBy(most)
	s.Ownership.MinOwners = least
	ks := c.keyspace("ks", slots(regions), s)
	var given []*rootv1.Assignment
	c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
		a := &rootv1.Assignment{RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto()}
		for _, id := range owners {
			a.Owners = append(a.Owners, &rootv1.Owner{MemberId: id})
		}
		given = append(given, a)
		return true
	})
	c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: given}}})
	c.serve(ks)
	c.settle()
	return ks
}

// serve has the owners of all regions of a keyspace say that they serve.
func (c *cluster) serve(ks state.KeyspaceID) {
	c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
		for _, o := range r.Owners {
			c.tell(r.ID, string(o.Member), serving)
		}
		return true
	})
}

// obey has members do what is planned with the regions of a keyspace, each its part.
func (c *cluster) obey(ks state.KeyspaceID) {
	c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
		switch x := c.st.PendingTransition(r.ID); x.GetKind() {
		case rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER:
			c.tell(r.ID, x.GetOwner().GetMemberId(), ready)
		case rootv1.TransitionKind_TRANSITION_KIND_MOVE:
			c.tell(r.ID, x.GetOwner().GetMemberId(), ready)
			if x.GetReadyAt() != nil {
				c.tell(r.ID, x.GetFrom().GetMemberId(), released, frontier("x"))
			}
		}
		return true
	})
}

// A member that drains leaves no shared region with fewer owners than it is to have, whether there is room
// for one more beside it or not.
func TestSharedDrainKeepsTheLeastOwners(t *testing.T) {
	for name, most := range map[string]uint32{"one more has room": 3, "none has": 2} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			for _, id := range []string{"m1", "m2", "m3", "m4"} {
				c.join(id)
			}
			ks := c.together(60, 2, most, "m1", "m2")
			c.set("m1", draining)
			for rounds := 0; c.st.MemberRegionCount("m1") > 0; rounds++ {
				if rounds > 1000 {
					t.Fatalf("m1 has %d regions after a thousand rounds", c.st.MemberRegionCount("m1"))
				}
				c.round()
				c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
					if n := len(r.Owners); n < 2 || n > int(most) {
						t.Fatalf("region %d has the owners %v", r.ID, r.Owners)
					}
					return true
				})
				if rounds%2 == 0 {
					c.obey(ks)
				} else {
					c.serve(ks)
				}
			}
			c.settle()
			if n := c.st.MemberRegionCount("m2"); n != 60 {
				t.Errorf("m2, which stays, has %d of 60 regions", n)
			}
		})
	}
}

// A shared region with room for one more owner that moves, to even out or because of a label, is served by as
// many as before all the time, and has as many owners behind that.
func TestSharedRoundsMakeBeforeTheyBreak(t *testing.T) {
	for name, policy := range map[string]*rootv1.Policy{
		"a label":        {LabelRules: []*rootv1.LabelRule{{Labels: map[string]string{"tier": "x"}}}},
		"another holder": {LabelRules: []*rootv1.LabelRule{{Labels: map[string]string{"tier": "x"}}}},
		"rounds":         {Rebalance: &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_COUNT, MeanPermille: 1200}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.labels = map[string]map[string]string{"m2": {"tier": "x"}, "m3": {"tier": "x"}}
			for _, id := range []string{"m1", "m2", "m3"} {
				c.join(id)
			}
			ks := c.together(20, 2, 3, "m1", "m2")
			s := proto.CloneOf(c.st.Keyspace(ks).GetSettings())
			s.Policy = policy
			c.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
				KeyspaceId: uint32(ks), ExpectedVersion: c.st.Keyspace(ks).GetVersion(), Settings: s,
			}}})
			c.serve(ks)
			budgets := map[state.KeyspaceID]balance.Budget{}
			for turn := range 200 {
				c.now = c.now.Add(5 * time.Second)
				in := c.work.Take(c, c.now)
				in.Attempts, in.Rebalance, in.Budgets = c.attempts, []state.KeyspaceID{ks}, budgets
				plan := placement.Make(in)
				budgets[ks] = plan.Balanced[ks].Budget
				c.work.Planned(&plan)
				c.root(plan)
				if turn%2 == 0 {
					c.obey(ks)
				} else {
					c.serve(ks)
				}
				if name == "another holder" && turn == 1 { // it finds regions of three owners
					c.work = placement.NewWork(c.st, c.now)
				}
				c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
					n := 0
					for _, o := range r.Owners {
						if said, ok := c.Report(r.ID, o); ok && said.Phase == serving {
							n++
						}
					}
					if n < 2 {
						t.Fatalf("region %d of %v is served by %d", r.ID, r.Owners, n)
					}
					return true
				})
			}
			c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
				if len(r.Owners) != 2 {
					t.Errorf("region %d has the owners %v", r.ID, r.Owners)
				}
				return true
			})
			if got := c.counts("m1", "m2", "m3"); got[2] < 10 || name != "rounds" && got[0] > 0 {
				t.Errorf("the members own %v", got)
			}
		})
	}
}

// The owner for which another one was added goes when that one serves, and not because others do, or because
// that takes long; if that one drains, it stays.
func TestRule8AnOwnerGoesWhenTheAddedOneServes(t *testing.T) {
	for name, instead := range map[string]func(*cluster){
		"it serves": nil, "it drains": func(c *cluster) { c.set("m3", draining) }, "another one drains": func(c *cluster) { c.set("m2", draining) },
	} {
		c := newCluster(t)
		c.labels = map[string]map[string]string{"m2": {"tier": "x"}, "m3": {"tier": "x"}}
		for _, id := range []string{"m1", "m2", "m3"} {
			c.join(id)
		}
		ks := c.together(1, 2, 3, "m1", "m2")
		s := proto.CloneOf(c.st.Keyspace(ks).GetSettings())
		s.Policy = &rootv1.Policy{LabelRules: []*rootv1.LabelRule{{Labels: map[string]string{"tier": "x"}}}}
		c.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
			KeyspaceId: uint32(ks), ExpectedVersion: c.st.Keyspace(ks).GetVersion(), Settings: s,
		}}})
		in := c.work.Take(c, c.now)
		in.Rebalance = []state.KeyspaceID{ks}
		plan := placement.Make(in)
		c.work.Planned(&plan)
		c.one(plan, placement.AddOwner)
		c.root(plan)
		c.obey(ks)
		c.one(c.round(), placement.Complete)
		c.one(c.round(), placement.RemoveOwner)
		id := c.first(ks).ID
		c.tell(id, "m2", serving)
		c.refusal(c.plan(), placement.NotReleased)
		c.now = c.now.Add(20 * time.Second)
		c.tell(id, "m2", serving)
		c.refusal(c.plan(), placement.NotReleased)
		if instead != nil {
			instead(c)
			c.work.Mark(id)
			c.one(c.round(), placement.Cancel)
			continue
		}
		c.tell(id, "m3", serving)
		c.one(c.round(), placement.Complete)
		if _, still := c.st.Region(id).Owner("m1"); still {
			t.Errorf("%s: m1 is still an owner: %v", name, c.st.Region(id).Owners)
		}
	}
}

// Nobody can be another owner: the drain ends, and those that stay go on.
func TestSharedDrainWithoutAnybodyElse(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.join("m2")
	ks := c.together(3, 2, 2, "m1", "m2")
	c.set("m1", draining)
	for range 10 {
		c.round()
		c.serve(ks)
	}
	c.wantCounts([]int{0, 3}, "m1", "m2")
}

// As many as are to be left serve before an owner goes, or time enough has passed for that.
func TestRule8AnOwnerGoesWhenEnoughOthersServe(t *testing.T) {
	for name, happens := range map[string]func(*cluster, state.RegionID){
		"the third serves": func(c *cluster, id state.RegionID) { c.tell(id, "m3", serving) },
		"time passes":      func(c *cluster, _ state.RegionID) { c.now = c.now.Add(10 * time.Second) },
		"the third fails":  func(c *cluster, _ state.RegionID) { c.set("m3", failed) },
	} {
		c := newCluster(t)
		for _, id := range []string{"m1", "m2", "m3"} {
			c.join(id)
		}
		id := c.first(c.together(1, 2, 3, "m1", "m2", "m3")).ID
		c.tell(id, "m3", preparing)
		c.set("m1", draining)
		c.one(c.round(), placement.RemoveOwner)
		c.tell(id, "m2", serving)
		c.refusal(c.plan(), placement.NotReleased)
		happens(c, id)
		c.one(c.round(), placement.Complete)
		if _, still := c.st.Region(id).Owner("m1"); still {
			t.Errorf("%s: m1 is still an owner: %v", name, c.st.Region(id).Owners)
		}
	}
}

// Who is added while an owner leaves gets half of the time that is left to prepare.
func TestRule8AnOwnerIsAddedInTimeForOneThatLeaves(t *testing.T) {
	c := newCluster(t)
	m1 := c.join("m1")
	ks := c.together(1, 1, 2, "m1")
	c.join("m2")
	c.work.Leave("m1", m1, placement.Leave{Said: c.now, Ends: c.now.Add(5 * time.Second)})
	c.set("m1", draining)
	c.one(c.round(), placement.AddOwner)
	if f := c.refusal(c.plan(), placement.NotReady); f.At != c.now.Add(2*time.Second) {
		t.Fatalf("m2 has %v to prepare", f.At.Sub(c.now))
	}
	c.now = c.now.Add(2 * time.Second)
	c.one(c.round(), placement.Complete)
	if n := len(c.first(ks).Owners); n != 2 {
		t.Fatalf("the region has %d owners", n)
	}
}
