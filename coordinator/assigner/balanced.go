package assigner

import (
	"cmp"
	"slices"
	"sync"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	// maxRounds bounds the keyspaces of which the last round is kept, maxRoundRefusals the
	// reasons of one.
	maxRounds        = 4096
	maxRoundRefusals = 16
)

// lastRound is how a keyspace was evened out last.
type lastRound struct {
	at            clock.Instant
	why           trigger
	before, after uint64
	byCount       bool
	begun         map[begunKey]uint64
	refused       map[placement.Why]*coordinatorv1.BalanceRefusal
}

type begunKey struct {
	kind   placement.Kind
	reason rootv1.OperationReason
}

// lastRounds are shown to others. Its methods may overlap.
type lastRounds struct {
	mu sync.Mutex
	// Guarded by mu; what is in there is not changed any more. history are those that began
	// something, oldest first.
	of      map[state.KeyspaceID]*lastRound
	history []pastRound
}

// pastRound is a round that began something.
type pastRound struct {
	keyspace state.KeyspaceID
	*lastRound
}

// maxHistory bounds the rounds that are remembered, maxHistoryOf those of a keyspace that
// are told.
const maxHistory, maxHistoryOf = 1024, 32

// newShown is what a plan says of keyspaces.
func newShown(plan *placement.Plan, ids []state.KeyspaceID) map[state.KeyspaceID]*lastRound {
	shown := make(map[state.KeyspaceID]*lastRound, len(ids))
	for _, id := range ids {
		out := plan.Balanced[id]
		shown[id] = &lastRound{
			before: out.Before, after: out.Imbalance, byCount: out.ByCount,
			begun: map[begunKey]uint64{}, refused: map[placement.Why]*coordinatorv1.BalanceRefusal{},
		}
	}
	for i := range plan.Operations {
		if o := &plan.Operations[i]; begins(o) && shown[o.Keyspace] != nil {
			shown[o.Keyspace].begun[begunKey{o.Kind, o.Reason}]++
		}
	}
	for _, f := range plan.Refusals {
		x := shown[f.Keyspace]
		if x == nil || !f.Even {
			continue
		}
		one := x.refused[f.Why]
		if one == nil && len(x.refused) < maxRoundRefusals {
			one = &coordinatorv1.BalanceRefusal{Why: f.Why.String(), RegionId: uint64(f.Region), MemberId: string(f.Member), Wants: f.Wants}
			x.refused[f.Why] = one
		}
		if one != nil {
			one.Count += uint64(max(f.Regions, 1))
		}
	}
	return shown
}

// waits reports whether something was refused that time alone may allow, or a member that
// is heard again.
func (x *lastRound) waits() bool {
	for why := range x.refused {
		switch why {
		case placement.BudgetSpent, placement.Resting, placement.CoolingDown, placement.Joined, placement.Recovered, placement.TooManyMoves, placement.MassFailureHold, placement.NoEligibleMember,
			placement.MembersFull, placement.NoneMatches, placement.NoOther, placement.NoRoom:
			return true
		}
	}
	return false
}

// showRounds lets others see them, and counts.
func (a *Raw) showRounds(shown map[state.KeyspaceID]*lastRound) {
	a.count.add(func() {
		for _, x := range shown {
			a.count.rounds[x.why.String()]++
			for why, f := range x.refused {
				a.count.withheld[why.String()] += f.GetCount()
			}
		}
	})
	l := &a.shows.rounds
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, x := range shown {
		if len(l.of) >= maxRounds && l.of[id] == nil {
			l.dropLocked()
		}
		l.of[id] = x
		if len(x.begun) > 0 {
			if len(l.history) == maxHistory {
				l.history = slices.Delete(l.history, 0, maxHistory/4)
			}
			l.history = append(l.history, pastRound{id, x})
		}
	}
}

// historyOf are the rounds of a keyspace that began something, newest first.
func (l *lastRounds) historyOf(id state.KeyspaceID, name string, now clock.Instant) (all []*coordinatorv1.BalanceRound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range slices.Backward(l.history) {
		if x.keyspace == id && len(all) < maxHistoryOf {
			all = append(all, x.proto(name, now))
		}
	}
	return all
}

// dropLocked drops the oldest one.
func (l *lastRounds) dropLocked() {
	var oldest state.KeyspaceID
	for id, x := range l.of {
		if old := l.of[oldest]; old == nil || x.at < old.at || x.at == old.at && id < oldest {
			oldest = id
		}
	}
	delete(l.of, oldest)
}

func (l *lastRounds) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of, l.history = map[state.KeyspaceID]*lastRound{}, nil
}

// Rounds are the last ones of keyspaces that are there, newest first; without the Tenure there are none.
func (a *Raw) Rounds() []*coordinatorv1.BalanceRound {
	now, st := a.tick(), a.cfg.View().State
	type named struct {
		*lastRound
		keyspace string
	}
	var all []named
	l := &a.shows.rounds
	l.mu.Lock()
	for id, x := range l.of {
		if k := st.Keyspace(id); k != nil {
			all = append(all, named{x, k.GetName()})
		}
	}
	l.mu.Unlock()
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(cmp.Compare(b.at, a.at), cmp.Compare(a.keyspace, b.keyspace)) })
	rounds := make([]*coordinatorv1.BalanceRound, len(all))
	for i, x := range all {
		rounds[i] = x.proto(x.keyspace, now)
	}
	return rounds
}

func (x *lastRound) proto(keyspace string, now clock.Instant) *coordinatorv1.BalanceRound {
	p := &coordinatorv1.BalanceRound{
		Keyspace: keyspace, AgeMillis: uint64(now.Sub(x.at).Milliseconds()), Trigger: x.why.String(),
		ImbalanceBeforePermille: x.before, ImbalanceAfterPermille: x.after, ByCount: x.byCount,
	}
	for key, n := range x.begun {
		p.Begun = append(p.Begun, &coordinatorv1.BalanceCount{Operation: key.kind.String(), Reason: key.reason, Count: n})
	}
	for _, f := range x.refused {
		p.Refused = append(p.Refused, f)
	}
	slices.SortFunc(p.Begun, func(a, b *coordinatorv1.BalanceCount) int {
		return cmp.Or(cmp.Compare(a.GetOperation(), b.GetOperation()), cmp.Compare(a.GetReason(), b.GetReason()))
	})
	slices.SortFunc(p.Refused, func(a, b *coordinatorv1.BalanceRefusal) int { return cmp.Compare(a.GetWhy(), b.GetWhy()) })
	return p
}
