package hints_test

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/hints"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// world is a keyspace of stores m1 to m3, each region owned by all of them.
type world struct {
	t        *testing.T
	st       *state.State
	soft     *catalog.Soft
	hints    *hints.Planner
	index    uint64
	sequence uint64
	keyspace uint32
	now      clock.Instant
}

func newWorld(t *testing.T, maxKeys uint64) *world {
	w := &world{t: t, st: state.New(), soft: catalog.NewSoft(catalog.SoftConfig{}), now: 1}
	w.hints = hints.New(w.soft)
	w.apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 1, Incarnation: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "a:1"}},
	}}}})
	settings, _ := state.Preset("kv")
	settings.Limits = &rootv1.Limits{MaxKeysPerRegion: maxKeys}
	k := w.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "kv", Settings: settings}}})
	w.keyspace = k.GetKeyspace().GetId()
	for i := range 3 {
		w.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: fmt.Sprintf("m%d", i+1), Address: "a:1", StartNonce: uint64(i + 1)}}}})
	}
	return w
}

func (w *world) apply(e *rootv1.Event) *rootv1.EventResult {
	w.t.Helper()
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.index++
	var out state.Applied
	if err := w.st.ApplyEntry(1, w.index, data, &out); err != nil {
		w.t.Fatal(err)
	}
	result := out.Results[0].Proto()
	if result.GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
		w.t.Fatalf("%v: %v", e, result)
	}
	return result.GetEvents()[0]
}

// regions are made side by side, led by a member with so many keys each.
func (w *world) regions(from, to int, leader string, keys uint64) {
	w.t.Helper()
	for i := from; i <= to; i++ {
		r := &rootv1.Region{Id: uint64(i), KeyspaceId: w.keyspace, StartKey: fmt.Appendf(nil, "%04d", i), EndKey: fmt.Appendf(nil, "%04d", i+1)}
		for _, m := range []string{"m1", "m2", "m3"} {
			r.Owners = append(r.Owners, &rootv1.Owner{MemberId: m})
		}
		w.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}})
		w.leads(uint64(i), leader, keys)
	}
}

func (w *world) leads(id uint64, leader string, keys uint64) {
	w.t.Helper()
	_, _, err := w.soft.RegionHeartbeat(w.st, &coordinatorv1.RegionHeartbeatRequest{
		MemberId: leader, Incarnation: w.st.Member(state.MemberID(leader)).GetIncarnation(), Region: &rootv1.Region{Id: id}, Leader: true, KeyCount: keys,
	}, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
}

// beat is a heartbeat, and what comes back, in words.
func (w *world) beat(member string, leaders uint64) (said []string) {
	w.t.Helper()
	w.sequence++
	id := state.MemberID(member)
	_, _, err := w.soft.StoreHeartbeat(w.st, &coordinatorv1.StoreHeartbeatRequest{
		MemberId: member, Incarnation: w.st.Member(id).GetIncarnation(), Sequence: w.sequence, LeaderCount: leaders,
	}, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, op := range w.hints.For(w.st, id, w.now) {
		switch kind := op.GetKind().(type) {
		case *coordinatorv1.SchedulerOperation_TransferLeader:
			said = append(said, fmt.Sprintf("%d to %s: %v", kind.TransferLeader.GetRegionId(), kind.TransferLeader.GetToMemberId(), op.GetReasonCode()))
		case *coordinatorv1.SchedulerOperation_Split:
			said = append(said, fmt.Sprintf("split %d: %v", kind.Split.GetRegionId(), op.GetReasonCode()))
		case *coordinatorv1.SchedulerOperation_Merge:
			said = append(said, fmt.Sprintf("merge %d %d: %v", kind.Merge.GetLeftRegionId(), kind.Merge.GetRightRegionId(), op.GetReasonCode()))
		}
		if op.GetReason() == "" {
			w.t.Error("a hint without a sentence")
		}
	}
	return said
}

func (w *world) want(got []string, want ...string) {
	w.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("hints %q, want %q", got, want)
	}
}

// Leads go to those who lead fewest, until the difference is below two, and never to
// somebody who was not heard, drains, or was given enough since.
func TestN13N14LeaderTransferHints(t *testing.T) {
	const count = "OPERATION_REASON_COUNT"
	w := newWorld(t, 0)
	w.regions(1, 5, "m1", 0)
	w.want(w.beat("m1", 5)) // nobody else is heard
	w.want(w.beat("m2", 0))
	w.want(w.beat("m3", 2))
	w.want(w.beat("m1", 5), "1 to m2: "+count, "2 to m2: "+count)
	w.want(w.beat("m1", 5), "1 to m2: "+count, "2 to m3: "+count) // m2 was given two
	w.leads(1, "m2", 0)
	w.leads(2, "m2", 0)
	w.want(w.beat("m2", 2))
	w.want(w.beat("m1", 3))
	w.apply(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{MemberId: "m2", State: rootv1.MemberState_MEMBER_STATE_DRAINING}}})
	w.want(w.beat("m2", 0))
	w.want(w.beat("m1", 5), "3 to m3: "+count) // which was given one
	w.now += clock.Instant(60e9)
	w.want(w.beat("m1", 9))
}

