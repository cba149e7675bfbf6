package ownership

import (
	"fmt"
	"slices"
)

// model makes the successors of worlds.
type model struct {
	*config
	roots     *roots
	members   *members
	detectors *detectors
	// Parts of worlds.
	processes    interned[process]
	coordinators interned[coordinator]
	// begun are the successors of the world at hand before anybody has reacted, out those
	// behind it.
	begun, out []successor
}

// successor is a world behind a step, and what the step broke.
type successor struct {
	world  world
	step   step
	broken predicate
	// fault: nobody may count on it.
	fault bool
}

// step names a transition: what, of which process, coordinator or region, and how.
type step struct {
	do      action
	who, at uint8
	how     uint16
}

type action uint8

const (
	nobody action = iota
	passTime
	start
	crash
	openStream
	sendFrame
	passFrame
	hearFrame
	passAnswer
	hearAnswer
	breakStream
	hearEnd
	endStream
	answerCall
	refuseCall
	admitWork
	reply
	follow
	plan
	commit
	claim
	endProcess
	drain
	grant
	stop
	exit
)

func newModel(c config) *model {
	m := &model{config: &c, processes: newInterned[process](), coordinators: newInterned[coordinator]()}
	m.roots = newRoots(m.config)
	m.members = newMembers(m.config, m.roots)
	m.detectors = newDetectors(m.config, m.roots, &m.members.reports)
	return m
}

// blank is the world before anything has happened but that era 1 has begun.
func (m *model) blank() world {
	var w world
	w.root = m.roots.do(0, m.roots.claim(0, 0)).to
	for i := range m.started {
		w.root = m.roots.do(w.root, m.roots.join(w.root, int(i))).to
	}
	for i := range m.config.coordinators {
		w.coordinators[i] = m.coordinators.of(coordinator{detector: m.detectors.start(i, w.root)})
	}
	for i := range m.config.processes {
		var p process
		if i < m.started {
			p = process{life: alive, core: m.members.start(int(i), m.roots.at(w.root).incarnation(int(i)))}
		}
		w.processes[i] = m.processes.of(p)
	}
	return w
}

// first is the world in which all that started has settled.
func (m *model) first() world {
	prompt := m.prompt
	m.prompt = 0 // the first process is heard first
	m.out = m.out[:0]
	m.react(successor{world: m.blank()})
	w := m.out[0].world
	for range 1000 {
		until := openStream
		if !m.allServed(&w) {
			until = sendFrame
		}
		next := m.onward(&w, until)
		if next == nil {
			m.prompt = prompt
			return m.prepare(w)
		}
		w = next.world
	}
	panic("ownership: the first world never settles")
}

// prepare takes the first steps of those kinds that a configuration begins with.
func (m *model) prepare(w world) world {
	for n, do := range m.begins {
		i := slices.IndexFunc(m.successors(&w), func(s successor) bool { return s.step.do == do })
		if do == nobody {
			break
		}
		if i < 0 {
			panic(fmt.Sprintf("ownership: %s cannot begin with step %d: %s", m.name, n+1, m.state(&w)))
		}
		w = m.out[i].world
	}
	return w
}

// successors are the worlds one step behind w. The slice is good until the next call.
func (m *model) successors(w *world) []successor {
	m.begin(w)
	m.out = m.out[:0]
	for i := range len(m.begun) {
		m.react(m.begun[i])
	}
	return m.out
}

// begin finds what may happen.
func (m *model) begin(w *world) {
	m.begun = m.begun[:0]
	for i := range m.config.processes {
		p := m.processes.at(w.processes[i])
		m.lifeSteps(w, i, *p)
		for c := range m.config.coordinators {
			if m.links[i]&(1<<c) != 0 && m.prompt&(1<<i) == 0 {
				m.streamSteps(w, i, c, p)
			}
		}
		if p.life == alive {
			m.workSteps(w, i, *p)
		}
	}
	for c := range m.config.coordinators {
		m.coordinatorSteps(w, c, *m.coordinators.at(w.coordinators[c]))
	}
	m.operatorSteps(w)
	m.timeSteps(w)
}

