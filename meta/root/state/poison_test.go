package state_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// unknownField is field 1000, varint 1.
func unknownField() []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)
}

// TestPoison: what this version does not know stops the replica, and the
// State is as before (promise 4).
func TestPoison(t *testing.T) {
	m := bootstrapped(t)
	good := publish(&rootv1.Region{KeyspaceId: 1})
	region := func(r *rootv1.Region) *rootv1.Command { return publish(r) }
	cases := map[string][]byte{
		"garbage":           []byte("\xff\xff\xff"),
		"truncated":         encode(t, good)[:4],
		"field of entry":    append(encode(t, good), unknownField()...),
		"field of command":  encode(t, good, unknown(&rootv1.Command{})),
		"kind of event":     encode(t, good, &rootv1.Command{Events: []*rootv1.Event{unknown(&rootv1.Event{})}}),
		"no kind":           encode(t, good, &rootv1.Command{Events: []*rootv1.Event{{}}}),
		"field of message":  encode(t, good, unknownIn(region(&rootv1.Region{KeyspaceId: 1}).Events[0])),
		"field of region":   encode(t, good, region(unknown(&rootv1.Region{KeyspaceId: 1}))),
		"field of owner":    encode(t, good, region(&rootv1.Region{KeyspaceId: 1, Owners: []*rootv1.Owner{unknown(&rootv1.Owner{})}})),
		"enum of owner":     encode(t, good, region(&rootv1.Region{KeyspaceId: 1, Owners: []*rootv1.Owner{{MemberId: "m", Role: 99}}})),
		"field of settings": encode(t, good, settingsCommand(unknown(&rootv1.KeyspaceSettings{}))),
		"enum of settings":  encode(t, good, settingsCommand(&rootv1.KeyspaceSettings{Placement: 99})),
		"enum in a list":    encode(t, good, &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{Mandates: []rootv1.Mandate{77}}}}}}),
	}
	for name, data := range cases {
		hash, token := m.s.Hash(), m.s.Token()
		var out state.Applied
		if err := m.s.ApplyEntry(1, token.Index+1, data, &out); err == nil {
			t.Fatalf("%s: applied: %v", name, out.Results)
		}
		if m.s.Hash() != hash || m.s.Token() != token || len(out.Results)+len(out.Changes) > 0 {
			t.Errorf("%s: the state changed", name)
		}
		var entry rootv1.Entry
		if proto.Unmarshal(data, &entry) == nil && len(entry.GetCommands()) == 2 {
			if d := state.CheckCommand(entry.GetCommands()[1]); d.GetReason() != rootv1.Reason_REASON_INVALID_REQUEST {
				t.Errorf("%s: CheckCommand says %v: a server would propose it", name, d)
			}
		}
	}
}

func unknown[M proto.Message](m M) M {
	m.ProtoReflect().SetUnknown(unknownField())
	return m
}

func unknownIn(e *rootv1.Event) *rootv1.Command {
	unknown(e.GetRegionPublished())
	return &rootv1.Command{Events: []*rootv1.Event{e}}
}

func settingsCommand(s *rootv1.KeyspaceSettings) *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: "k", Settings: s}}}}}
}

// TestOrder: entries come one behind the other; an empty one moves the token.
func TestOrder(t *testing.T) {
	m := bootstrapped(t)
	for _, at := range [][2]uint64{{1, 1}, {1, 3}, {1, 0}, {0, 2}} {
		if err := m.s.ApplyEntry(at[0], at[1], nil, nil); err == nil {
			t.Errorf("entry %d of term %d applied behind %s", at[1], at[0], m.s.Token())
		}
	}
	hash := m.s.Hash()
	if err := m.s.ApplyEntry(5, 2, nil, nil); err != nil {
		t.Fatal(err)
	}
	if want := (state.Token{Incarnation: 1, Term: 5, Index: 2}); m.s.Token() != want || m.s.Hash() != hash {
		t.Errorf("at %s with another hash, want %s", m.s.Token(), want)
	}
}

