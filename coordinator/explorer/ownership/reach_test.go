package ownership

import "github.com/nokv/nokv/internal/testing/breadth"

// calmSteps is how many steps without another fault a world may take until everything
// is served.
const calmSteps = 300

// calm is what happens when nothing goes wrong, in this order.
var calm = [...]action{passAnswer, hearAnswer, answerCall, passFrame, hearFrame, hearEnd, endStream, follow, commit, openStream, sendFrame, reply, exit, passTime}

// onward is the way on without another fault, the same one always: what is under way
// arrives, and time passes when there is nothing else. Nil: there is none.
func (m *model) onward(w *world, until action) *successor {
	m.begin(w)
	for _, do := range calm {
		for i := range len(m.begun) {
			if m.begun[i].step.do != do {
				continue
			}
			m.out = m.out[:0]
			m.react(m.begun[i])
			for k := range m.out {
				if s := &m.out[k]; !s.fault && s.world != *w {
					return s
				}
			}
		}
		if do == until {
			return nil
		}
	}
	return nil
}

// reach goes on from every nth world without another fault, until all regions are
// served and no move is under way, or nobody is left to serve. It returns how many worlds were asked and the way from
// one that does not get there, or nil.
func (s *search) reach(nth int) (asked int, stuck []world) {
	good := breadth.NewSet[world]()
	for i := 0; i < s.worlds.Len(); i += nth {
		if !s.hasRoom(s.worlds.At(i)) {
			continue
		}
		asked++
		way := []world{*s.worlds.At(i)}
		for at := way[0]; !good.Has(&at) && !s.allServed(&at) && s.hasRoom(&at); way = append(way, at) {
			next := s.onward(&at, passTime)
			if next == nil || len(way) > calmSteps {
				return asked, append(s.worlds.Path(i), way[1:min(len(way), 60)]...)
			}
			at = next.world
		}
		for k := range way {
			good.Add(&way[k])
		}
	}
	return asked, nil
}

// hasRoom says that there is somebody to serve, and that the log has room for it.
func (m *model) hasRoom(w *world) bool {
	r := m.roots.at(w.root)
	if r.token()+8 > uint64(m.tokens) {
		return false
	}
	for i := range m.config.processes {
		p := m.processes.at(w.processes[i])
		if p.life == alive && !m.members.at(p.core).leaving && r.actsAs(int(i)) && r.draining&(1<<i) == 0 {
			return true
		}
	}
	return false
}
