package ownership

import (
	"fmt"
	"slices"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/internal/held"
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
	hearFrame
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
)

func newModel(c config) *model {
	m := &model{config: &c}
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
	m.begun, m.out = m.begun[:0], m.out[:0]
	for i := range m.config.processes {
		p := &m.processes.all[w.processes[i]]
		m.lifeSteps(w, i, *p)
		for c := range m.config.coordinators {
			if m.links[i]&(1<<c) != 0 && m.prompt&(1<<i) == 0 {
				m.streamSteps(w, i, c, *p)
			}
		}
		if p.life == alive {
			m.workSteps(w, i, *p)
		}
	}
	for c := range m.config.coordinators {
		m.coordinatorSteps(w, c, m.coordinators.all[w.coordinators[c]])
	}
	m.operatorSteps(w)
	m.timeSteps(w)
	for i := range len(m.begun) {
		m.react(m.begun[i])
	}
	return m.out
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
			x := m.coordinators.all[s.world.coordinators[c]]
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
	p, changed := m.processes.all[s.world.processes[i]], false
	for p.life == alive && !m.slow && len(m.members.at(p.core).calls) > 0 {
		p, changed = m.answerCall(p, 0), true
	}
	for c := range m.config.coordinators {
		if l := &p.links[c]; l.there && l.here && l.answer.is == noAnswer {
			changed = m.speak(s, i, c, &p) || changed
		}
	}
	if changed {
		m.setProcess(s, i, p)
	}
	if m.prompt&(1<<i) != 0 {
		m.processHears(s, i, p)
	}
}

// processHears brings what is under way to and from a process that is near: nothing is
// ever delayed on its streams.
func (m *model) processHears(s *successor, i uint8, p process) {
	for c := range m.config.coordinators {
		if m.links[i]&(1<<c) == 0 {
			continue
		}
		was := len(m.begun)
		m.streamSteps(&s.world, i, c, p)
		for _, next := range m.begun[was:] {
			switch next.step.do {
			case openStream, sendFrame, hearFrame, hearAnswer, hearEnd, endStream:
				s.world = next.world
				m.begun = m.begun[:was]
				return
			}
		}
		m.begun = m.begun[:was]
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
			p := &m.processes.all[s.world.processes[i]]
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
			p := &m.processes.all[w.processes[i]]
			served = served || p.life == alive && m.members.at(p.core).acts[region] == r.regions[region].conf && r.regions[region].conf != 0
		}
		if !served {
			return false
		}
	}
	return !r.pending
}

func (m *model) lifeSteps(w *world, i uint8, p process) {
	switch p.life {
	case unborn:
		if i > 0 && m.sameMachine(w, i) {
			return // the address is in use
		}
		o := m.roots.do(w.root, m.roots.join(w.root, int(i)))
		if !o.applied || m.full(w) {
			return
		}
		s := m.add(w, start, i, 0)
		s.world.root = o.to
		s.fault = true
		m.setProcess(s, i, process{life: alive, core: m.members.start(int(i), m.roots.at(o.to).incarnation(int(i)))})
	case alive:
		if w.crashes < m.config.crashes {
			s := m.add(w, crash, i, 0)
			s.world.crashes++
			s.fault = true
			p.life, p.core, p.data = deadNow, 0, [maxRegions]uint8{}
			for c := range p.links {
				p.links[c].leave()
			}
			m.setProcess(s, i, p)
		}
	}
}

// sameMachine says that the process before this one has its address, and lives.
func (m *model) sameMachine(w *world, i uint8) bool {
	return m.reused && m.processes.all[w.processes[i-1]].life == alive
}

// full says that the log has no room.
func (m *model) full(w *world) bool { return m.roots.at(w.root).token() >= uint64(m.tokens) }

// leave ends a stream at the member.
func (l *link) leave() {
	l.here, l.answer, l.has = false, answer{}, 0
	if !l.there && l.frame == 0 {
		*l = link{}
	}
}

