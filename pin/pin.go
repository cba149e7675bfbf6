// Package pin makes and opens pins: what a caller holds of work that one process of a
// member has begun for it, such as a transaction, and shows with every request of it.
//
// It owns their format, which callers need not know: "nokvpin_" and, in base64url
// without padding, a byte of version, the cluster (8 bytes, big endian like all
// numbers), the keyspace (4), the key (4), a nonce (24), and by XChaCha20-Poly1305,
// whose additional data are the numbers before the nonce: region (8), incarnation (8),
// end in milliseconds since 1970 (8) and the member's id. It promises:
//
//  1. what is sealed opens with a Ring of the same cluster and keyspace, and only
//     exactly as it was made: whoever has no key can neither read nor make one;
//  2. opening takes no lock and asks nobody;
//  3. a key that was replaced opens what it sealed until the longest pin has ended, and
//     then nothing;
//  4. each refusal is an *Error whose Kind says why, and shows no byte of pin or key.
//
// Whether the process and the work are still there, package router and the member that
// the pin names say: a pin that opens was made by this cluster, no more.
package pin

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/nokv/nokv/rooted"
)

const (
	// MaxLife is the longest life of a pin.
	MaxLife = 24 * time.Hour
	// Leeway is how much the clocks of who made a pin and who opens it may differ. The
	// member's own table knows the end exactly.
	Leeway = 30 * time.Second
	// MaxMemberBytes bounds the id of a pin's member.
	MaxMemberBytes = 255
	// MaxKeys is how many keys a Ring has at most; the oldest goes first.
	MaxKeys = 16
	// KeyBytes is the length of a key.
	KeyBytes = chacha20poly1305.KeySize

	prefix      = "nokvpin_"
	version     = 1
	clearBytes  = 1 + 8 + 4 + 4
	fixedBytes  = 8 + 8 + 8
	nonceBytes  = chacha20poly1305.NonceSizeX
	minBytes    = clearBytes + nonceBytes + fixedBytes + 1 + chacha20poly1305.Overhead
	maxBytes    = minBytes - 1 + MaxMemberBytes
	maxPinBytes = len(prefix) + (maxBytes*8+5)/6
)

// strict takes a text only as it was written.
var strict = base64.RawURLEncoding.Strict()

// Nonce tells a pin from every other.
type Nonce [nonceBytes]byte

// String is the nonce's beginning, for people.
func (n Nonce) String() string { return hex.EncodeToString(n[:8]) }

// Pin is what a pin says.
type Pin struct {
	Keyspace    rooted.KeyspaceID
	Region      rooted.RegionID
	Member      rooted.MemberID
	Incarnation uint64
	// Expires is when the work ends at the latest, in whole milliseconds.
	Expires time.Time
	// Nonce is made by Seal.
	Nonce Nonce
}

// Header is what a pin shows to everybody. It is not to be believed before the pin is
// opened.
type Header struct {
	Cluster  uint64
	Keyspace rooted.KeyspaceID
	Key      uint32
}

// Key seals and opens the pins of one keyspace of one cluster.
type Key struct {
	ID     uint32
	Secret [KeyBytes]byte
}

// String hides the secret.
func (k Key) String() string { return fmt.Sprintf("key %d of pins", k.ID) }

// GoString hides it too.
func (k Key) GoString() string { return k.String() }

// Derive makes the key of a keyspace from what the root keeps: whoever has one can not
// make that of another keyspace.
func Derive(secret []byte, cluster uint64, keyspace rooted.KeyspaceID, id uint32) (k Key, err error) {
	if len(secret) < KeyBytes {
		return k, fmt.Errorf("derive key %d of pins: this process was not told the secret", id)
	}
	raw, err := hkdf.Key(sha256.New, secret, nil, fmt.Sprintf("nokv pins 1 %d %d %d", cluster, keyspace, id), KeyBytes)
	if err != nil {
		return k, fmt.Errorf("derive key %d of pins: %w", id, err)
	}
	k.ID = id
	copy(k.Secret[:], raw)
	return k, nil
}

