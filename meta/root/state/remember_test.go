package state_test

import (
	"sync"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// chunk is how many commands are forgotten at a time.
const chunk = 4096

// leave is a command that changes nothing and is remembered.
func leave(sequence, known uint64) *rootv1.Command {
	return &rootv1.Command{
		Events:   []*rootv1.Event{{Kind: &rootv1.Event_CoordinatorLeft{CoordinatorLeft: &rootv1.CoordinatorLeft{Id: "c"}}}},
		Identity: &rootv1.CommandIdentity{Origin: 1, Sequence: sequence, KnownIndex: known},
	}
}

// fill applies entries of n commands each, one behind the other in sequence.
func (m *machine) fill(entries, n int, sequence *uint64) {
	m.t.Helper()
	for range entries {
		var commands []*rootv1.Command
		for range n {
			*sequence++
			commands = append(commands, leave(*sequence, m.s.Token().Index))
		}
		for _, r := range m.apply(commands...) {
			if r.Outcome != rootv1.Outcome_OUTCOME_ALREADY_APPLIED || r.Repetition {
				m.t.Fatalf("%+v", r)
			}
		}
	}
}

// Identities are forgotten in whole chunks, the oldest first, and what was sent
// before is refused from then on: nobody can tell. A restored State forgets at
// the same command.
func TestIdentitiesAreForgotten(t *testing.T) {
	m := bootstrapped(t)
	var sequence uint64
	m.fill(state.MaxRememberedCommands/2048, 2048, &sequence)
	ask := func(sequence, known uint64) state.Result { t.Helper(); return m.apply(leave(sequence, known))[0] }
	if r := ask(1, 0); !r.Repetition || r.Token != m.s.Token() {
		t.Fatalf("the first command: %+v", r)
	}
	grown := m.s
	for _, s := range []*state.State{restored(t, grown), grown} {
		if m.s = s; m.s.Hash() != grown.Hash() {
			t.Fatalf("restored, the hash is %x, not %x", m.s.Hash(), grown.Hash())
		}
		before := sequence
		m.fill(1, 1, &before)
		// The first chunk is in the entries 2 and 3.
		for known, want := range map[uint64]rootv1.Outcome{0: rootv1.Outcome_OUTCOME_REJECTED, 2: rootv1.Outcome_OUTCOME_REJECTED} {
			r := ask(1, known)
			if r.Outcome != want || r.Reject.GetReason() != rootv1.Reason_REASON_OUTCOME_UNKNOWN || r.Reject.GetCurrentToken() == nil {
				t.Errorf("a forgotten command known at %d: %+v", known, r)
			}
		}
		if r := ask(chunk+1, 3); !r.Repetition {
			t.Errorf("the oldest that is remembered: %+v", r)
		}
		if r := ask(before+1, 2); r.Reject.GetReason() != rootv1.Reason_REASON_OUTCOME_UNKNOWN {
			t.Errorf("a new command that was first sent before what is forgotten: %+v", r)
		}
		if r := ask(before+1, 3); r.Outcome != rootv1.Outcome_OUTCOME_ALREADY_APPLIED || r.Repetition {
			t.Errorf("a new command: %+v", r)
		}
		m.checkHash()
	}
}

// A command that claims to know an index that is not yet there was made in another
// history.
func TestIdentityOfAnotherHistory(t *testing.T) {
	m := bootstrapped(t)
	hash := m.s.Hash()
	if r := m.apply(leave(1, 2))[0]; r.Reject.GetReason() != rootv1.Reason_REASON_INVALID_REQUEST || m.s.Hash() != hash {
		t.Errorf("%+v", r)
	}
}

// Forks of one State go on independently, also at the same time, and leave what
// they share alone (for the race detector too).
func TestForksRememberApart(t *testing.T) {
	m := bootstrapped(t)
	var sequence uint64
	m.fill(3, 1000, &sequence)
	base := m.s
	forks := make([]*state.State, 4)
	for i := range forks {
		forks[i] = base.Fork()
	}
	forks = append(forks, base)
	var wait sync.WaitGroup
	for i, s := range forks {
		wait.Go(func() {
			own := uint64(10_000 * (i + 1))
			for n := range uint64(2000) {
				index := s.Token().Index
				var out state.Applied
				if err := s.ApplyEntry(1, index+1, encode(t, leave(own+n, index), leave(n+1, 0)), &out); err != nil {
					t.Error(err)
					return
				}
				if out.Results[0].Repetition || !out.Results[1].Repetition {
					t.Errorf("fork %d, command %d: %+v", i, n, out.Results)
					return
				}
			}
		})
	}
	wait.Wait()
	for i, s := range forks {
		if restored(t, s).Hash() != s.Hash() {
			t.Errorf("fork %d: the hash is not that of the records", i)
		}
		for j := range forks {
			var out state.Applied
			index := s.Token().Index
			if err := s.ApplyEntry(1, index+1, encode(t, leave(uint64(10_000*(j+1)), 1)), &out); err != nil || out.Results[0].Repetition != (i == j) {
				t.Errorf("fork %d knows the command of fork %d: %v, %+v", i, j, err, out.Results)
			}
		}
	}
}

// What a command of several events was given is told again, also where others'
// choices make holes in it.
func TestGivenNumbersAreToldAgain(t *testing.T) {
	m := bootstrapped(t)
	m.must(publish(&rootv1.Region{Id: 2, KeyspaceId: 1, StartKey: []byte("b"), EndKey: []byte("c")}).Events...)
	m.must(memberEvent("m9", 1))
	c := &rootv1.Command{Identity: &rootv1.CommandIdentity{Origin: 5, Sequence: 1}}
	for _, r := range []*rootv1.Region{{StartKey: []byte("d"), EndKey: []byte("e")}, {StartKey: []byte("e"), EndKey: []byte("f")}, {StartKey: []byte("f"), EndKey: []byte("g")}} {
		r.KeyspaceId = 1
		c.Events = append(c.Events, publish(r).Events...)
	}
	c.Events = append(c.Events, memberEvent("m1", 7), memberEvent("m2", 7))
	first := m.apply(c)[0]
	for i, want := range []state.RegionID{1, 3, 4} {
		if first.Events[i].Region.ID != want {
			t.Fatalf("region %d is %d, want %d", i, first.Events[i].Region.ID, want)
		}
	}
	m.must(&rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 3}}})
	again := memberEvent("m2", 8)
	again.GetMemberJoined().Follows = 3
	m.must(again)
	second := m.apply(c)[0]
	if !second.Repetition || second.Token != m.s.Token() {
		t.Fatalf("%+v", second)
	}
	for i := range first.Events {
		if got, want := numbers(second.Events[i]), numbers(first.Events[i]); got != want {
			t.Errorf("event %d: %s, first %s", i, got, want)
		}
	}
	if gone := second.Events[1].Region; gone.Epoch != (state.Epoch{}) {
		t.Errorf("a region that is gone has more than its id: %+v", gone)
	}
	if m := second.Events[4].Member; m.GetIncarnation() != 3 || m.GetState() != 0 {
		t.Errorf("an incarnation that is over has more than its number: %v", m)
	}
	m.checkHash()
}

