package server_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/internal/testing/written"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/pin"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
)

// ringOf is the keys of an answer.
func ringOf(t *testing.T, r *coordinatorv1.PinKeysResponse) *pin.Ring {
	t.Helper()
	ring := pin.NewRing(r.GetClusterId(), rooted.KeyspaceID(r.GetKeyspaceId()))
	for _, k := range r.GetKeys() {
		key := pin.Key{ID: k.GetId()}
		copy(key.Secret[:], k.GetSecret())
		if err := ring.Learn(time.Now(), key); err != nil {
			t.Fatal(err)
		}
	}
	return ring
}

// A member makes pins by keys that clients do not get: those have each opened, unless they
// may publish in the keyspace. Keys of one keyspace are not those of another.
func TestP27PinKeysByRole(t *testing.T) {
	var log written.Text
	w := start(t, func(c *server.Config) {
		c.Access, c.ServerOptions = access.New(), []grpc.ServerOption{impersonate.Server()}
		c.Secret = seal.New(bytes.Repeat([]byte{5}, 32))
		c.Logger = log.Logger(hclog.Trace)
	})
	w.must(t, created("a"), created("b"), join("m1"))
	ctx := within(t)
	as := func(role principal.Role, name string) coordinatorv1.CoordinatorClient {
		return coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(role, name)))
	}
	m, caller, proxy, operator := as(principal.Member, "m1"), as(principal.Client, "c"), as(principal.Client, "p"), as(principal.Operator, "o")
	_, err := m.PinKeys(ctx, &coordinatorv1.PinKeysRequest{Keyspace: "a"})
	if d := refused(t, err, rootv1.Reason_REASON_NOT_FOUND); !strings.Contains(d.GetMessage(), "nokv pin rotate") {
		t.Errorf("without a key: %v", d)
	}
	for want := range uint32(3) {
		r, err := operator.RotatePinKey(ctx, &coordinatorv1.RotatePinKeyRequest{BehindNewest: true})
		if err != nil || r.GetId() != want+1 {
			t.Fatalf("%v, %v", r, err)
		}
	}
	again := &coordinatorv1.RotatePinKeyRequest{BehindNewest: true, Identity: &rootv1.CommandIdentity{Origin: 7, Sequence: 1}}
	for range 2 {
		if r, err := operator.RotatePinKey(ctx, again); err != nil || r.GetId() != 4 {
			t.Errorf("%v, %v: one identity is one rotation", r, err)
		}
	}
	// One that was refused is not answered as done when it is asked for again.
	late := &rootv1.CommandIdentity{Origin: 7, Sequence: 2}
	for _, req := range []*coordinatorv1.RotatePinKeyRequest{{ExpectedId: 99, Identity: late}, {BehindNewest: true, Identity: late}} {
		if r, err := operator.RotatePinKey(ctx, req); err == nil {
			t.Errorf("a rotation that was refused is answered as done: %v", r)
		}
	}
	_, err = operator.RotatePinKey(ctx, &coordinatorv1.RotatePinKeyRequest{BehindNewest: true, ExpectedId: 4})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)

	strong := &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}
	keys := func(c coordinatorv1.CoordinatorClient, keyspace string) (*coordinatorv1.PinKeysResponse, error) {
		return c.PinKeys(ctx, &coordinatorv1.PinKeysRequest{Keyspace: keyspace, Read: strong})
	}
	a, err := keys(m, "a")
	if err != nil || len(a.GetKeys()) != 2 || a.GetKeys()[1].GetId() != 4 {
		t.Fatalf("%d keys, %v", len(a.GetKeys()), err)
	}
	b, err := keys(m, "b")
	if err != nil || bytes.Equal(a.GetKeys()[1].GetSecret(), b.GetKeys()[1].GetSecret()) {
		t.Errorf("the keys of two keyspaces are the same: %v", err)
	}
	for _, c := range []coordinatorv1.CoordinatorClient{caller, proxy, operator} {
		_, err := keys(c, "a")
		refused(t, err, rootv1.Reason_REASON_PERMISSION_DENIED)
	}
	if _, err := operator.GrantAccess(ctx, &coordinatorv1.GrantAccessRequest{Grant: &rootv1.Grant{
		Principal: "client/p", Keyspace: "a", Verbs: []rootv1.Verb{rootv1.Verb_VERB_PUBLISH},
	}}); err != nil {
		t.Fatal(err)
	}
	if got, err := keys(proxy, "a"); err != nil || !bytes.Equal(got.GetKeys()[1].GetSecret(), a.GetKeys()[1].GetSecret()) {
		t.Errorf("by a grant: %v", err)
	}
	_, err = keys(proxy, "b")
	refused(t, err, rootv1.Reason_REASON_PERMISSION_DENIED)
	_, err = keys(caller, "a") // closed: it has the words of what is not there
	refused(t, err, rootv1.Reason_REASON_NOT_FOUND)

	if text := log.String(); strings.Contains(text, fmt.Sprintf("%x", a.GetKeys()[1].GetSecret()[:8])) || strings.Contains(text, "secret") {
		t.Errorf("a key was logged: %s", text)
	}
}

