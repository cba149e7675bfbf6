package main

import (
	"errors"
	"strings"
	"testing"
	"text/tabwriter"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A cluster is in one state at a time: the worst that is true of it, with what makes it so.
func TestA31StatesOfACluster(t *testing.T) {
	whole := func(members uint64) statusOutput {
		return statusOutput{
			Era: 3, Holder: "c1", Members: &membersOutput{Active: members, Assigned: 12},
			Coordinators: []coordinatorStatusOutput{
				{ID: "c1", ServingAuthority: true, InvariantViolations: make([]uint64, 5), Disclosure: &disclosureOutput{DegradedMode: "healthy"}},
				{ID: "c2", InvariantViolations: make([]uint64, 5), Disclosure: &disclosureOutput{DegradedMode: "healthy"}},
			},
			RootPeers: []rootEndpointOutput{{NodeID: 1, Reachable: true}, {NodeID: 2, Reachable: true, Leader: true}, {NodeID: 3, Reachable: true}},
		}
	}
	cutOff := func(s *statusOutput) {
		for _, c := range s.Coordinators {
			c.Disclosure.DegradedMode = "root_unavailable"
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
		{"a hook does not answer", 3, func(s *statusOutput) {
			s.RestingHooks = []restingHookOutput{{"games", "late", "ring"}}
		}, stateDegraded, "the hook of keyspace games is of no use (late): its regions are placed by ring"},
		{"two do not", 3, func(s *statusOutput) {
			s.RestingHooks = []restingHookOutput{{"games", "late", "ring"}, {"kv", "status", "balanced"}}
		}, stateDegraded, "2 hooks are of no use, such as that of keyspace games"},
		{"while regions move", 3, func(s *statusOutput) { s.MovesUnderWay = 4 }, stateMoving, "4 changes of regions are under way"},
		{"while very many move", 3, func(s *statusOutput) { s.MovesUnderWay = countedMoves }, stateMoving, "1000 changes of regions or more"},
		{"while one drains", 2, func(s *statusOutput) { s.Members.Draining = 1 }, stateMoving, "1 members drain"},
		{"with regions of nobody", 3, func(s *statusOutput) { s.Members.Orphaned, s.MovesUnderWay = 5, 4 }, stateDegraded, "5 regions have no owner"},
		{"with one suspected", 3, func(s *statusOutput) { s.Members.Suspected = 1 }, stateDegraded, "one member is suspected"},
		{"with regions that wait", 3, func(s *statusOutput) { s.Stuck = []stuckOutput{{Keyspace: "k", Why: "poison_suspected", Count: 2}} }, stateDegraded, "2 regions wait"},
		{"with regions that their owners do not serve", 3, func(s *statusOutput) { s.Stuck = []stuckOutput{{Keyspace: "k", Why: "not_served", Count: 8}} }, stateDegraded, "8 regions wait"},
		{"without a root peer", 3, func(s *statusOutput) { s.RootPeers[0].Reachable = false }, stateDegraded, "one root peer is away"},
		{"whose lost root peer was replaced", 3, func(s *statusOutput) {
			s.RootPeers[0] = rootEndpointOutput{NodeID: 1, Replaced: true, Problem: "root peer 1 answers as root peer 4"}
		}, stateStable, "3 members"},
		{
			"with a root peer whose disk fills", 3, func(s *statusOutput) { s.RootPeers[1].DiskLow = "100 MiB of 900 MiB are free" }, stateDegraded,
			"the disk of root peer 2 is full or nearly so: 100 MiB of 900 MiB are free",
		},
		{"without a root leader", 3, func(s *statusOutput) { s.RootPeers[1].Leader = false }, stateDegraded, "no quorum"},
		{"whose root is out of reach", 3, func(s *statusOutput) { cutOff(s) }, stateDegraded, "no quorum"},
		{
			"whose root is out of reach, and that had no members", 0, func(s *statusOutput) { cutOff(s); s.asOf = "12s old" }, stateDegraded,
			"no quorum that is in reach; no member is active; members and regions are 12s old",
		},
		{"whose root is out of reach, and who answers never read it", 0, func(s *statusOutput) { cutOff(s); s.Era, s.Members = 0, nil }, stateDegraded, "are not known"},
		{"that still reads the root", 0, func(s *statusOutput) { s.Era, s.Members, s.Coordinators[0].ServingAuthority = 0, nil, false }, stateDegraded, "no coordinator that answers has read the root"},
		{"of which one coordinator does not reach the root", 3, func(s *statusOutput) { s.Coordinators[1].Disclosure.DegradedMode = "root_unavailable" }, stateDegraded, "one coordinator does not reach the root"},
		{"without members and without a root peer", 0, func(s *statusOutput) { s.RootPeers[0].Reachable = false }, stateNoMembers, "no member is active; one root peer is away"},
		{"without members and without a holder", 0, func(s *statusOutput) { s.Coordinators[0].ServingAuthority = false }, stateDegraded, "nobody serves ids and timestamps; no member is active"},
		{"before the first era, without a root peer", 0, func(s *statusOutput) {
			s.Era, s.Coordinators[0].ServingAuthority, s.RootPeers[0].Reachable = 0, false, false
		}, stateForming, "no coordinator has held the Tenure yet; one root peer is away"},
		{"that is broken and moves", 3, func(s *statusOutput) {
			s.Coordinators[1].InvariantViolations[3], s.MovesUnderWay, s.Members.Orphaned = 1, 4, 2
		}, stateDegraded, "an invariant is broken; 2 regions have no owner"},
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
	s.Members.Draining = 1 // which would be moving
	if s.judge(errors.New("no answer")); s.State != stateDegraded || !strings.Contains(s.StateWhy, "no answer") {
		t.Errorf("of which nobody knows what moves it is %s: %s", s.State, s.StateWhy)
	}
}

// What is shown of members and of the Tenure is of the coordinator that serves, or else of the one that
// is furthest, whoever answers last; what nobody has read is not shown as nothing.
func TestStatusIsOfTheCoordinatorThatIsFurthest(t *testing.T) {
	const (
		healthy     = coordinatorv1.DegradedMode_DEGRADED_MODE_HEALTHY
		lagging     = coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_LAGGING
		unavailable = coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE
	)
	of := func(id string, index, era, active uint64, mode coordinatorv1.DegradedMode) *coordinatorv1.StatusResponse {
		st := &coordinatorv1.StatusResponse{CoordinatorId: id, MembersActive: active, Disclosure: &coordinatorv1.Disclosure{DegradedMode: mode, RootLag: 7}}
		if index > 0 {
			st.Disclosure.ServedRootToken = &rootv1.RootToken{Incarnation: 1, Term: 2, Index: index}
		}
		if era > 0 {
			st.Tenure = &rootv1.Tenure{Era: era, HolderId: "c1"}
		}
		return st
	}
	serves := of("c1", 90, 3, 4, healthy)
	serves.ServingAuthority = true
	old := of("c1", 90, 3, 4, unavailable)
	old.Disclosure.RootLagMillis = 12_000
	for _, c := range []struct {
		name    string
		answers []*coordinatorv1.StatusResponse
		active  int // below 0: not known
		era     uint64
		asOf    string
	}{
		{"the one that serves, and one that is further", []*coordinatorv1.StatusResponse{serves, of("c2", 95, 4, 9, lagging)}, 4, 4, ""},
		{"in an outage, with one that was restarted in it", []*coordinatorv1.StatusResponse{old, of("c2", 0, 0, 0, unavailable)}, 4, 3, "12s old"},
		{"the same, when the other one answers first", []*coordinatorv1.StatusResponse{of("c2", 0, 0, 0, unavailable), old}, 4, 3, "12s old"},
		{"in an outage, all restarted", []*coordinatorv1.StatusResponse{of("c1", 0, 0, 0, unavailable), of("c2", 0, 0, 0, unavailable)}, -1, 0, ""},
		{"after a start, before the root is read", []*coordinatorv1.StatusResponse{of("c1", 3, 0, 0, lagging)}, -1, 0, ""},
		{"that is behind", []*coordinatorv1.StatusResponse{of("c1", 80, 3, 4, lagging)}, 4, 3, "7 entries behind the root"},
		{"before the first era", []*coordinatorv1.StatusResponse{of("c1", 3, 0, 0, healthy)}, 0, 0, ""},
	} {
		var answers []answerOf[*coordinatorv1.StatusResponse]
		for _, st := range c.answers {
			answers = append(answers, answerOf[*coordinatorv1.StatusResponse]{address: st.CoordinatorId, said: st})
		}
		s, err := heard(answers)
		if err != nil {
			t.Fatal(err)
		}
		active := -1
		if s.Members != nil {
			active = int(s.Members.Active)
		}
		if active != c.active || s.Era != c.era || s.asOf != c.asOf {
			t.Errorf("%s: %d members, era %d, %q; want %d, %d, %q", c.name, active, s.Era, s.asOf, c.active, c.era, c.asOf)
		}
	}
}

// A root peer that was replaced is said to be that, whether it answers or not.
func TestAReplacedRootPeerIsSaidToBe(t *testing.T) {
	st := &coordinatorv1.StatusResponse{
		Cluster:   &rootv1.Cluster{ReplacedNodeIds: []uint64{2}},
		RootPeers: []*coordinatorv1.RootEndpoint{{NodeId: 1, Reachable: true, Leader: true}, {NodeId: 2}},
	}
	s, err := heard([]answerOf[*coordinatorv1.StatusResponse]{{address: "c1:1", said: st}})
	if err != nil || s.RootPeers[0].Replaced || !s.RootPeers[1].Replaced {
		t.Fatalf("%v, %+v", err, s.RootPeers)
	}
	var said strings.Builder
	w := tabwriter.NewWriter(&said, 0, 1, 1, ' ', 0)
	s.table(w)
	if err := w.Flush(); err != nil || !strings.Contains(said.String(), "replaced: take it out of -root-peer") {
		t.Errorf("%v in\n%s", err, &said)
	}
}

// c1 is cut off from the root, c2 (the holder) is well; the cluster is idle, so both are at the same index.
func TestStatusAtATieIsOfWhoReachesTheRoot(t *testing.T) {
	say := func(id string, blind bool) *coordinatorv1.StatusResponse {
		mode := coordinatorv1.DegradedMode_DEGRADED_MODE_HEALTHY
		if blind {
			mode = coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE
		}
		var peers []*coordinatorv1.RootEndpoint
		for n := range uint64(3) {
			peers = append(peers, &coordinatorv1.RootEndpoint{NodeId: n + 1, Reachable: !blind, Leader: !blind && n == 0, Problem: map[bool]string{true: "timed out"}[blind]})
		}
		return &coordinatorv1.StatusResponse{
			CoordinatorId: id, ServingAuthority: !blind, Tenure: &rootv1.Tenure{Era: 3, HolderId: "c2"}, MembersActive: 2, RootPeers: peers,
			Disclosure: &coordinatorv1.Disclosure{DegradedMode: mode, ServedRootToken: &rootv1.RootToken{Incarnation: 1, Term: 1, Index: 100}, RootLagMillis: map[bool]uint64{true: 60_000}[blind]},
		}
	}
	for _, blindFirst := range []bool{false, true} {
		answers := []answerOf[*coordinatorv1.StatusResponse]{{said: say("c2", false)}, {said: say("c1", true)}}
		if blindFirst {
			answers[0], answers[1] = answers[1], answers[0]
		}
		out, err := heard(answers)
		if err != nil {
			t.Fatal(err)
		}
		out.judge(nil)
		if out.StateWhy != "one coordinator does not reach the root" {
			t.Errorf("blind first %t: %s, %s", blindFirst, out.State, out.StateWhy)
		}
	}
}
