package roottest_test

import (
	"fmt"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/test/size"
)

var frozenSeeds = size.Int("frozen.seeds", 24, 240, "how many seeds have a peer stand still")

// A process that stood still between two of its turns for longer than an election
// timeout knows nothing of the present when it goes on, whoever led meanwhile and
// whatever waits in its sockets: what it vouches for then, it was told since.
func TestFrozenPeerVouchesForNothing(t *testing.T) {
	vouched, stale := 0, 0
	for seed := uint64(1); seed <= uint64(*frozenSeeds); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, seed)
			w := roottest.NewWorld(seed)
			c, err := roottest.New(w, roottest.Small())
			if err != nil {
				t.Fatal(err)
			}
			p := newPromises(t, w, c)
			wr := &writer{w: w, link: c.NewLink("client-0"), acked: map[uint64]string{}, active: true, told: p.acknowledged}
			wr.loop()
			w.RunFor(2*time.Second, func() bool { return len(wr.acked) > 20 })
			frozen := c.Leader()
			if frozen == nil {
				t.Fatal("nobody leads")
			}
			if seed%2 == 0 {
				frozen = c.Peers[frozen.ID%3]
			}
			before := frozen.View()
			frozen.Pause()
			alone := seed%3 == 0 // When it goes on it reaches nobody.
			w.RunFor(w.Between(50*time.Millisecond, 200*time.Millisecond), nil)
			for _, other := range c.Peers {
				if alone && other != frozen {
					c.Net.Cut(frozen.Place, other.Place)
					c.Net.Cut(other.Place, frozen.Place)
				}
			}
			w.RunFor(w.Between(500*time.Millisecond, 4*time.Second), nil)
			floor := p.floor(w.Now())
			if floor > max(before.Known, before.Commit) {
				stale++
			}
			frozen.Resume()
			w.RunFor(time.Second, func() bool {
				v := frozen.View()
				if v == nil || v.LeaderlessSince != 0 {
					return false
				}
				if vouched++; max(v.Known, v.Commit) < floor {
					t.Errorf("root %d vouches for %d as %v: %d was acknowledged while it stood still", frozen.ID, max(v.Known, v.Commit), v.Role, floor)
					return true
				}
				return false
			})
			wr.active = false
			if err := c.Heal(); err != nil {
				t.Fatal(err)
			}
			w.RunFor(3*time.Second, nil)
			for _, peer := range c.Peers {
				if v := peer.View(); v.Stalled || v.LeaderlessSince != 0 {
					t.Errorf("root %d knows nothing of the present in the end: leaderless since %d", peer.ID, v.LeaderlessSince)
				}
			}
			if err := c.CheckAgreement(nil); err != nil {
				t.Error(err)
			}
		})
	}
	if vouched == 0 || stale < *frozenSeeds/2 {
		t.Errorf("vouched %d times, %d peers with old knowledge: too few to mean anything", vouched, stale)
	}
	testreport.Linef(t, "frozen root peers: %d of %d with old knowledge, %d views vouched for", stale, *frozenSeeds, vouched)
}
