package state_test

import (
	"fmt"
	"strings"
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
	t.Parallel()
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

// refused is a publication of [b, d), which [c, e) is in the way of, and what it is
// answered with when it comes first.
func refused(m *machine) (*rootv1.Command, state.Result) {
	m.t.Helper()
	m.must(published(2, "c", "e", 1))
	c := &rootv1.Command{
		Events:   []*rootv1.Event{published(0, "b", "d", 0)},
		Identity: &rootv1.CommandIdentity{Origin: 5, Sequence: 1, KnownIndex: m.s.Token().Index},
	}
	r := m.apply(c)[0]
	if r.Reject.GetReason() != rootv1.Reason_REASON_RANGE_OVERLAP || r.Repetition {
		m.t.Fatalf("%+v", r)
	}
	return c, r
}

// Whoever was told that a command was rejected never finds it applied: a copy that
// comes when nothing is in its way any more is refused as the first one was, also
// by a State that was restored; and another command under its identity is none.
func TestARejectionIsFinal(t *testing.T) {
	m := bootstrapped(t)
	c, first := refused(m)
	m.must(&rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 2}}})
	grown := m.s
	for _, s := range []*state.State{restored(t, grown), grown} {
		m.s = s
		r := m.apply(c)[0]
		if !r.Repetition || r.Outcome != rootv1.Outcome_OUTCOME_REJECTED || r.Reject.GetReason() != first.Reject.GetReason() || r.Token != m.s.Token() {
			t.Errorf("it came again: %+v", r)
		}
		if want := fmt.Sprintf("when it first came, at index %d", first.Token.Index); !strings.Contains(r.Reject.GetMessage(), want) {
			t.Errorf("%q does not say %q", r.Reject.GetMessage(), want)
		}
		if r := m.s.RegionAt(1, "b"); r != nil {
			t.Errorf("region %d is there", r.ID)
		}
		other := &rootv1.Command{Events: []*rootv1.Event{published(0, "x", "y", 0)}, Identity: c.Identity}
		if r := m.apply(other)[0]; r.Repetition || r.Reject.GetReason() != rootv1.Reason_REASON_INVALID_REQUEST {
			t.Errorf("another command under its identity: %+v", r)
		}
		m.checkHash()
	}
	again := &rootv1.Command{Events: c.Events, Identity: &rootv1.CommandIdentity{Origin: 5, Sequence: 2, KnownIndex: m.s.Token().Index}}
	if r := m.apply(again)[0]; r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		t.Errorf("under a new identity: %+v", r)
	}
}

// So it is with what is judged before the events of a command.
func TestARejectionForItsEraIsFinal(t *testing.T) {
	m := bootstrapped(t)
	c := &rootv1.Command{
		Events: []*rootv1.Event{published(0, "b", "d", 0)}, RequireEra: 1,
		Identity: &rootv1.CommandIdentity{Origin: 5, Sequence: 1, KnownIndex: m.s.Token().Index},
	}
	first := m.apply(c)[0]
	m.must(claimed("a", 7, 0))
	if r := m.apply(c)[0]; !r.Repetition || first.Reject == nil || r.Reject.GetReason() != first.Reject.GetReason() {
		t.Errorf("first %+v, when the era had come %+v", first, r)
	}
}

// A command that found everything true is answered so again, also when it is not
// any more.
func TestWhatWasTrueAlreadyIsToldSoAgain(t *testing.T) {
	m := bootstrapped(t)
	m.must(published(2, "c", "e", 1))
	for i, e := range []*rootv1.Event{
		published(0, "c", "e", 1),
		{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: 9}}},
	} {
		c := &rootv1.Command{Events: []*rootv1.Event{e}, Identity: &rootv1.CommandIdentity{Origin: 5, Sequence: uint64(i + 1), KnownIndex: m.s.Token().Index}}
		first := m.apply(c)[0]
		if i == 1 {
			m.must(published(9, "x", "y", 1))
		}
		if r := m.apply(c)[0]; !r.Repetition || first.Outcome != rootv1.Outcome_OUTCOME_ALREADY_APPLIED || r.Outcome != first.Outcome {
			t.Errorf("%v: first %+v, then %+v", e, first, r)
		}
	}
	made := &rootv1.Command{Events: []*rootv1.Event{published(0, "f", "g", 0)}, Identity: &rootv1.CommandIdentity{Origin: 5, Sequence: 7, KnownIndex: m.s.Token().Index}}
	m.apply(made)
	if r := m.apply(made)[0]; !r.Repetition || r.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		t.Errorf("what changed something: %+v", r)
	}
}

// A split that is sent again when its parts are gone, and its transition forgotten,
// names both.
func TestARepeatedSplitNamesItsParts(t *testing.T) {
	m := bootstrapped(t)
	m.must(published(2, "a", "z", 1))
	id := "split-2-1.1"
	c := &rootv1.Command{
		Events: []*rootv1.Event{
			{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: 2, ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, SplitKey: []byte("m")}}},
			{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: id}}},
		},
		Identity: &rootv1.CommandIdentity{Origin: 5, Sequence: 1, KnownIndex: m.s.Token().Index},
	}
	right := m.apply(c)[0].Events[1].Right.ID
	look := func(when string) {
		t.Helper()
		for i, e := range m.apply(c)[0].Events {
			if e.Region == nil || e.Region.ID != 2 || e.Right == nil || e.Right.ID != right {
				t.Errorf("%s, event %d: %+v, want regions 2 and %d", when, i, e, right)
			}
		}
	}
	look("at once")
	for _, gone := range []uint64{2, uint64(right)} {
		m.must(&rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: gone}}})
		look("gone")
	}
	m.must(published(3, "a", "b", 1))
	for i := uint64(1); m.s.Transition(id) != nil; i++ {
		epoch := &rootv1.RegionEpoch{Version: 1, ConfVersion: i}
		m.must(
			&rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{RegionId: 3, ExpectedEpoch: epoch, SplitKey: []byte("aa")}}},
			&rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{TransitionId: fmt.Sprintf("split-3-1.%d", i)}}},
		)
		next := published(3, "a", "b", 1)
		next.GetRegionPublished().Region.Epoch.ConfVersion = i + 1
		m.must(next)
	}
	look("forgotten")
}
