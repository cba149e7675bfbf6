package placement_test

import (
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
