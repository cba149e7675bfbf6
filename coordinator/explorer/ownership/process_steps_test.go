package ownership

import (
	"github.com/nokv/nokv/internal/held"
)

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
		x := m.members.at(p.core)
		if w.crashes < m.config.crashes {
			s := m.add(w, crash, i, 0)
			s.world.crashes++
			s.fault = true
			m.die(s, i, p)
		}
		if w.stops < m.config.stops && !x.leaving && !x.core.Over() {
			s := m.add(w, stop, i, 0)
			s.world.stops++
			s.fault = true
			q := p
			q.core = m.members.tell(happening{from: p.core, what: stops}).to
			m.setProcess(s, i, q)
		}
		if x.leaving && x.core.Over() { // its last words may not all have been sent by then
			m.die(m.add(w, exit, i, 0), i, p)
		}
	}
}

// die ends a process.
func (m *model) die(s *successor, i uint8, p process) {
	p.life, p.core, p.data = deadNow, 0, [maxRegions]uint8{}
	for c := range p.links {
		p.links[c].leave()
	}
	m.setProcess(s, i, p)
}

// leaves has a process that is to end say its last word, when it has let go of everything.
func (m *model) leaves(p *process) bool {
	x := m.members.at(p.core)
	if p.life != alive || !x.leaving || x.core.Over() || x.core.Holding() > 0 {
		return false
	}
	p.core = m.members.tell(happening{from: p.core, what: leaves}).to
	return true
}

// sameMachine says that the process before this one has its address, and lives.
func (m *model) sameMachine(w *world, i uint8) bool {
	return m.reused && m.processes.at(w.processes[i-1]).life == alive
}

// full says that the log has no room.
func (m *model) full(w *world) bool { return m.roots.at(w.root).token() >= uint64(m.tokens) }

// leave ends a stream at the member.
func (l *link) leave() {
	l.here, l.answer, l.beyond.answer, l.has = false, answer{}, answer{}, 0
	if !l.there && l.frames() == 0 {
		*l = link{}
	}
}

// cut ends a stream at its coordinator, which hears nothing more of what is under way.
func (l *link) cut() {
	l.there, l.owes = false, false
	l.frame, l.said, l.beyond.frame, l.beyond.said = 0, 0, 0, 0
}

// onStream is what happens on streams in the end, unless they break.
var onStream = [...]action{openStream, sendFrame, passFrame, hearFrame, passAnswer, hearAnswer, hearEnd, endStream}

func (m *model) streamSteps(w *world, i, c uint8, p *process) {
	for _, do := range onStream {
		m.streamStep(w, i, c, p, do)
	}
	if l := &p.links[c]; l.there && l.here && w.breaks < m.config.breaks {
		s := m.endStep(w, i, c, *p, breakStream)
		s.world.breaks++
		s.fault = true
	}
}

