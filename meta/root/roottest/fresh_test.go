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

// past is a cluster in which a folder comes back from its past: a follower's, while the
// other follower lacks what the leader and this one acknowledged, and the leader is away.
type past struct {
	w                       *roottest.World
	c                       *roottest.Cluster
	wr                      *writer
	leader, behind, forgets *roottest.Peer
}

// newPast runs a cluster until its followers have something to forget; nil: nobody leads.
func newPast(w *roottest.World, forgetful bool) (*past, error) {
	cfg := roottest.Small()
	cfg.Forgetful = forgetful
	c, err := roottest.New(w, cfg)
	if err != nil {
		return nil, err
	}
	p := &past{w: w, c: c, wr: &writer{w: w, link: c.NewLink("client-0"), acked: map[uint64]string{}, active: true}}
	p.wr.loop()
	w.RunFor(2*time.Second, func() bool { return len(p.wr.acked) > 20 })
	if p.leader = c.Leader(); p.leader == nil {
		return nil, nil
	}
	p.behind, p.forgets = c.Peers[p.leader.ID%3], c.Peers[(p.leader.ID+1)%3]
	return p, nil
}

// acknowledge waits for so many more acknowledged writes.
func (p *past) acknowledge(n int) {
	before := len(p.wr.acked)
	p.w.RunFor(time.Second, func() bool { return len(p.wr.acked) > before+n })
	p.w.RunFor(250*time.Millisecond, nil) // Peers tell of themselves.
}

// part cuts the follower that is to lag from the leader.
func (p *past) part(others ...*roottest.Peer) {
	for _, o := range append(others, p.leader) {
		p.c.Net.Cut(o.Place, p.behind.Place)
		p.c.Net.Cut(p.behind.Place, o.Place)
	}
}

// judge heals everything, has whoever was refused replaced, and says what is wrong.
func (p *past) judge() error {
	p.w.RunFor(3*time.Second, nil)
	if twin := p.c.Twin(); twin != nil {
		twin.Kill()
	}
	if err := p.c.Heal(); err != nil {
		return err
	}
	p.w.RunFor(time.Second, nil)
	for _, q := range p.c.Peers {
		if q.Stale && !p.c.Lose(q) {
			return fmt.Errorf("root %d cannot be replaced", q.ID)
		}
	}
	if !p.w.RunFor(10*time.Second, func() bool { return !p.c.Replacing() }) {
		return errors.New("whoever was refused is not replaced")
	}
	before := len(p.wr.acked)
	if !p.w.RunFor(5*time.Second, func() bool { return len(p.wr.acked) > before+5 }) {
		return errors.New("it does not serve")
	}
	p.wr.active = false
	p.w.RunFor(3*time.Second, nil)
	return errors.Join(p.c.CheckAgreement(nil), p.wr.lost(p.c))
}

// pasts are the ways in which a folder comes back from its past.
var pasts = map[string]func(p *past) error{
	// The copy is of an earlier start of its process.
	"whole disk rolled back": func(p *past) error {
		older := p.forgets.Copy()
		p.forgets.Kill()
		if err := p.forgets.Restart(); err != nil {
			return err
		}
		p.acknowledge(5)
		p.part(p.forgets)
		p.acknowledge(10)
		p.leader.Kill()
		p.c.Net.MendAll()
		return p.forgets.PutBack(older)
	},
	// The copy is of the process that runs: what it acknowledged since tells it.
	"restart from an older copy": func(p *past) error {
		p.part()
		older := p.forgets.Copy()
		p.acknowledge(10)
		p.leader.Kill()
		return p.forgets.PutBack(older)
	},
	"clone beside the original": func(p *past) error {
		p.part()
		older := p.forgets.Copy()
		p.acknowledge(10)
		if _, err := p.c.CloneBeside(p.forgets, older); err != nil {
			return err
		}
		p.acknowledge(10)
		p.leader.Kill()
		p.acknowledge(1)
		p.c.Net.MendAll()
		return nil
	},
}

// comeBack runs one way at one seed.
func comeBack(w *roottest.World, way string, forgetful bool) (refused bool, err error) {
	p, err := newPast(w, forgetful)
	if err != nil || p == nil {
		return false, err
	}
	if err := pasts[way](p); err != nil {
		return false, err
	}
	err = p.judge()
	return w.Faults["older copy refused"] > 0, err
}

// TestFolderFromThePast: a folder that comes back from its past is refused, nothing
// acknowledged is lost, and the peer can be replaced.
func TestFolderFromThePast(t *testing.T) {
	for way := range pasts {
		t.Run(way, func(t *testing.T) {
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
	for way := range pasts {
		t.Run(way, func(t *testing.T) {
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
