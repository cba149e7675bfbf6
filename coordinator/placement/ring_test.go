package placement_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/coordinator/placement/propose"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A new keyspace is given out as its strategy says: on a ring each region goes to whose point
// follows its own, unless that one would have more than a quarter above its part.
func TestR05StrategyGivesOutANewKeyspace(t *testing.T) {
	for _, slotted := range []bool{true, false} {
		c := newCluster(t)
		var members []propose.Candidate
		for i := range 5 {
			id := fmt.Sprintf("m%d", i)
			c.join(id)
			members = append(members, propose.Candidate{ID: state.MemberID(id), Capacity: 1})
		}
		const n = 500
		layout := slots(n)
		if !slotted {
			layout = points()
		}
		ks := c.keyspace("ks", layout, strategy(rootv1.Strategy_STRATEGY_RING))
		if !slotted {
			for i := range n {
				c.publish(ks, fmt.Sprintf("k%04d", i), fmt.Sprintf("k%04d\x00", i), "")
			}
		}
		c.settle()
		ring := propose.NewRing(ks, members, 150)
		followed, counts := 0, map[string]int{}
		c.st.RegionsFrom(ks, "", func(r *state.Region) bool {
			i, _ := ring.Propose(&propose.Question{Keyspace: ks, Region: r.ID, Key: r.Start, Candidates: members, Allowed: func(int) bool { return true }})
			owner := c.owner(r.ID)
			if counts[owner]++; owner == string(members[i].ID) {
				followed++
			}
			return true
		})
		for id, got := range counts {
			if got > n/5*5/4 {
				t.Errorf("%s has %d of %d, which is more than a quarter above its part", id, got, n)
			}
		}
		if followed < n*95/100 {
			t.Errorf("%d of %d regions are where the ring says", followed, n)
		}
	}
}

// So is what is claimed of one.
func TestR05ClaimsOfANewKeyspaceFollowTheStrategy(t *testing.T) {
	c := newCluster(t)
	var members []propose.Candidate
	for i := range 5 {
		id := fmt.Sprintf("m%d", i)
		c.join(id)
		members = append(members, propose.Candidate{ID: state.MemberID(id), Capacity: 1})
	}
	ks := c.keyspace("ks", points(), strategy(rootv1.Strategy_STRATEGY_RING))
	const n = 500
	claims := placement.NewClaims(placement.Input{State: c.st, Observed: c, Now: c.now}, ks, nil, func(*rootv1.Member) (float64, bool) { return 0, false }, nil)
	ring := propose.NewRing(ks, members, 150)
	followed, counts := 0, map[state.MemberID]int{}
	for i := range n {
		key := fmt.Sprint("k", i)
		owner, why := claims.Take(key)
		if why != 0 {
			t.Fatal(why)
		}
		id := state.RegionID(propose.Hash(ks, 0, state.MemberID(key)))
		at, _ := ring.Propose(&propose.Question{Keyspace: ks, Region: id, Key: key, Candidates: members, Allowed: func(int) bool { return true }})
		if counts[owner.Member]++; owner.Member == members[at].ID {
			followed++
		}
		if got, part := counts[owner.Member], float64(i+1)/5; float64(got) > max(1.25*part, math.Ceil(part)) {
			t.Fatalf("of %d claims %s has %d", i+1, owner.Member, got)
		}
	}
	if followed < n*85/100 {
		t.Errorf("%d of %d claims go where the ring says", followed, n)
	}
}