// streamStep adds a step if it is possible.
func (m *model) streamStep(w *world, i, c uint8, p *process, do action) {
	l := &p.links[c]
	switch {
	case do == openStream && p.life == alive && *l == (link{}) && !m.members.at(p.core).core.Over() && (!m.passes(i, c) || p.links[1-c].has != 0):
		o := m.members.tell(happening{from: p.core, what: opens, at: c})
		s := m.add(w, openStream, i, c)
		p := *p
		p.core = o.to
		p.links[c] = link{here: true, half: half{frame: o.frame}}
		m.setProcess(s, i, p)
	case do == sendFrame && l.here && l.frame == 0 && l.unanswered < maxUnanswered && m.mute[i]&(1<<c) == 0:
		m.frameStep(w, i, c, *p)
	case do == passFrame && m.passes(i, c) && l.frame != 0 && l.beyond.frame == 0:
		m.passOnStep(w, i, c, *p)
	case do == hearFrame && m.far(i, c, l).frame != 0:
		m.hearStep(w, i, c, *p)
	case do == passAnswer && l.beyond.answer.is != noAnswer && l.answer.is == noAnswer:
		m.passBackStep(w, i, c, *p)
	case do == hearAnswer && l.here && l.answer.is != noAnswer:
		m.answerStep(w, i, c, *p)
	case do == hearEnd && l.there && !l.here && l.frames() == 0:
		m.endStep(w, i, c, *p, hearEnd)
	case do == endStream && l.here && !l.there && l.frames() == 0:
		s := m.add(w, endStream, i, c)
		p := *p
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
	for _, h := range [...]*half{&l.half, &l.beyond} {
		if h.answer.is == answers || h.answer.is == answersFirst {
			h.answer.back++
		}
	}
	m.setProcess(s, i, p)
}

// passOnStep has the coordinator between pass a frame on.
func (m *model) passOnStep(w *world, i, c uint8, p process) {
	s := m.add(w, passFrame, i, c)
	l := &p.links[c]
	l.beyond.frame, l.beyond.said, l.frame, l.said = l.frame, l.said, 0, 0
	if m.off == passerConfirmsNot && l.here && l.answer.is == noAnswer {
		between := m.coordinators.at(w.coordinators[1-c])
		l.answer = answer{is: answersFirst, era: m.roots.at(m.detectors.at(between.detector).view).era, confirmed: true}
	}
	m.setProcess(s, i, p)
}

// passBackStep has it pass an answer back.
func (m *model) passBackStep(w *world, i, c uint8, p process) {
	s := m.add(w, passAnswer, i, c)
	l := &p.links[c]
	l.answer, l.beyond.answer = l.beyond.answer, answer{}
	if m.off == countFromMember && l.answer.confirmed {
		p.core = m.members.tell(happening{from: p.core, what: passesBack}).to
	}
	m.setProcess(s, i, p)
}

// hearStep has a coordinator take a frame, and make the answer to it.
func (m *model) hearStep(w *world, i, c uint8, p process) {
	x := *m.coordinators.at(w.coordinators[c])
	d := m.detectors.at(x.detector)
	r := m.roots.at(d.view)
	l := &p.links[c]
	here := m.far(i, c, l)
	f := m.members.frames.at(uint16(here.frame))
	switch {
	case r.incarnation(int(i)) == 0: // not known here yet
		return
	case !r.actsAs(int(i)):
		s := m.add(w, hearFrame, i, c)
		if l.there {
			x.detector = m.detectors.tell(hint{from: x.detector, what: closed, at: i}).to
			m.forget(&x, i)
		}
		l.cut()
		if l.here {
			here.answer = answer{is: retired}
		} else {
			*l = link{}
		}
		m.setProcess(s, i, p)
		m.setCoordinator(s, c, x)
		return
	}
	s := m.add(w, hearFrame, i, c)
	if f.first {
		m.forget(&x, i)
		x.detector = m.detectors.tell(hint{from: x.detector, what: opened, at: i}).to
		l.there = true
	} else {
		x.detector = m.detectors.tell(hint{from: x.detector, what: heardFrame, at: i}).to
	}
	x.take(i, f, here.said, m.members)
	if f.gone {
		x.detector = m.detectors.tell(hint{from: x.detector, what: goodbyes, at: i}).to
	}
	here.frame, here.said, l.owes = 0, 0, true
	m.setProcess(s, i, p)
	m.setCoordinator(s, c, x)
}

// answer makes the answer to the newest frame.
func (m *model) answer(w *world, i, c uint8, x *coordinator, l *link) {
	d := m.detectors.at(x.detector)
	r := m.roots.at(d.view)
	a := answer{is: answers, era: r.era}
	if l.told == 0 {
		a.is = answersFirst
	}
	l.owes, a.back = false, l.frames()
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
	m.far(i, c, l).answer = a
}

// forget drops what was said on an earlier stream, but for last words.
func (m *model) forget(x *coordinator, i uint8) {
	x.shown[i] = 0
	if m.detectors.at(x.detector).left&(1<<i) != 0 {
		return
	}
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
	x := *m.coordinators.at(s.world.coordinators[c])
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
		m.forget(&x, i)
		m.setCoordinator(s, c, x)
		l.cut()
		m.far(i, c, l).answer = answer{is: retired}
		return true
	}
	// It answers no frame: it confirms nothing.
	l.told, m.far(i, c, l).answer = view+1, answer{is: pushes, era: r.era, set: view + 1}
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
		from: p.core, what: hears, at: c, back: a.back, era: a.era, confirmed: a.confirmed, terms: a.is == answersFirst, push: a.is == pushes, set: a.set,
	}).to
	if a.set != 0 {
		l.has = a.set
	}
	if a.is == answers || a.is == answersFirst {
		l.unanswered = a.back
	}
	l.answer = answer{}
	m.setProcess(s, i, p)
}

// endStep ends a stream at the coordinator. What it sent before still arrives.
func (m *model) endStep(w *world, i, c uint8, p process, do action) *successor {
	s := m.add(w, do, i, c)
	x := *m.coordinators.at(w.coordinators[c])
	x.detector = m.detectors.tell(hint{from: x.detector, what: closed, at: i}).to
	m.forget(&x, i)
	m.setCoordinator(s, c, x)
	l := &p.links[c]
	l.cut()
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
			q := m.processes.at(w.processes[k])
			if k != i && q.life == alive && m.members.at(q.core).acts[region] != 0 && m.fenced(region) {
				m.breaks(s, oneAMoment)
			}
		}
	}
	m.setProcess(s, i, p)
}