// Ring is the keys of a keyspace. Its methods may be called by any number of
// goroutines.
type Ring struct {
	cluster  uint64
	keyspace rooted.KeyspaceID
	keys     atomic.Pointer[[]opener] // newest last; nobody writes them again
	mu       sync.Mutex               // held by who replaces them
}

// opener is a key in use.
type opener struct {
	id    uint32
	aead  cipher.AEAD
	until time.Time // when it opens nothing any more; zero: it is the newest
}

// NewRing makes a Ring without keys.
func NewRing(cluster uint64, keyspace rooted.KeyspaceID) *Ring {
	r := &Ring{cluster: cluster, keyspace: keyspace}
	r.keys.Store(&[]opener{})
	return r
}

// Of says whose keys it has.
func (r *Ring) Of() (cluster uint64, keyspace rooted.KeyspaceID) { return r.cluster, r.keyspace }

// Newest is the id of the key that seals; 0: there is none.
func (r *Ring) Newest() uint32 {
	keys := *r.keys.Load()
	if len(keys) == 0 {
		return 0
	}
	return keys[len(keys)-1].id
}

// Learn takes in keys, oldest first. Those that are not newer than the newest one are
// known, or gone. Each that is not the newest any more opens for MaxLife and Leeway
// from now on.
func (r *Ring) Learn(now time.Time, keys ...Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	newest := r.Newest()
	var next []opener
	for _, o := range *r.keys.Load() {
		if o.until.IsZero() || now.Before(o.until) {
			next = append(next, o)
		}
	}
	for _, k := range keys {
		if k.ID <= newest {
			continue
		}
		aead, err := chacha20poly1305.NewX(k.Secret[:])
		if err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
		newest = k.ID
		next = append(next, opener{id: k.ID, aead: aead})
	}
	next = next[max(0, len(next)-MaxKeys):]
	for i := range next {
		if i < len(next)-1 && next[i].until.IsZero() {
			next[i].until = now.Add(MaxLife + Leeway)
		}
	}
	r.keys.Store(&next)
	return nil
}

// ErrNoKey says that a Ring has none.
var ErrNoKey = errors.New("the cluster has no key for pins: nokv pin rotate makes the first one")

// Seal makes the text of a pin by the newest key, and gives the pin a nonce.
func (r *Ring) Seal(p *Pin) (string, error) {
	keys := *r.keys.Load()
	if len(keys) == 0 {
		return "", ErrNoKey
	}
	if n := len(p.Member); n == 0 || n > MaxMemberBytes {
		return "", fmt.Errorf("seal a pin: the member's id has %d bytes, not 1 to %d", n, MaxMemberBytes)
	}
	key := keys[len(keys)-1]
	_, _ = rand.Read(p.Nonce[:]) // never fails: crypto/rand crashes the process instead
	p.Keyspace = r.keyspace
	p.Expires = time.UnixMilli(p.Expires.UnixMilli())
	raw := append(make([]byte, 0, maxBytes), version)
	raw = binary.BigEndian.AppendUint64(raw, r.cluster)
	raw = binary.BigEndian.AppendUint32(raw, uint32(r.keyspace))
	raw = binary.BigEndian.AppendUint32(raw, key.id)
	raw = append(raw, p.Nonce[:]...)
	says := binary.BigEndian.AppendUint64(make([]byte, 0, fixedBytes+len(p.Member)), uint64(p.Region))
	says = binary.BigEndian.AppendUint64(says, p.Incarnation)
	says = binary.BigEndian.AppendUint64(says, uint64(p.Expires.UnixMilli()))
	says = append(says, p.Member...)
	raw = key.aead.Seal(raw, p.Nonce[:], says, raw[:clearBytes])
	return prefix + strict.EncodeToString(raw), nil
}

