package assigner

import (
	"reflect"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Of more moves than are remembered the oldest are forgotten, and what was before the rest is not known any
// more: also of a keyspace all of which was seen.
func TestThePastThatDoesNotFitIsNotKnown(t *testing.T) {
	const moves = 20_000
	p, now := newPast(time.Minute), clock.Instant(time.Hour)
	p.from = now
	p.created[2] = now
	for i := range uint64(moves) {
		if now = now.Add(30 * time.Minute / moves); i == moves-1 {
			p.created[3] = now
		}
		p.note(&rootv1.Transition{
			KeyspaceId: 2, RegionId: i + 1, Kind: rootv1.TransitionKind_TRANSITION_KIND_MOVE, Cause: rootv1.OperationReason_OPERATION_REASON_COUNT,
		}, 0, now, false)
	}
	forgotten := clock.Instant(time.Hour).Add(maxPast / 4 * (30 * time.Minute / moves))
	if n := len(p.moves); n != moves-maxPast/4 {
		t.Fatalf("%d moves are remembered", n)
	}
	if oldest := p.moves[0].At; p.from <= forgotten || p.from > oldest {
		t.Errorf("all is known since %v, and the oldest move that is remembered was at %v", time.Duration(p.from), time.Duration(oldest))
	}
	var known []balance.Past
	for _, m := range p.moves {
		known = append(known, m.Past)
	}
	for id, want := range map[state.KeyspaceID]balance.Budget{
		2: balance.Recall(known, p.from, 40_000, balance.Policy{}, now),
		3: balance.Recall(nil, 0, 40_000, balance.Policy{}, now),
	} {
		if got := p.budget(id, 40_000, balance.Policy{}, now); !reflect.DeepEqual(got, want) {
			t.Errorf("the budget of keyspace %d is another one than by what is known", id)
		}
	}
}

// A move is paid for once, also that of a shared region, which begins with one owner more and ends with one less;
// owners that are added because one is saturated take nothing off anybody, and so does a split.
func TestWhatIsPaidFor(t *testing.T) {
	const (
		move, add, remove, split = rootv1.TransitionKind_TRANSITION_KIND_MOVE, rootv1.TransitionKind_TRANSITION_KIND_ADD_PEER,
			rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER, rootv1.TransitionKind_TRANSITION_KIND_SPLIT
		byLoad, byLimit   = rootv1.OperationReason_OPERATION_REASON_LOAD, rootv1.OperationReason_OPERATION_REASON_LIMIT
		saturated, byHeat = rootv1.OperationReason_OPERATION_REASON_SATURATED, rootv1.OperationReason_OPERATION_REASON_HOT
		drains, byLabel   = rootv1.OperationReason_OPERATION_REASON_MEMBER_DRAINING, rootv1.OperationReason_OPERATION_REASON_LABEL_RULE
	)
	for _, c := range []struct {
		kind  rootv1.TransitionKind
		cause rootv1.OperationReason
		want  balance.Round
	}{
		{move, byLoad, balance.Shed},
		{add, byLoad, balance.Shed},
		{remove, byLoad, 0},
		{move, byLimit, balance.Limit},
		{add, byLimit, balance.Limit},
		{remove, byLimit, 0},
		{add, saturated, 0},
		{split, byHeat, 0},
		{add, drains, 0},
		{add, byLabel, 0},
	} {
		if got := roundOf(&rootv1.Transition{Kind: c.kind, Cause: c.cause}); got != c.want {
			t.Errorf("%v because of %v is paid for by round %d, want %d", c.kind, c.cause, got, c.want)
		}
	}
}
