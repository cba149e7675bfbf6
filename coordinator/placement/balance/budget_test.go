package balance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/placement/balance"
	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

// lopsided are 100 regions of one load: each member has four of the last ones, m1 all others
// but those named.
type lopsided struct {
	balance.Policy
	budget balance.Budget
	now    clock.Instant
	of     map[state.RegionID]state.MemberID
}

func newLopsided(change func(*balance.Policy)) *lopsided {
	l := &lopsided{Policy: balance.Policy{By: balance.Load, Even: true, Relative: 1200, Cooldown: time.Minute, InFlight: 1000}, now: clock.Instant(10 * time.Hour), of: map[state.RegionID]state.MemberID{}}
	change(&l.Policy)
	return l
}

func (l *lopsided) input() balance.Input {
	in := balance.Input{Keyspace: 7, Policy: l.Policy, Budget: l.budget, Now: l.now}
	for i := range 5 {
		in.Members = append(in.Members, balance.Member{ID: state.MemberID(fmt.Sprintf("m%d", i+1)), Incarnation: uint64(i + 1), Takes: true})
	}
	for id := state.RegionID(1); id <= 100; id++ {
		owner := state.MemberID("m1")
		if id > 80 {
			owner = in.Members[id%5].ID
		}
		if of := l.of[id]; of != "" {
			owner = of
		}
		in.Regions = append(in.Regions, balance.Region{
			ID: id, Owners: []state.Owner{{Member: owner, Incarnation: 1}}, Load: load.Same(load.One), Known: true,
		})
	}
	return in
}

// plan makes a plan of which everything is done at once: what moves, and why nothing more does.
func (l *lopsided) plan() (moved []state.RegionID, why []balance.Why) {
	out := balance.Make(l.input())
	l.budget = out.Budget
	for _, s := range out.Steps {
		moved = append(moved, s.Region)
		l.of[s.Region] = s.To
	}
	for _, f := range out.Refusals {
		why = append(why, f.Why)
	}
	return moved, why
}

func (l *lopsided) wants(t *testing.T, name string, moves int, want ...balance.Why) []state.RegionID {
	t.Helper()
	moved, why := l.plan()
	if len(moved) != moves || !slices.Equal(why, want) {
		t.Errorf("%s: %d moves and refusals %v; want %d and %v", name, len(moved), why, moves, want)
	}
	return moved
}

// A round moves a part of all, or so many regions, and the next one comes when its time has.
func TestP53BudgetOfARound(t *testing.T) {
	l := newLopsided(func(*balance.Policy) {})
	l.wants(t, "the first round", 5, balance.BudgetSpent)
	l.now = l.now.Add(30 * time.Second)
	l.wants(t, "still the first round", 0, balance.BudgetSpent)
	l.now = l.now.Add(30 * time.Second)
	l.wants(t, "the second round", 5, balance.BudgetSpent)

	l = newLopsided(func(p *balance.Policy) { p.MostMoves = 3 })
	l.wants(t, "a round of three moves", 3, balance.BudgetSpent)
	l.wants(t, "which were three", 0, balance.BudgetSpent)
}

// A member that grows hot behind a round waits for the next one, whose time has not come:
// the round goes on with those alone that it began with.
func TestC29C54WhoComesLateWaitsForTheNextRound(t *testing.T) {
	l := newLopsided(func(p *balance.Policy) { p.Round, p.Hour = 1000, 1000 })
	if moved, _ := l.plan(); len(moved) < 50 {
		t.Fatalf("%d moves even nothing out", len(moved))
	}
	l.now = l.now.Add(time.Second)
	l.wants(t, "even", 0)
	for id := state.RegionID(81); id <= 100; id++ {
		l.of[id] = "m2"
	}
	l.now = l.now.Add(10 * time.Second)
	l.wants(t, "another one is hot", 0, balance.CoolingDown)
	l.now = l.now.Add(50 * time.Second)
	if moved, why := l.plan(); len(moved) == 0 {
		t.Errorf("its round moves nothing: %v", why)
	}
}

// An hour has a budget of its own, which comes back.
func TestP53BudgetOfAnHour(t *testing.T) {
	l := newLopsided(func(p *balance.Policy) { p.Round, p.Hour = 1000, 100 })
	l.wants(t, "a tenth", 10, balance.BudgetSpent)
	l.now = l.now.Add(40 * time.Minute)
	l.wants(t, "in the same hour", 0, balance.BudgetSpent)
	l.now = l.now.Add(25 * time.Minute)
	l.wants(t, "in the next one", 10, balance.BudgetSpent)
}

