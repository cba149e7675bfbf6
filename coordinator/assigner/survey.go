package assigner

import (
	"maps"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// surveyPiece is how many regions' loads Look's goroutine copies at a time: somebody may be
// dying, and nothing is decided meanwhile.
const surveyPiece = 2048

// survey is what a plan is made of as Look has it, copied. Who made it has it alone.
type survey struct {
	raw *Raw
	// in is an Input without regions; its State and what is in it are of one moment, loads
	// of those in which they were copied.
	in  placement.Input
	era state.Era
	at  state.Token
	// blindUntil is when the holder knows enough to even out; 0: it does.
	blindUntil clock.Instant

	past        past
	quarantined map[state.RegionID]struct{}
	paces       map[state.KeyspaceID]surveyed
	// weighed are the keyspaces whose loads are kept.
	weighed []state.KeyspaceID
	book    *load.Book
	// with and without are members that are imagined to be there, and not to be.
	with, without map[state.MemberID]bool
	// policies are those of the keyspaces that are planned; settled is after what time newcomers
	// are let be by none of them.
	policies map[state.KeyspaceID]balance.Policy
	settled  time.Duration
}

// surveyed is the pace of a keyspace.
type surveyed struct {
	budget balance.Budget
	cool   map[state.RegionID]clock.Instant
}

// survey begins to copy what a plan is made of; nil: there is no era. Look's goroutine
// calls it, and then copyLoads until everything is there.
func (a *Raw) survey() *survey {
	if a.era == 0 {
		return nil
	}
	now := a.tick()
	s := &survey{
		raw: a, era: a.era, at: a.at, paces: make(map[state.KeyspaceID]surveyed, len(a.rounds.of)),
		past:        past{joined: maps.Clone(a.past.joined), cut: maps.Clone(a.past.cut), moves: slices.Clone(a.past.moves), drained: a.past.drained},
		quarantined: a.past.poison.InQuarantine(), weighed: slices.Sorted(maps.Keys(a.loads.keyspaces)),
	}
	if !a.rounds.open && now < a.rounds.from && !a.knowsAll() {
		s.blindUntil = a.rounds.from
	}
	for id, x := range a.rounds.of {
		s.paces[id] = surveyed{x.budget, x.cool} // cools makes a new map each time
	}
	s.in = a.work.Copy(nil, now)
	s.in.Observed, s.in.Insight, s.in.Drained, s.in.Created, s.in.Attempts, s.in.Unserved = surveyObserved{s}, surveyInsight{s}, a.past.drained, maps.Clone(a.past.created), a.past.attempts.Copy(), a.unserved.Copy()
	if len(s.weighed) > 0 {
		s.book = load.NewBook(maxBook)
		s.in.Loads = s.book
	}
	return s
}

// loaded are the regions whose loads are to be copied, in pieces.
func (s *survey) loaded() (pieces [][]state.RegionID) {
	var piece []state.RegionID
	for _, ks := range s.weighed {
		s.in.State.RegionsFrom(ks, "", func(r *state.Region) bool {
			if piece = append(piece, r.ID); len(piece) == surveyPiece {
				pieces, piece = append(pieces, piece), nil
			}
			return true
		})
	}
	if len(piece) > 0 {
		pieces = append(pieces, piece)
	}
	return pieces
}

// copyLoads copies a piece; nil: what is known of members. It reports whether the era is
// the same.
func (a *Raw) copyLoads(s *survey, piece []state.RegionID) bool {
	if a.era != s.era {
		return false
	}
	if s.in.Now = a.tick(); piece == nil {
		s.book.TakeMembers(a.loads.book)
	} else {
		s.book.TakeRegions(a.loads.book, piece)
	}
	return true
}

// surveyObserved is what is observed, of a survey: members as they are by now.
type surveyObserved struct{ *survey }

var _ placement.Observed = surveyObserved{}

// Takes implements placement.Observed.
func (o surveyObserved) Takes(id state.MemberID) bool {
	return o.with[id] || observed{o.raw}.Takes(id)
}

// Damped implements placement.Observed.
func (o surveyObserved) Damped(id state.MemberID) bool {
	return !o.with[id] && observed{o.raw}.Damped(id)
}

// Unfit implements placement.Observed.
func (o surveyObserved) Unfit(owner state.Owner, ks state.KeyspaceID) bool {
	return observed{o.raw}.Unfit(owner, ks)
}

// Probation implements placement.Observed.
func (o surveyObserved) Probation(owner state.Owner, ks state.KeyspaceID) bool {
	return observed{o.raw}.Probation(owner, ks)
}

// ClearAt implements placement.Observed.
func (o surveyObserved) ClearAt(id state.MemberID, incarnation uint64, f liveness.Fence) clock.Instant {
	if o.without[id] {
		return 0
	}
	return observed{o.raw}.ClearAt(id, incarnation, f)
}

// Shown implements placement.Observed.
func (o surveyObserved) Shown(id state.MemberID, incarnation uint64) state.Token {
	return observed{o.raw}.Shown(id, incarnation)
}

// Report implements placement.Observed.
func (o surveyObserved) Report(region state.RegionID, owner state.Owner) (placement.Report, bool) {
	return observed{o.raw}.Report(region, owner)
}

// surveyInsight is what is known besides, of a survey.
type surveyInsight struct{ *survey }

var _ placement.Insight = surveyInsight{}

// Member implements placement.Insight. One that is imagined came long enough ago to get its
// part.
func (o surveyInsight) Member(id state.MemberID) placement.MemberInsight {
	if o.with[id] {
		return placement.MemberInsight{Joined: max(o.in.Now.Add(-o.settled), 1)}
	}
	return placement.MemberInsight{Joined: o.past.joined[id], RestsUntil: o.raw.Standing(id).SettlingUntil}
}

// Region implements placement.Insight.
func (o surveyInsight) Region(id state.RegionID) placement.RegionInsight {
	_, quarantined := o.quarantined[id]
	in := placement.RegionInsight{Quarantined: quarantined, CutAt: o.past.cut[id]}
	if r := o.in.State.Region(id); r != nil {
		p := o.policies[r.Keyspace]
		o.raw.tell(&in, r, &p, o.paces[r.Keyspace].cool)
	}
	return in
}

// plan is the plan for keyspaces; most: that many steps to even out.
func (s *survey) plan(ids []state.KeyspaceID, most int) placement.Plan {
	return s.planWith(ids, s.policies, most)
}

func (s *survey) planWith(ids []state.KeyspaceID, policies map[state.KeyspaceID]balance.Policy, most int) placement.Plan {
	in := s.in
	in.Policies, in.Most = policies, most
	in.Budgets = make(map[state.KeyspaceID]balance.Budget, len(ids))
	asked := make(map[state.KeyspaceID]bool, len(ids))
	for _, id := range ids {
		asked[id] = true
		in.Regions = append(in.Regions, placement.InNeed(in.State, id)...)
		in.Regions = append(in.Regions, in.Unserved.Regions(in.State, id)...)
		if x, ok := s.paces[id]; ok {
			in.Budgets[id] = x.budget
		} else {
			in.Budgets[id] = s.past.budget(id, in.State.KeyspaceRegionCount(id), s.policies[id], in.Now)
		}
	}
	in.State.Members(func(m *rootv1.Member) bool {
		if m.GetState() == rootv1.MemberState_MEMBER_STATE_DRAINING {
			in.Draining = append(in.Draining, state.MemberID(m.GetId()))
		}
		return true
	})
	if s.blindUntil == 0 {
		in.Rebalance = ids
	}
	plan := placement.Make(in)
	plan.Operations = slices.DeleteFunc(plan.Operations, func(o placement.Operation) bool { return !asked[o.Keyspace] })
	plan.Refusals = slices.DeleteFunc(plan.Refusals, func(f placement.Refusal) bool { return !asked[f.Keyspace] })
	return plan
}
