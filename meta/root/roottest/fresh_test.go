package roottest_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/test/size"
)

var pastSeeds = size.Int("past-seeds", 25, 2_000, "how many seeds each folder that comes back from its past runs")

// comeBack has a folder come back from its past under load, heals everything, has whoever was refused replaced, and
// says what is wrong.
func comeBack(w *roottest.World, way roottest.Way, forgetful bool) (refused bool, err error) {
	cfg := roottest.Small()
	cfg.Forgetful = forgetful
	c, err := roottest.New(w, cfg)
	if err != nil {
		return false, err
	}
	wr := &writer{w: w, link: c.NewLink("client-0"), acked: map[uint64]string{}, active: true}
	wr.loop()
	w.RunFor(2*time.Second, func() bool { return len(wr.acked) > 20 })
	c.ComeBack(way)
	w.RunFor(30*time.Second, func() bool { return !c.Returning() })
	return w.Faults["older copy refused"] > 0, judgePast(w, c, wr)
}

func judgePast(w *roottest.World, c *roottest.Cluster, wr *writer) error {
	if err := c.Heal(); err != nil {
		return err
	}
	w.RunFor(time.Second, nil)
	if !w.RunFor(10*time.Second, func() bool { return c.ReplaceStale() && !c.Replacing() }) {
		return errors.New("whoever was refused is not replaced")
	}
	before := len(wr.acked)
	if !w.RunFor(5*time.Second, func() bool { return len(wr.acked) > before+5 }) {
		return errors.New("it does not serve")
	}
	wr.active = false
	w.RunFor(3*time.Second, nil)
	return errors.Join(c.CheckAgreement(nil), wr.lost(c))
}

// TestFolderFromThePast: a folder that comes back from its past is refused, nothing
// acknowledged is lost, and the peer can be replaced.
func TestFolderFromThePast(t *testing.T) {
	for _, way := range roottest.Ways {
		t.Run(string(way), func(t *testing.T) {
			found := 0
			for seed := *first; seed < *first+uint64(*pastSeeds); seed++ {
				t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					cryptotest.SetGlobalRandom(t, seed)
					refused, err := comeBack(roottest.NewWorld(seed), way, false)
					if err != nil {
						t.Fatal(err)
					}
					if refused {
						found++
					}
				})
			}
			if found < *pastSeeds*4/5 {
				t.Errorf("refused in %d of %d seeds", found, *pastSeeds)
			}
			testreport.Linef(t, "a folder from the past, %s: refused in %d of %d seeds, nothing lost", way, found, *pastSeeds)
		})
	}
}

// TestFolderFromThePastUnjudged is the contrast: without the rules of freshness what was
// acknowledged is gone, or peers disagree, within a few seeds.
func TestFolderFromThePastUnjudged(t *testing.T) {
	for _, way := range roottest.Ways {
		t.Run(string(way), func(t *testing.T) {
			for seed := uint64(1); seed <= 60; seed++ {
				var found error
				t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					cryptotest.SetGlobalRandom(t, seed)
					_, found = comeBack(roottest.NewWorld(seed), way, true)
				})
				if found != nil {
					t.Logf("seed %d: %v", seed, found)
					return
				}
			}
			t.Error("no check finds that a folder came back from its past")
		})
	}
}
