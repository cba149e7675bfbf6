package chronicle_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/chronicle"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// history is a log as the root makes it.
type history struct {
	t    *testing.T
	st   *state.State
	log  []*rootv1.TailEntry
	next uint64
}

// newHistory has members m1 to m3 and six points of a keyspace games, that they share.
func newHistory(t *testing.T) *history {
	h := &history{t: t, st: state.New()}
	h.add(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 0x77, Incarnation: 1, CreatedUnixMillis: 1, FeatureLevel: state.FeatureLevel,
		Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "h:1"}},
	}}}})
	settings, _ := state.Preset("games")
	h.add(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "games", Settings: settings}}})
	for i := 1; i <= 3; i++ {
		h.join(fmt.Sprintf("m%d", i))
	}
	var regions []*rootv1.Event
	for i := range 6 {
		regions = append(regions, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			Id: uint64(10 + i), KeyspaceId: 2, StartKey: fmt.Appendf(nil, "g%d", i), Owners: []*rootv1.Owner{{MemberId: fmt.Sprintf("m%d", i%3+1)}},
		}}}})
	}
	h.add(regions...)
	return h
}

func (h *history) join(id string) {
	h.add(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
		Member:  &rootv1.Member{Id: id, Address: id + ":1", Keyspaces: []string{"games"}, StartNonce: uint64(len(h.log)) + 1},
		Follows: h.st.Member(state.MemberID(id)).GetIncarnation(),
	}}})
}

func (h *history) add(events ...*rootv1.Event) {
	h.t.Helper()
	h.entry(&rootv1.Command{Events: events})
}

func (h *history) entry(commands ...*rootv1.Command) {
	h.t.Helper()
	for _, c := range commands {
		h.next++
		c.Identity = &rootv1.CommandIdentity{Origin: 7, Sequence: h.next, KnownIndex: h.st.Token().Index}
	}
	index := h.st.Token().Index + 1
	e := &rootv1.Entry{Commands: commands}
	if index > 1 {
		e.UnixMillis = 1_700_000_000_000 + index
	}
	data, err := proto.Marshal(e)
	if err == nil {
		err = h.st.ApplyEntry(1, index, data, nil)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.log = append(h.log, &rootv1.TailEntry{Term: 1, Index: index, Entry: data})
}

// told is what is told of the log over a state.
func (h *history) told(over *state.State, f chronicle.Filter) (lines []chronicle.Line) {
	h.t.Helper()
	c := chronicle.New(over, f)
	for _, e := range h.log {
		more, err := c.Tell(e)
		if err != nil {
			h.t.Fatal(err)
		}
		lines = append(lines, more...)
	}
	return lines
}

func (h *history) want(f chronicle.Filter, want ...string) {
	h.t.Helper()
	h.wantOver(state.New(), f, want...)
}

func (h *history) wantOver(over *state.State, f chronicle.Filter, want ...string) {
	h.t.Helper()
	var got []string
	for _, l := range h.told(over, f) {
		got = append(got, l.Text)
	}
	if got = got[max(len(got)-len(want), 0):]; !slices.Equal(got, want) {
		h.t.Errorf("told is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func changed(id string, incarnation uint64, is rootv1.MemberState, reason string, signals ...string) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
		MemberId: id, Incarnation: incarnation, State: is, Reason: reason, Signals: signals,
	}}}
}

func assigned(reason rootv1.OperationReason, epoch uint64, to ...string) *rootv1.Event {
	a := &rootv1.RegionsAssigned{}
	for i, member := range to {
		a.Assignments = append(a.Assignments, &rootv1.Assignment{
			RegionId: uint64(10 + 3*i), ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: epoch}, Owners: []*rootv1.Owner{{MemberId: member}}, Reason: reason,
		})
	}
	return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: a}}
}

const (
	active, failed, draining = rootv1.MemberState_MEMBER_STATE_ACTIVE, rootv1.MemberState_MEMBER_STATE_FAILED, rootv1.MemberState_MEMBER_STATE_DRAINING
	becauseFailed            = rootv1.OperationReason_OPERATION_REASON_MEMBER_FAILED
)