// room is where pins are taken apart: the slices of one are nobody's behind Open.
type room struct{ text, raw [maxPinBytes]byte }

var rooms = sync.Pool{New: func() any { return new(room) }}

// Open takes a pin apart, if it is to be believed. The clock is that of the machine.
func (r *Ring) Open(text string, now time.Time) (Pin, error) {
	at := rooms.Get().(*room)
	defer rooms.Put(at)
	raw, err := at.decode(text)
	if err != nil {
		return Pin{}, err
	}
	h := headerOf(raw)
	if err := r.takes(h); err != nil {
		return Pin{}, err
	}
	var key *opener
	keys := *r.keys.Load()
	for i := range keys {
		if keys[i].id == h.Key && (keys[i].until.IsZero() || now.Before(keys[i].until)) {
			key = &keys[i]
		}
	}
	switch {
	case key != nil:
	case h.Key > r.Newest():
		return Pin{}, refuse(KeyUnknown, "key %d of the pin is not known: the cluster has none above %d", h.Key, r.Newest())
	default:
		return Pin{}, refuse(Expired, "the pin has ended: its key %d was replaced too long ago; begin the work anew", h.Key)
	}
	var p Pin
	copy(p.Nonce[:], raw[clearBytes:])
	box := raw[clearBytes+nonceBytes:]
	says, err := key.aead.Open(box[:0], p.Nonce[:], box, raw[:clearBytes])
	if err != nil {
		return Pin{}, refuse(Forged, "this cluster did not make that pin, or not so: begin the work anew")
	}
	p.Keyspace = r.keyspace
	p.Region = rooted.RegionID(binary.BigEndian.Uint64(says))
	p.Incarnation = binary.BigEndian.Uint64(says[8:])
	p.Expires = time.UnixMilli(int64(binary.BigEndian.Uint64(says[16:])))
	p.Member = rooted.MemberID(says[fixedBytes:])
	if now.After(p.Expires.Add(Leeway)) {
		return Pin{}, refuse(Expired, "the pin ended at %s: begin the work anew", p.Expires.UTC().Format(time.RFC3339))
	}
	return p, nil
}

// takes says why a pin is of somebody else.
func (r *Ring) takes(h Header) error {
	switch {
	case h.Cluster != r.cluster:
		return refuse(OtherCluster, "the pin is of another cluster: ask that one")
	case h.Keyspace != r.keyspace:
		return refuse(OtherKeyspace, "the pin is of keyspace %d, and this is %d: ask who serves that one", h.Keyspace, r.keyspace)
	}
	return nil
}

// Peek is what a pin shows to everybody: whom to ask.
func Peek(text string) (Header, error) {
	at := rooms.Get().(*room)
	defer rooms.Put(at)
	raw, err := at.decode(text)
	if err != nil {
		return Header{}, err
	}
	return headerOf(raw), nil
}

func headerOf(raw []byte) Header {
	return Header{
		Cluster:  binary.BigEndian.Uint64(raw[1:]),
		Keyspace: rooted.KeyspaceID(binary.BigEndian.Uint32(raw[9:])),
		Key:      binary.BigEndian.Uint32(raw[13:]),
	}
}

// decode is the bytes of a pin, which are in the room.
func (at *room) decode(text string) ([]byte, error) {
	body, ours := strings.CutPrefix(text, prefix)
	if !ours || len(text) > maxPinBytes || strings.ContainsAny(body, "\r\n") {
		return nil, errMalformed
	}
	n, err := strict.Decode(at.raw[:], at.text[:copy(at.text[:], body)])
	switch {
	case err != nil, n < minBytes, n > maxBytes:
		return nil, errMalformed
	case at.raw[0] != version:
		return nil, refuse(Malformed, "the pin is of format %d, this process knows %d: take a newer version", at.raw[0], version)
	}
	return at.raw[:n], nil
}
