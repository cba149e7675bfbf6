package assigner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// rawHolder is a Raw that holds the Tenure at a root's state, with members that have
// streams.
func rawHolder(r *root, members int) (*assigner.Raw, *clock.Manual) {
	c := &clock.Manual{Elapsed: clock.Instant(time.Hour)}
	r.must(&rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: self, HolderIncarnation: life, HolderAddress: self + ":1", TtlMillis: 1000,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO},
	}}})
	view := &rootview.View{State: r.state, Token: r.state.Token(), Known: r.state.Token(), Era: 1}
	raw := assigner.NewRaw(assigner.RawConfig{
		ID: self, Incarnation: life, View: func() *rootview.View { return view }, Soft: catalog.NewSoft(catalog.SoftConfig{}),
		Settings: liveness.Settings{}, Identities: identity.NewSource(), Clock: c, Logger: hclog.NewNullLogger(), Wake: func() {},
	})
	raw.Jump(view)
	for i := range members {
		raw.Opened(name(i), r.state.Member(name(i)).GetIncarnation(), 1, 0)
	}
	return raw, c
}

// Of ten thousand keyspaces that are all to be evened out, a look takes some, and is back
// for what cannot wait, such as a verdict.
func TestALookEndsWithManyKeyspaces(t *testing.T) {
	r := newRoot(t)
	const members, keyspaces = 50, 1000
	for i := range members {
		r.must(&rootv1.Event{Kind: &rootv1.Event_MemberJoined{MemberJoined: &rootv1.MemberJoined{Member: &rootv1.Member{Id: string(name(i)), Address: "a:1", StartNonce: uint64(i + 1)}}}})
	}
	settings, _ := state.Preset("games")
	for i := range keyspaces {
		r.must(&rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: fmt.Sprintf("k%d", i), Settings: settings}}})
	}
	raw, now := rawHolder(r, members)
	raw.Look()
	now.Advance(11 * time.Second)
	for i := range members {
		raw.Frame(server.HeardFrame{Member: name(i), Incarnation: r.state.Member(name(i)).GetIncarnation(), Stream: 1})
	}
	looks := 0
	for rounds := uint64(0); rounds < keyspaces; looks++ {
		before := rounds
		_, pause := raw.Look()
		rounds = 0
		for _, n := range raw.Vars().Rebalances {
			rounds += n
		}
		if rounds-before > 64 {
			t.Fatalf("look %d evens out %d keyspaces", looks, rounds-before)
		}
		if rounds < keyspaces && pause > 0 {
			t.Fatalf("look %d: %d of %d keyspaces, and the next one in %v", looks, rounds, keyspaces, pause)
		}
	}
	// What happens to a member is for all keyspaces: the more there are, the seldomer.
	raw.Opened(name(0), r.state.Member(name(0)).GetIncarnation(), 2, 0)
	now.Advance(250 * time.Millisecond)
	for looks = range 100 {
		if _, pause := raw.Look(); pause > 0 {
			break
		}
	}
	if looks > 2 {
		t.Errorf("250 ms behind a sweep it does another one, in %d looks", looks)
	}
}
