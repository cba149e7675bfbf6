package state_test

import (
	"io"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

var errEOF = io.EOF

// tester is what *testing.T, *testing.B and *rapid.T have in common.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// machine is a State that is fed with entries.
type machine struct {
	t   testing.TB
	s   *state.State
	out state.Applied
}

func newMachine(t *testing.T) *machine { return &machine{t: t, s: state.New()} }

// bootstrapped is a machine with a cluster of id 7.
func bootstrapped(t *testing.T) *machine {
	m := newMachine(t)
	m.must(clusterEvent())
	return m
}

func clusterEvent() *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_ClusterBootstrapped{ClusterBootstrapped: &rootv1.ClusterBootstrapped{
		Cluster: &rootv1.Cluster{ClusterId: 7, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 11}}},
	}}}
}

func encode(t tester, commands ...*rootv1.Command) []byte {
	t.Helper()
	data, err := proto.Marshal(&rootv1.Entry{Commands: commands})
	if err != nil {
		t.Fatalf("encode entry: %v", err)
	}
	return data
}

// apply applies an entry and checks what holds for every entry.
func (m *machine) apply(commands ...*rootv1.Command) []state.Result {
	m.t.Helper()
	before := m.s.Hash()
	m.out.Reset()
	if err := m.s.ApplyEntry(1, m.s.Token().Index+1, encode(m.t, commands...), &m.out); err != nil {
		m.t.Fatalf("apply: %v", err)
	}
	if len(m.out.Results) != len(commands) {
		m.t.Fatalf("%d results for %d commands", len(m.out.Results), len(commands))
	}
	changed := false
	for i, r := range m.out.Results {
		changed = changed || !r.Repetition && (commands[i].GetIdentity() != nil || r.Outcome == rootv1.Outcome_OUTCOME_APPLIED)
	}
	if !changed && (m.s.Hash() != before || len(m.out.Changes) > 0) {
		m.t.Errorf("nothing applied, but the hash or %d records changed", len(m.out.Changes))
	}
	return m.out.Results
}

// must applies one command that has to succeed.
func (m *machine) must(events ...*rootv1.Event) state.Result {
	m.t.Helper()
	r := m.apply(&rootv1.Command{Events: events})[0]
	if r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		m.t.Fatalf("%v: %v", r.Outcome, r.Reject)
	}
	return r
}

// checkHash compares the hash with that of a State made from the records.
func (m *machine) checkHash() {
	m.t.Helper()
	if r := restored(m.t, m.s); r.Hash() != m.s.Hash() {
		m.t.Errorf("the hash is %x, that of the records %x", m.s.Hash(), r.Hash())
	}
}

func records(t tester, s *state.State) []*rootv1.Record {
	t.Helper()
	var all []*rootv1.Record
	if err := s.Records(func(r *rootv1.Record) error {
		all = append(all, r)
		return nil
	}); err != nil {
		t.Fatalf("records: %v", err)
	}
	return all
}

func restored(t tester, s *state.State) *state.State {
	t.Helper()
	r, err := restore(s.Token(), records(t, s))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return r
}

func restore(at state.Token, all []*rootv1.Record) (*state.State, error) {
	return state.Restore(at, func() (*rootv1.Record, error) {
		if len(all) == 0 {
			return nil, io.EOF
		}
		r := all[0]
		all = all[1:]
		return proto.CloneOf(r), nil
	})
}
