package explorer

// reach finds the worlds from which a client may still be served by the current
// era with no handover open: backwards from the steps that do so, over the whole
// graph. It returns how many worlds were asked and the number of one from which
// it cannot be reached without a further fault, or -1. It needs a search that
// saw everything.
func (s *search) reach() (asked, stuck int) {
	good := make([]bool, s.worlds.n)
	var left []uint32
	missing := 0
	for i := s.worlds.n - 1; i >= 0; i-- {
		w := s.worlds.at(i)
		room := s.hasRoom(w)
		if room {
			asked++
		}
		if s.hopeless(w) {
			continue
		}
		if good[i] = s.leadsOn(i, good); !good[i] {
			left = append(left, uint32(i))
			if room {
				missing++
			}
		}
	}
	for before := -1; before != len(left) && missing > 0; {
		before = len(left)
		kept := left[:0]
		for _, i := range left {
			good[i] = s.leadsOn(int(i), good)
			switch {
			case !good[i]:
				kept = append(kept, i)
			case s.hasRoom(s.worlds.at(int(i))):
				missing--
			}
		}
		left = kept
	}
	for i := range s.worlds.n {
		if !good[i] && s.hasRoom(s.worlds.at(i)) {
			return asked, i
		}
	}
	return asked, -1
}

// hopeless says that the bounds leave nothing to go on with: the last era has
// ended, or nobody is left that holds it.
func (m *model) hopeless(w *world) bool {
	r := m.root(w)
	if r.era < m.eras {
		return false
	}
	for i := range m.processes {
		p := &w.processes[i]
		if r.holds(p, p.held) || r.holds(p, p.grant) {
			return false
		}
	}
	return true
}

// leadsOn says whether a step of world i is the goal, or leads to a world that
// is known to reach it.
func (s *search) leadsOn(i int, good []bool) bool {
	w := *s.worlds.at(i)
	for k := range s.successors(&w) {
		next := &s.out[k]
		if next.fresh {
			return true
		}
	}
	for k := range s.out {
		next := &s.out[k]
		if next.step.isFault(&w) {
			continue
		}
		s.normalize(&next.world)
		if n, _, _, known := s.find(&next.world); known && good[n] {
			return true
		}
	}
	return false
}

// isFault says that the way on must do without the step: crashes, shutdowns and
// elections help nobody. A process that was shut down, or that the restored root
// refuses, is started again.
func (st step) isFault(w *world) bool {
	switch st.do {
	case crash:
		p := &w.processes[st.who]
		return p.phase != stopped && accepts(w, p)
	case shutDown, electLeader, restoreRoot:
		return true
	}
	return false
}

// hasRoom says that the bounds leave an era and a window to go on with: only
// such worlds can be asked for more.
func (m *model) hasRoom(w *world) bool {
	r := m.root(w)
	return r.era < m.eras && r.fence+m.window <= m.values
}
