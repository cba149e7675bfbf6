package state_test

import (
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What a member owns and a client was granted is judged when a command applies: an
// owner that changed, or a grant that was taken back, behind the check of who let the
// command into the log, wins, also within an entry. Without an actor nobody is judged.
func TestOwnershipAndGrantsAreJudgedWhenApplied(t *testing.T) {
	removed := &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 5}}}
	split := []*rootv1.Event{
		{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: 5, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, SplitKey: []byte("g"), RightRegionId: 6}}},
		{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: "split-5-1.1"}}},
		{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 6}}},
	}
	revoked := &rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: "client/a", Keyspace: "default"}}}
	by := func(actor string, events ...*rootv1.Event) *rootv1.Command {
		return &rootv1.Command{Actor: actor, Events: events}
	}
	const denied, fine = rootv1.Reason_REASON_PERMISSION_DENIED, rootv1.Reason_REASON_UNSPECIFIED
	for name, c := range map[string]struct {
		first, then *rootv1.Command
		want        rootv1.Reason
	}{
		"the owner":                         {nil, by("member/m1", removed), fine},
		"not the owner":                     {nil, by("member/m2", removed), denied},
		"the owner until now":               {by("operator/o", region5(2, "m2")), by("member/m1", removed), denied},
		"the owner from now on":             {by("operator/o", region5(2, "m2")), by("member/m2", removed), fine},
		"its own doing":                     {by("member/m1", region5(2, "m2")), by("member/m1", region5(3, "m1")), denied},
		"a grant":                           {nil, by("client/a", removed), fine},
		"no grant":                          {nil, by("client/b", removed), denied},
		"a proxy's grant":                   {nil, by("proxy/p", removed), fine},
		"a client's grant is no proxy's":    {nil, by("proxy/a", removed), denied},
		"a grant that is gone":              {by("operator/o", revoked), by("client/a", removed), denied},
		"what is gone":                      {by("operator/o", removed), by("client/a", removed), denied},
		"an operator":                       {by("operator/o", revoked), by("operator/o", removed), fine},
		"nobody":                            {by("", revoked), by("", removed), fine},
		"all or nothing":                    {by("operator/o", region5(2, "m2")), by("member/m1", region5(3, "m1"), removed), denied},
		"a split, and its right part":       {nil, by("member/m1", split...), fine},
		"a granted split":                   {nil, by("client/a", split...), fine},
		"a split that is not granted":       {nil, by("client/b", split...), denied},
		"given away in the command":         {nil, by("member/m1", region5(2, "m2"), removed), denied},
		"whose right to own was taken back": {by("operator/o", revokedHost("m1")), by("member/m1", removed), denied},
		"a member's other business":         {nil, by("member/m2", &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m2", State: rootv1.MemberState_MEMBER_STATE_DRAINING}}}), fine},
	} {
		t.Run(name, func(t *testing.T) {
			m := restricted(t)
			m.must(joinedAs("m1"))
			m.must(joinedAs("m2"))
			m.must(region5(1, "m1"))
			m.must(granted("client/a", "default", rootv1.Verb_VERB_PUBLISH))
			m.must(granted("proxy/p", "default", rootv1.Verb_VERB_PUBLISH))
			m.must(granted("member/m1", "default", rootv1.Verb_VERB_HOST))
			m.must(granted("member/m2", "default", rootv1.Verb_VERB_HOST))
			entry := []*rootv1.Command{c.then}
			if c.first != nil {
				entry = []*rootv1.Command{c.first, c.then}
			}
			results := m.apply(entry...)
			for i, want := range []rootv1.Reason{fine, c.want}[2-len(entry):] {
				if got := results[i].Reject.GetReason(); got != want {
					t.Errorf("command %d: %v (%v), want %v", i, got, results[i].Reject, want)
				}
			}
			m.checkHash()
		})
	}
}

// TestWhatMembersAskForOfRegions: owners that report their regions say what has become of them, and how they are
// split and merged; who is assigned a region removes it. Any other step is the planner's, a client's by a
// grant, or an operator's.
func TestWhatMembersAskForOfRegions(t *testing.T) {
	const neither, reported, both = 0, 1, 2
	at := &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}
	owner := func(id string) *rootv1.Owner {
		return &rootv1.Owner{MemberId: id, PeerId: 1, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER}
	}
	region := func(id uint64, start, end string, version uint64) *rootv1.Region {
		return &rootv1.Region{Id: id, KeyspaceId: 2, StartKey: []byte(start), EndKey: []byte(end), Epoch: &rootv1.RegionEpoch{Version: version, ConfVersion: 1}, Owners: []*rootv1.Owner{owner("m1")}}
	}
	further := region(1, "a", "g", 2)
	further.Frontier = []byte("f")
	cut := func(id uint64, key string, right uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: id, ExpectedEpoch: at, SplitKey: []byte(key), RightRegionId: right}}}
	}
	const pending = "split-3-1.1"
	for name, c := range map[string]struct {
		event *rootv1.Event
		where int
	}{
		"region_bootstrapped": {&rootv1.Event{Kind: &rootv1.Event_RegionBootstrapped{RegionBootstrapped: &rootv1.RegionBootstrapped{Region: further}}}, neither},
		"region_published":    {&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: further}}}, reported},
		"region_tombstoned":   {&rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 1}}}, both},
		"regions_assigned": {&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{
			Assignments: []*rootv1.Assignment{{RegionId: 1, Owners: []*rootv1.Owner{owner("m2")}, AtOnce: true}},
		}}}, neither},
		"peer_change_planned": {&rootv1.Event{Kind: &rootv1.Event_PeerChangePlanned{PeerChangePlanned: &rootv1.PeerChangePlanned{
			RegionId: 1, ExpectedEpoch: at, Kind: rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER, Owner: owner("m2"),
		}}}, neither},
		"split_planned": {cut(1, "c", 91), reported},
		"merge_planned": {&rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: &rootv1.MergePlanned{
			LeftRegionId: 1, LeftExpectedEpoch: at, RightRegionId: 2, RightExpectedEpoch: at,
		}}}, reported},
		"move_planned":         {&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{RegionId: 1, ExpectedEpoch: at, From: owner("m1"), To: owner("m2")}}}, neither},
		"move_ready":           {&rootv1.Event{Kind: &rootv1.Event_MoveReady{MoveReady: &rootv1.MoveReady{TransitionId: pending, Incarnation: 1}}}, neither},
		"transition_completed": {&rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: pending}}}, reported},
		"transition_cancelled": {&rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: pending}}}, neither},
	} {
		for placement, where := range map[rootv1.Placement]int{rootv1.Placement_PLACEMENT_REPORTED: reported, rootv1.Placement_PLACEMENT_ASSIGNED: both} {
			for actor, owns := range map[string]bool{"member/m1": true, "member/m2": false} {
				m := bootstrapped(t)
				settings := state.DefaultSettings()
				settings.Placement = placement
				m.must(settingsEvent("k", settings), joinedAs("m1"), joinedAs("m2"))
				for i, bounds := range []string{"ag", "gm", "mz"} {
					m.must(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: region(uint64(i+1), bounds[:1], bounds[1:], 1)}}})
				}
				m.must(cut(3, "p", 90))
				got := m.apply(&rootv1.Command{Actor: actor, Events: []*rootv1.Event{c.event}})[0]
				may := owns && c.where >= where
				if refused := got.Reject.GetReason() == rootv1.Reason_REASON_PERMISSION_DENIED; refused == may || may && got.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
					t.Errorf("%s asks for %s, %v: %v, %v", actor, name, placement, got.Outcome, got.Reject)
				}
				m.checkHash()
			}
		}
	}
}

