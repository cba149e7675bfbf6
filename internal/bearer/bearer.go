// Package bearer makes and verifies bearer tokens, by keys that the root keeps.
//
// It owns their format: "nokv_" and, in base64url without padding, a byte of
// version, the id of the key (4 bytes, big endian like all numbers), the token's
// serial number (8), the role (1), when it ends in seconds since 1970 (8), the name,
// and an HMAC-SHA256 (32) of the cluster's id and all before it. It promises:
//
//  1. a token is taken while its key is one of the last two, it has not ended and is
//     not revoked, by its own cluster, and only exactly as it was made;
//  2. that needs nothing but a state of the root, and tokens are kept nowhere;
//  3. tokens are for operators and clients, and end within MaxLife;
//  4. no error shows a byte of a token or a key.
package bearer

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// MinLife and MaxLife bound how long a token is good for.
const (
	MinLife = time.Minute
	MaxLife = 400 * 24 * time.Hour
)

const (
	prefix    = "nokv_"
	version   = 1
	headBytes = 1 + 4 + 8 + 1 + 8
	// maxBytes is the longest token in bytes, before base64.
	maxBytes = headBytes + principal.MaxNameBytes + sha256.Size
)

// ID names a token, in lists of revoked ones and to people.
type ID struct {
	Key    uint32 // that signed it
	Serial uint64
}

// String is KEY-SERIAL, the serial in hexadecimal.
func (id ID) String() string { return fmt.Sprintf("%d-%016x", id.Key, id.Serial) }

// ParseID reads what String wrote.
func ParseID(s string) (ID, error) {
	key, serial, _ := strings.Cut(s, "-")
	k, err := strconv.ParseUint(key, 10, 32)
	n, err2 := strconv.ParseUint(serial, 16, 64)
	if id := (ID{uint32(k), n}); err == nil && err2 == nil && id.String() == s {
		return id, nil
	}
	if strings.HasPrefix(s, prefix) {
		return ID{}, errors.New("that is a token: give the id that was told with it, such as 1-00c0ffee00c0ffee")
	}
	return ID{}, fmt.Errorf("%.64q is no id of a token, such as 1-00c0ffee00c0ffee", s)
}

// Claims are what a token says.
type Claims struct {
	ID      ID
	Role    principal.Role
	Name    string
	Expires time.Time // in whole seconds
}

// Rooted are the keys of a state, and what opens them where they are sealed.
type Rooted struct {
	State  *state.State
	Secret *seal.Key
}

// ErrNoKey: no key was made yet.
var ErrNoKey = errors.New("the cluster has no key for tokens: nokv token create makes the first one")

// Make signs a token with the newest key.
func (r Rooted) Make(role principal.Role, name string, expires time.Time) (string, Claims, error) {
	keys := r.State.TokenKeys()
	if len(keys) == 0 {
		return "", Claims{}, ErrNoKey
	}
	key := keys[len(keys)-1]
	secret, err := r.open(key)
	if err != nil {
		return "", Claims{}, err
	}
	var serial [8]byte
	_, _ = rand.Read(serial[:]) // never fails: crypto/rand crashes the process instead
	c := Claims{ID{key.GetId(), binary.BigEndian.Uint64(serial[:])}, role, name, time.Unix(expires.Unix(), 0)}
	raw := c.encode()
	return prefix + base64.RawURLEncoding.EncodeToString(append(raw, r.sign(secret, raw)...)), c, nil
}

// open is a key's secret. Whoever is told no secrets has none.
func (r Rooted) open(key *rootv1.PinKey) ([]byte, error) {
	secret, err := r.Secret.Open(seal.Tokens, key)
	if err == nil && len(secret) != state.KeySecretBytes {
		err = errors.New("this process was not told the key")
	}
	return secret, err
}

func (c Claims) encode() []byte {
	raw := binary.BigEndian.AppendUint32([]byte{version}, c.ID.Key)
	raw = binary.BigEndian.AppendUint64(raw, c.ID.Serial)
	raw = binary.BigEndian.AppendUint64(append(raw, byte(c.Role)), uint64(c.Expires.Unix()))
	return append(raw, c.Name...)
}

