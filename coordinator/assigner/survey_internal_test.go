package assigner

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/test/size"
	"google.golang.org/protobuf/proto"
)

// bare is a Raw that somebody steps, over a root that is one state.
type bare struct {
	testing.TB
	st    *state.State
	clock *clock.Manual
	raw   *Raw
}

func (b *bare) Shown(state.MemberID, uint64) (state.Token, clock.Instant) { return b.st.Token(), 1 }

func (b *bare) view() *rootview.View {
	return &rootview.View{State: b.st, Token: b.st.Token(), Known: b.st.Token()}
}

// apply has events judged that have to apply, and tells the Raw of it if that has begun.
func (b *bare) apply(events ...*rootv1.Event) {
	b.Helper()
	b.judge(&rootv1.Command{Events: events})
}

func (b *bare) judge(cmds ...*rootv1.Command) []*rootv1.CommandResult {
	b.Helper()
	data, err := proto.Marshal(&rootv1.Entry{Commands: cmds})
	if err != nil {
		b.Fatal(err)
	}
	next := b.st.Fork()
	var out state.Applied
	if err := next.ApplyEntry(1, next.Token().Index+1, data, &out); err != nil {
		b.Fatal(err)
	}
	b.st = next
	var results []*rootv1.CommandResult
	for i := range out.Results {
		if out.Results[i].Reject != nil {
			b.Fatal(out.Results[i].Reject)
		}
		results = append(results, out.Results[i].Proto())
	}
	if b.raw.fed {
		b.raw.Follow(next, next.Token(), out.Changes)
	}
	return results
}

// crowded has so many regions of 100 members in keyspaces that are evened out by load.
func crowded(t testing.TB, keyspaces int) *bare {
	b := &bare{TB: t, st: state.New(), clock: &clock.Manual{Elapsed: clock.Instant(time.Hour), WallMillis: 1}}
	b.raw = NewRaw(RawConfig{
		ID: "c1", Incarnation: 1, View: b.view, Streams: b, Soft: catalog.NewSoft(catalog.SoftConfig{}),
		Identities: identity.NewSource(), Clock: b.clock, Logger: hclog.NewNullLogger(), Wake: func() {},
	})
	b.apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 1, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "h:1"}},
	}}}})
	for i := range 100 {
		b.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{
			Id: fmt.Sprintf("m%02d", i), Address: "a:1", ProbeAddress: "a:2", StartNonce: uint64(i + 1),
		}}}})
	}
	s := state.DefaultSettings()
	s.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 16_384}}}
	s.Policy.Rebalance = &rootv1.Rebalance{By: rootv1.BalanceBy_BALANCE_BY_LOAD, MeanPermille: 1200}
	for i := range keyspaces {
		b.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: fmt.Sprintf("k%d", i), Settings: s}}})
	}
	b.apply(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c1", HolderIncarnation: 1, HolderAddress: "c1:1", TtlMillis: 1000, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}})
	b.raw.Jump(b.view())
	b.st.Members(func(m *rootv1.Member) bool {
		b.raw.Opened(state.MemberID(m.GetId()), m.GetIncarnation(), m.GetIncarnation(), 0)
		b.speak(m)
		return true
	})
	for b.st.Orphaned() > 0 {
		b.look()
		b.clock.Advance(time.Millisecond)
	}
	return b
}

func (b *bare) speak(m *rootv1.Member) {
	b.raw.Frame(server.HeardFrame{Member: state.MemberID(m.GetId()), Incarnation: m.GetIncarnation(), Stream: m.GetIncarnation(), At: b.clock.Now(), Complete: true})
}

// look has the Raw look once, and carries out what it says.
func (b *bare) look() (cmds []*rootv1.Command) {
	b.Helper()
	orders, _ := b.raw.Look()
	for _, c := range orders.Calls {
		b.raw.Judged(c, b.judge(c.Commands...))
		cmds = append(cmds, c.Commands...)
	}
	for _, p := range orders.Probes {
		b.raw.Probed(p, liveness.Refused)
	}
	if orders.Asking != nil {
		b.raw.Told(orders.Asking, nil, true)
	}
	return cmds
}

// planKeyspaces have 16,384 regions each: the long form has more than 100,000.
var planKeyspaces = size.Int("plan.keyspaces", 3, 7, "how many keyspaces a plan has that holds nothing up")

// A plan over tens of thousands of regions does not hold up a verdict: of what Look's goroutine
// owns a piece is copied at a time, in between it looks, and who died is failed at once. The
// plan is of one state all the same.
func TestPlanDoesNotHoldUpAVerdict(t *testing.T) {
	b, regions := crowded(t, *planKeyspaces), 16_384**planKeyspaces
	if n := b.st.RegionCount(); n < regions {
		t.Fatalf("%d regions", n)
	}
	s := b.raw.survey()
	pieces := s.loaded()
	if len(pieces) < regions/surveyPiece {
		t.Fatalf("%d pieces", len(pieces))
	}
	at, copied, failed := s.in.State.Token(), 0, -1
	for i, piece := range append(pieces, nil) {
		if len(piece) > surveyPiece {
			t.Fatalf("a piece of %d regions", len(piece))
		}
		if !b.raw.copyLoads(s, piece) {
			t.Fatal("the era has changed")
		}
		copied += len(piece)
		if i == 3 {
			b.raw.Closed("m07", b.st.Member("m07").GetIncarnation(), b.st.Member("m07").GetIncarnation(), 0)
		}
		for _, c := range b.look() { // between two pieces
			for _, e := range c.GetEvents() {
				if m := e.GetMemberStateChanged(); m.GetMemberId() == "m07" && failed < 0 {
					failed = i
				}
			}
		}
		b.clock.Advance(30 * time.Millisecond)
	}
	if failed < 0 || failed > 10 {
		t.Errorf("the verdict came behind piece %d of %d", failed, len(pieces))
	}
	if copied < regions || s.in.State.Token() != at || s.book.Len() != copied {
		t.Errorf("%d regions are copied, at %s, and begun at %s", s.book.Len(), s.in.State.Token(), at)
	}
	ids, _, err := planned(s.in.State, "", func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	s.decide(ids)
	if p := s.plan(ids, 0); len(p.Balanced) != *planKeyspaces {
		t.Errorf("%d keyspaces are planned", len(p.Balanced))
	}
	b.apply(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c2", HolderIncarnation: 2, HolderAddress: "c2:1", ExpectedEra: 1, TtlMillis: 1000, PredecessorExpired: true,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}})
	b.look()
	if b.raw.copyLoads(s, pieces[0]) || b.raw.survey() != nil {
		t.Error("a plan goes on in an era that is over")
	}
}
