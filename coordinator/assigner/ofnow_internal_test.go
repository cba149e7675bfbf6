package assigner

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// four is a Raw that holds the Tenure, over a keyspace of one region and four members that were just heard;
// wake is its Wake.
func four(t *testing.T, wake func(), strategies map[string]propose.Strategy) (b *bare, settings *rootv1.KeyspaceSettings) {
	b = &bare{TB: t, st: state.New(), clock: &clock.Manual{Elapsed: clock.Instant(time.Hour), WallMillis: 1}}
	b.raw = NewRaw(RawConfig{
		ID: "c1", Incarnation: 1, View: b.view, Streams: b, Soft: catalog.NewSoft(catalog.SoftConfig{}),
		Identities: identity.NewSource(), Clock: b.clock, Logger: hclog.NewNullLogger(), Wake: wake, Strategies: strategies,
	})
	b.apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 1, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "h:1"}},
	}}}})
	settings, _ = state.Preset("games")
	settings.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: 1}}}
	b.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "games", Settings: settings}}})
	for i, id := range []string{"m1", "m2", "m3", "m4"} {
		b.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: id, Address: id + ":1", StartNonce: uint64(i) + 1}}}})
	}
	b.apply(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c1", HolderIncarnation: 1, HolderAddress: "c1:1", TtlMillis: 1000, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}})
	b.raw.Jump(b.view())
	for _, id := range []state.MemberID{"m1", "m2", "m3", "m4"} {
		b.raw.Opened(id, b.lives(id), 1, 0)
	}
	if first, _ := b.raw.Look(); verdicts(first) > 0 {
		t.Fatal("a verdict is passed on who was just heard")
	}
	return b, settings
}

func (b *bare) lives(id state.MemberID) uint64 { return b.st.Member(id).GetIncarnation() }

func (b *bare) said(ids ...state.MemberID) {
	for _, id := range ids {
		b.raw.Frame(server.HeardFrame{Member: id, Incarnation: b.lives(id), Stream: 1})
	}
}

// silence lets m1 be silent for as long as death takes, and the detector look, but not Look: before each time step
// is called.
func (b *bare) silence(settings *rootv1.KeyspaceSettings, step func()) {
	for range settings.GetLiveness().GetDeadAfterMillis()/100 + 100 {
		b.clock.Advance(100 * time.Millisecond)
		b.said("m2", "m3", "m4")
		step()
		orders, _ := b.raw.Detect()
		if orders.Asking != nil {
			b.raw.Told(orders.Asking, nil, true)
		}
	}
}

// verdicts are how many members the orders fail.
func verdicts(o Orders) (n int) {
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

// A member whose silence is long enough while Look is busy has not failed if it is heard before Look comes;
// if it is not, Look roots the verdict at once, before it makes a plan.
func TestAVerdictThatWaitedIsOfNow(t *testing.T) {
	for _, heard := range []bool{false, true} {
		wakes := 0
		b, settings := four(t, func() { wakes++ }, nil)
		b.silence(settings, func() { wakes = 0 })
		if wakes == 0 || !b.raw.Answered("m1", b.lives("m1"), 0) {
			t.Error("Look is not told that there is a verdict to pass, or m1 is confirmed no more before it is passed")
		}
		want := 1
		if heard {
			b.said("m1")
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

// A verdict that comes due while a plan is made waits for that plan, and for no other: here there are regions
// for two, and m1 is silent for long enough while the first is made.
func TestAVerdictWaitsForOnePlan(t *testing.T) {
	var b *bare
	var games *rootv1.KeyspaceSettings
	silent := false
	code := thought(func() {
		if !silent {
			silent = true
			b.silence(games, func() {})
		}
	})
	b, games = four(t, func() {}, map[string]propose.Strategy{"code": code})
	large := state.DefaultSettings()
	large.Layout = &rootv1.Layout{Kind: &rootv1.Layout_Slots_{Slots: &rootv1.Layout_Slots{Count: placement.MaxRegions}}}
	b.apply(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "code", Settings: large}}},
		&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "more", Settings: large}}})
	due := func() bool { return b.raw.work.Due(b.clock.Now()) <= b.clock.Now() }
	orders, pause := b.raw.Look()
	if n := verdicts(orders); !silent || n != 0 || !due() || pause > 0 {
		t.Errorf("behind one plan: m1 is silent: %v, %d verdicts, more is due: %v, Look comes again in %v", silent, n, due(), pause)
	}
	orders, _ = b.raw.Look()
	if n := verdicts(orders); n != 1 || !due() {
		t.Errorf("%d verdicts are sent behind one plan, want 1; more is due: %v", n, due())
	}
}

// thought is code that has no opinion.
type thought func()

func (f thought) Propose(*propose.Question) (int, bool) {
	f()
	return 0, false
}
