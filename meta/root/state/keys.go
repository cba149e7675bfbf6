package state

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// keyring are the newest keys of one purpose, oldest first. A new slice replaces it:
// forks share it.
type keyring []*rootv1.PinKey

// newest is the last key; nil: there is none.
func (k keyring) newest() *rootv1.PinKey {
	if len(k) == 0 {
		return nil
	}
	return k[len(k)-1]
}

// purpose is what the keys of a ring are for.
type purpose struct {
	tag  uint64 // of their records
	word string
	kind ChangeKind
}

var (
	forPins   = purpose{tagPinKey, "pin key", ChangePinKey}
	forTokens = purpose{tagTokenKey, "token key", ChangeTokenKey}
)

func (s *State) ring(p purpose) *keyring {
	if p.tag == tagTokenKey {
		return &s.tokenKeys
	}
	return &s.pinKeys
}

// rotation is what the events that rotate keys have in common.
type rotation interface {
	GetExpectedId() uint32
	GetSecret() []byte
	GetDigest() []byte
	GetSealed() bool
}

// keyRotated adds a key. Already applied: the key behind the expected one is the
// newest, and is this.
func (t *turn) keyRotated(p purpose, e rotation) verdict {
	sum := e.GetDigest()
	if len(e.GetSecret()) > 0 {
		sum = digest(e.GetSecret())
	}
	newest := t.ring(p).newest()
	if newest != nil && newest.GetId() == e.GetExpectedId()+1 && bytes.Equal(newest.GetDigest(), sum) {
		return already
	}
	if newest.GetId() != e.GetExpectedId() {
		return rejected(rootv1.Reason_REASON_VERSION_STALE, "the newest %s is %d, not %d", p.word, newest.GetId(), e.GetExpectedId())
	}
	if newest.GetId() == ^uint32(0) {
		return rejected(rootv1.Reason_REASON_EXHAUSTED, "there is no %s behind %d", p.word, newest.GetId())
	}
	key := &rootv1.PinKey{Id: newest.GetId() + 1, Secret: e.GetSecret(), Digest: sum, Revision: t.token.Index, Sealed: e.GetSealed()}
	t.pushKey(p, key)
	t.change(Change{Kind: p.kind, PinKey: key})
	return applied
}

// pushKey adds a key and forgets the oldest above MaxPinKeys.
func (s *State) pushKey(p purpose, k *rootv1.PinKey) {
	ring := s.ring(p)
	s.sum += hashKey(p, k)
	*ring = append(slices.Clip(*ring), k)
	if len(*ring) > MaxPinKeys {
		s.sum -= hashKey(p, (*ring)[0])
		*ring = (*ring)[1:]
	}
}

func (b *builder) key(p purpose, k *rootv1.PinKey) error {
	if newest := b.ring(p).newest(); newest.GetId() >= k.GetId() {
		return fmt.Errorf("%s %d is out of order", p.word, k.GetId())
	}
	if d := checkKey(p, k); d != nil || len(k.GetDigest()) == 0 {
		return fmt.Errorf("%s %d has no digest, or another: %s", p.word, k.GetId(), d.GetMessage())
	}
	b.pushKey(p, k)
	return nil
}

// tokenKeyRotated adds a key, and forgets what was revoked of those that no key
// verifies any more.
func (t *turn) tokenKeyRotated(e *rootv1.TokenKeyRotated, r *EventResult) verdict {
	v := t.keyRotated(forTokens, e)
	r.TokenKeyID = t.tokenKeys.newest().GetId()
	for v.applied && len(t.revoked) > 0 && t.revoked[0].GetKeyId() < t.tokenKeys[0].GetId() {
		t.sum -= hashRecord(tagRevokedToken, t.revoked[0])
		t.change(Change{Kind: ChangeRevokedToken, Removed: true, RevokedToken: t.revoked[0]})
		t.revoked = t.revoked[1:]
	}
	return v
}

// tokenRevoked revokes a token. Already applied: it is revoked, or the key that signed
// it is gone.
func (t *turn) tokenRevoked(e *rootv1.TokenRevoked) verdict {
	newest := t.tokenKeys.newest()
	switch at, found := t.findRevoked(e.GetKeyId(), e.GetSerial()); {
	case e.GetKeyId() > newest.GetId():
		return rejected(rootv1.Reason_REASON_NOT_FOUND, "no token is signed with key %d: the newest is %d", e.GetKeyId(), newest.GetId())
	case found, e.GetKeyId() < t.tokenKeys[0].GetId():
		return already
	case len(t.revoked) >= MaxRevokedTokens:
		d := refuse(rootv1.Reason_REASON_CAPACITY_EXCEEDED, "%d tokens are revoked, no more fit: rotate the key of tokens twice, which ends them all", MaxRevokedTokens)
		d.Limit = MaxRevokedTokens
		return verdict{reject: d}
	default:
		gone := &rootv1.RevokedToken{KeyId: e.GetKeyId(), Serial: e.GetSerial(), Revision: t.token.Index}
		t.sum += hashRecord(tagRevokedToken, gone)
		t.revoked = slices.Insert(slices.Clone(t.revoked), at, gone)
		t.change(Change{Kind: ChangeRevokedToken, RevokedToken: gone})
		return applied
	}
}

// findRevoked is where a token stands in the list, or would.
func (s *State) findRevoked(key uint32, serial uint64) (int, bool) {
	return slices.BinarySearchFunc(s.revoked, serial, func(r *rootv1.RevokedToken, serial uint64) int {
		return cmp.Or(cmp.Compare(r.GetKeyId(), key), cmp.Compare(r.GetSerial(), serial))
	})
}

func (b *builder) revokedToken(r *rootv1.RevokedToken) error {
	if n := len(b.revoked); n > 0 {
		if at, found := b.findRevoked(r.GetKeyId(), r.GetSerial()); found || at < n || n >= MaxRevokedTokens {
			return fmt.Errorf("revoked token %d of key %d is out of order, or one too many", r.GetSerial(), r.GetKeyId())
		}
	}
	if keys := b.tokenKeys; len(keys) == 0 || r.GetKeyId() < keys[0].GetId() || r.GetKeyId() > keys.newest().GetId() {
		return fmt.Errorf("revoked token %d: its key %d is not there", r.GetSerial(), r.GetKeyId())
	}
	b.sum += hashRecord(tagRevokedToken, r)
	b.revoked = append(b.revoked, r)
	return nil
}

// TokenKeys are the keys that verify bearer tokens, oldest first; the last one signs.
// Callers must not change the slice.
func (s *State) TokenKeys() []*rootv1.PinKey { return s.tokenKeys }

// TokenIsRevoked says whether a bearer token was revoked by its id.
func (s *State) TokenIsRevoked(key uint32, serial uint64) bool {
	_, found := s.findRevoked(key, serial)
	return found
}
