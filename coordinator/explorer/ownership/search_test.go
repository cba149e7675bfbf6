package ownership

import (
	"fmt"
	"strings"

	"github.com/nokv/nokv/internal/testing/breadth"
)

// search is a breadth-first search over the worlds of a model.
type search struct {
	*model
	worlds *breadth.Graph[world]

	depth       int
	transitions uint64
	// bounded: a limit stopped it before everything was seen.
	bounded        bool
	counterexample *counterexample
}

// counterexample is a shortest way to a broken promise.
type counterexample struct {
	predicate predicate
	path      []world
	last      *successor
}

func newSearch(c config) *search {
	return &search{model: newModel(c), worlds: breadth.New[world]()}
}

// run searches until a promise is broken, everything was seen, or more than limit worlds
// or depth steps were. 0: no limit.
func (s *search) run(limit, depth int) {
	first := s.first()
	s.worlds.Visit(&first, 0)
	for at := 0; at < s.worlds.Len(); {
		level := s.worlds.Len()
		if depth > 0 && s.depth == depth || limit > 0 && level >= limit {
			s.bounded = true
			return
		}
		for ; at < level; at++ {
			if s.expand(at) {
				return
			}
			if limit > 0 && s.worlds.Len() >= limit {
				s.bounded = true
				return
			}
		}
		if s.worlds.Len() > level {
			s.depth++
		}
	}
}

// expand visits the successors of a world; it reports whether one was broken.
func (s *search) expand(at int) bool {
	w := *s.worlds.At(at)
	for i := range s.successors(&w) {
		next := &s.out[i]
		s.transitions++
		if next.broken != nothing {
			s.counterexample = &counterexample{predicate: next.broken, path: s.worlds.Path(at), last: new(*next)}
			return true
		}
		s.worlds.Visit(&next.world, at)
	}
	return false
}

// ask looks for a world from which not everything is served again, if that is to be
// asked.
func (s *search) ask(nth int) (asked int) {
	if !s.onwards || s.counterexample != nil {
		return 0
	}
	asked, stuck := s.reach(nth)
	if stuck != nil {
		s.counterexample = &counterexample{predicate: forgotten, path: stuck}
	}
	return asked
}

// trace tells a counterexample step by step.
func (s *search) trace(c *counterexample) string {
	var b strings.Builder
	w := c.path[0]
	fmt.Fprintf(&b, "     at first: %s\n", s.state(&w))
	line := 0
	tell := func(st step, next *world) {
		line++
		fmt.Fprintf(&b, "%3d. %s: %s\n", line, s.describe(&w, st), s.state(next))
	}
	for i := range c.path[1:] {
		target := &c.path[i+1]
		for _, next := range s.successors(&w) {
			if next.world == *target {
				tell(next.step, target)
				break
			}
		}
		w = *target
	}
	if c.last != nil {
		tell(c.last.step, &c.last.world)
	}
	fmt.Fprintf(&b, "     %s is broken.\n", c.predicate)
	return b.String()
}

// describe says what a step did.
func (m *model) describe(w *world, s step) string {
	who, c := m.processName(int(s.who)%maxProcesses), fmt.Sprintf("c%d", s.at+1)
	holder := fmt.Sprintf("c%d", s.who+1)
	switch s.do {
	case passTime:
		return fmt.Sprintf("a tick, by members' clocks %d, by coordinators' %d", s.who, s.at)
	case start:
		return who + " starts"
	case crash:
		return who + " crashes"
	case openStream:
		return who + " opens a stream to " + c
	case sendFrame:
		return who + " sends a frame to " + c
	case passFrame:
		return fmt.Sprintf("c%d passes a frame of %s on to %s", 2-s.at, who, c)
	case hearFrame:
		return c + " hears a frame of " + who
	case passAnswer:
		return fmt.Sprintf("c%d passes what %s says back to %s", 2-s.at, c, who)
	case hearAnswer:
		return who + " hears " + c
	case breakStream:
		return "the stream of " + who + " breaks at " + c
	case hearEnd:
		return c + " hears that the stream of " + who + " has ended"
	case endStream:
		return who + " hears that its stream to " + c + " has ended"
	case answerCall:
		return who + "'s application has done what it was asked for"
	case refuseCall:
		return who + "'s application gives up what it was asked for"
	case admitWork:
		return fmt.Sprintf("%s admits work for region %d", who, s.at+1)
	case reply:
		return fmt.Sprintf("%s replies to work for region %d", who, s.at+1)
	case follow:
		return holder + " follows the root"
	case plan:
		return fmt.Sprintf("%s plans (%d)", holder, s.how)
	case commit:
		x := m.coordinators.at(w.coordinators[s.who])
		return "the root judges " + m.roots.commands[x.ops[s.at]-1].name + " of " + holder
	case claim:
		return holder + " claims the Tenure"
	case endProcess:
		return "it is said of " + who + " that it has ended"
	case drain:
		return who + " is drained"
	case stop:
		return who + " is told to end"
	case exit:
		return who + " ends"
	case grant:
		return "an operator grants"
	}
	return fmt.Sprintf("step %d", s.do)
}

// state is what matters of a world.
func (m *model) state(w *world) string {
	r := m.roots.at(w.root)
	s := fmt.Sprintf("era %d;", r.era)
	for i := range m.config.regions {
		s += fmt.Sprintf(" region %d of incarnation %d at %d from %d;", i+1, r.regions[i].by, r.regions[i].conf, r.regions[i].frontier)
	}
	for i := range m.config.processes {
		p := m.processes.at(w.processes[i])
		switch p.life {
		case deadNow:
			s += fmt.Sprintf(" %s is dead", m.processName(int(i)))
		case alive:
			x := m.members.at(p.core)
			s += fmt.Sprintf(" %s as %d acts %v", m.processName(int(i)), x.incarnation, x.acts[:m.config.regions])
			if x.working > 0 {
				s += fmt.Sprintf(" works at %d", x.workConf)
			}
		}
	}
	return s
}
