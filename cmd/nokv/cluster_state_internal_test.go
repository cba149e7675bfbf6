package main

import (
	"errors"
	"strings"
	"testing"
)

// A cluster is in one state at a time: the worst that is true of it, with what makes it so.
func TestA31StatesOfACluster(t *testing.T) {
	whole := func(members uint64) statusOutput {
		return statusOutput{
			Era: 3, Holder: "c1", Members: membersOutput{Active: members, Assigned: 12},
			Coordinators: []coordinatorStatusOutput{
				{ID: "c1", ServingAuthority: true, InvariantViolations: make([]uint64, 5), Disclosure: &disclosureOutput{DegradedMode: "healthy"}},
				{ID: "c2", InvariantViolations: make([]uint64, 5), Disclosure: &disclosureOutput{DegradedMode: "healthy"}},
			},
			RootPeers: []rootEndpointOutput{{NodeID: 1, Reachable: true}, {NodeID: 2, Reachable: true, Leader: true}, {NodeID: 3, Reachable: true}},
		}
	}
	for _, c := range []struct {
		name    string
		members uint64
		change  func(*statusOutput)
		state   string
		why     string
	}{
		{"before the first era", 2, func(s *statusOutput) { s.Era, s.Coordinators[0].ServingAuthority = 0, false }, stateForming, "held the Tenure yet"},
		{"without members", 0, func(s *statusOutput) { s.Members.Assigned = 0 }, stateNoMembers, "no member is active"},
		{"whose members are gone", 0, func(s *statusOutput) { s.Members.Failed, s.Members.Orphaned = 2, 12 }, stateNoMembers, "12 regions have no owner"},
		{"with one", 1, func(*statusOutput) {}, stateSingle, "one member"},
		{"with three", 3, func(*statusOutput) {}, stateStable, "3 members, nothing moves"},
		{"one has failed and others have its regions", 2, func(s *statusOutput) { s.Members.Failed = 1 }, stateStable, "2 members"},
		{"while regions move", 3, func(s *statusOutput) { s.MovesUnderWay = 4 }, stateMoving, "4 changes of regions are under way"},
		{"while very many move", 3, func(s *statusOutput) { s.MovesUnderWay = countedMoves }, stateMoving, "1000 changes of regions or more"},
		{"while one drains", 2, func(s *statusOutput) { s.Members.Draining = 1 }, stateMoving, "1 members drain"},
		{"with regions of nobody", 3, func(s *statusOutput) { s.Members.Orphaned, s.MovesUnderWay = 5, 4 }, stateDegraded, "5 regions have no owner"},
		{"with one suspected", 3, func(s *statusOutput) { s.Members.Suspected = 1 }, stateDegraded, "one member is suspected"},
		{"with regions that wait", 3, func(s *statusOutput) { s.Stuck = []stuckOutput{{Keyspace: "k", Why: "poison_suspected", Count: 2}} }, stateDegraded, "2 regions wait"},
		{"without a root peer", 3, func(s *statusOutput) { s.RootPeers[0].Reachable = false }, stateDegraded, "one root peer is away"},
		{"without a root leader", 3, func(s *statusOutput) { s.RootPeers[1].Leader = false }, stateDegraded, "no quorum"},
		{"whose root is out of reach", 3, func(s *statusOutput) { s.Coordinators[0].Disclosure.DegradedMode = "root_unavailable" }, stateDegraded, "no quorum"},
		{"without a coordinator", 3, func(s *statusOutput) { s.Coordinators[1] = coordinatorStatusOutput{Address: "c2:1", Error: "refused"} }, stateDegraded, "one coordinator is away"},
		{"without a holder", 3, func(s *statusOutput) { s.Coordinators[0].ServingAuthority = false }, stateDegraded, "nobody serves"},
		{"whose holder is out of reach", 3, func(s *statusOutput) {
			s.Coordinators[0] = coordinatorStatusOutput{Address: "c1:1", Error: "timed out"}
		}, stateDegraded, "coordinator c1 holds the Tenure, and is not in reach; if that lasts, nokv tenure end"},
		{"that is broken", 3, func(s *statusOutput) { s.Coordinators[1].InvariantViolations[3] = 1 }, stateDegraded, "an invariant is broken"},
		{"with much that is wrong", 3, func(s *statusOutput) { s.Members.Orphaned, s.RootPeers[2].Reachable = 1, false }, stateDegraded, "one region has no owner; one root peer is away"},
	} {
		s := whole(c.members)
		c.change(&s)
		s.judge(nil)
		if s.State != c.state || !strings.Contains(s.StateWhy, c.why) {
			t.Errorf("%s it is %s: %s; want %s: %s", c.name, s.State, s.StateWhy, c.state, c.why)
		}
	}
	s := whole(3)
	if s.judge(errors.New("no answer")); s.State != stateDegraded || !strings.Contains(s.StateWhy, "no answer") {
		t.Errorf("of which nobody knows what moves it is %s: %s", s.State, s.StateWhy)
	}
}