// What one entry says of many regions that took turns is one line for each thing said.
func TestOneEntrySaysAThingOnce(t *testing.T) {
	h := newHistory(t)
	grants := make([]*rootv1.Assignment, 0, 4)
	for _, id := range []uint64{10, 11, 13, 14} { // of m1 and m2 in turn
		grants = append(grants, &rootv1.Assignment{
			RegionId: id, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, Owners: []*rootv1.Owner{{MemberId: "m3"}}, Reason: becauseFailed,
		})
	}
	h.add(&rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: grants}}})
	h.want(chronicle.Filter{},
		`6 regions of games are published, owned by m1 (2), m2 (2) and m3 (2)`,
		`2 regions of games go from m1 to m3: the owner has failed`,
		`2 regions of games go from m2 to m3: the owner has failed`)
}

// A member's death: who failed and by which proof, and what went where and why.
func TestC26A08A09AFailureIsTold(t *testing.T) {
	h := newHistory(t)
	h.add(changed("m1", 1, failed, "its own address refuses connections", "stream_closed", "probe_refused"))
	h.entry(&rootv1.Command{Events: []*rootv1.Event{assigned(becauseFailed, 1, "m2", "m3")}, Actor: "coordinator/c1"})
	h.join("m1")
	h.want(chronicle.Filter{},
		`6 regions of games are published, owned by m1 (2), m2 (2) and m3 (2)`,
		`m1 (incarnation 1) has failed: its own address refuses connections [stream_closed, probe_refused]; 2 regions have no owner`,
		`2 regions of games go from m1 to m2 (1) and m3 (1): the owner has failed`,
		`m1 registers, at m1:1, as incarnation 4, to take regions of games`)
	lines := h.told(state.New(), chronicle.Filter{Actor: "coordinator/*"})
	if len(lines) != 1 || !slices.Equal(lines[0].Regions, []uint64{10, 13}) || !slices.Equal(lines[0].Members, []string{"m1", "m2", "m3"}) ||
		!slices.Equal(lines[0].Keyspaces, []string{"games"}) || lines[0].Time.UnixMilli() != 1_700_000_000_008 || lines[0].Outcome != "applied" {
		t.Errorf("of a coordinator is told %+v", lines)
	}
	if first := h.told(state.New(), chronicle.Filter{})[0]; first.Time.UnixMilli() != 1 {
		t.Errorf("the cluster begins at %v", first.Time)
	}
}

// Certificates are revoked one by one: what is told is what changed.
func TestRevokedCertificatesAreTold(t *testing.T) {
	h := newHistory(t)
	for version, revoked := range [][]string{{"ab12", "member/m1"}, {"ab12", "member/m2"}, nil} {
		h.add(&rootv1.Event{Kind: &rootv1.Event_ClusterSettingsChanged{ClusterSettingsChanged: &rootv1.ClusterSettingsChanged{
			ExpectedVersion: uint64(version), Settings: &rootv1.ClusterSettings{RevokedCertificates: revoked},
		}}})
	}
	const ttl = "a claim of the Tenure may ask for a ttl of 30000 ms at most"
	h.want(chronicle.Filter{},
		ttl+"; certificates revoked: ab12 and member/m1",
		ttl+"; certificates revoked: member/m2; certificates not revoked any more: member/m1",
		ttl+"; certificates not revoked any more: ab12 and member/m2")
}

// What a guard holds is a member that stays what it is, and why.
func TestAHoldIsTold(t *testing.T) {
	h := newHistory(t)
	h.entry(&rootv1.Command{Events: []*rootv1.Event{changed("m2", 2, active, ""), changed("m1", 1, active, "")}, Why: "mass_failure_hold: x"})
	h.want(chronicle.Filter{}, "m1 and m2 stay active")
	h.add(changed("m2", 2, active, "")) // says nothing
	h.want(chronicle.Filter{}, "m1 and m2 stay active")
}