func (m *model) streamSteps(w *world, i, c uint8, p process) {
	l := &p.links[c]
	if p.life == alive && *l == (link{}) && !m.members.at(p.core).core.Over() {
		o := m.members.tell(happening{from: p.core, what: opens, at: c})
		s := m.add(w, openStream, i, c)
		p := p
		p.core = o.to
		p.links[c] = link{here: true, frame: o.frame}
		m.setProcess(s, i, p)
	}
	if l.here && l.frame == 0 && l.unanswered < maxUnanswered && m.mute[i]&(1<<c) == 0 {
		m.frameStep(w, i, c, p)
	}
	if l.frame != 0 {
		m.hearStep(w, i, c, p)
	}
	if l.here && l.answer.is != noAnswer {
		m.answerStep(w, i, c, p)
	}
	if l.there && !l.here && l.frame == 0 {
		m.endStep(w, i, c, p, hearEnd)
	}
	if l.there && l.here && w.breaks < m.config.breaks && m.prompt&(1<<i) == 0 {
		s := m.endStep(w, i, c, p, breakStream)
		s.world.breaks++
		s.fault = true
	}
	if l.here && !l.there && l.frame == 0 {
		s := m.add(w, endStream, i, c)
		p := p
		p.core = m.members.tell(happening{from: p.core, what: closes, at: c}).to
		p.links[c].leave()
		m.setProcess(s, i, p)
	}
}

func (m *model) frameStep(w *world, i, c uint8, p process) {
	o := m.members.tell(happening{from: p.core, what: says, at: c})
	if !o.ok {
		return
	}
	s := m.add(w, sendFrame, i, c)
	p.core = o.to
	l := &p.links[c]
	l.frame, l.said = o.frame, l.has
	l.unanswered++
	if l.answer.is == answers {
		l.answer.back++
	}
	m.setProcess(s, i, p)
}

// hearStep has a coordinator take a frame, and make the answer to it.
func (m *model) hearStep(w *world, i, c uint8, p process) {
	x := m.coordinators.all[w.coordinators[c]]
	d := m.detectors.at(x.detector)
	r := m.roots.at(d.view)
	l := &p.links[c]
	f := m.members.frames.at(l.frame)
	switch {
	case r.incarnation(int(i)) == 0: // not known here yet
		return
	case !r.actsAs(int(i)):
		s := m.add(w, hearFrame, i, c)
		if l.there {
			x.detector = m.detectors.tell(hint{from: x.detector, what: closed, at: i}).to
			x.forget(i)
		}
		l.there, l.frame, l.said, l.owes = false, 0, 0, false
		if l.here {
			l.answer = answer{is: retired}
		} else {
			*l = link{}
		}
		m.setProcess(s, i, p)
		m.setCoordinator(s, c, x)
		return
	}
	s := m.add(w, hearFrame, i, c)
	if f.first {
		x.forget(i)
		x.detector = m.detectors.tell(hint{from: x.detector, what: opened, at: i}).to
		l.there = true
	} else {
		x.detector = m.detectors.tell(hint{from: x.detector, what: heardFrame, at: i}).to
	}
	x.take(i, f, l.said, m.members)
	l.frame, l.said, l.owes = 0, 0, true
	m.setProcess(s, i, p)
	m.setCoordinator(s, c, x)
}

// answer makes the answer to the newest frame.
func (m *model) answer(w *world, i, c uint8, x *coordinator, l *link) {
	d := m.detectors.at(x.detector)
	r := m.roots.at(d.view)
	a := answer{is: answers, era: r.era, terms: l.told == 0}
	l.owes = false
	if l.frame != 0 {
		a.back = 1
	}
	if l.told != d.view+1 {
		l.told, a.set = d.view+1, d.view+1
	}
	if d.era != 0 {
		o := m.detectors.tell(hint{from: x.detector, what: confirms, at: i})
		x.detector = o.to
		a.confirmed = o.ok && (m.roots.at(w.root).era == d.era || m.off == generateThenCheck)
		if a.confirmed {
			a.era = d.era
		}
	} else if m.off == holderConfirms {
		a.confirmed = true
	}
	l.answer = a
}

// forget drops what was said on an earlier stream.
func (x *coordinator) forget(i uint8) {
	x.shown[i] = 0
	for r := range x.soft {
		x.soft[r][i] = 0
	}
}

// take takes what a frame says.
func (x *coordinator) take(i uint8, f *frame, said uint32, t *members) {
	if said != 0 {
		x.shown[i] = said
	}
	for r, n := range f.reports {
		switch {
		case n == 0 && !f.complete:
		case n == 0 || t.reports.at(n).gone:
			x.soft[r][i] = 0
		default:
			x.soft[r][i] = n
		}
	}
}

// speak has a coordinator say what it has to say to a process: the answer to the newest
// frame, or what it sees and has not shown.
func (m *model) speak(s *successor, i, c uint8, p *process) bool {
	x := m.coordinators.all[s.world.coordinators[c]]
	view := m.detectors.at(x.detector).view
	l := &p.links[c]
	if l.owes {
		m.answer(&s.world, i, c, &x, l)
		m.setCoordinator(s, c, x)
		return true
	}
	if l.told == view+1 || l.told == 0 {
		return false
	}
	r := m.roots.at(view)
	if !r.actsAs(int(i)) {
		x.detector = m.detectors.tell(hint{from: x.detector, what: closed, at: i}).to
		x.forget(i)
		m.setCoordinator(s, c, x)
		l.there, l.frame, l.said, l.owes, l.answer = false, 0, 0, false, answer{is: retired}
		return true
	}
	// It answers no frame: it confirms nothing.
	l.told, l.answer = view+1, answer{is: pushes, era: r.era, set: view + 1}
	return true
}

