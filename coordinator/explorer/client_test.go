package explorer

import rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"

// callSteps are the life of call k. A call begins when its value is taken: had
// it begun earlier, less would be asked of its answer.
func (m *model) callSteps(w *world, k uint8) {
	switch c := &w.calls[k]; c.is {
	case idle:
		if k > 0 && m.sameCall(w, k) {
			return
		}
		for i := range m.processes {
			m.take(w, k, uint8(i))
		}
		m.hearEra(w, k)
	case generated:
		m.check(w, k)
	case waiting:
		// A confirmation serves it, or the process ends.
	case served:
		s := m.add(w, hearReply, c.process, k)
		m.accept(s, k)
		s = m.add(w, loseReply, c.process, k)
		s.world.calls[k] = call{}
	}
}

// sameCall says that call k does what the one before it does.
func (m *model) sameCall(w *world, k uint8) bool {
	return w.calls[k-1].is == idle && (m.oneClient || w.floors[k-1] == w.floors[k])
}

// clientOf is the client that makes call k.
func (m *model) clientOf(k uint8) uint8 {
	if m.oneClient {
		return 0
	}
	return k
}

// take begins call k at process i: rule 5, a value is taken first.
func (m *model) take(w *world, k, i uint8) {
	p, r := &w.processes[i], m.root(w)
	if m.off == generateThenCheck && p.checked == 0 && p.left > 0 && k == 0 {
		s := m.add(w, checkFirst, i, k)
		s.world.processes[i].checked = 1
	}
	if p.phase != holding || p.held == 0 || m.off == generateThenCheck && p.checked == 0 {
		return
	}
	runs := m.runs.get(p.runs)
	v, ok := runs.Take(0, 1)
	if !ok {
		return
	}
	s := m.add(w, takeValue, i, k)
	s.world.processes[i].runs = m.runs.number(runs)
	began := reignOf(w.incarnation, r.era)
	if r.retired {
		began++
	}
	s.world.calls[k] = call{
		is: generated, process: i, value: uint8(v), reign: reignOf(p.incarnation, p.held), most: w.most, began: began,
	}
	if m.off == generateThenCheck {
		s.world.processes[i].checked = 0
		m.serve(s, k)
	}
}

// check asks whether a value may be served: Run.Good and RawHolder.Confirm.
func (m *model) check(w *world, k uint8) {
	c := &w.calls[k]
	p := &w.processes[c.process]
	s := m.add(w, checkValue, c.process, k)
	if p.left > 0 {
		m.serve(s, k)
		return
	}
	s.world.calls[k].is, s.world.calls[k].ticket = waiting, p.flying()
}

// serve sends the reply of a call whose check has passed, and judges it.
func (m *model) serve(s *successor, k uint8) {
	w := &s.world
	c := &w.calls[k]
	r := m.root(w)
	era := c.reign.era()
	if c.reign.incarnation() == w.incarnation {
		next := w.inherited[min(era+1, maxEras+1)]
		switch {
		case c.value <= w.inherited[era], c.value > r.fence, era < r.era && c.value > next:
			// Below what its era inherited, in no rooted window, or above what
			// the successor inherited.
			m.breaks(s, inheritance)
		}
	}
	if c.reign < c.began {
		m.breaks(s, silence)
	}
	c.is, c.ticket, c.process = served, 0, 0
}

// accept is the client: rule 9, and what it may rely on.
func (m *model) accept(s *successor, k uint8) {
	w := &s.world
	c := w.calls[k]
	floor := &w.floors[m.clientOf(k)]
	w.calls[k] = call{}
	if c.reign < *floor {
		if m.off != clientFloor {
			return
		}
		m.breaks(s, silence)
	}
	*floor = max(*floor, c.reign)
	if c.reign < c.began {
		m.breaks(s, silence)
	}
	if m.mandate == rootv1.Mandate_MANDATE_TSO && c.value <= c.most {
		m.breaks(s, tsoOrder)
	}
	m.own(s, c.value)
	r := m.root(w)
	s.fresh = c.reign == reignOf(w.incarnation, r.era) && r.stage == rootv1.HandoverStage_HANDOVER_STAGE_CLOSED
}

// hearEra lets a client see the current era in some other reply.
func (m *model) hearEra(w *world, k uint8) {
	r := m.root(w)
	now := reignOf(w.incarnation, r.era)
	if m.calls < 2 || w.floors[m.clientOf(k)] >= now {
		return
	}
	s := m.add(w, hearEra, 0, k)
	s.world.floors[m.clientOf(k)] = now
}

// eraOver is eraOver of package tenure.
func eraOver(r rootv1.Reason) bool {
	switch r {
	case rootv1.Reason_REASON_ERA_STALE, rootv1.Reason_REASON_SILENCE, rootv1.Reason_REASON_PRIMACY,
		rootv1.Reason_REASON_TENURE_NOT_HELD:
		return true
	}
	return false
}

// restoreSteps take a backup and put it in the root's place, once. It is
// assumed that a restored root lets nobody claim before the confirmations of
// the old one have lapsed, and that what was rooted since the backup is within
// the gap.
func (m *model) restoreSteps(w *world) {
	if w.backup == 0 {
		s := m.add(w, backUp, 0, 0)
		s.world.backup = w.root + 1
		return
	}
	gap := m.values / 2
	if w.backup == restoredAlready {
		return
	}
	old, now := m.roots.at(w.backup-1), m.root(w)
	if now.fence > old.fence+gap || !m.expired(w) {
		return
	}
	s := m.add(w, restoreRoot, 0, 0)
	n := &s.world
	n.backup, n.since = restoredAlready, 0
	n.dropClaims()
	if m.off == newIncarnation {
		n.root = m.roots.copy(w.backup-1, gap)
	} else {
		n.root = m.roots.renew(w.backup-1, gap)
		n.incarnation, n.given = m.root(n).incarnation, 0
	}
	r := m.root(n)
	n.given = max(n.given, r.era)
	n.inherited = [maxEras + 2]uint8{}
	n.inherited[r.era] = r.fence
}

// restoredAlready stands for a backup that was used.
const restoredAlready = ^uint16(0)
