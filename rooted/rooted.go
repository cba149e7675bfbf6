// Package rooted has the values that rooted truth is spoken of in: ids, eras,
// positions, epochs, regions and their owners, and where a key lies in a layout.
//
// It is a leaf: values and their forms on the wire, in text and in memory. It
// promises that what was read from the wire and is written again is the same.
// What is true, and what becomes of it, is meta/root/state's to say.
package rooted

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// MemberID names a member; chosen by whoever runs it.
type MemberID string

// CoordinatorID names a coordinator process; configured, stable.
type CoordinatorID string

// RegionID is a region's number, unique in the cluster; 0 is none.
type RegionID uint64

// KeyspaceID is a keyspace's number, never reused; 0 is none.
type KeyspaceID uint32

// Era is the monotonic number of a Tenure; 0 is before the first.
type Era uint64

// DefaultKeyspace is the keyspace that every cluster begins with, "default".
const DefaultKeyspace KeyspaceID = 1

// Limits that every caller must know, in bytes.
const (
	// MaxKeyBytes bounds a key and a route key.
	MaxKeyBytes = 4096
	// MaxNameBytes bounds the name of a keyspace.
	MaxNameBytes = 63
	// MaxCapacity bounds the part of the load that a member may take, relative to others.
	MaxCapacity = 1_000_000
)

// Token is a position in the rooted log. The zero Token is before everything.
type Token struct {
	Incarnation uint64
	Term        uint64
	Index       uint64
}

// TokenFromProto reads a token from the wire; nil is the zero Token.
func TokenFromProto(t *rootv1.RootToken) Token {
	return Token{Incarnation: t.GetIncarnation(), Term: t.GetTerm(), Index: t.GetIndex()}
}

// Proto is the token on the wire.
func (t Token) Proto() *rootv1.RootToken {
	return &rootv1.RootToken{Incarnation: t.Incarnation, Term: t.Term, Index: t.Index}
}

// Compare orders tokens: by incarnation, then by index. The term does not
// order: one index of one incarnation is committed in one term.
func (t Token) Compare(o Token) int {
	if c := cmp.Compare(t.Incarnation, o.Incarnation); c != 0 {
		return c
	}
	return cmp.Compare(t.Index, o.Index)
}

// String is incarnation.term.index, the notation of tokens everywhere.
func (t Token) String() string {
	return fmt.Sprintf("%d.%d.%d", t.Incarnation, t.Term, t.Index)
}

// ParseToken reads a token as String writes it.
func ParseToken(s string) (Token, error) {
	var t Token
	parts := strings.Split(s, ".")
	numbers := []*uint64{&t.Incarnation, &t.Term, &t.Index}
	if len(parts) != len(numbers) {
		return Token{}, fmt.Errorf("token %q: want incarnation.term.index, such as 1.2.345", s)
	}
	for i, n := range numbers {
		v, err := strconv.ParseUint(parts[i], 10, 64)
		if err != nil {
			return Token{}, fmt.Errorf("token %q: %q is not a number: want incarnation.term.index, such as 1.2.345", s, parts[i])
		}
		*n = v
	}
	return t, nil
}

// MarshalText is String, for JSON and flags.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is ParseToken.
func (t *Token) UnmarshalText(text []byte) (err error) {
	*t, err = ParseToken(string(text))
	return err
}