// react has everybody compute what follows from what it knows: that takes no time. What
// is sent is then under way. The ways that probes and questions may end are worlds of
// their own.
func (m *model) react(s successor) {
	for range 100 {
		before := s.world
		for i := range m.config.processes {
			m.processReacts(&s, i)
		}
		m.judge(&s)
		if s.world != before {
			continue
		}
		for c := range m.config.coordinators {
			x := *m.coordinators.at(s.world.coordinators[c])
			if d := m.detectors.at(x.detector); d.due && x.ops[1] == 0 {
				m.turnSteps(&s, c, x)
				return
			}
			m.planStep(&s, c)
		}
		if s.world == before {
			m.out = append(m.out, s)
			return
		}
	}
	panic("ownership: there is always something to do at once")
}

func (m *model) processReacts(s *successor, i uint8) {
	p, changed := *m.processes.at(s.world.processes[i]), false
	for p.life == alive && !m.slow && len(m.members.at(p.core).calls) > 0 {
		p, changed = m.answerCall(p, 0), true
	}
	changed = m.leaves(&p) || changed
	for c := range m.config.coordinators {
		if l := &p.links[c]; l.there && l.here && m.far(i, c, l).answer.is == noAnswer {
			changed = m.speak(s, i, c, &p) || changed
		}
	}
	if changed {
		m.setProcess(s, i, p)
	}
	if m.prompt&(1<<i) != 0 {
		m.processHears(s, i, &p)
	}
}

// processHears brings what is under way to and from a process that is near: nothing is
// ever delayed on its streams.
func (m *model) processHears(s *successor, i uint8, p *process) {
	for c := range m.config.coordinators {
		if m.links[i]&(1<<c) == 0 {
			continue
		}
		for _, do := range onStream {
			last := len(m.begun)
			m.streamStep(&s.world, i, c, p, do)
			if len(m.begun) > last {
				s.world = m.begun[last].world
				m.begun = m.begun[:last]
				return
			}
		}
	}
}

// add makes a successor of w; the caller changes its world.
func (m *model) add(w *world, do action, who, at uint8) *successor {
	m.begun = append(m.begun, successor{world: *w, step: step{do: do, who: who, at: at}})
	return &m.begun[len(m.begun)-1]
}

func (m *model) setProcess(s *successor, i uint8, p process) {
	s.world.processes[i] = m.processes.of(p)
}

func (m *model) setCoordinator(s *successor, c uint8, x coordinator) {
	s.world.coordinators[c] = m.coordinators.of(x)
}

// judge looks at who acts.
func (m *model) judge(s *successor) {
	r := m.roots.at(s.world.root)
	for region := range m.config.regions {
		acting := 0
		for i := range m.config.processes {
			p := m.processes.at(s.world.processes[i])
			if p.life != alive {
				continue
			}
			x := m.members.at(p.core)
			conf := x.acts[region]
			if conf == 0 {
				continue
			}
			acting++
			if r.owners[region][conf] != uint8(x.incarnation) {
				m.breaks(s, oneAnEpoch)
			}
		}
		if acting > 1 && m.fenced(region) {
			m.breaks(s, oneAMoment)
		}
	}
}

func (m *model) breaks(s *successor, p predicate) {
	if s.broken == nothing {
		s.broken = p
	}
}

// fenced says that the fence of a region is a ttl.
func (m *model) fenced(region uint8) bool { return region == 0 && m.ttl > 0 }

// allServed says that every region has an owner that acts, and that no move is under way.
func (m *model) allServed(w *world) bool {
	r := m.roots.at(w.root)
	for region := range m.config.regions {
		served := false
		for i := range m.config.processes {
			p := m.processes.at(w.processes[i])
			served = served || p.life == alive && m.members.at(p.core).acts[region] == r.regions[region].conf && r.regions[region].conf != 0
		}
		if !served {
			return false
		}
	}
	return !r.pending
}