func (r Rooted) sign(secret, raw []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write(binary.BigEndian.AppendUint64([]byte("nokv bearer token "), r.State.Cluster().GetClusterId()))
	h.Write(raw)
	return h.Sum(nil)
}

var (
	errNoToken = errors.New("that is no token of NoKV: nokv token create makes one")
	errForged  = errors.New("this cluster did not make that token, or not so: nokv token create makes one")
)

// Verify is what a token says, if it is to be believed.
func (r Rooted) Verify(text string, now time.Time) (Claims, error) {
	c, raw, sum, err := decode(text)
	if err != nil {
		return Claims{}, err
	}
	var key *rootv1.PinKey
	for _, k := range r.State.TokenKeys() {
		if k.GetId() == c.ID.Key {
			key = k
		}
	}
	if key == nil {
		return Claims{}, fmt.Errorf("key %d of that token is not there: it was rotated away, or is another cluster's; nokv token create makes another token", c.ID.Key)
	}
	secret, err := r.open(key)
	if err != nil {
		return Claims{}, fmt.Errorf("tokens cannot be verified here: %w", err)
	}
	switch {
	case !hmac.Equal(sum, r.sign(secret, raw)):
		return Claims{}, errForged
	case c.Role != principal.Operator && c.Role != principal.Client:
		return Claims{}, fmt.Errorf("tokens are for operators and clients, not %v", c.Role)
	case r.State.TokenIsRevoked(c.ID.Key, c.ID.Serial):
		return Claims{}, fmt.Errorf("token %s was revoked", c.ID)
	case !now.Before(c.Expires):
		return Claims{}, fmt.Errorf("token %s ended at %s: nokv token create makes another", c.ID, c.Expires.UTC().Format(time.RFC3339))
	}
	return c, nil
}

// decode takes a token apart; nothing of it is to be believed.
func decode(text string) (c Claims, raw, sum []byte, err error) {
	text, ours := strings.CutPrefix(text, prefix)
	if !ours || strings.ContainsAny(text, "\r\n") || base64.RawURLEncoding.DecodedLen(len(text)) > maxBytes {
		return c, nil, nil, errNoToken
	}
	all, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(all) <= headBytes+sha256.Size {
		return c, nil, nil, errNoToken
	}
	if all[0] != version {
		return c, nil, nil, fmt.Errorf("that token is of version %d, this process knows %d", all[0], version)
	}
	raw, sum = all[:len(all)-sha256.Size], all[len(all)-sha256.Size:]
	c.ID = ID{binary.BigEndian.Uint32(raw[1:]), binary.BigEndian.Uint64(raw[5:])}
	c.Role = principal.Role(raw[13])
	c.Expires = time.Unix(int64(binary.BigEndian.Uint64(raw[14:])), 0)
	c.Name = string(raw[headBytes:])
	return c, raw, sum, nil
}

// Verify is whose a token is, by a state of now; nil for one that is not known yet.
func Verify(text string, st *state.State, secret *seal.Key) (principal.Principal, error) {
	if st == nil || st.Cluster() == nil {
		return principal.Principal{}, errors.New("tokens cannot be verified here yet: this process knows nothing of its cluster")
	}
	c, err := Rooted{st, secret}.Verify(text, time.Now())
	return principal.Principal{Role: c.Role, Name: c.Name}, err
}

// CheckClaims says what is wrong with whom a token is asked for, or how long.
func CheckClaims(role principal.Role, name string, life time.Duration) error {
	if role != principal.Operator && role != principal.Client {
		return fmt.Errorf("tokens are for operators and clients, not %v: the others have certificates", role)
	}
	if err := principal.CheckName(name); err != nil {
		return fmt.Errorf("name %w", err)
	}
	if life < MinLife || life > MaxLife {
		return fmt.Errorf("a token is good for 1 minute to %d days", MaxLife/(24*time.Hour))
	}
	return nil
}
