package explorer

// leaderSteps are those of the root alone. An election ends the claims under
// way: what the old leader had committed was a step before, what it had not is
// lost behind the new leader's own entry. It starts the wait of rule 3 anew.
func (m *model) leaderSteps(w *world) {
	r := m.root(w)
	if !m.still && m.electionMatters(w, r) {
		s := m.add(w, electLeader, 0, 0)
		s.world.since = 0
		if m.off == newLeaderWaits {
			s.world.since = m.wait()
		}
		s.world.dropClaims()
	}
	if w.orphan != noClaim {
		s := m.add(w, commitOrphan, 0, 0)
		m.commit(s, nil, w.orphan)
	}
	if m.off == releaseExactly && r.era != 0 && !r.retired && m.expired(w) && w.inherited[r.era] < r.fence {
		// The leader gives the window of a holder that it found expired back to
		// the frontier that it knows of.
		s := m.add(w, releaseWindow, 0, 0)
		m.do(&s.world, command{kind: retireTenure, a: r.era, b: r.holder, c: w.inherited[r.era]})
	}
	if r.given-m.regions < m.rootIDs && r.fence < m.values {
		m.giveRootID(w, r)
	}
}

func (m *model) electionMatters(w *world, r *rooted) bool {
	return w.orphan != noClaim || w.anyClaim() || m.ttl > 0 && r.era != 0 && !r.retired
}

func (w *world) anyClaim() bool {
	for i := range w.processes {
		if w.processes[i].claim != noClaim {
			return true
		}
	}
	return false
}

func (w *world) dropClaims() {
	for i := range w.processes {
		w.processes[i].claim = noClaim
	}
	w.orphan = noClaim
}

// expired is rule 3, as replica's untilExpired has it.
func (m *model) expired(w *world) bool { return m.ttl == 0 || w.since >= m.wait() }

// giveRootID lets the root take an id for a region from the fence itself.
func (m *model) giveRootID(w *world, r *rooted) {
	s := m.add(w, giveRootID, 0, 0)
	if o := m.do(&s.world, command{kind: publishRegion, a: r.given}); rejected(o) {
		panic("explorer: the root refused a region")
	}
	m.own(s, m.root(&s.world).fence)
}

// own gives a value to a client, or to a region.
func (m *model) own(s *successor, v uint8) {
	w := &s.world
	if w.accepted&(1<<v) != 0 {
		m.breaks(s, allocID)
	}
	w.accepted |= 1 << v
	w.most = max(w.most, v)
}

// claimSteps are rules 1 and 3. A claim is sent, arrives and is judged in one
// step: a claim that takes longer finds its era over, or is as if sent later.
func (m *model) claimSteps(w *world, i uint8) {
	p, r := &w.processes[i], m.root(w)
	if p.claim != noClaim {
		s := m.add(w, commitClaim, i, 0)
		m.commit(s, &s.world.processes[i], p.claim)
	}
	if p.late != 0 && (accepts(w, p) || m.off == newIncarnation) && p.late-1 == r.era && (r.era == 0 || r.retired) && r.era < m.eras {
		s := m.add(w, commitLate, i, 0)
		s.world.processes[i].late = 0
		m.commit(s, &s.world.processes[i], claimed)
	}
	own := p.grant != 0 && p.grant == r.era
	if own && r.holds(p, p.grant) {
		// The answer was lost: the claim is sent again and found applied.
		s := m.add(w, repeatClaim, i, 0)
		size := m.firstWindow(r)
		o := m.do(&s.world, command{kind: claimTenure, a: p.id, b: r.era - 1, c: size})
		if size == 0 && o.to != w.root || rejected(o) {
			m.roots.wrong("a repeated claim of era %d was %v", r.era, o.result)
		}
		if size > 0 { // it has no identity: the window is another one
			q := &s.world.processes[i]
			q.grantFrom, q.grantUpTo = o.from, o.upTo
		}
		s.world.since = 0
	}
	if p.phase != standby || p.claim != noClaim || own || r.era == m.eras || !accepts(w, p) {
		return
	}
	as := claimed
	if r.era != 0 && !r.retired {
		if !m.expired(w) && !r.holds(p, r.era) {
			return // Who claims over its own era has stopped before.
		}
		as = claimedOver
	}
	s := m.add(w, sendClaim, i, uint8(as))
	q := &s.world.processes[i]
	q.claim, q.grant, q.grantAbove, q.grantFrom, q.grantUpTo = as, 0, 0, 0, 0
	if m.restore {
		q.late = r.era + 1
	}
}