func extension(era, floor, size uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{
		Mandate: rootv1.Mandate_MANDATE_ALLOC_ID, Era: era, Floor: floor, Size: size,
	}}}
}

func claimed(holder string, incarnation, expected uint64) *rootv1.Event {
	return &rootv1.Event{Kind: &rootv1.Event_TenureClaimed{TenureClaimed: &rootv1.TenureClaimed{
		HolderId: holder, HolderIncarnation: incarnation, HolderAddress: "h:1", ExpectedEra: expected,
		Mandates: []rootv1.Mandate{rootv1.Mandate_MANDATE_ALLOC_ID, rootv1.Mandate_MANDATE_TSO}, TtlMillis: 200,
	}}}
}

func published(id uint64, start, end string, version uint64) *rootv1.Event {
	r := &rootv1.Region{Id: id, KeyspaceId: 1, StartKey: []byte(start), EndKey: []byte(end)}
	if version != 0 {
		r.Epoch = &rootv1.RegionEpoch{Version: version, ConfVersion: 1}
	}
	return &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: r}}}
}

// A command that has the identity of another one is no repetition of it: the
// holder's extension must not be answered with a window that nobody gave, whose ids
// the root goes on to give to others. Origin is the holder's incarnation, which
// everybody can read in the Tenure.
func TestAnotherCommandUnderAnIdentityIsNoRepetition(t *testing.T) {
	m := bootstrapped(t)
	const holder = 0x77
	m.must(claimed("a", holder, 0))
	known := m.s.Token().Index
	id := func(sequence uint64) *rootv1.CommandIdentity {
		return &rootv1.CommandIdentity{Origin: holder, Sequence: sequence, KnownIndex: known}
	}
	// A caller publishes a region under the identity that the holder uses next.
	if r := m.apply(&rootv1.Command{Events: []*rootv1.Event{published(0, "a", "b", 0)}, Identity: id(1)})[0]; r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		t.Fatalf("%+v", r)
	}
	fence := m.s.Allocators().GetIdFence()
	r := m.apply(&rootv1.Command{Events: []*rootv1.Event{extension(1, 0, 100)}, Identity: id(1)})[0]
	if r.Reject.GetReason() == rootv1.Reason_REASON_INVALID_REQUEST && !r.Repetition {
		return
	}
	w := r.Events[0].Window
	if got := m.s.Allocators().GetIdFence(); w.GetTo() > got {
		next := m.must(published(0, "c", "d", 0)).Events[0].Region
		t.Errorf("answered with window (%d, %d] (%v, repetition %v), the fence is %d and was %d: the root gives id %d of it to a region",
			w.GetFrom(), w.GetTo(), r.Outcome, r.Repetition, got, fence, next.ID)
	}
}

// A publication that was not made is not answered as made.
func TestAnotherPublicationUnderAnIdentity(t *testing.T) {
	m := bootstrapped(t)
	id := &rootv1.CommandIdentity{Origin: 5, Sequence: 1, KnownIndex: m.s.Token().Index}
	m.apply(&rootv1.Command{Events: []*rootv1.Event{published(7, "a", "b", 1)}, Identity: id})
	r := m.apply(&rootv1.Command{Events: []*rootv1.Event{published(8, "c", "d", 1)}, Identity: id})[0]
	if r.Reject.GetReason() != rootv1.Reason_REASON_INVALID_REQUEST || m.s.Region(8) != nil {
		t.Errorf("%v, repetition %v, %v", r.Outcome, r.Repetition, r.Reject)
	}
}

// What a repetition is answered with is not newer than the token that it is
// answered with: a session goes on from there, and must not go back.
func TestRepetitionIsNotNewerThanItsToken(t *testing.T) {
	m := bootstrapped(t)
	first := &rootv1.Command{
		Events:   []*rootv1.Event{published(0, "a", "b", 0)},
		Identity: &rootv1.CommandIdentity{Origin: 5, Sequence: 1, KnownIndex: m.s.Token().Index},
	}
	made := m.apply(first)[0].Events[0].Region
	m.must(published(uint64(made.ID), "a", "b", made.Epoch.Version+1))
	r := m.apply(first)[0]
	if got := r.Events[0].Region; got.Revision > r.Token.Index {
		t.Errorf("region %d at revision %d, epoch %s, beside token %s", got.ID, got.Revision, got.Epoch, r.Token)
	}
}
