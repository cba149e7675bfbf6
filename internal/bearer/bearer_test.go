package bearer_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/bearer"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

var now = time.Unix(1_800_000_000, 0)

// cluster is a rooted state of a cluster and what is done to it.
type cluster struct {
	t      testing.TB
	st     *state.State
	secret *seal.Key
}

func newCluster(t testing.TB, id uint64, secret *seal.Key) *cluster {
	c := &cluster{t, state.New(), secret}
	c.apply(&rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{Cluster: &rootv1.Cluster{
		ClusterId: id, Incarnation: 1, FeatureLevel: state.FeatureLevel, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 1, TransportAddress: "a:1"}},
	}}}})
	return c
}

func (c *cluster) apply(e *rootv1.Event) {
	c.t.Helper()
	data, err := proto.Marshal(&rootv1.Entry{Commands: []*rootv1.Command{{Events: []*rootv1.Event{e}}}})
	if err != nil {
		c.t.Fatal(err)
	}
	var out state.Applied
	if err := c.st.ApplyEntry(1, c.st.Token().Index+1, data, &out); err != nil || out.Results[0].Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		c.t.Fatalf("%v: %v, %v", e, out.Results, err)
	}
}

// rotate makes the next key, of the byte b.
func (c *cluster) rotate(b byte) {
	c.t.Helper()
	r := &rootv1.TokenKeyRotated{}
	if keys := c.st.TokenKeys(); len(keys) > 0 {
		r.ExpectedId = keys[len(keys)-1].GetId()
	}
	r.Secret, r.Sealed = c.secret.Seal(seal.Tokens, r.ExpectedId+1, bytes.Repeat([]byte{b}, state.KeySecretBytes))
	c.apply(&rootv1.Event{Kind: &rootv1.Event_TokenKeyRotated{TokenKeyRotated: r}})
}

func (c *cluster) rooted() bearer.Rooted { return bearer.Rooted{State: c.st, Secret: c.secret} }

func (c *cluster) make(role principal.Role, name string) (string, bearer.Claims) {
	c.t.Helper()
	text, claims, err := c.rooted().Make(role, name, now.Add(time.Hour))
	if err != nil {
		c.t.Fatal(err)
	}
	return text, claims
}

// refused wants a sentence with these words, and nothing of the token in it.
func refused(t *testing.T, r bearer.Rooted, text string, at time.Time, words string) {
	t.Helper()
	c, err := r.Verify(text, at)
	if err == nil || c != (bearer.Claims{}) || !strings.Contains(err.Error(), words) {
		t.Errorf("%+v, %v: want %q", c, err, words)
		return
	}
	for i := 5; i+8 <= len(text); i++ {
		if strings.Contains(err.Error(), text[i:i+8]) {
			t.Errorf("%q shows %q of the token", err, text[i:i+8])
		}
	}
}

func TestTokens(t *testing.T) {
	for name, secret := range map[string]*seal.Key{"plain": nil, "sealed": seal.New(bytes.Repeat([]byte{9}, 32))} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 7, secret)
			if _, _, err := c.rooted().Make(principal.Operator, "ann", now); err != bearer.ErrNoKey {
				t.Fatalf("without a key: %v", err)
			}
			c.rotate(1)
			text, made := c.make(principal.Operator, "ann")
			got, err := c.rooted().Verify(text, now)
			if err != nil || got != made || got.Role != principal.Operator || got.Name != "ann" || got.ID.Key != 1 || !got.Expires.Equal(now.Add(time.Hour)) {
				t.Fatalf("%+v, %v, made %+v", got, err, made)
			}
			if again, other := c.make(principal.Operator, "ann"); again == text || other.ID == made.ID {
				t.Error("two tokens are one")
			}
			client, _ := c.make(principal.Client, strings.Repeat("n", principal.MaxNameBytes))
			if got, err := c.rooted().Verify(client, now); err != nil || got.Role != principal.Client {
				t.Errorf("%+v, %v", got, err)
			}
			if _, err := c.rooted().Verify(text, now.Add(time.Hour-time.Second)); err != nil {
				t.Errorf("in its last second: %v", err)
			}
			refused(t, c.rooted(), text, now.Add(time.Hour), "ended at 2027-01-15T09:00:00Z")

			other := newCluster(t, 8, secret)
			refused(t, other.rooted(), text, now, "key 1 of that token is not there")
			other.rotate(1) // the very key
			refused(t, other.rooted(), text, now, "this cluster did not make that token")

			c.rotate(2)
			if _, err := c.rooted().Verify(text, now); err != nil {
				t.Errorf("with the key before the newest: %v", err)
			}
			revoked, id := c.make(principal.Operator, "bob")
			c.apply(&rootv1.Event{Kind: &rootv1.Event_TokenRevoked{TokenRevoked: &rootv1.TokenRevoked{KeyId: id.ID.Key, Serial: id.ID.Serial}}})
			refused(t, c.rooted(), revoked, now, "token "+id.ID.String()+" was revoked")
			c.rotate(3)
			refused(t, c.rooted(), text, now, "key 1 of that token is not there")
			refused(t, c.rooted(), revoked, now, "was revoked")
		})
	}
}