func (m *model) answerStep(w *world, i, c uint8, p process) {
	s := m.add(w, hearAnswer, i, c)
	l := &p.links[c]
	if l.answer.is == retired {
		p.core = m.members.tell(happening{from: p.core, what: retires}).to
		p.core = m.members.tell(happening{from: p.core, what: closes, at: c}).to
		l.leave()
		m.setProcess(s, i, p)
		return
	}
	a := l.answer
	p.core = m.members.tell(happening{
		from: p.core, what: hears, at: c, back: a.back, era: a.era, confirmed: a.confirmed, terms: a.terms, push: a.is == pushes, set: a.set,
	}).to
	if a.set != 0 {
		l.has = a.set
	}
	if a.is == answers {
		l.unanswered = a.back
	}
	l.answer = answer{}
	m.setProcess(s, i, p)
}

// endStep ends a stream at the coordinator. What it sent before still arrives.
func (m *model) endStep(w *world, i, c uint8, p process, do action) *successor {
	s := m.add(w, do, i, c)
	x := m.coordinators.all[w.coordinators[c]]
	x.detector = m.detectors.tell(hint{from: x.detector, what: closed, at: i}).to
	x.forget(i)
	m.setCoordinator(s, c, x)
	l := &p.links[c]
	l.there, l.frame, l.said, l.owes = false, 0, 0, false
	if !l.here {
		*l = link{}
	}
	m.setProcess(s, i, p)
	return s
}

// workSteps are the application's.
func (m *model) workSteps(w *world, i uint8, p process) {
	x := m.members.at(p.core)
	for k := range x.calls {
		s := m.add(w, answerCall, i, uint8(k))
		m.setProcess(s, i, m.answerCall(p, uint8(k)))
		if x.calls[k].unwanted {
			s := m.add(w, refuseCall, i, uint8(k))
			q := p
			q.core = m.members.tell(happening{from: p.core, what: fails, at: uint8(k)}).to
			m.setProcess(s, i, q)
		}
	}
	if x.working == 0 {
		for region := range m.config.regions {
			if x.acts[region] != 0 && p.data[region] < m.work {
				s := m.add(w, admitWork, i, region)
				q := p
				q.core = m.members.tell(happening{from: p.core, what: admits, at: region}).to
				m.setProcess(s, i, q)
			}
		}
		return
	}
	m.replyStep(w, i, p, x)
}

// answerCall has the application do what it was asked for.
func (m *model) answerCall(p process, k uint8) process {
	call := &m.members.at(p.core).calls[k]
	region := regionIndex(call.Region.ID)
	p.core = m.members.tell(happening{from: p.core, what: does, at: k, frontier: p.data[region]}).to
	switch call.Kind {
	case held.Acquire:
		p.data[region] = number(call.Region.Frontier)
	case held.Evict, held.Abandon:
		p.data[region] = 0
	}
	return p
}

// replyStep ends work: it is replied to if its right still holds.
func (m *model) replyStep(w *world, i uint8, p process, x *member) {
	region := x.working - 1
	s := m.add(w, reply, i, region)
	o := m.members.tell(happening{from: p.core, what: checks})
	p.core = o.to
	if o.ok || m.off == checkBehind {
		p.data[region]++
		if p.data[region] > s.world.acknowledged[region] {
			s.world.acknowledged[region] = p.data[region]
		}
		for k := range m.config.processes {
			q := &m.processes.all[w.processes[k]]
			if k != i && q.life == alive && m.members.at(q.core).acts[region] != 0 && m.fenced(region) {
				m.breaks(s, oneAMoment)
			}
		}
	}
	m.setProcess(s, i, p)
}

func (m *model) coordinatorSteps(w *world, c uint8, x coordinator) {
	d := m.detectors.at(x.detector)
	if d.view != w.root {
		m.follow(m.add(w, follow, c, 0), c)
	}
	for k, op := range x.ops {
		if op != 0 {
			m.commitStep(w, c, uint8(k), x)
		}
	}
	if m.late {
		m.lateStep(w, c, prepared)
		m.lateStep(w, c, tooLate)
	}
	r := m.roots.at(w.root)
	if r.holder != c+1 && r.era < m.eras && !m.full(w) {
		s := m.add(w, claim, c, 0)
		s.world.root = m.roots.do(w.root, m.roots.claim(w.root, int(c))).to
		m.follow(s, c)
	}
}

