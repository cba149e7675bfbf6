package placement_test

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// rebalanced makes a plan that evens a keyspace out.
func (c *cluster) rebalanced(ks state.KeyspaceID) placement.Plan {
	in := c.work.Take(c, c.now)
	in.Rebalance = []state.KeyspaceID{ks}
	plan := placement.Make(in)
	c.work.Planned(&plan)
	return plan
}

func host(member string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{
		Principal: "member/" + member, Keyspace: "k", Verbs: []rootv1.Verb{rootv1.Verb_VERB_HOST},
	}}}}
}

// TestMembersHostByGrants: regions of a closed keyspace go to those whom a grant of host names, and are
// moved off others that have some, and off those who take none of the keyspace any more. While nobody
// may have them they stay.
func TestMembersHostByGrants(t *testing.T) {
	const notAccepted = rootv1.OperationReason_OPERATION_REASON_NOT_ACCEPTED
	c := newCluster(t)
	for _, id := range []string{"m1", "m2", "m3"} {
		c.join(id)
	}
	c.apply(host("m1"), host("m2"))
	ks := c.keyspace("k", slots(8), epochFence())
	c.settle()
	if got := c.counts("m1", "m2", "m3"); got[0] != 4 || got[1] != 4 {
		t.Fatalf("the members own %v", got)
	}
	off := func(from state.MemberID, to ...state.MemberID) {
		t.Helper()
		plan := c.rebalanced(ks)
		if len(plan.Operations) == 0 && len(to) > 0 {
			t.Errorf("nothing is moved off %s: %+v", from, plan.Refusals)
		}
		for i, o := range plan.Operations {
			if len(to) == 0 || o.Kind != placement.PlanMove || o.From.Member != from || o.To.Member != to[0] || o.Reason != notAccepted {
				t.Errorf("operation %d is %+v", i, o)
			}
			c.work.Judged(o.Region)
		}
	}
	off("")
	c.apply(&rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: "member/m2", Keyspace: "k"}}})
	off("m2", "m1")
	c.apply(host("m2"))
	off("")
	m2 := c.st.Member("m2")
	c.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Follows: m2.GetIncarnation(), Member: &rootv1.Member{
		Id: "m2", Address: m2.GetAddress(), StartNonce: m2.GetStartNonce(), Keyspaces: []string{"other"},
	}}}})
	off("m2", "m1")
	c.apply(&rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: "member/m1", Keyspace: "k"}}},
		&rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{Principal: "client/a", Keyspace: "k", Verbs: []rootv1.Verb{rootv1.Verb_VERB_READ}}}}})
	off("") // nobody may own anything
}

// revoked has a region of m1, which may not own it any more and does not let it go, on its way to m2.
func revoked(t *testing.T, s *rootv1.KeyspaceSettings) (*cluster, state.RegionID) {
	c := newCluster(t)
	c.join("m1")
	ks := c.keyspace("k", slots(1), s)
	c.settle()
	c.join("m2")
	c.settle()
	c.apply(host("m2"))
	plan := c.rebalanced(ks)
	c.one(plan, placement.PlanMove)
	c.root(plan)
	id := c.first(ks).ID
	c.tell(id, "m2", ready)
	c.one(c.round(), placement.Ready)
	c.now = c.refusal(c.plan(), placement.NotReleased).At
	return c, id
}

// A member that may not own a region, and has not let it go by the deadline, is asked no more: with a fence of
// epochs somebody else has it at once, with one of time when that member has taken it in.
func TestWhoMayNotHostAndDoesNotLetGo(t *testing.T) {
	const notAccepted = rootv1.OperationReason_OPERATION_REASON_NOT_ACCEPTED
	for name, s := range map[string]*rootv1.KeyspaceSettings{"epoch": epochFence(), "ttl": ttlFence()} {
		t.Run(name, func(t *testing.T) {
			c, id := revoked(t, s)
			o := c.one(c.round(), placement.Assign)
			if r := c.st.Region(id); len(r.Owners) != 0 || o.Reason != notAccepted || o.Because == "" || c.st.PendingTransition(id) != nil {
				t.Fatalf("behind the deadline the region is %+v, by %+v", r.Region, o)
			}
			if name == "ttl" {
				c.refusal(c.plan(), placement.FenceRuns)
				c.taken[fmt.Sprint("m1/", c.st.Member("m1").GetIncarnation())] = c.st.Token()
				c.work.MarkMember("m1")
			}
			c.one(c.round(), placement.Assign)
			if c.owner(id) != "m2" {
				t.Errorf("the region is %s's", c.owner(id))
			}
		})
	}
	t.Run("it may again", func(t *testing.T) {
		c, id := revoked(t, epochFence())
		c.apply(host("m1"))
		c.one(c.round(), placement.Cancel)
		if c.owner(id) != "m1" {
			t.Errorf("the region is %s's", c.owner(id))
		}
	})
}

// An owner of a shared region that may not own it goes also where everybody who may owns it already.
func TestSharedRegionsLoseWhoMayNotHost(t *testing.T) {
	c := newCluster(t)
	c.join("m1")
	c.join("m2")
	ks := c.keyspace("k", slots(1), sharedBy(2))
	r := c.first(ks)
	c.apply(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{{
		RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Owners: []*rootv1.Owner{{MemberId: "m1"}, {MemberId: "m2"}},
	}}}}})
	c.settle()
	c.apply(host("m1"))
	plan := c.rebalanced(ks)
	if o := c.one(plan, placement.RemoveOwner); o.From.Member != "m2" {
		t.Fatalf("the operation is %+v", o)
	}
	c.root(plan)
	c.tell(r.ID, "m1", serving)
	c.one(c.round(), placement.Complete)
	if c.owner(r.ID) != "m1" {
		t.Errorf("the region is %s's", c.owner(r.ID))
	}
}
