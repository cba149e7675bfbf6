package explorer

import (
	"fmt"
	"sync"
	"testing"

	"github.com/nokv/nokv/internal/testing/testreport"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// contrast leaves one rule out. The shortest way to a broken promise must break
// the one named: otherwise the search would prove nothing.
type contrast struct {
	name string
	config
	breaks predicate
}

// blindTo does not look at some promises, so that another one is found broken.
func blindTo(all ...predicate) (bits uint16) {
	for _, p := range all {
		bits |= 1 << p
	}
	return bits
}

// two is a small world of two coordinators and two clients.
func two(off rule, ttl uint8, blind uint16) config {
	return config{
		processes: 2, calls: 2, ttl: ttl, eras: 3, values: 4, window: 2, flights: 1, mandate: stamps,
		off: off, blind: blind, calm: true, still: true,
	}
}

// seen is what only clients can see: the promises about eras are not looked at.
var seen = blindTo(primacy, inheritance, silence, finality)

var contrasts = []contrast{
	{"check, then generate; ttl 0", two(generateThenCheck, 0, 0), silence},
	{"check, then generate; ttl", two(generateThenCheck, 4, 0), silence},
	{"check, then generate, as clients see it", tiny(2, 2, two(generateThenCheck, 0, seen)), tsoOrder},
	{"expiry counted from the reply", two(countFromRequest, 4, 0), primacy},
	{"expiry counted from the reply, as coordinators see it", two(countFromRequest, 4, blindTo(primacy)), silence},
	{"a new leader that does not wait", moving(two(newLeaderWaits, 4, 0)), primacy},
	{"a new leader that does not wait, as coordinators see it", moving(two(newLeaderWaits, 4, blindTo(primacy))), silence},
	{"confirming while a claim is in flight", two(confirmNobody, 4, 0), primacy},
	{"confirming while a claim is in flight, as coordinators see it", two(confirmNobody, 4, blindTo(primacy)), silence},
	{"a successor not above the fence", two(startAboveFence, 0, 0), inheritance},
	{"a successor not above the fence, as clients see it", tiny(1, 2, two(startAboveFence, 0, seen)), tsoOrder},
	{"a released window lowered on timeout", two(releaseExactly, 4, blindTo(finality)), inheritance},
	{"a released window lowered on timeout, as clients see it", tiny(1, 2, of(ids, two(releaseExactly, 0, seen))), allocID},
	{"an allocator reused across eras", two(windowPerEra, 0, 0), inheritance},
	{"an allocator reused across eras, as clients see it", tiny(1, 3, two(windowPerEra, 0, seen)), tsoOrder},
	{"a client without an era floor", alone(two(clientFloor, 0, 0)), silence},
	{"a restore without a new incarnation", restoring(two(newIncarnation, 0, 0)), primacy},
	{"a restore without a new incarnation, as coordinators see it", restoring(two(newIncarnation, 0, blindTo(primacy, finality))), inheritance},
	{"a clock that stands still with its machine", two(countSleep, 4, 0), primacy},
	{"frontiers told before the guard closes", leaving(two(closeThenRetire, 4, 0)), primacy},
	{"frontiers told before the guard closes, ttl 0", leaving(two(closeThenRetire, 0, 0)), finality},
	{"an era claimed over by its holder while it serves", renewing(two(stopThenClaim, 4, 0)), primacy},
	{"an era claimed over by its holder while it serves, as coordinators see it", renewing(two(stopThenClaim, 4, blindTo(primacy))), silence},
}

func moving(c config) config    { c.still = false; return c }
func leaving(c config) config   { c.calm = false; return c }
func renewing(c config) config  { c.again = true; return c }
func alone(c config) config     { c.oneClient = true; return c }
func restoring(c config) config { c.restore, c.calls = true, 1; return c }

// tiny is a world of few calls at a time, and single values.
func tiny(calls int, values uint8, c config) config {
	c.calls, c.values, c.window, c.eras = calls, values, 1, min(c.eras, values)
	return c
}

func of(m rootv1.Mandate, c config) config { c.mandate = m; return c }

// TestContrast leaves one rule out at a time. With every rule on, the same bounds
// hold no broken promise within as many steps: it is the rule that makes the
// difference.
func TestContrast(t *testing.T) {
	var mu sync.Mutex
	failed, worlds, controlled := 0, 0, 0
	controls := make(map[config]int) // steps by bounds
	t.Run("rules", func(t *testing.T) {
		for _, c := range contrasts {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := newSearch(c.config)
				s.run(mostContrastWorlds, 0)
				mu.Lock()
				defer mu.Unlock()
				worlds += s.worlds.n
				if err := c.judge(s); err != nil {
					t.Fatal(err)
				}
				failed++
				control := c.config
				control.off, control.blind = 0, 0
				controls[control] = max(controls[control], s.depth+1)
				t.Logf("%d worlds; the shortest way:\n%s", s.worlds.n, s.trace(s.counterexample))
			})
		}
	})
	for c, steps := range controls {
		s := newSearch(c)
		s.run(0, steps)
		if s.counterexample != nil {
			t.Errorf("%+v, no rule left out: %s is broken:\n%s", c, s.counterexample.predicate, s.trace(s.counterexample))
		}
		if s.roots.broken != nil {
			t.Error(s.roots.broken)
		}
		if s.depth < steps && s.bounded {
			t.Errorf("%+v, no rule left out: searched %d steps of %d", c, s.depth, steps)
		}
		controlled += s.worlds.n
	}
	if !t.Failed() {
		testreport.Linef(t, "explorer: %d of %d contrast runs failed as they must, over %d worlds; with every rule on none of %d did, over %d", failed, len(contrasts), worlds, len(controls), controlled)
	}
}

// mostContrastWorlds ends a contrast run that finds nothing.
const mostContrastWorlds = 1_500_000

func (c *contrast) judge(s *search) error {
	switch found := s.counterexample; {
	case found == nil:
		return fmt.Errorf("the rule is left out and nothing is broken within %d worlds", s.worlds.n)
	case found.predicate != c.breaks:
		return fmt.Errorf("%s is broken, want %s:\n%s", found.predicate, c.breaks, s.trace(found))
	}
	return nil
}