func moved(id uint64, to string, why rootv1.OperationReason) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
		RegionId: id, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, From: &rootv1.Owner{MemberId: "m1"}, To: &rootv1.Owner{MemberId: to}, Reason: why,
	}}}
}

func done(id string) *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: id}}}}}
}

// A rebalance: what is to move and why, what has, and what was given up.
func TestA10ARebalanceIsTold(t *testing.T) {
	h := newHistory(t)
	h.add(moved(10, "m2", rootv1.OperationReason_OPERATION_REASON_LOAD), moved(13, "m2", rootv1.OperationReason_OPERATION_REASON_COUNT))
	h.entry(done("move-10-1.1"))
	h.add(&rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: "move-13-1.1", Reason: "m2 has no room"}}})
	h.want(chronicle.Filter{},
		`region 10 ("g0") of games is to move from m1 to m2: the owner has more load than others`,
		`region 13 ("g3") of games is to move from m1 to m2: the owner has more regions than others`,
		`region 10 ("g0") of games has moved from m1 to m2: the owner has more load than others`,
		`the move of region 13 ("g3") of games from m1 to m2 is given up: m2 has no room`)
}

func TestC43A09ADrainIsTold(t *testing.T) {
	h := newHistory(t)
	h.add(changed("m1", 1, draining, "disk is full"))
	h.add(moved(10, "m2", rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING), moved(13, "m3", rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING))
	h.entry(done("move-10-1.1"), done("move-13-1.1"))
	h.add(changed("m1", 1, active, ""))
	h.want(chronicle.Filter{Keyspace: "games", Member: "m1"},
		`m1 (incarnation 1) drains: disk is full; 2 regions to be moved`,
		`2 regions of games are to move from m1 to m2 (1) and m3 (1): the owner drains`,
		`2 regions of games have moved from m1 to m2 (1) and m3 (1): the owner drains`,
		`m1 (incarnation 1) takes regions again`)
	h.want(chronicle.Filter{Region: 13},
		`region 13 ("g3") of games is published, owned by m1`,
		`region 13 ("g3") of games is to move from m1 to m3: the owner drains`,
		`region 13 ("g3") of games has moved from m1 to m3: the owner drains`)
}

// A filter for what is not there, and was not in what is told, is a mistake: also where there
// are members that would take regions of any keyspace.
func TestAFilterForNothing(t *testing.T) {
	h := newHistory(t)
	h.add(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "short", Settings: state.DefaultSettings()}}})
	h.add(&rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: "short"}}})
	h.add(&rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{Name: "never"}}})
	for _, c := range []struct {
		filter chronicle.Filter
		want   string
	}{
		{chronicle.Filter{}, ""},
		{chronicle.Filter{Keyspace: "games", Member: "m1", Region: 13}, ""},
		{chronicle.Filter{Keyspace: "short"}, ""},
		{chronicle.Filter{Keyspace: "nope"}, `keyspace "nope"`},
		{chronicle.Filter{Keyspace: "never"}, `keyspace "never"`},
		{chronicle.Filter{Member: "m77"}, `member "m77"`},
		{chronicle.Filter{Region: 77}, "region 77"},
	} {
		tells := chronicle.New(state.New(), c.filter)
		for _, e := range h.log {
			if _, err := tells.Tell(e); err != nil {
				t.Fatal(err)
			}
		}
		if got := tells.Unknown(); got != c.want {
			t.Errorf("%+v: %q is not known, want %q", c.filter, got, c.want)
		}
	}
}

// What was refused is told as such, and not as something that happened.
func TestARefusalIsTold(t *testing.T) {
	h := newHistory(t)
	h.add(assigned(becauseFailed, 9, "m2"))
	h.add(changed("m1", 9, failed, "x"))
	h.want(chronicle.Filter{},
		`refused, epoch_stale: that region 10 ("g0") of games goes from m1 to m2: the owner has failed`,
		`refused, member_retired: that m1 (incarnation 9) has failed: x`)
}

