package state_test

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

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
	if r.Outcome == rootv1.Outcome_OUTCOME_REJECTED {
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
	if r.Outcome != rootv1.Outcome_OUTCOME_REJECTED && m.s.Region(8) == nil {
		t.Errorf("%v, repetition %v, region %v: there is no region 8", r.Outcome, r.Repetition, r.Events[0].Region)
	}
}

// One removed region of a high version does not, when it is forgotten, make every
// later region of an id below the highest one unchangeable.
func TestForgottenRegionOfAHighVersion(t *testing.T) {
	m := bootstrapped(t)
	tombstone := func(id uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}}
	}
	m.must(published(1<<40, "x", "y", state.MaxEpoch)) // a member chose its own id and version, both allowed
	m.must(tombstone(1 << 40))
	for done := 0; done <= state.MaxRemovedRegions; {
		var events []*rootv1.Event
		for range 2000 {
			done++
			n := uint64(1<<41 + done)
			events = append(events, published(n, "a", "b", 1), tombstone(n))
		}
		m.must(events...)
	}
	r := m.must(published(0, "p", "q", 0)).Events[0].Region // the root gives the id
	next := published(uint64(r.ID), "p", "pp", r.Epoch.Version+1)
	if got := m.apply(&rootv1.Command{Events: []*rootv1.Event{next}})[0]; got.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		t.Errorf("a new region %d got epoch %s and its range can never be published again: %v", r.ID, r.Epoch, got.Reject)
	}
	other := published(12345, "r", "s", 3)
	if got := m.apply(&rootv1.Command{Events: []*rootv1.Event{other}})[0]; got.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		t.Errorf("a member's own region that never was: %v", got.Reject)
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
		t.Errorf("region %d at revision %d, epoch %s, beside token %s", got.ID, got.Revision, got.Epoch, fmt.Sprint(r.Token))
	}
}

// A member publishes a region under an id that AllocID gave it and no region ever
// had. Whatever was removed in the life of the cluster, it is a new one.
func TestFreshIdAfterManyRemovals(t *testing.T) {
	m := bootstrapped(t)
	tombstone := func(id uint64) *rootv1.Event {
		return &rootv1.Event{Kind: &rootv1.Event_RegionTombstoned{RegionTombstoned: &rootv1.RegionTombstoned{RegionId: id}}}
	}
	for done := 0; done <= state.MaxRemovedRegions; {
		var events []*rootv1.Event
		for range 2000 {
			done++
			n := uint64(20_000 + done)
			events = append(events, published(n, "a", "b", 5), tombstone(n))
		}
		m.must(events...)
	}
	if got := m.apply(&rootv1.Command{Events: []*rootv1.Event{published(12_345, "r", "s", 1)}})[0]; got.Outcome != rootv1.Outcome_OUTCOME_APPLIED {
		t.Errorf("%v", got.Reject)
	}
}
