package ownership

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/test/size"
)

var (
	flagStates = size.Int("explorer.states", 60_000, 0, "search every configuration up to this many worlds, not to its depth; 0: to its depth")
	flagDeeper = size.Int("explorer.deeper", 0, 1, "search this many steps deeper than each configuration says")
	flagWalks  = size.Int("explorer.walks", 40, 4000, "random walks in each of the largest configurations")
)

// exploration is a configuration and how deep it is searched; 0: until nothing new is
// found. Every nth world is asked whether everything is served again.
type exploration struct {
	config
	depth, nth int
}

func crashed(c *config)  { c.crashes = 1 }
func probed(c *config)   { c.probe = true }
func broken(c *config)   { c.breaks = 1 }
func freely(c *config)   { c.steady = false }
func far(c *config)      { c.prompt = 0 }
func slowly(c *config)   { c.slow, c.lag = true, true }
func untimely(c *config) { c.late = true }

// again has the first member start again, under its name.
func again(c *config) {
	c.processes, c.crashes, c.names, c.prompt = 3, 1, [3]string{"m2", "m1", "m1"}, 1
}

// unheard has what the first member says reach the other coordinator only, behind its hello.
func unheard(c *config) { c.links[0], c.mute[0], c.eras = 3, 1, 1 }

// passedOn has the first member reach the holder by way of the other coordinator only.
func passedOn(c *config) { c.links[0], c.passed[0], c.eras = 3, 1, 1 }

func both(c *config) { c.regions, c.tokens = 2, 24 }

func ended(c *config) { c.ends = true }

// moving begins when the root has the plan of a move; the log has room to end it, and for
// what else is asked.
func moving(c *config) {
	c.drains, c.begins, c.tokens = 1, [8]action{drain, commit}, 24
}

func all(name string, c config, changes ...func(c *config)) config {
	c.name, c.onwards = name, true
	for _, f := range changes {
		f(&c)
	}
	return c
}

var explorations = []exploration{
	{all("one coordinator, work", one(0), written), 0, 1},
	{all("drift", one(0), func(c *config) { c.ttl = 6 }, freely), 0, 5},
	{all("moves", one(0), written, drained), 16, 10},
	{all("late moves", one(0), drained, untimely, slowly), 13, 10},
	{all("probes", one(0), probed, broken), 0, 50},
	{all("a reused address", one(0), probed, crashed, func(c *config) { c.reused = true }), 9, 10},
	{all("addresses of other sockets", two(0), probed, broken, func(c *config) { c.strange, c.links[0], c.eras = true, 3, 1 }), 12, 10},
	{all("a member that the holder cannot hear", two(0), unheard), 13, 10},
	{all("a member that the holder cannot hear, and moves", two(0), unheard, drained), 9, 10},
	{all("a member that the holder hears through the other, and moves", two(0), passedOn, drained), 9, 10},
	{all("a member that the holder hears through the next holder", two(0), passedOn, func(c *config) { c.eras = 2 }), 9, 10},
	{all("a crash", one(0), crashed, broken, far), 10, 10},
	{all("another holder", two(0)), 0, 10},
	{all("another holder, both heard", two(0), drained, untimely, func(c *config) { c.links[0] = 3 }), 8, 10},
	{all("the same member again", one(0), again, func(c *config) { c.reused = true }), 16, 10},
	{all("the same member on two machines", one(0), again), 11, 10},
	{all("two regions", one(0), both, drained), 11, 100},
	{all("an end without a drain", one(0), written, stopped, slowly, broken), 10, 10},
	{all("an end without a drain, and another holder", two(0), written, stopped, func(c *config) { c.links[0] = 3 }), 8, 10},
	{all("an end without a drain in the middle of a move", one(0), moving, written, stopped, crashed), 9, 10},
	{all("a crash in the middle of a move", one(0), moving, crashed, ended), 10, 10},
	{all("another holder in the middle of a move, and a crash", two(0), moving, crashed, ended), 7, 10},
	{all("fences of eras, another holder", two(0), moving, crashed, ended, func(c *config) { c.ttl = 0 }), 7, 10},
	{all("three members and an operator", one(0), crashed, func(c *config) {
		c.processes, c.started, c.grants, c.ends, c.prompt = 3, 3, 1, true, 4
	}), 9, 10},
	{all("all far, free clocks", two(0), far, freely, written, drained, broken, crashed, untimely, slowly, probed), 4, 50},
}

// TestExplorer searches every configuration with every rule on.
func TestExplorer(t *testing.T) {
	var worlds, transitions, depth, asked atomic.Int64
	begun := time.Now()
	t.Run("configurations", func(t *testing.T) {
		for _, x := range explorations {
			t.Run(x.name, func(t *testing.T) {
				t.Parallel()
				begun := time.Now()
				s := newSearch(x.config)
				switch {
				case *flagStates > 0:
					s.run(*flagStates, 0)
				case x.depth > 0:
					s.run(0, x.depth+*flagDeeper)
				default:
					s.run(0, 0)
				}
				n := s.ask(x.nth)
				if n == 0 && s.counterexample == nil {
					t.Error("no world has room to go on: the bounds are too small to ask")
				}
				if s.counterexample != nil {
					t.Fatalf("%s is broken:\n%s", s.counterexample.predicate, s.trace(s.counterexample))
				}
				if s.roots.broken != nil {
					t.Error(s.roots.broken)
				}
				t.Logf("%d worlds, %d transitions, %d steps deep, all of it: %v; %d rooted states, %d and %d cores; asked %d; %v", s.worlds.Len(), s.transitions,
					s.depth, !s.bounded, len(s.roots.all), len(s.members.all), len(s.detectors.all), n, time.Since(begun))
				worlds.Add(int64(s.worlds.Len()))
				transitions.Add(int64(s.transitions))
				asked.Add(int64(n))
				depth.Store(max(depth.Load(), int64(s.depth)))
			})
		}
	})
	if !t.Failed() {
		testreport.Linef(t, "explorer of ownership: %d distinct worlds over %d configurations, %d transitions, up to %d steps deep, in %.0f s; from %d of %d asked, every region gets an owner and every move ends",
			worlds.Load(), len(explorations), transitions.Load(), depth.Load(), time.Since(begun).Seconds(), asked.Load(), asked.Load())
	}
}

// TestWalks goes at random where the search does not get.
func TestWalks(t *testing.T) {
	steps := 0
	for n, x := range explorations[len(explorations)-2:] {
		m := newModel(x.config)
		first := m.first()
		for seed := range *flagWalks {
			rng := rand.New(rand.NewPCG(uint64(n), uint64(seed)))
			w := first
			way := []world{w}
			for range 300 {
				next := m.successors(&w)
				if len(next) == 0 {
					break
				}
				s := &next[rng.IntN(len(next))]
				if s.step.do == passTime && rng.IntN(2) == 0 {
					continue
				}
				steps++
				if s.broken != nothing {
					r := &search{model: m}
					t.Fatalf("seed %d: %s is broken:\n%s", seed, s.broken, r.trace(&counterexample{predicate: s.broken, path: way, last: new(*s)}))
				}
				w = s.world
				way = append(way, w)
			}
		}
		if m.roots.broken != nil {
			t.Error(m.roots.broken)
		}
	}
	testreport.Linef(t, "explorer of ownership: %d random walks, %d steps, and no promise broken", 2**flagWalks, steps)
}
