package propose_test

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/coordinator/placement/load"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/meta/root/state"
)

func candidates(n int) (c []propose.Candidate) {
	for i := range n {
		c = append(c, propose.Candidate{ID: state.MemberID(fmt.Sprintf("m%02d", i)), Capacity: 1})
	}
	return c
}

// place gives n regions to candidates, one after the other.
func place(s propose.Strategy, n int, c []propose.Candidate) map[state.RegionID]state.MemberID {
	owners := map[state.RegionID]state.MemberID{}
	for i := range n {
		q := propose.Question{
			Keyspace: 3, Region: state.RegionID(i + 1), Load: load.One, Nth: i, Candidates: c, Allowed: func(int) bool { return true },
			Room: func(_ int, permille uint64) load.Amount {
				return (load.One * load.Amount(n)).Share(permille, 1000*uint64(len(c)))
			},
		}
		if at, ok := s.Propose(&q); ok {
			owners[q.Region] = c[at].ID
			c[at].Load += load.One
		}
	}
	return owners
}

func worst(owners map[state.RegionID]state.MemberID, members int) float64 {
	counts, most := map[state.MemberID]int{}, 0
	for _, id := range owners {
		counts[id]++
		most = max(most, counts[id])
	}
	return float64(most) / (float64(len(owners)) / float64(members))
}

// Each strategy answers always, the same every time, and spreads as it is known to.
func TestA34R10P58P59P60StrategiesSpread(t *testing.T) {
	for _, x := range []struct {
		name string
		of   func(c []propose.Candidate) propose.Strategy
		most float64
	}{
		{"round_robin", func([]propose.Candidate) propose.Strategy { return propose.RoundRobin{} }, 1},
		{"least_loaded", func([]propose.Candidate) propose.Strategy { return propose.LeastLoaded{} }, 1},
		{"two_choices", func([]propose.Candidate) propose.Strategy { return propose.TwoChoices{} }, 1.1},
		{"random", func([]propose.Candidate) propose.Strategy { return propose.Random{} }, 1.4},
		{"ring", func(c []propose.Candidate) propose.Strategy { return propose.NewRing(3, c, 150) }, 1.5},
		{"ring_bounded", func(c []propose.Candidate) propose.Strategy { return propose.NewRing(3, c, 150).Bounded(1100) }, 1.1},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := candidates(10)
			owners := place(x.of(c), 1000, c)
			if w := worst(owners, 10); len(owners) != 1000 || w > x.most {
				t.Errorf("%d regions are placed, the fullest has %.2f of the mean", len(owners), w)
			}
			c = candidates(10)
			for id, owner := range place(x.of(c), 1000, c) {
				if owners[id] != owner {
					t.Fatalf("region %d is %s's, and then %s's", id, owners[id], owner)
				}
			}
		})
	}
}

// Of 128 with as many points, about 32 move when a fourth joins, all to it.
func TestR06R08RingMovesLittle(t *testing.T) {
	owners := func(n int) map[state.RegionID]state.MemberID {
		c := candidates(n)
		return place(propose.NewRing(3, c, 128), 128, c)
	}
	before, after := owners(3), owners(4)
	moved := 0
	for id, owner := range after {
		if owner != before[id] {
			if moved++; owner != "m03" {
				t.Errorf("region %d goes from %s to %s", id, before[id], owner)
			}
		}
	}
	if moved < 20 || moved > 45 {
		t.Errorf("%d move", moved)
	}
}

// One that is not allowed is passed by all, and by Fixed it is proposed: who asks decides.
func TestP61WhoIsNotAllowedIsPassed(t *testing.T) {
	c := candidates(3)
	q := propose.Question{Region: 5, Load: 1, Candidates: c, Allowed: func(i int) bool { return i == 1 }, Room: func(int, uint64) load.Amount { return 10 }}
	for _, s := range []propose.Strategy{propose.RoundRobin{}, propose.Random{}, propose.TwoChoices{}, propose.LeastLoaded{}, propose.NewRing(0, c, 10), propose.NewRing(0, c, 10).Bounded(1250)} {
		if i, ok := s.Propose(&q); !ok || i != 1 {
			t.Errorf("%T says %d, %v", s, i, ok)
		}
	}
	q.Allowed = func(int) bool { return false }
	for _, s := range []propose.Strategy{propose.RoundRobin{}, propose.Random{}, propose.TwoChoices{}, propose.LeastLoaded{}, propose.NewRing(0, c, 10), propose.NewRing(0, nil, 10), propose.Fixed{4: "m02"}} {
		if i, ok := s.Propose(&q); ok {
			t.Errorf("%T says %d", s, i)
		}
	}
	if i, ok := (propose.Fixed{5: "m02"}).Propose(&q); !ok || i != 2 {
		t.Errorf("what is fixed is %d, %v", i, ok)
	}
	for _, id := range []state.MemberID{"dead", "", "zz"} {
		if i, ok := (propose.Fixed{5: id}).Propose(&q); !ok || i != -1 {
			t.Errorf("%q, who is none of them, is %d, %v", id, i, ok)
		}
	}
	q.Candidates = nil
	if _, ok := (propose.RoundRobin{}).Propose(&q); ok {
		t.Error("there is nobody")
	}
}

// A ring has no end: whoever is the only one allowed is found from everywhere on it, and
// the one whose point comes next is the same with and without the others behind it. On an
// empty one there is nobody.
func TestR05RingHasNoEnd(t *testing.T) {
	c := candidates(3)
	ring := propose.NewRing(3, c, 1)
	for region := range state.RegionID(200) {
		q := propose.Question{Keyspace: 3, Region: region, Candidates: c, Allowed: func(int) bool { return true }}
		first, ok := ring.Propose(&q)
		if !ok {
			t.Fatalf("region %d is nobody's", region)
		}
		for only := range c {
			q.Allowed = func(i int) bool { return i == only }
			if i, ok := ring.Propose(&q); !ok || i != only {
				t.Fatalf("region %d: of %d alone it says %d, %v", region, only, i, ok)
			}
			q.Allowed = func(i int) bool { return i == first || i == only }
			if i, _ := ring.Propose(&q); i != first {
				t.Fatalf("region %d is %d's, and without others %d's", region, first, i)
			}
		}
	}
	if i, ok := propose.NewRing(3, nil, 150).Propose(&propose.Question{}); ok {
		t.Errorf("on an empty ring it says %d", i)
	}
}
