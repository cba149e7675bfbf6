// Package identity makes the identities by which the root recognises the
// repetition of a command.
//
// It promises that no two identities that were ever made are of one origin and
// one sequence.
package identity

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Source makes identities of one origin, for any number of goroutines.
type Source struct {
	origin   uint64
	sequence atomic.Uint64
}

// NewSource makes a Source with an origin of its own, which nobody can guess: who
// knows it can take identities before the Source makes them.
func NewSource() *Source {
	var b [8]byte
	for binary.LittleEndian.Uint64(b[:]) == 0 {
		_, _ = rand.Read(b[:]) // never fails: crypto/rand crashes the process instead
	}
	return SourceOf(binary.LittleEndian.Uint64(b[:]))
}

// SourceOf makes a Source of an origin, not 0, that its caller drew: for simulations,
// which must be repeatable.
func SourceOf(origin uint64) *Source { return &Source{origin: origin} }

// Next makes the identity of a command that was never sent. known is the
// highest log index that the sender knows to be committed.
func (s *Source) Next(known uint64) *rootv1.CommandIdentity {
	return &rootv1.CommandIdentity{Origin: s.origin, Sequence: s.sequence.Add(1), KnownIndex: known}
}

// Of returns a command with an identity: the command itself if it has one, or
// else a copy with all that it says, which shares its events, and one made with Next.
func (s *Source) Of(cmd *rootv1.Command, known uint64) *rootv1.Command {
	if cmd.GetIdentity() != nil {
		return cmd
	}
	out := &rootv1.Command{}
	to := out.ProtoReflect()
	cmd.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(field, v)
		return true
	})
	out.Identity = s.Next(known)
	return out
}