// A member that may not own regions of the keyspace any more leads none, and is given no lead.
func TestNoLeadForWhoMayNotHost(t *testing.T) {
	w := newWorld(t, 0)
	w.regions(1, 5, "m1", 0)
	for _, m := range []string{"m1", "m3"} {
		w.apply(&rootv1.Event{Kind: &rootv1.Event_AccessGranted{AccessGranted: &rootv1.AccessGranted{Grant: &rootv1.Grant{
			Principal: "member/" + m, Keyspace: "kv", Verbs: []rootv1.Verb{rootv1.Verb_VERB_HOST},
		}}}})
	}
	w.want(w.beat("m2", 0))
	w.want(w.beat("m3", 4))
	w.want(w.beat("m1", 9), "1 to m3: OPERATION_REASON_COUNT", "2 to m3: OPERATION_REASON_COUNT")
	w.leads(1, "m2", 0) // against who leads
	if got := w.soft.Leader(w.st, w.st.Region(1), w.now); got == "m2" {
		t.Error("m2 says that it leads, and does")
	}
	w.apply(&rootv1.Event{Kind: &rootv1.Event_AccessRevoked{AccessRevoked: &rootv1.AccessRevoked{Principal: "member/m1", Keyspace: "kv"}}})
	if got := w.soft.Leader(w.st, w.st.Region(3), w.now); got != "" {
		t.Errorf("%s leads region 3, and may not own it", got)
	}
}

// Regions are split above the keyspace's limit and merged far below it.
func TestN14SplitAndMergeHints(t *testing.T) {
	w := newWorld(t, 100)
	w.regions(1, 1, "m1", 101)
	w.regions(2, 3, "m1", 12)
	w.regions(4, 4, "m1", 60)
	w.want(w.beat("m1", 4), "split 1: OPERATION_REASON_LIMIT", "merge 2 3: OPERATION_REASON_COLD")
	w.leads(3, "m2", 12) // no neighbour of its own
	w.leads(1, "m1", 100)
	w.want(w.beat("m1", 3))
	// A change that is under way is not hinted at again.
	w.leads(1, "m1", 101)
	w.apply(&rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: 1, ExpectedEpoch: w.st.Region(1).Epoch.Proto(), SplitKey: []byte("00015")}}})
	w.want(w.beat("m1", 3))
}

// Neighbours with different owners are not merged: one part's would have it all.
func TestN14MergesAreOfTheSameOwners(t *testing.T) {
	w := newWorld(t, 100)
	w.regions(1, 2, "m1", 1)
	right := w.st.Region(2).Proto()
	right.Owners, right.Epoch.ConfVersion = right.Owners[:2], right.Epoch.ConfVersion+1
	w.apply(&rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: right}}})
	w.leads(2, "m1", 1)
	w.want(w.beat("m1", 2))
}

// A heartbeat is answered by so many hints, from so many regions, and the next goes on.
func TestHintsAreBounded(t *testing.T) {
	w := newWorld(t, 10)
	w.regions(1, 600, "m1", 5)
	w.regions(601, 606, "m1", 11)
	var all []string
	for range 4 {
		got := w.beat("m1", 606)
		if len(got) > hints.MaxHints {
			t.Fatalf("%d hints", len(got))
		}
		all = append(all, got...)
	}
	if len(all) != 6 || all[0] != "split 601: OPERATION_REASON_LIMIT" {
		t.Errorf("%q", all)
	}
}
