package assigner

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A member whose silence is long enough while Look is busy has not failed if it is heard before Look comes;
// if it is not, Look roots the verdict at once, before it makes a plan.
func TestAVerdictThatWaitedIsOfNow(t *testing.T) {
	for _, heard := range []bool{false, true} {
		b := &bare{TB: t, st: state.New(), clock: &clock.Manual{Elapsed: clock.Instant(time.Hour), WallMillis: 1}}
		wakes := 0
		b.raw = NewRaw(RawConfig{
			ID: "c1", Incarnation: 1, View: b.view, Streams: b, Soft: catalog.NewSoft(catalog.SoftConfig{}),
			Identities: identity.NewSource(), Clock: b.clock, Logger: hclog.NewNullLogger(), Wake: func() { wakes++ },
		})
		b.apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
			ClusterId: 1, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "h:1"}},
		}}}})
		settings, _ := state.Preset("games")
		settings.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1}}}
		b.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "games", Settings: settings}}})
		for i, id := range []string{"m1", "m2", "m3", "m4"} {
			b.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: id, Address: id + ":1", StartNonce: uint64(i) + 1}}}})
		}
		b.apply(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
			HolderId: "c1", HolderIncarnation: 1, HolderAddress: "c1:1", TtlMillis: 1000, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
		}}})
		b.raw.Jump(b.view())
		lives := func(id state.MemberID) uint64 { return b.st.Member(id).GetIncarnation() }
		said := func(ids ...state.MemberID) {
			for _, id := range ids {
				b.raw.Frame(server.HeardFrame{Member: id, Incarnation: lives(id), Stream: 1})
			}
		}
		for _, id := range []state.MemberID{"m1", "m2", "m3", "m4"} {
			b.raw.Opened(id, lives(id), 1, 0)
		}
		verdicts := func(o Orders) (n int) {
			for _, c := range o.Calls {
				for _, cmd := range c.Commands {
					if slices.ContainsFunc(cmd.GetEvents(), func(e *rootv1.Event) bool {
						return e.GetMemberStateChanged().GetState() == rootv1.MemberState_MEMBER_STATE_FAILED
					}) {
						n++
					}
				}
			}
			return n
		}
		if first, _ := b.raw.Look(); verdicts(first) > 0 {
			t.Fatal("a verdict is passed on who was just heard")
		}
		dead := settings.GetLiveness().GetDeadAfterMillis()
		for range dead/100 + 100 { // Look is busy
			b.clock.Advance(100 * time.Millisecond)
			said("m2", "m3", "m4")
			wakes = 0
			orders, _ := b.raw.Detect()
			if orders.Asking != nil {
				b.raw.Told(orders.Asking, nil, true)
			}
		}
		if wakes == 0 || !b.raw.Answered("m1", lives("m1"), 0) {
			t.Error("Look is not told that there is a verdict to pass, or m1 is confirmed no more before it is passed")
		}
		want := 1
		if heard {
			said("m1")
			want = 0
		}
		b.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "more", Settings: settings}}})
		orders, pause := b.raw.Look()
		if n := verdicts(orders); n != want {
			t.Errorf("m1 is heard before Look comes: %v; %d verdicts are sent, want %d", heard, n, want)
		}
		if planned := b.raw.work.Due(b.clock.Now()) > b.clock.Now(); planned != heard || !planned && pause > 0 {
			t.Errorf("a plan was made: %v, and Look comes again in %v", planned, pause)
		}
	}
}