// What was moved is let be for a while, and what could not be moved for longer.
func TestP53RegionsRest(t *testing.T) {
	l := newLopsided(func(p *balance.Policy) { p.Cooldown = time.Second })
	moved, _ := l.plan()
	for _, id := range moved {
		delete(l.of, id) // it came back: it is m1's again
	}
	also := func() (again int) {
		next, _ := l.plan()
		for _, id := range next {
			if slices.Contains(moved, id) {
				again++
			}
			delete(l.of, id)
		}
		return again
	}
	l.now = l.now.Add(110 * time.Second)
	if n := also(); n != 0 {
		t.Errorf("%d of %d moved again within two minutes", n, len(moved))
	}
	l.now = l.now.Add(11 * time.Second)
	if also() == 0 {
		t.Error("nothing of it is moved after two minutes")
	}

	l = newLopsided(func(p *balance.Policy) { p.Cooldown = time.Second })
	moved = slices.Clone(moved)
	for _, id := range moved {
		l.budget = l.budget.Failed(id, l.Policy, l.now)
	}
	l.now = l.now.Add(4 * time.Minute)
	if n := also(); n != 0 {
		t.Errorf("%d of %d tried again within five minutes", n, len(moved))
	}
	l.now = l.now.Add(2 * time.Minute)
	if also() == 0 {
		t.Error("nothing of it is tried again")
	}
}

// Who plans next knows of the moves that were rooted: what they cost, when the round was,
// and which regions rest.
func TestP53ANextHolderRecalls(t *testing.T) {
	l := newLopsided(func(p *balance.Policy) { p.Round = 1000 })
	past := func(n int, ago time.Duration, failed, late bool) (all []balance.Past) {
		for i := range n {
			all = append(all, balance.Past{Region: state.RegionID(i + 1), At: l.now.Add(-ago), Round: balance.Shed, Load: load.One, Failed: failed, Late: late})
		}
		return all
	}
	recalled := func(name string, moves []balance.Past, most int, why balance.Why) []state.RegionID {
		l.budget = balance.Recall(moves, 0, 100, l.Policy, l.now)
		moved, refused := l.plan()
		clear(l.of)
		if len(moved) > most || why != 0 && !slices.Contains(refused, why) {
			t.Errorf("%s: %d moves, %v; want at most %d, and %v", name, len(moved), refused, most, why)
		}
		return moved
	}
	recalled("just moved", past(5, 10*time.Second, false, false), 0, balance.CoolingDown)
	recalled("much in this hour", past(45, 30*time.Minute, false, false), 5, balance.BudgetSpent)
	if n := len(recalled("nobody knows when", past(45, 30*time.Minute, false, true), 100, 0)); n < 50 {
		t.Errorf("what may have been moved long ago counts: %d moves", n)
	}
	heavy := past(4, 30*time.Minute, false, false)
	for i := range heavy {
		heavy[i].Load = 12 * load.One
	}
	recalled("four regions with much of the load", heavy, 2, balance.BudgetSpent)
	merges := past(30, 30*time.Minute, false, false)
	for i := range merges {
		merges[i].Round = balance.Shape
	}
	recalled("changes of another kind", merges, 20, balance.BudgetSpent)
	moved := recalled("failed", past(50, 3*time.Minute, true, false), 100, 0)
	if slices.ContainsFunc(moved, func(id state.RegionID) bool { return id <= 50 }) || len(moved) == 0 {
		t.Errorf("what failed three minutes ago is tried again: %v", moved)
	}
}

// Who plans next and has not followed for an hour allows for what it has not seen: as much of the hour
// as it knows, and a round.
func TestWhoSawLittleMovesLittle(t *testing.T) {
	l := newLopsided(func(*balance.Policy) {})
	l.budget = balance.Recall(nil, l.now.Add(-6*time.Minute), 100, l.Policy, l.now)
	moved := 0
	for range 6 {
		ids, _ := l.plan()
		moved, l.now = moved+len(ids), l.now.Add(time.Minute)
	}
	if moved != 15 { // a twentieth, and of a half eleven sixtieths, and the one that makes it so
		t.Errorf("%d of 100 move within six minutes behind six that are known, want 15", moved)
	}
}

// What is on its way counts where it is going to be: the member that it leaves has no more
// than its part then, and the others have 24 of a part of 20.
func TestA46WhatIsOnItsWayIsCountedWhereItGoes(t *testing.T) {
	l := newLopsided(func(p *balance.Policy) { p.Round, p.Hour = 1000, 1000 })
	in := l.input()
	for i := range in.Regions[:80] {
		x := &in.Regions[i]
		x.Busy, x.From, x.To = true, "m1", in.Members[1+i%4].ID
	}
	in.Members[0].Gives = 80
	if out := balance.Make(in); len(out.Steps) != 0 || out.Imbalance != 1200 {
		t.Errorf("%d steps, %d of 1,000 of the fair part: %+v", len(out.Steps), out.Imbalance, out.Steps)
	}
}