// A coordinator opens pins for who has no keys, by the members that there are, and says why
// it does not: it keeps nothing of them.
func TestP25P33ACoordinatorResolvesPins(t *testing.T) {
	w := start(t)
	w.must(t, created("a"), created("b"), join("m1"))
	ctx := within(t)
	if _, err := w.client.RotatePinKey(ctx, &coordinatorv1.RotatePinKeyRequest{}); err != nil {
		t.Fatal(err)
	}
	r, err := w.client.PinKeys(ctx, &coordinatorv1.PinKeysRequest{Keyspace: "a", Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}})
	if err != nil {
		t.Fatal(err)
	}
	ring := ringOf(t, r)
	sealed := func(ring *pin.Ring, incarnation uint64, life time.Duration) string {
		text, err := ring.Seal(&pin.Pin{Region: 42, Member: "m1", Incarnation: incarnation, Expires: time.Now().Add(life)})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	at := w.root.state.Member("m1").GetIncarnation()
	good := sealed(ring, at, time.Minute)
	resolve := func(keyspace, text string) (*coordinatorv1.ResolvePinResponse, error) {
		return w.client.ResolvePin(ctx, &coordinatorv1.ResolvePinRequest{Keyspace: keyspace, Pin: text})
	}
	asked := len(w.root.asked)
	got, err := resolve("a", good)
	if err != nil || got.GetOwner().GetMemberId() != "m1" || got.GetOwner().GetIncarnation() != at || got.GetRegionId() != 42 {
		t.Fatalf("%v, %v", got, err)
	}
	otherCluster := pin.NewRing(clusterID+1, rooted.KeyspaceID(r.GetKeyspaceId()))
	if err := otherCluster.Learn(time.Now(), pin.Key{ID: 1}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		keyspace, text string
		want           rootv1.Reason
		words          string
	}{
		"forged":           {"a", good[:len(good)-4] + "AAAA", rootv1.Reason_REASON_NOT_FOUND, "did not make that pin"},
		"other keyspace":   {"b", good, rootv1.Reason_REASON_NOT_FOUND, "is of keyspace"},
		"other cluster":    {"a", sealed(otherCluster, at, time.Minute), rootv1.Reason_REASON_NOT_FOUND, "another cluster"},
		"expired":          {"a", sealed(ring, at, -time.Hour), rootv1.Reason_REASON_PIN_LOST, "ended at"},
		"next incarnation": {"a", sealed(ring, at+1, time.Minute), rootv1.Reason_REASON_PIN_LOST, "has ended"},
		"no pin":           {"a", "x", rootv1.Reason_REASON_NOT_FOUND, "no pin of NoKV"},
		"no keyspace":      {"c", good, rootv1.Reason_REASON_NOT_FOUND, "keyspace"},
	} {
		_, err := resolve(c.keyspace, c.text)
		if d := refused(t, err, c.want); !strings.Contains(d.GetMessage(), c.words) {
			t.Errorf("%s: %v", name, d)
		}
	}
	_, err = resolve(strings.Repeat("k", 1000), good)
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	if len(w.root.asked) != asked {
		t.Error("the root was changed")
	}
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_MemberStateChanged{MemberStateChanged: &rootv1.MemberStateChanged{
		MemberId: "m1", Incarnation: at, State: rootv1.MemberState_MEMBER_STATE_FAILED, Reason: "test",
	}}})
	_, err = resolve("a", good)
	refused(t, err, rootv1.Reason_REASON_PIN_LOST)
}

// A coordinator that knew a key opens what it sealed for as long as it was made for, as members and
// routers do, however often the keys are rotated meanwhile.
func TestP25KeysThatWereReplacedTwiceOpenWhereTheyWereKnown(t *testing.T) {
	w := start(t)
	w.must(t, created("a"), join("m1"))
	ctx := within(t)
	var pins []string
	for i := range uint32(4) {
		if _, err := w.client.RotatePinKey(ctx, &coordinatorv1.RotatePinKeyRequest{ExpectedId: i}); err != nil {
			t.Fatal(err)
		}
		r, err := w.client.PinKeys(ctx, &coordinatorv1.PinKeysRequest{Keyspace: "a", Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}})
		if err != nil {
			t.Fatal(err)
		}
		text, err := ringOf(t, r).Seal(&pin.Pin{Region: 42, Member: "m1", Incarnation: w.root.state.Member("m1").GetIncarnation(), Expires: time.Now().Add(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		pins = append(pins, text)
		for sealed, text := range pins {
			if _, err := w.client.ResolvePin(ctx, &coordinatorv1.ResolvePinRequest{Keyspace: "a", Pin: text}); err != nil {
				t.Errorf("key %d is the newest, a pin of key %d: %v", i+1, sealed+1, err)
			}
		}
	}
}

// BenchmarkResolvePin is what a coordinator pays for a pin, but for the call.
func BenchmarkResolvePin(b *testing.B) {
	w := start(b)
	w.must(b, created("a"), join("m1"))
	ctx := within(b)
	if _, err := w.client.RotatePinKey(ctx, &coordinatorv1.RotatePinKeyRequest{}); err != nil {
		b.Fatal(err)
	}
	r, err := w.client.PinKeys(ctx, &coordinatorv1.PinKeysRequest{Keyspace: "a", Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}})
	if err != nil {
		b.Fatal(err)
	}
	ring := pin.NewRing(r.GetClusterId(), rooted.KeyspaceID(r.GetKeyspaceId()))
	key := pin.Key{ID: r.GetKeys()[0].GetId()}
	copy(key.Secret[:], r.GetKeys()[0].GetSecret())
	if err := ring.Learn(time.Now(), key); err != nil {
		b.Fatal(err)
	}
	text, err := ring.Seal(&pin.Pin{Region: 42, Member: "m1", Incarnation: w.root.state.Member("m1").GetIncarnation(), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		b.Fatal(err)
	}
	req := &coordinatorv1.ResolvePinRequest{Keyspace: "a", Pin: text}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.server.ResolvePin(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}
