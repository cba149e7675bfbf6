package simulation

import (
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/test/size"
)

var memberSeeds = size.Int("member-seeds", 50, 2000, "how many seeds the simulation with members runs")

// memberKinds are the faults of members that must have happened.
var memberKinds = []string{
	"member killed", "member's machine lost", "address taken by another process", "member paused", "member stopped beyond its ttl",
	"member paused inside work", "member drained", "member ends without a drain", "member drained by an operator", "region moved by an operator", "member cut from coordinators",
	"member cut from the holder", "member cut from the holder by every road", "most members cut from coordinators", "holder killed during moves", "two processes with one id", "member superseded",
	"member failed by an operator", "member removed by an operator", "member and holder cut off together",
	"coordinator killed", "coordinator paused", "machine suspended", "process killed", "root cut from roots", "coordinator cut from roots", "bootstrap required", "older copy refused",
}

func memberKnobs(seed uint64, v variant) knobs {
	k := knobsOf(seed, v)
	k.members, k.loses = 3+int(seed%2), false
	k.fence, k.probes, k.stalls = 350*time.Millisecond, seed%3 != 0, 0.04
	k.loads = v == noVariant && seed%6 == 3
	k.detours = v == noVariant || v == passerConfirms
	switch v {
	case noVariant, releasedBelow, goodbyeForgotten, lastWordsInMemory, unfenced:
	default:
		k.fencing = true
		k.fence, k.trouble, k.interval, k.probes = 600*time.Millisecond, 3*time.Second, 200*time.Millisecond, v == cutTakenForDeath
	}
	if v == unchecked {
		k.stalls = 0.05
	}
	return k
}

// memberTotals are what many runs with members did.
type memberTotals struct {
	totals
	ownershipCounts
	acts int
}

func (s *memberTotals) add(r *run) {
	s.totals.add(r)
	s.ownershipCounts.add(r.owned)
	s.acts += len(r.acts.all)
}

// TestMembers runs the whole control plane with members on top under every fault, and
// asks for every promise of ownership beside those of authority. A-17: regions without an
// owner are those that are counted, at every token, and none is left; A-18: each is with
// who may act; A-19: nothing is taken from an owner that may act, C-69:
// coordinators may be killed at any moment, and what they knew comes back; R-19: what a dead
// member had goes to others.
func TestMembers(t *testing.T) {
	total := memberTotals{totals: totals{faults: make(map[string]int)}}
	for seed := *first; seed < *first+uint64(*memberSeeds); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			r, errs := simulate(t, memberKnobs(seed, noVariant))
			for _, err := range errs {
				t.Error(err)
			}
			if !r.enough() {
				t.Errorf("the load was too low: %d values given, %+v", len(r.history.Grants), r.count)
			}
			total.add(r)
		})
		if t.Failed() && !*goOn {
			t.Fatal(repeat("TestMembers", seed, "-member-seeds 1"))
		}
	}
	total.judge(t)
	testreport.Linef(t, "simulation with members: %d seeds, %d log entries, %d requests let in, %d served, %d refused by a fence, %d lost their right behind the work; "+
		"%d grants, %d verdicts, %d moves, %d changes of shared owners, %d ranges cut, %d joined, %d given up, %d at most orphaned at once, %d processes drained, %d begun anew, %d confirmed by way of another coordinator; %d eras; faults: %s",
		*memberSeeds, total.rows, total.acts, total.served, total.fenced, total.lostBehind, total.ownershipCounts.grants, total.verdicts, total.moved, total.shares, total.cut, total.joined, total.cancelled,
		total.orphaned, total.drained, total.anew, total.passedOn, total.eras, roottest.FaultCounts(total.faults))
}

// memberContrasts are rules of ownership left out. Each begins at a seed known to bite.
var memberContrasts = []struct {
	variant  variant
	promises []string
	from     uint64
}{
	{confirmsUnchecked, []string{"One owner a moment"}, 73},
	{confirmsUncounted, []string{"One owner a moment"}, 27},
	{clocksBeyondBound, []string{"One owner a moment"}, 15},
	{countsFromAnswer, []string{"One owner a moment"}, 23},
	{unchecked, []string{"One owner a moment"}, 20},
	{cutTakenForDeath, []string{"One owner a moment"}, 60},
	{releasedBelow, []string{"Frontier"}, 2},
	{goodbyeForgotten, []string{"Frontier"}, 24},
	{lastWordsInMemory, []string{"Frontier"}, 34},
	{passerConfirms, []string{"One owner a moment"}, 1},
	{unfenced, []string{"Fence"}, 51},
}

// TestMembersContrast leaves one rule out at a time: the checker of the right name must
// find it.
func TestMembersContrast(t *testing.T) {
	for _, c := range memberContrasts {
		t.Run(string(c.variant), func(t *testing.T) {
			for seed := c.from; seed < c.from+60; seed++ {
				found := ""
				t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					_, errs := simulate(t, memberKnobs(seed, c.variant))
					found = promiseOf(errs, c.promises)
				})
				if found != "" {
					t.Logf("seed %d: %s", seed, found)
					return
				}
			}
			t.Error("no checker found it")
		})
	}
}

// judge asks that what the runs were for did happen.
func (s *memberTotals) judge(t *testing.T) {
	if *memberSeeds < 50 {
		return
	}
	for _, kind := range memberKinds {
		if s.faults[kind] == 0 {
			t.Errorf("fault %q never happened", kind)
		}
	}
	for what, n := range map[string]int{
		"verdicts": s.verdicts, "moves": s.moved, "moves given up": s.cancelled, "changes of shared owners": s.shares, "ranges cut": s.cut, "processes drained": s.drained,
		"incarnations begun anew": s.anew, "confirmations by way of another coordinator": s.passedOn, "regions taken where a goodbye left them": s.followed, "work refused by a resource": s.fenced, "work that lost its right": s.lostBehind,
	} {
		if n < *memberSeeds/10 {
			t.Errorf("only %d %s in %d seeds", n, what, *memberSeeds)
		}
	}
}

// One seed is one history, with members too.
func TestMembersSeedIsHistory(t *testing.T) {
	var hashes [2]uint64
	for i := range hashes {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r, _ := simulate(t, memberKnobs(16, noVariant))
			hashes[i] = r.history.Hash() ^ r.roots.Log.Last()<<32 ^ uint64(r.World.Now()) ^ uint64(len(r.acts.all))<<48 ^ uint64(r.acts.landed)<<16
		})
	}
	if hashes[0] != hashes[1] {
		t.Errorf("the same seed gave %x and %x", hashes[0], hashes[1])
	}
}