// follow brings a coordinator to what is rooted.
func (m *model) follow(s *successor, c uint8) {
	x := m.coordinators.all[s.world.coordinators[c]]
	x.detector = m.detectors.tell(hint{from: x.detector, what: follows, view: s.world.root}).to
	x.landed = 0
	m.setCoordinator(s, c, x)
}

// send puts a command under way if there is room.
func (x *coordinator) send(op uint16) bool {
	for k := range x.ops {
		if x.ops[k] == op+1 {
			return true
		}
		if x.ops[k] == 0 {
			x.ops[k] = op + 1
			return true
		}
	}
	return false
}

// plans are the commands that a holder would send; nothing is planned while something is
// under way, or is not in its view.
func (m *model) plans(w *world, c uint8, late lateness) []uint16 {
	x := &m.coordinators.all[w.coordinators[c]]
	d := m.detectors.at(x.detector)
	if d.era == 0 || x.landed != 0 || x.ops != [maxOps]uint16{} || m.full(w) {
		return nil
	}
	return m.detectors.plan(planning{view: d.view, takes: d.takes, clear: d.clear, late: late, soft: x.soft, shown: x.shown})
}

func (m *model) planStep(s *successor, c uint8) {
	m.send(s, c, m.plans(&s.world, c, inTime))
}

func (m *model) send(s *successor, c uint8, ops []uint16) {
	if len(ops) == 0 {
		return
	}
	x := m.coordinators.all[s.world.coordinators[c]]
	for _, op := range ops {
		x.send(op)
	}
	m.setCoordinator(s, c, x)
}

// lateStep has a holder find that a bound of a move has passed.
func (m *model) lateStep(w *world, c uint8, late lateness) {
	ops := m.plans(w, c, late)
	if len(ops) == 0 {
		return
	}
	s := m.add(w, plan, c, 0)
	s.step.how = uint16(late)
	s.fault = late == tooLate
	m.send(s, c, ops)
}

// commitStep has the root judge a command.
func (m *model) commitStep(w *world, c, k uint8, x coordinator) {
	op := x.ops[k] - 1
	cmd := m.roots.commands[op]
	o := m.roots.do(w.root, op)
	if o.applied && m.full(w) {
		return
	}
	s := m.add(w, commit, c, k)
	s.world.root = o.to
	x.ops[k] = 0
	if k == 0 {
		x.ops[0], x.ops[1] = x.ops[1], 0
	}
	if o.to != w.root {
		x.landed = o.to + 1
	}
	if cmd.failed != 0 && o.rejected {
		x.detector = m.detectors.tell(hint{from: x.detector, what: withdrawn, at: cmd.failed - 1}).to
	}
	m.setCoordinator(s, c, x)
	m.moved(s, o)
	if !m.lag {
		m.follow(s, c)
	}
}

// moved looks at the frontiers of regions with other owners.
func (m *model) moved(s *successor, o outcome) {
	r := m.roots.at(o.to)
	for region := range m.config.regions {
		has := r.regions[region].frontier
		if o.moved&(1<<region) != 0 && has != s.world.acknowledged[region] {
			m.breaks(s, frontier)
		}
		if (o.moved|o.granted)&(1<<region) != 0 {
			s.world.acknowledged[region] = has
		}
	}
}

// truths are what a probe of a process may find.
func (m *model) mayAnswer(w *world, i int) []liveness.ProbeResult {
	p := &m.processes.all[w.processes[i]]
	switch {
	case p.life == alive:
		return []liveness.ProbeResult{liveness.AnsweredSame, liveness.NoAnswer}
	case m.reused:
		return []liveness.ProbeResult{liveness.AnsweredOther, liveness.NoAnswer}
	default:
		return []liveness.ProbeResult{liveness.Refused, liveness.NoAnswer}
	}
}

