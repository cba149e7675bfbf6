package explorer

import "github.com/nokv/nokv/coordinator/idalloc"

// lifeSteps are a process's start, its end, and how it learns of eras.
func (m *model) lifeSteps(w *world, i uint8) {
	p, r := &w.processes[i], m.root(w)
	ended := p.phase == stopped && p.retire == 0 && p.claim == noClaim && p.grant == 0
	if !m.calm || ended || !accepts(w, p) {
		if fresh := (process{incarnation: w.incarnation}); *p != fresh {
			s := m.add(w, crash, i, 0)
			m.crash(&s.world, i)
		}
	}
	if p.grant != 0 {
		s := m.add(w, hearGrant, i, 0)
		m.begin(&s.world, i)
	}
	if p.held != 0 && (r.era != p.held || r.retired || !accepts(w, p)) {
		s := m.add(w, hearOver, i, 0)
		m.end(&s.world, i)
	}
	if m.again && p.phase == holding && r.holds(p, p.held) && accepts(w, p) && p.claim == noClaim && r.era < m.eras {
		s := m.add(w, giveUp, i, 0)
		if q := &s.world.processes[i]; m.off == stopThenClaim {
			q.claim = claimedOver
		} else {
			m.end(&s.world, i)
		}
	}
	if m.calm {
		return
	}
	switch {
	case p.phase == holding:
		s := m.add(w, shutDown, i, 0)
		s.world.processes[i].phase = draining
	case p.phase == standby && (p.claim != noClaim || p.grant != 0):
		s := m.add(w, shutDown, i, 0)
		s.world.processes[i].phase = stopped
	}
	if p.phase == draining && p.retire == 0 {
		m.retire(w, i)
	}
	if p.retire != 0 {
		m.retireSteps(w, i)
	}
}

// crash ends a process; another one starts in its place. What it has sent to
// the root and not been answered is as if it had arrived before, but claims.
func (m *model) crash(w *world, i uint8) {
	p := &w.processes[i]
	w.orphan = max(w.orphan, p.claim)
	m.drop(w, i)
	*p = process{incarnation: w.incarnation}
}

// drop fails the calls that process i has not served.
func (m *model) drop(w *world, i uint8) {
	for k := range m.calls {
		if c := &w.calls[k]; (c.is == generated || c.is == waiting) && c.process == i {
			*c = call{}
		}
	}
}

// begin takes up the era granted: Core.begin and RawHolder.begin.
func (m *model) begin(w *world, i uint8) {
	p := &w.processes[i]
	if p.held != 0 {
		m.end(w, i)
	}
	era, above, from, upTo := p.grant, p.grantAbove, p.grantFrom, p.grantUpTo
	p.grant, p.grantAbove, p.grantFrom, p.grantUpTo = 0, 0, 0, 0
	if p.phase == stopped {
		p.retire, p.retireAt = era, above
		return
	}
	p.phase, p.held = holding, era
	switch {
	case m.off == windowPerEra && p.runs != 0:
		// The allocator is there already.
	case m.off == startAboveFence && above > 0:
		r := idalloc.NewRuns(uint64(above - 1))
		if err := r.Add(uint64(above-1), uint64(above)); err != nil {
			panic(err)
		}
		p.runs = m.runs.number(r)
	default:
		p.runs = m.runs.number(idalloc.NewRuns(uint64(above)))
	}
	if upTo > from { // era.takeFirst
		r := m.runs.get(p.runs)
		if err := r.Add(uint64(from), uint64(upTo)); err != nil {
			m.roots.wrong("a window that came with a claim is refused: %v", err)
		}
		p.runs, p.fenced = m.runs.number(r), 1
	}
}

// end stops acting for the era: Core.end and RawHolder.end. A window that
// was asked for stays under way.
func (m *model) end(w *world, i uint8) {
	m.drop(w, i)
	p := &w.processes[i]
	if p.phase == draining {
		p.phase = stopped
	} else if p.phase == holding {
		p.phase = standby
	}
	p.held, p.confirmed, p.fenced, p.left, p.checked = 0, 0, 0, 0, 0
	p.flights = [maxFlights]flight{}
	if m.off != windowPerEra {
		p.runs = 0
	}
	if p.ask != asked {
		p.ask, p.askEra, p.askFrom, p.askUpTo = noAsk, 0, 0, 0
	}
}