// commit applies a claim over the current era: it is one entry. p is nil when
// the claimant is gone.
func (m *model) commit(s *successor, p *process, as claim) {
	w := &s.world
	before := m.root(w)
	id := m.freeID(w)
	if p != nil && p.id != 0 {
		id = p.id
	}
	o := m.do(w, command{kind: claimTenure, a: id, b: before.era, c: m.firstWindow(before), flag: as == claimedOver})
	after := m.root(w)
	if rejected(o) {
		m.roots.wrong("the root refused a claim over era %d: %v", before.era, o.reason)
		return
	}
	if after.era <= w.given {
		m.breaks(s, primacy) // An era is given twice.
	}
	w.given = max(w.given, after.era)
	for i := range m.processes {
		if q := &w.processes[i]; q.held != 0 && q.left > 0 && (p == nil || q != p || q.held != after.era) {
			// Whose confirmation still holds serves beside the new era.
			m.breaks(s, primacy)
		}
	}
	w.inherited[after.era] = after.inherited
	w.since = 0
	w.dropClaims()
	if p == nil {
		return
	}
	p.id = id
	if p.held != after.era {
		p.grant, p.grantAbove, p.grantFrom, p.grantUpTo = after.era, after.inherited, o.from, o.upTo
	}
}

// firstWindow is the size of the window that a claim brings: none when the bounds
// leave no room, as replica's windowsFit has it.
func (m *model) firstWindow(r *rooted) uint8 {
	if !m.claimed || r.fence+m.window > m.values {
		return 0
	}
	return m.window
}

// freeID is an identity that nobody has.
func (m *model) freeID(w *world) uint8 {
	taken := uint32(1) | 1<<m.root(w).holder
	if w.backup != 0 && w.backup != restoredAlready {
		taken |= 1 << m.roots.at(w.backup-1).holder
	}
	for i := range m.processes {
		taken |= 1 << w.processes[i].id
	}
	id := uint8(0)
	for taken&(1<<id) != 0 {
		id++
	}
	return id
}

// timeSteps let time pass, for each clock that counts something at a rate of
// its own within the bound. Whoever does nothing meanwhile was suspended.
func (m *model) timeSteps(w *world) {
	var counting [maxProcesses]bool
	n := 0
	for i := range m.processes {
		p := &w.processes[i]
		counting[i] = p.left > 0
		for _, f := range p.flights {
			counting[i] = counting[i] || (f.is == asking || f.is == answeredActive) && f.age < m.ttl
		}
		if counting[i] {
			n++
		}
	}
	leader := w.since < m.wait()
	if n == 0 && !leader {
		return
	}
	rates := []uint8{slow, fast}
	if m.off == countSleep {
		rates = []uint8{0, slow, fast}
	}
	m.tickLeader(w, leader, counting, rates)
}

func (m *model) tickLeader(w *world, leader bool, counting [maxProcesses]bool, rates []uint8) {
	for _, rate := range []uint8{slow, fast} {
		next := *w
		next.since = min(w.since+rate, m.wait())
		m.tickProcesses(w, &next, 0, counting, rates, rate)
		if !leader {
			return
		}
	}
}

// tickProcesses gives each counting clock from i on each rate.
func (m *model) tickProcesses(w, next *world, i int, counting [maxProcesses]bool, rates []uint8, shown uint8) {
	if i == m.processes {
		s := m.add(w, passTime, shown, 0)
		s.world = *next
		return
	}
	if !counting[i] {
		m.tickProcesses(w, next, i+1, counting, rates, shown)
		return
	}
	before := next.processes[i]
	for _, rate := range rates {
		next.processes[i] = before
		next.processes[i].tick(rate, m.ttl)
		m.tickProcesses(w, next, i+1, counting, rates, shown)
	}
	next.processes[i] = before
}

// tick lets the clock of p count.
func (p *process) tick(rate, ttl uint8) {
	p.left -= min(p.left, rate)
	for k := range p.flights {
		if f := &p.flights[k]; f.is == asking || f.is == answeredActive {
			f.age = min(f.age+rate, ttl)
		}
	}
}