// turnSteps have a detector look; what comes of its probes and questions is known at once.
func (m *model) turnSteps(s *successor, c uint8, x coordinator) {
	first := m.detectors.tell(hint{from: x.detector, what: turns})
	var words [maxProcesses]uint8
	if first.asked != 0 && m.config.coordinators > 1 {
		words = m.detectors.at(m.coordinators.all[s.world.coordinators[1-c]].detector).heard
		for i := range words {
			if first.asked&(1<<i) == 0 {
				words[i] = 0
			}
		}
	}
	results := [][maxProcesses]liveness.ProbeResult{{}}
	for i := range m.config.processes {
		if first.probed&(1<<i) == 0 {
			continue
		}
		var more [][maxProcesses]liveness.ProbeResult
		for _, truth := range m.mayAnswer(&s.world, int(i)) {
			for _, r := range results {
				r[i] = truth
				more = append(more, r)
			}
		}
		results = more
	}
	for n, probes := range results {
		m.turnStep(*s, c, x, hint{from: x.detector, what: turns, probes: probes, words: words}, n > 0)
		if words != ([maxProcesses]uint8{}) {
			m.turnStep(*s, c, x, hint{from: x.detector, what: turns, probes: probes}, true)
		}
	}
}

func (m *model) turnStep(s successor, c uint8, x coordinator, h hint, fault bool) {
	o := m.detectors.tell(h)
	r := m.roots.at(m.detectors.at(x.detector).view)
	x.detector = o.to
	for i := range m.config.processes {
		if o.verdicts&(1<<i) != 0 && !x.send(m.roots.verdict(int(i), r.incarnation(int(i)), m.detectors.planEra(r), false)) {
			panic("ownership: no room for a verdict")
		}
	}
	s.fault = s.fault || fault
	s.step.how += 2
	if fault {
		s.step.how++
	}
	m.setCoordinator(&s, c, x)
	m.react(s)
}

func (m *model) operatorSteps(w *world) {
	r := m.roots.at(w.root)
	if m.full(w) {
		return
	}
	if m.ends {
		m.endSteps(w)
	}
	if w.grants < m.config.grants {
		m.grantSteps(w)
	}
	if w.drains < m.config.drains {
		for i := range m.config.processes {
			if r.actsAs(int(i)) && r.draining&(1<<i) == 0 {
				s := m.add(w, drain, i, 0)
				s.world.root = m.roots.do(w.root, m.roots.drain(int(i), r.incarnation(int(i)))).to
				s.world.drains++
				s.fault = true
				m.holderFollows(s)
			}
		}
	}
}

// holderFollows has the holder see what others have rooted, unless that takes time.
func (m *model) holderFollows(s *successor) {
	if h := m.roots.at(s.world.root).holder; h != 0 && !m.lag {
		m.follow(s, h-1)
	}
}

// endSteps have whoever waits for a process say that it has ended.
func (m *model) endSteps(w *world) {
	r := m.roots.at(w.root)
	for i := range m.config.processes {
		if m.processes.all[w.processes[i]].life != deadNow || !r.actsAs(int(i)) {
			continue
		}
		s := m.add(w, endProcess, i, 0)
		s.world.root = m.roots.do(w.root, m.roots.verdict(int(i), r.incarnation(int(i)), 0, true)).to
		s.fault = true
		m.holderFollows(s)
	}
}

// grantSteps have an operator, or another planner, grant what the holder finds free, to
// anybody that the holder would.
func (m *model) grantSteps(w *world) {
	for c := range m.config.coordinators {
		x := m.coordinators.all[w.coordinators[c]]
		d := m.detectors.at(x.detector)
		r := m.roots.at(d.view)
		if d.era == 0 {
			continue
		}
		for region := range m.config.regions {
			owner := r.processOf(r.regions[region].by)
			if owner < 0 || r.actsAs(owner) || d.clear&(1<<owner) == 0 && m.fenced(region) {
				continue
			}
			for i := range m.config.processes {
				if d.takes&(1<<i) == 0 || !r.actsAs(int(i)) || r.draining&(1<<i) != 0 {
					continue
				}
				y := x
				if !y.send(m.roots.grant(d.view, region, int(i))) {
					continue
				}
				s := m.add(w, grant, i, region)
				s.world.grants++
				s.fault = true
				m.setCoordinator(s, c, y)
			}
		}
	}
}

// timeSteps let a tick of true time pass.
func (m *model) timeSteps(w *world) {
	rates := [][2]uint8{{slow, fast}, {slow, slow}, {fast, slow}}
	if m.steady {
		rates = rates[:1]
	}
	for n, rate := range rates {
		s := m.add(w, passTime, rate[0], rate[1])
		s.step.how = uint16(n)
		for i := range m.config.processes {
			if p := m.processes.all[w.processes[i]]; p.life == alive {
				p.core = m.members.tell(happening{from: p.core, what: passes, at: rate[0]}).to
				m.setProcess(s, i, p)
			}
		}
		for c := range m.config.coordinators {
			x := m.coordinators.all[w.coordinators[c]]
			x.detector = m.detectors.tell(hint{from: x.detector, what: timePasses, at: rate[1]}).to
			m.setCoordinator(s, c, x)
		}
	}
}
