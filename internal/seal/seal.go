// Package seal encrypts the keys that the root keeps with a key that it does not.
//
// It owns the format of what is sealed: a byte of version, a nonce of 12 bytes, and
// the key by AES-256-GCM, whose additional data say what the key is for and its id.
// It promises: (1) what is sealed opens with the same file, purpose and id, and with
// no other; (2) nobody without the file learns anything of it, its length aside; (3)
// no error shows a byte of a key.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/nokv/nokv/mtls"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// MinFileBytes is the smallest secret file, in bytes.
	MinFileBytes = 32
	// MaxFileBytes is the largest one.
	MaxFileBytes = 4096

	version = 1
)

// Purpose is what a sealed key is for.
type Purpose string

// Purposes.
const (
	Pins   Purpose = "pins"
	Tokens Purpose = "tokens"
)

// Why a key cannot be opened.
var (
	ErrNoFile    = errors.New("the key is sealed: start this process with the --secret-file of the cluster")
	ErrWrongFile = errors.New("the key is sealed with another --secret-file: start this process with that one")
)

// Key seals and opens. A nil *Key is that of a process without a secret file: it
// seals nothing, and opens what is not sealed.
type Key struct{ aead cipher.AEAD }

// Open reads a secret file. "" is none.
func Open(file string) (*Key, error) {
	if file == "" {
		return nil, nil
	}
	if err := mtls.Exposed(file); err != nil {
		return nil, fmt.Errorf("secret file: %w", err)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("secret file: %w", err)
	}
	defer f.Close()
	secret, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("secret file: %w", err)
	}
	if n := len(secret); n < MinFileBytes || n > MaxFileBytes {
		return nil, fmt.Errorf("secret file %s: want %d to %d bytes of chance, such as `(umask 077; openssl rand -out %s 32)` makes", file, MinFileBytes, MaxFileBytes, file)
	}
	return New(secret), nil
}

// New makes a Key of a secret that has the chance of 32 bytes at least.
func New(secret []byte) *Key {
	key, err := hkdf.Key(sha256.New, secret, nil, "nokv sealed keys 1", 32)
	if err != nil {
		panic(fmt.Sprintf("seal: derive 32 bytes: %v", err))
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(fmt.Sprintf("seal: a key of 32 bytes: %v", err))
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(fmt.Sprintf("seal: a block of 16 bytes: %v", err))
	}
	return &Key{aead}
}

// Seal is what the root keeps of a key, and whether that is sealed.
func (k *Key) Seal(p Purpose, id uint32, key []byte) (kept []byte, sealed bool) {
	if k == nil {
		return key, false
	}
	kept = make([]byte, 1+k.aead.NonceSize(), 1+k.aead.NonceSize()+len(key)+k.aead.Overhead())
	kept[0] = version
	_, _ = rand.Read(kept[1:]) // never fails: crypto/rand crashes the process instead
	return k.aead.Seal(kept, kept[1:], key, about(p, id)), true
}

// Open is the key that the root keeps a record of. ErrNoFile, ErrWrongFile: it
// cannot be opened here.
func (k *Key) Open(p Purpose, kept *rootv1.PinKey) ([]byte, error) {
	secret := kept.GetSecret()
	switch {
	case !kept.GetSealed():
		return secret, nil
	case k == nil:
		return nil, ErrNoFile
	case len(secret) <= 1+k.aead.NonceSize():
		return nil, errors.New("the sealed key is not here")
	case secret[0] != version:
		return nil, fmt.Errorf("the key is sealed in format %d, this process knows %d: take a newer version", secret[0], version)
	}
	nonce, box := secret[1:1+k.aead.NonceSize()], secret[1+k.aead.NonceSize():]
	key, err := k.aead.Open(nil, nonce, box, about(p, kept.GetId()))
	if err != nil {
		return nil, ErrWrongFile
	}
	return key, nil
}

func about(p Purpose, id uint32) []byte { return fmt.Appendf(nil, "nokv %s %d", p, id) }
