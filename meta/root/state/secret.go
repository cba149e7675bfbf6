package state

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// The secrets of keys go to who must use them, and to nobody else.
// A key's digest stands for it everywhere, in its hash too: a State made of what
// has no secrets has the hash of one that does.

// Keys of the fields that carry secrets, in the wire format: Event.pin_key_rotated
// and token_key_rotated, Record.pin_key and token_key.
var (
	keyPinKeyRotated   = []byte{22<<3&0x7f | wireBytes | 0x80, 22 >> 4}
	keyTokenKeyRotated = []byte{34<<3&0x7f | wireBytes | 0x80, 34 >> 4}
	keyPinKey          = []byte{tagPinKey<<3 | wireBytes}
	keyTokenKey        = []byte{tagTokenKey<<3&0x7f | wireBytes | 0x80, tagTokenKey >> 4}
)

// StripSecrets returns a serialized Entry without the secrets in it, and whether
// there were any; without, it is data itself. What cannot be decoded has none that
// it could tell: it stops every reader.
func StripSecrets(data []byte) ([]byte, bool) {
	if !bytes.Contains(data, keyPinKeyRotated) && !bytes.Contains(data, keyTokenKeyRotated) { // nearly always
		return data, false
	}
	var entry rootv1.Entry
	if proto.Unmarshal(data, &entry) != nil {
		return data, false
	}
	found := false
	for _, c := range entry.GetCommands() {
		for _, e := range c.GetEvents() {
			if k := e.GetPinKeyRotated(); len(k.GetSecret()) > 0 {
				k.Secret, k.Digest, found = nil, digest(k.GetSecret()), true
			}
			if k := e.GetTokenKeyRotated(); len(k.GetSecret()) > 0 {
				k.Secret, k.Digest, found = nil, digest(k.GetSecret()), true
			}
		}
	}
	if !found {
		return data, false
	}
	return marshal(&entry), true
}

// StripRecord is StripSecrets for a serialized Record.
func StripRecord(data []byte) ([]byte, bool) {
	if !bytes.HasPrefix(data, keyPinKey) && !bytes.HasPrefix(data, keyTokenKey) {
		return data, false
	}
	var r rootv1.Record
	if proto.Unmarshal(data, &r) != nil {
		return data, false
	}
	k := cmp.Or(r.GetPinKey(), r.GetTokenKey())
	if len(k.GetSecret()) == 0 {
		return data, false
	}
	k.Secret = nil
	return marshal(&r), true
}

func marshal(m proto.Message) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("state: encode what was decoded: %v", err))
	}
	return data
}

func digest(secret []byte) []byte {
	d := sha256.Sum256(secret)
	return d[:]
}

// hashKey is the hash of the record without its secret.
func hashKey(p purpose, k *rootv1.PinKey) uint64 {
	return hashRecord(p.tag, &rootv1.PinKey{Id: k.GetId(), Revision: k.GetRevision(), Digest: k.GetDigest(), Sealed: k.GetSealed()})
}

// checkKey wants a secret, or the digest that stands for one, that fit.
func checkKey(p purpose, k interface {
	GetSecret() []byte
	GetDigest() []byte
	GetSealed() bool
},
) *rootv1.ErrorDetail {
	secret, sum, size := k.GetSecret(), k.GetDigest(), KeySecretBytes
	if k.GetSealed() {
		size = SealedSecretBytes
	}
	switch {
	case len(secret) == 0 && len(sum) != sha256.Size:
		return invalid("a %s has a secret of %d bytes, or a digest of %d in its place", p.word, size, sha256.Size)
	case len(secret) != 0 && len(secret) != size:
		return invalid("a %s has %d bytes, not %d", p.word, size, len(secret))
	case len(secret) != 0 && len(sum) != 0 && !bytes.Equal(sum, digest(secret)):
		return invalid("the digest is not that of the secret")
	}
	return nil
}