// retire ends the era of a drained process and sends its exact frontier.
func (m *model) retire(w *world, i uint8) {
	p := &w.processes[i]
	s := m.add(w, drained, i, 0)
	q := &s.world.processes[i]
	runs := m.runs.get(p.runs)
	q.retire, q.retireAt = p.held, uint8(runs.Consumed())
	if m.off != closeThenRetire {
		m.end(&s.world, i)
	}
}

func (m *model) retireSteps(w *world, i uint8) {
	p := &w.processes[i]
	s := m.add(w, commitRetire, i, 0)
	q := &s.world.processes[i]
	q.retire, q.retireAt = 0, 0
	if accepts(w, p) {
		m.do(&s.world, command{kind: retireTenure, a: p.retire, b: p.id, c: p.retireAt})
	}
	s = m.add(w, loseRetire, i, 0)
	q = &s.world.processes[i]
	q.retire, q.retireAt = 0, 0
}

// confirmSteps are rule 2, and the stages of the handover.
func (m *model) confirmSteps(w *world, i uint8) {
	p := &w.processes[i]
	if p.held == 0 {
		return
	}
	n := p.flying()
	if n < m.flights && m.wantsConfirm(w, i, n) {
		s := m.add(w, sendConfirm, i, 0)
		s.world.processes[i].flights[n] = flight{is: asking}
	}
	for k := range n {
		m.flightSteps(w, i, k)
	}
	m.advanceStep(w, i)
}

// wantsConfirm is Core.confirmAt: with a ttl at any time, else when somebody
// waits that no flight will serve.
func (m *model) wantsConfirm(w *world, i, flying uint8) bool {
	if m.ttl > 0 || m.eager || w.processes[i].confirmed == 0 && flying == 0 {
		return true
	}
	if m.off == generateThenCheck {
		return flying == 0
	}
	for k := range m.calls {
		if c := &w.calls[k]; c.is == waiting && c.process == i && c.ticket >= flying {
			return true
		}
	}
	return false
}

func (m *model) flightSteps(w *world, i, k uint8) {
	p, r := &w.processes[i], m.root(w)
	f := p.flights[k]
	lost := m.add(w, loseConfirm, i, k)
	m.land(&lost.world, i, k)
	switch f.is {
	case asking:
		active := r.holds(p, p.held) && accepts(w, p)
		if active && w.fencedByClaim() && m.off != confirmNobody {
			return // It is held until the claim's outcome is known.
		}
		s := m.add(w, judgeConfirm, i, k)
		g := &s.world.processes[i].flights[k]
		if g.is = answeredActive; active {
			s.world.since = 0
		} else {
			g.is, g.age = answeredOver, 0
		}
	case answeredOver:
		s := m.add(w, hearConfirm, i, k)
		m.end(&s.world, i)
	case answeredActive:
		s := m.add(w, hearConfirm, i, k)
		m.confirm(s, i, k)
	}
}

// land takes flight k of process i away.
func (m *model) land(w *world, i, k uint8) {
	p := &w.processes[i]
	copy(p.flights[k:], p.flights[k+1:])
	p.flights[maxFlights-1] = flight{}
	for j := range m.calls {
		if c := &w.calls[j]; c.is == waiting && c.process == i && c.ticket > k {
			c.ticket--
		}
	}
}

// confirm is Core.OnConfirmed and RawHolder.confirm of an active era.
func (m *model) confirm(s *successor, i, k uint8) {
	w := &s.world
	p := &w.processes[i]
	f := p.flights[k]
	p.confirmed, p.checked = 1, 1
	if m.ttl > 0 {
		left := m.ttl - f.age
		if m.off == countFromRequest {
			left = m.ttl
		}
		p.left = max(p.left, left)
		m.atMostOne(s)
	}
	for j := range m.calls {
		if c := &w.calls[j]; c.is == waiting && c.process == i && (c.ticket <= k || p.left > 0) {
			m.serve(s, uint8(j))
		}
	}
	m.land(w, i, k)
}