// TestACommandIsJudgedAsItGoesOn: what is given away in a command is not its actor's any
// more behind that.
func TestACommandIsJudgedAsItGoesOn(t *testing.T) {
	m := bootstrapped(t)
	m.must(joinedAs("m1"))
	m.must(joinedAs("m2"))
	m.must(region5(1, "m1"))
	given := &rootv1.Command{Actor: "member/m1", Events: []*rootv1.Event{region5(2, "m2"), region5(3, "m1")}}
	if got := m.apply(given)[0]; got.Reject.GetReason() != rootv1.Reason_REASON_PERMISSION_DENIED {
		t.Errorf("what is given away in a command, and changed behind that: %v", got.Reject)
	}
	m.checkHash()
}

// TestOwnersAreHosts: a member becomes owner of a region of a closed keyspace, by whomever, only if a
// grant of host names it; in an open one anybody may. What it owns already it keeps until that is
// moved. It registers for closed keyspaces by a grant only, and a grant for all of them is one.
func TestOwnersAreHosts(t *testing.T) {
	const denied = rootv1.Reason_REASON_PERMISSION_DENIED
	m := bootstrapped(t)
	m.must(joinedAs("m1"))
	m.must(joinedAs("m2"))
	m.must(region5(1, "m1"))
	m.must(granted("client/a", "default", rootv1.Verb_VERB_READ))
	named := joinedAs("m3")
	named.GetMemberJoined().Member.Keyspaces = []string{"default"}
	for actor, e := range map[string]*rootv1.Event{"": region5(2, "m2"), "operator/o": region5(2, "m2"), "coordinator/c1": region5(2, "m2"), "member/m3": named} {
		if got := m.apply(&rootv1.Command{Actor: actor, Events: []*rootv1.Event{e}})[0]; got.Reject.GetReason() != denied {
			t.Errorf("by %q: %v", actor, got.Reject)
		}
	}
	m.must(granted("member/*", "*", rootv1.Verb_VERB_HOST))
	m.must(named)
	m.must(region5(2, "m2"))
	if st := m.s; !st.May("member", "m2", rootv1.Verb_VERB_READ, "default") || st.May("member", "m2", rootv1.Verb_VERB_CLAIM, "default") || st.May("client", "m2", rootv1.Verb_VERB_HOST, "other") {
		t.Error("host implies read, nothing else, and is no client's")
	}
	if got := m.apply(&rootv1.Command{Events: []*rootv1.Event{granted("client/a", "default", rootv1.Verb_VERB_HOST)}})[0]; got.Reject.GetReason() != rootv1.Reason_REASON_INVALID_REQUEST {
		t.Errorf("host for a client: %v", got.Reject)
	}
	m.checkHash()
}

func revokedHost(id string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: "member/" + id, Keyspace: "default", Verbs: []rootv1.Verb{rootv1.Verb_VERB_HOST}}}}
}

func joinedAs(id string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: id, Address: id + ":1", StartNonce: 1}}}}
}

// region5 is region 5 with an owner.
func region5(version uint64, owner string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
		Id: 5, KeyspaceId: 1, StartKey: []byte("a"), EndKey: []byte("m"), Epoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: version},
		Owners: []*rootv1.Owner{{MemberId: owner, PeerId: version, Role: rootv1.OwnerRole_OWNER_ROLE_VOTER}},
	}}}}
}