// Over a state of later the log is told by what that remembers, and behind it as ever.
func TestWhatIsOlderThanTheStateIsTold(t *testing.T) {
	h := newHistory(t)
	h.add(changed("m1", 1, failed, "gone"))
	h.add(assigned(becauseFailed, 1, "m2", "m3"))
	h.add(assigned(becauseFailed, 1, "m3"))
	later := h.st.Fork()
	h.add(assigned(rootv1.OperationReason_OPERATION_REASON_OPERATOR, 2, "m3"))
	h.wantOver(later.Fork(), chronicle.Filter{},
		`m1 (incarnation 1) has failed: gone`,
		`2 regions of games go to m2 (1) and m3 (1): the owner has failed`,
		`refused, epoch_stale: that region 10 ("g0") of games goes to m3: the owner has failed`,
		`region 10 ("g0") of games goes from m2 to m3: somebody asked for it`)
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{changed("m2", 2, draining, "")}}}})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := chronicle.New(later, chronicle.Filter{}).Tell(&rootv1.TailEntry{Term: 1, Index: 3, Entry: data})
	if err != nil || len(lines) != 1 || lines[0].Text != "asked for: that m2 (incarnation 2) drains" || lines[0].Outcome != "" {
		t.Errorf("of a command without identity is told %+v, %v", lines, err)
	}
}

// Whatever the kind of an event, there is a sentence for it: a new kind gets its own.
func TestEveryKindHasWords(t *testing.T) {
	kinds := (&rootv1.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range kinds.Len() {
		e := (&rootv1.Event{}).ProtoReflect()
		e.Set(kinds.Get(i), e.NewField(kinds.Get(i)))
		if a := e.Interface().(*rootv1.Event).GetRegionsAssigned(); a != nil {
			a.Assignments = []*rootv1.Assignment{{RegionId: 1}}
		}
		data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e.Interface().(*rootv1.Event)}}}})
		if err != nil {
			t.Fatal(err)
		}
		h := newHistory(t)
		lines, err := chronicle.New(h.st, chronicle.Filter{All: true}).Tell(&rootv1.TailEntry{Term: 1, Index: 2, Entry: data})
		name := string(kinds.Get(i).Name())
		if err != nil || len(lines) != 1 || lines[0].Kind != name || lines[0].Text == "asked for: that "+strings.ReplaceAll(name, "_", " ") {
			t.Errorf("of %s is told %+v, %v", name, lines, err)
		}
	}
	for number, name := range rootv1.OperationReason_name {
		if number != 0 && chronicle.Cause(rootv1.OperationReason(number)) == "" {
			t.Errorf("%s has no words", name)
		}
	}
}

// Who leads, and how that ended, is told.
func TestA11ATenureIsTold(t *testing.T) {
	h := newHistory(t)
	secret := []byte(strings.Repeat("s", 32))
	digest := sha256.Sum256(secret)
	claim := func(id string, era uint64) {
		h.add(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
			HolderId: id, HolderIncarnation: 5, HolderAddress: id + ":1", ExpectedEra: era, TtlMillis: 1000, PredecessorExpired: era == 1,
			Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID}, RetireDigest: digest[:],
		}}})
	}
	claim("c1", 0)
	h.want(chronicle.Filter{}, `c1 holds the Tenure, in era 1`)
	claim("c2", 1)
	a := h.st.Allocators()
	h.add(&rootv1.Event{Kind: &rootv1.Event_TenureRetired{TenureRetired: &rootv1.TenureRetired{
		Era: 2, HolderId: "c2", HolderIncarnation: 5, RetireSecret: secret, Consumed: &rootv1.Frontiers{AllocId: a.GetIdFence(), Tso: a.GetTsoFence()},
	}}})
	claim("c1", 2)
	h.want(chronicle.Filter{},
		`c2 holds the Tenure, in era 2; that of c1 ran out`,
		`c2 gives the Tenure back: era 2 is over`,
		`c1 holds the Tenure, in era 3`)
}
