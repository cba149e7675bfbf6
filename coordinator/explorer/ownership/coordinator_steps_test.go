package ownership

import (
	"github.com/nokv/nokv/coordinator/liveness"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

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
	x := *m.coordinators.at(s.world.coordinators[c])
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
	x := m.coordinators.at(w.coordinators[c])
	d := m.detectors.at(x.detector)
	if d.era == 0 || x.landed != 0 || x.ops != [maxOps]uint16{} || m.full(w) {
		return nil
	}
	return m.detectors.plan(planning{view: d.view, takes: d.takes, clear: d.clear, left: d.left, late: late, soft: x.soft, shown: x.shown})
}

func (m *model) planStep(s *successor, c uint8) {
	m.send(s, c, m.plans(&s.world, c, inTime))
}

func (m *model) send(s *successor, c uint8, ops []uint16) {
	if len(ops) == 0 {
		return
	}
	x := *m.coordinators.at(s.world.coordinators[c])
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
	m.moved(s, o, m.roots.at(w.root), m.detectors.at(x.detector).left)
	if !m.lag {
		m.follow(s, c)
	}
}

// moved looks at the frontiers of regions with other owners than before: behind a move, behind an owner
// whose last word had come to the coordinator by then, and behind one whose verdict says that it is gone.
func (m *model) moved(s *successor, o outcome, before *truth, left uint8) {
	r := m.roots.at(o.to)
	for region := range m.config.regions {
		has, told := r.regions[region].frontier, o.moved&(1<<region) != 0
		if owner := before.processOf(before.regions[region].by); owner >= 0 && (left|before.gone)&(1<<owner) != 0 {
			told = told || o.granted&(1<<region) != 0
		}
		if told && has != s.world.acknowledged[region] {
			m.breaks(s, frontier)
		}
		if (o.moved|o.granted)&(1<<region) != 0 {
			s.world.acknowledged[region] = has
		}
	}
}

// truths are what a probe of a process may find.
func (m *model) mayAnswer(w *world, i int) []liveness.ProbeResult {
	p := m.processes.at(w.processes[i])
	switch {
	case p.life == alive && !m.strange:
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
		words = m.detectors.at(m.coordinators.at(s.world.coordinators[1-c]).detector).heard
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
			m.turnStep(*s, c, x, hint{from: x.detector, what: turnsUnanswered, probes: probes}, true)
		}
	}
}

func (m *model) turnStep(s successor, c uint8, x coordinator, h hint, fault bool) {
	o := m.detectors.tell(h)
	r := m.roots.at(m.detectors.at(x.detector).view)
	x.detector = o.to
	for i := range m.config.processes {
		if m.off == othersHearNoOwner && m.detectors.at(m.coordinators.at(s.world.coordinators[1-c]).detector).heard[i] != 0 {
			continue
		}
		last := lastWords{gone: o.gone&(1<<i) != 0}
		if last.gone && m.off != lastWordCounts && m.off != lastWordRooted {
			last.released = m.released(r, &x, i)
		}
		if o.verdicts&(1<<i) != 0 && !x.send(m.roots.verdict(int(i), r.incarnation(int(i)), m.detectors.planEra(r), false, last)) {
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

// released is how far a process that has said its last word got with what it released, as far as that is
// not rooted: assigner's lastWords.
func (m *model) released(r *truth, x *coordinator, i uint8) (all [maxRegions]release) {
	for region := range m.config.regions {
		if x.soft[region][i] == 0 {
			continue
		}
		said, is := m.members.reports.at(x.soft[region][i]), &r.regions[region]
		own := uint64(is.by) == r.incarnation(int(i)) && is.conf == said.conf && number(said.frontier) != is.frontier
		if said.phase == coordinatorv1.RegionPhase_REGION_PHASE_RELEASED && said.fronted && (own || said.conf > is.conf) {
			all[region] = release{said.conf, number(said.frontier)}
		}
	}
	return all
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
		if m.processes.at(w.processes[i]).life != deadNow || !r.actsAs(int(i)) {
			continue
		}
		s := m.add(w, endProcess, i, 0)
		s.world.root = m.roots.do(w.root, m.roots.verdict(int(i), r.incarnation(int(i)), 0, true, lastWords{})).to
		s.fault = true
		m.holderFollows(s)
	}
}

// grantSteps have an operator, or another planner, grant what the holder finds free, to
// anybody that the holder would.
func (m *model) grantSteps(w *world) {
	for c := range m.config.coordinators {
		x := *m.coordinators.at(w.coordinators[c])
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
			if p := *m.processes.at(w.processes[i]); p.life == alive {
				p.core = m.members.tell(happening{from: p.core, what: passes, at: rate[0]}).to
				m.setProcess(s, i, p)
			}
		}
		for c := range m.config.coordinators {
			x := *m.coordinators.at(w.coordinators[c])
			x.detector = m.detectors.tell(hint{from: x.detector, what: timePasses, at: rate[1]}).to
			m.setCoordinator(s, c, x)
		}
	}
}