// TestLimits: commands beyond the limits are rejected, not poison.
func TestLimits(t *testing.T) {
	m := bootstrapped(t)
	long := make([]byte, state.MaxKeyBytes+1)
	many := &rootv1.Command{}
	for range state.MaxEventsPerCommand + 1 {
		many.Events = append(many.Events, clusterEvent())
	}
	var owners []*rootv1.Owner
	for i := range state.MaxOwners + 1 {
		owners = append(owners, &rootv1.Owner{MemberId: fmt.Sprint(i)})
	}
	big := &rootv1.Command{}
	for range 300 {
		big.Events = append(big.Events, publish(&rootv1.Region{KeyspaceId: 1, Frontier: long[1:]}).Events...)
	}
	for name, c := range map[string]*rootv1.Command{
		"no events": {},
		"events":    many,
		"bytes":     big,
		"key":       publish(&rootv1.Region{KeyspaceId: 1, StartKey: long}),
		"end":       publish(&rootv1.Region{KeyspaceId: 1, EndKey: append(long, 1)}),
		"frontier":  publish(&rootv1.Region{KeyspaceId: 1, Frontier: long}),
		"owners":    publish(&rootv1.Region{KeyspaceId: 1, Owners: owners}),
		"id":        {Events: []*rootv1.Event{memberEvent(strings.Repeat("m", state.MaxIDBytes+1), 1)}},
		"control":   {Events: []*rootv1.Event{memberEvent("a\nb", 1)}},
	} {
		if r := m.apply(c)[0]; r.Outcome != rootv1.Outcome_OUTCOME_REJECTED {
			t.Errorf("%s: %v", name, r.Outcome)
		}
		if state.CheckCommand(c) == nil {
			t.Errorf("%s: CheckCommand lets it pass", name)
		}
	}
	if d := state.CheckCommand(nil); d == nil {
		t.Errorf("CheckCommand lets nil pass")
	}
}

// FuzzApplyEntry: no entry makes Apply panic; an error leaves the State as it
// was, and whatever applies gives a State that can be restored.
func FuzzApplyEntry(f *testing.F) {
	for _, e := range goldenEntries(f) {
		f.Add(e.data)
	}
	base := fuzzBase(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := base.Fork()
		hash, token := s.Hash(), s.Token()
		var out state.Applied
		if err := s.ApplyEntry(1, token.Index+1, data, &out); err != nil {
			if s.Hash() != hash || s.Token() != token || len(out.Results)+len(out.Changes) > 0 {
				t.Fatalf("%v, but the state changed", err)
			}
			return
		}
		if restored(t, s).Hash() != s.Hash() {
			t.Fatalf("the hash is not that of the records")
		}
		var entry rootv1.Entry
		if err := proto.Unmarshal(data, &entry); err != nil || len(entry.GetCommands()) != len(out.Results) {
			t.Fatalf("%d results for %d commands, %v", len(out.Results), len(entry.GetCommands()), err)
		}
		for i, r := range out.Results {
			if d := state.CheckCommand(entry.GetCommands()[i]); d != nil && r.Outcome != rootv1.Outcome_OUTCOME_REJECTED {
				t.Fatalf("command %d applied, but CheckCommand says %v", i, d)
			}
		}
	})
}

// fuzzBase is the State behind the golden log of transitions.
func fuzzBase(t tester) *state.State {
	s := state.New()
	for _, e := range goldenEntries(t) {
		if e.log == "transition" {
			if err := s.ApplyEntry(1, s.Token().Index+1, e.data, nil); err != nil {
				t.Fatalf("%v", err)
			}
		}
	}
	return s
}

// TestA35ConcurrentReads: a State that nobody applies to any more is read, and
// assessed, by many while its fork goes on (promise 5; for the race detector).
func TestA35ConcurrentReads(t *testing.T) {
	m := bootstrapped(t)
	for i := range 200 {
		m.must(publish(&rootv1.Region{KeyspaceId: 1, StartKey: []byte(benchKey(i)), EndKey: []byte(benchKey(i + 1))}).Events...)
	}
	frozen := m.s
	m.s = frozen.Fork()
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for i := range 200 {
				if r := frozen.RegionAt(1, benchKey(i)+"x"); r == nil || r.Epoch.Version != 1 {
					t.Errorf("key %d: %v", i, r)
				}
				frozen.Hash()
				frozen.Assess(publish(&rootv1.Region{KeyspaceId: 1, StartKey: []byte("z" + benchKey(i))}).Events[0])
			}
		})
	}
	for i := range 200 {
		m.must(publish(&rootv1.Region{
			Id: uint64(i + 1), KeyspaceId: 1, StartKey: []byte(benchKey(i)), EndKey: []byte(benchKey(i + 1)),
			Epoch: &rootv1.RegionEpoch{Version: 2, ConfVersion: 1},
		}).Events...)
	}
	wait.Wait()
}
