package ownership

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nokv/nokv/internal/testing/testreport"
)

// contrast leaves one rule out. The shortest way to a broken promise must break the one
// named: otherwise the search would prove nothing.
type contrast struct {
	name string
	config
	breaks predicate
}

// one is a small world with one coordinator, two one with two; the first member owns a
// region, and the clocks are the worst for it.
func one(off rule) config {
	return config{
		processes: 2, started: 2, coordinators: 1, regions: 1, names: [3]string{"m1", "m2", "m3"}, ttl: 4,
		links: [3]uint8{1, 1, 1}, eras: 1, tokens: 16, steady: true, prompt: 2, off: off,
	}
}

func two(off rule) config {
	c := one(off)
	c.coordinators, c.eras, c.links = 2, 2, [3]uint8{1, 3, 3}
	return c
}

func (c config) with(f func(c *config)) config {
	f(&c)
	return c
}

func drained(c *config) { c.drains = 1 }
func strangely(c *config) {
	c.probe, c.strange, c.breaks, c.links[0], c.eras = true, true, 1, 3, 1
}
func written(c *config) { c.work = 1 }
func stopped(c *config) { c.stops = 1 }

var contrasts = []contrast{
	{"a verdict that does not wait", one(verdictWaits), oneAMoment},
	{"the drift of clocks is not waited for", one(driftWaited).with(func(c *config) { c.ttl = 6 }), oneAMoment},
	{"a new holder that does not wait", two(newHolderWaits), oneAMoment},
	{"confirmation by a standby", two(holderConfirms), oneAMoment},
	{"the era is checked before the answer is made", two(generateThenCheck), oneAMoment},
	{"the ttl counts from the answer", one(countFromFrame), oneAMoment},
	{"whoever passes a stream on confirms it", two(passerConfirmsNot).with(passedOn), oneAMoment},
	{"the ttl counts from when an answer is passed back", two(countFromMember).with(passedOn), oneAMoment},
	{"no check behind the work", one(checkBehind).with(written), oneAMoment},
	{"a reset is taken as proof", one(resetProvesNothing).with(func(c *config) { c.probe, c.breaks = true, 1 }), oneAMoment},
	{"a refusal is taken as proof of who is heard elsewhere", two(heardLives).with(strangely), oneAMoment},
	{"a coordinator that cannot be asked counts as one that hears nobody", two(silentMayHear).with(strangely), oneAMoment},
	{"a member that only others hear keeps its regions", two(othersHearNoOwner).with(unheard).with(func(c *config) { c.onwards = true }), forgotten},
	{"another process at a reused address is taken as alive", one(otherIsDead).with(func(c *config) {
		c.probe, c.reused, c.crashes, c.onwards, c.begins = true, true, 1, true, [8]action{crash}
	}), forgotten},
	{"an older set is obeyed", two(newestObeyed).with(drained).with(func(c *config) {
		c.links[0], c.mute[0], c.eras, c.begins = 3, 2, 1, [8]action{drain, commit, follow, passTime, commit}
	}), oneAMoment},
	{"a grant without expected epoch", one(epochExpected).with(func(c *config) {
		c.processes, c.started, c.grants, c.crashes, c.prompt, c.ends, c.begins = 3, 3, 1, 1, 4, true, [8]action{crash, endProcess}
	}), oneAMoment},
	{"a deposed planner ends a plan made anew", two(planNamed).with(drained).with(func(c *config) {
		c.late, c.begins = true, [8]action{drain, commit, passTime, commit, hearAnswer, hearAnswer, sendFrame, hearFrame}
	}), oneAMoment},
	{"a release without frontier", one(frontierToldExactly).with(drained).with(written), frontier},
	{"a last word that does not count", one(lastWordCounts).with(stopped).with(written), frontier},
	{"last words in the memory of coordinators alone", two(lastWordRooted).with(stopped).with(written).with(func(c *config) {
		c.begins = [8]action{admitWork, reply, stop, sendFrame, hearFrame}
	}), frontier},
	{"a second grant while the first release is unanswered", one(releaseAwaited).with(drained), oneAMoment},
}

// mostContrastWorlds ends a contrast run that finds nothing.
const mostContrastWorlds = 400_000

// TestContrast leaves one rule out at a time. With every rule on, the same bounds hold no
// broken promise within as many steps: it is the rule that makes the difference.
func TestContrast(t *testing.T) {
	var failed, worlds, controlled atomic.Int64
	t.Run("rules", func(t *testing.T) {
		for _, c := range contrasts {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := newSearch(c.config)
				s.run(mostContrastWorlds, 0)
				s.ask(1)
				if err := c.judge(s); err != nil {
					t.Fatal(err)
				}
				t.Logf("%d worlds; the shortest way:\n%s", s.worlds.Len(), s.trace(s.counterexample))
				c.off = 0
				control := newSearch(c.config)
				control.run(0, s.depth+1)
				control.ask(1)
				if control.counterexample != nil {
					t.Errorf("no rule left out: %s is broken:\n%s", control.counterexample.predicate, control.trace(control.counterexample))
				}
				failed.Add(1)
				worlds.Add(int64(s.worlds.Len()))
				controlled.Add(int64(control.worlds.Len()))
			})
		}
	})
	if !t.Failed() {
		testreport.Linef(t, "explorer of ownership: %d of %d contrast runs failed as they must, over %d worlds; with every rule on none of them did, over %d", failed.Load(), len(contrasts), worlds.Load(), controlled.Load())
	}
}

func (c *contrast) judge(s *search) error {
	switch found := s.counterexample; {
	case found == nil:
		return fmt.Errorf("the rule is left out and nothing is broken within %d worlds, %d steps", s.worlds.Len(), s.depth)
	case found.predicate != c.breaks:
		return fmt.Errorf("%s is broken, want %s:\n%s", found.predicate, c.breaks, s.trace(found))
	}
	return nil
}
