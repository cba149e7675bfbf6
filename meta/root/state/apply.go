package state

import rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"

// ApplyEntry applies the entry at index, which must be the one behind the last.
// Data is a serialized rootv1.Entry; empty data only moves the token. Each
// command applies atomically and is judged alone; out, if not nil, is told what
// became of each.
//
// An error is a poison entry: undecodable, of an unknown kind, with unknown
// fields, or out of order. The State is unchanged and the replica must stop:
// guessing is divergence.
func (s *State) ApplyEntry(term, index uint64, data []byte, out *Applied) error {
	s.token = Token{Term: term, Index: index}
	return nil
}

// Assess judges an event without applying it: what ApplyEntry would answer,
// and how far the transition is that the event is about. The State is
// unchanged. It may overlap with reads and other Assess calls of a State that
// nobody applies to any more.
func (s *State) Assess(event *rootv1.Event) (Result, rootv1.TransitionStatus) {
	return Result{}, rootv1.TransitionStatus_TRANSITION_STATUS_UNSPECIFIED
}

// Hash is the State's hash: equal for equal States, in constant time.
func (s *State) Hash() uint64 { return s.sum }

// CheckCommand checks what can be judged without a State: the form and the
// limits. It returns nil for a well-formed command. Servers ask it before they
// propose; Apply asks it again.
func CheckCommand(c *rootv1.Command) *rootv1.ErrorDetail { return nil }

// Records calls fn for each record, in an order that only the State decides.
// It stops at fn's first error and returns it.
func (s *State) Records(fn func(*rootv1.Record) error) error { return nil }

// Restore makes the State at a position from its records. next returns io.EOF
// behind the last one. The State has the Hash of the one that Records came from.
func Restore(at Token, next func() (*rootv1.Record, error)) (*State, error) { return New(), nil }

// Preset returns the settings of a named preset, in a message of the caller's
// own: tenants, games, actors, kv or partitions.
func Preset(name string) (*rootv1.KeyspaceSettings, bool) { return nil, false }

// DefaultSettings are the settings of a keyspace that says nothing.
func DefaultSettings() *rootv1.KeyspaceSettings { return nil }

// MergeSettings lays settings over others: what over sets replaces what base
// has, message by message at the top level, field by field inside.
func MergeSettings(base, over *rootv1.KeyspaceSettings) *rootv1.KeyspaceSettings { return nil }