// atMostOne is Primacy: the confirmations of two processes never both hold.
func (m *model) atMostOne(s *successor) {
	n := 0
	for i := range m.processes {
		if p := &s.world.processes[i]; p.held != 0 && p.left > 0 {
			n++
		}
	}
	if n > 1 {
		m.breaks(s, primacy)
	}
}

// advanceStep proposes the stages that the handover has earned: Core.target
// and RawHolder.sendAdvance. It is one step: a stage may be asked for again.
func (m *model) advanceStep(w *world, i uint8) {
	p, r := &w.processes[i], m.root(w)
	target := uint8(1)
	if p.confirmed != 0 {
		target += 1 + p.fenced
	}
	if r.era != p.held || !accepts(w, p) || uint8(r.stage) >= target {
		return
	}
	s := m.add(w, advance, i, target)
	o := m.do(&s.world, command{kind: advanceHandover, a: p.held, b: uint8(r.stage), c: target})
	if rejected(o) || uint8(m.root(&s.world).stage) != target {
		m.breaks(s, finality)
	}
	if target == 3 && r.fence <= w.inherited[r.era] {
		m.breaks(s, finality) // Closed before its first window.
	}
}

// windowSteps root windows ahead of use: RawHolder.extend.
func (m *model) windowSteps(w *world, i uint8) {
	p := &w.processes[i]
	if p.held != 0 && p.ask == noAsk {
		runs := m.runs.get(p.runs)
		top := uint8(runs.Top())
		if to := top + m.window; to <= m.values {
			s := m.add(w, askWindow, i, 0)
			q := &s.world.processes[i]
			q.ask, q.askEra, q.askFrom, q.askUpTo = asked, p.held, top, to
		}
	}
	switch p.ask {
	case asked:
		m.judgeWindow(w, i)
	case askGiven, askRefused, askOver:
		s := m.add(w, hearWindow, i, 0)
		m.hearWindow(&s.world, i)
		if p.ask == askGiven {
			return // Asked again, the same window is told: the command has an identity.
		}
		s = m.add(w, loseWindow, i, 0)
		q := &s.world.processes[i]
		if q.ask == askRefused {
			q.askUpTo = q.askFrom + m.window
		}
		q.ask = asked
	}
}

func (m *model) judgeWindow(w *world, i uint8) {
	p := &w.processes[i]
	s := m.add(w, judgeWindow, i, 0)
	q := &s.world.processes[i]
	if accepts(w, p) {
		o := m.do(&s.world, command{kind: extendFence, a: p.askEra, b: p.askFrom, c: p.askUpTo})
		switch {
		case !rejected(o):
			q.ask, q.askFrom, q.askUpTo = askGiven, o.from, o.upTo
		case eraOver(o.reason):
			q.ask = askOver
		default:
			q.ask, q.askUpTo = askRefused, o.refence
		}
	} else {
		q.ask = askOver
	}
	if p.held != p.askEra {
		q.ask, q.askEra, q.askFrom, q.askUpTo = noAsk, 0, 0, 0
	}
}

// hearWindow is RawHolder.onExtension.
func (m *model) hearWindow(w *world, i uint8) {
	p := &w.processes[i]
	runs := m.runs.get(p.runs)
	switch p.ask {
	case askGiven:
		if err := runs.Add(uint64(p.askFrom), uint64(p.askUpTo)); err != nil {
			m.roots.wrong("a window that was given is refused: %v", err)
		}
		p.fenced = 1
	case askRefused:
		runs.Skip(uint64(p.askUpTo))
	}
	over := p.ask == askOver
	p.runs = m.runs.number(runs)
	p.ask, p.askEra, p.askFrom, p.askUpTo = noAsk, 0, 0, 0
	if over {
		m.end(w, i)
	}
}