// A token is good for nothing once any bit of it is another, however it is written.
func TestChangedTokens(t *testing.T) {
	c := newCluster(t, 7, nil)
	c.rotate(1)
	text, _ := c.make(principal.Client, "ann")
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(text, "nokv_"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		for bit := range 8 {
			changed := bytes.Clone(raw)
			changed[i] ^= 1 << bit
			refused(t, c.rooted(), "nokv_"+base64.RawURLEncoding.EncodeToString(changed), now, "")
		}
	}
	refused(t, c.rooted(), "nokv_"+base64.RawURLEncoding.EncodeToString(bytes.Replace(raw, []byte("ann"), []byte("bob"), 1)), now, "did not make")
	refused(t, c.rooted(), "nokv_"+base64.RawURLEncoding.EncodeToString(bytes.Replace(raw, []byte("ann"), []byte("an"), 1)), now, "did not make")
	for _, text := range []string{
		"", "nokv_", "nokv", text[5:], "NOKV_" + text[5:], text + "=", text + "A", text + "\n", text[:len(text)-1], " " + text, text + text, strings.Repeat("nokv_", 1000),
		"nokv_" + base64.RawURLEncoding.EncodeToString(make([]byte, 54)), "nokv_" + base64.URLEncoding.EncodeToString(append(raw, 1)),
	} {
		refused(t, c.rooted(), text, now, "")
	}
}

// A process that cannot open the key says which file it needs.
func TestSealedElsewhere(t *testing.T) {
	c := newCluster(t, 7, seal.New(bytes.Repeat([]byte{9}, 32)))
	c.rotate(1)
	text, _ := c.make(principal.Client, "ann")
	for words, by := range map[string]*seal.Key{seal.ErrNoFile.Error(): nil, seal.ErrWrongFile.Error(): seal.New(bytes.Repeat([]byte{8}, 32))} {
		r := bearer.Rooted{State: c.st, Secret: by}
		refused(t, r, text, now, words)
		if _, _, err := r.Make(principal.Client, "ann", now); err == nil || err.Error() != words {
			t.Errorf("make: %v, want %q", err, words)
		}
	}
	// So does one that was not told any key.
	bare := newCluster(t, 7, nil)
	sum := make([]byte, 32)
	bare.apply(&rootv1.Event{Kind: &rootv1.Event_TokenKeyRotated{TokenKeyRotated: &rootv1.TokenKeyRotated{Digest: sum}}})
	refused(t, bare.rooted(), text, now, "this process was not told the key")
	if _, _, err := bare.rooted().Make(principal.Client, "ann", now); err == nil {
		t.Error("a token was signed with a key that is not there")
	}
	for _, st := range []*state.State{nil, state.New()} {
		if p, err := bearer.Verify(text, st, nil); err == nil || p.Known() {
			t.Errorf("before the cluster is known: %v, %v", p, err)
		}
	}
}

func TestClaims(t *testing.T) {
	for _, c := range []struct {
		role principal.Role
		name string
		life time.Duration
		good bool
	}{
		{principal.Operator, "ann", time.Hour, true},
		{principal.Client, "a", bearer.MinLife, true},
		{principal.Client, "a", bearer.MaxLife, true},
		{principal.Client, "a", bearer.MaxLife + time.Second, false},
		{principal.Client, "a", bearer.MinLife - 1, false},
		{principal.Client, "", time.Hour, false},
		{principal.Client, "a/b", time.Hour, false},
		{principal.Root, "1", time.Hour, false},
		{principal.Coordinator, "c", time.Hour, false},
		{principal.Member, "m", time.Hour, false},
		{principal.None, "n", time.Hour, false},
	} {
		if err := bearer.CheckClaims(c.role, c.name, c.life); (err == nil) != c.good {
			t.Errorf("%v %q %v: %v", c.role, c.name, c.life, err)
		}
	}
}

func TestIDs(t *testing.T) {
	for _, id := range []bearer.ID{{1, 0}, {1 << 31, 1<<64 - 1}} {
		if back, err := bearer.ParseID(id.String()); err != nil || back != id {
			t.Errorf("%v comes back as %v, %v", id, back, err)
		}
	}
	for _, text := range []string{"", "1", "1-", "1-5", "-0000000000000005", "01-0000000000000005", "1-000000000000000G", "1-00000000000000AB", "4294967296-0000000000000005", "nokv_abc"} {
		if id, err := bearer.ParseID(text); err == nil {
			t.Errorf("%q is %v", text, id)
		}
	}
}

func FuzzVerify(f *testing.F) {
	c := newCluster(f, 7, nil)
	c.rotate(1)
	text, made := c.make(principal.Operator, "ann")
	for _, seed := range []string{text, "nokv_", "", text[:40]} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, given string) {
		if got, err := c.rooted().Verify(given, now); err == nil && (given != text || got != made) {
			t.Fatalf("%q is taken for %+v", given, got)
		}
	})
}
