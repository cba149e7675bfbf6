package assigner

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// What is kept of a process whose drain was refused ends with that process.
func TestARefusedDrainIsForgottenWithItsProcess(t *testing.T) {
	b := &bare{TB: t, st: state.New(), clock: &clock.Manual{Elapsed: clock.Instant(time.Hour), WallMillis: 1}}
	b.raw = NewRaw(RawConfig{
		ID: "c1", Incarnation: 1, View: b.view, Streams: b, Soft: catalog.NewSoft(catalog.SoftConfig{}),
		Identities: identity.NewSource(), Clock: b.clock, Logger: hclog.NewNullLogger(), Wake: func() {},
	})
	join := func(nonce, follows uint64) {
		b.apply(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{
			Member: &rootv1.Member{Id: "m1", Address: "a:1", StartNonce: nonce}, Follows: follows,
		}}})
	}
	b.apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: 1, Incarnation: 1, CreatedUnixMillis: 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11, TransportAddress: "h:1"}},
	}}}})
	join(1, 0)
	b.apply(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: "c1", HolderIncarnation: 1, HolderAddress: "c1:1", TtlMillis: 1000, Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}})
	b.raw.Jump(b.view())
	b.look()
	first := b.st.Member("m1").GetIncarnation()
	b.raw.undrained["m1"] = undrained{first, never}
	b.apply(&rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
		MemberId: "m1", Incarnation: first, State: rootv1.MemberState_MEMBER_STATE_ACTIVE, Reason: "somebody looked at it",
	}}})
	if len(b.raw.undrained) != 1 {
		t.Error("it is forgotten while the process lives")
	}
	join(2, first)
	if len(b.raw.undrained) != 0 {
		t.Errorf("of process %d it is kept: %v", first, b.raw.undrained)
	}
}
