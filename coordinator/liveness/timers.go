package liveness

import "github.com/nokv/nokv/internal/clock"

// never is later than every moment.
const never = clock.Instant(1<<63 - 1)

// timers order members by when they are to be looked at, then by id: a heap of
// four branches, in which each member stands once at most.
type timers []timer

type timer struct {
	at clock.Instant
	m  *member
}

const branches = 4

func (a timer) before(b timer) bool { return a.at < b.at || a.at == b.at && a.m.id < b.m.id }

// set looks at the member at a moment; never: not.
func (t *timers) set(m *member, at clock.Instant) {
	switch {
	case at == never:
		t.remove(m)
	case m.place < 0:
		*t = append(*t, timer{})
		t.settle(len(*t)-1, timer{at, m})
	default:
		t.settle(int(m.place), timer{at, m})
	}
}

// soon looks at the member at a moment, unless it is looked at sooner.
func (t *timers) soon(m *member, at clock.Instant) {
	if m.place < 0 || at < (*t)[m.place].at {
		t.set(m, at)
	}
}

func (t *timers) remove(m *member) {
	i, last := int(m.place), len(*t)-1
	if i < 0 {
		return
	}
	moved := (*t)[last]
	(*t)[last] = timer{}
	*t = (*t)[:last]
	m.place = -1
	if i < last {
		t.settle(i, moved)
	}
}

// settle finds the place of a timer, from a place that is free.
func (t timers) settle(i int, x timer) {
	for i > 0 && x.before(t[(i-1)/branches]) {
		i = t.put(i, t[(i-1)/branches], (i-1)/branches)
	}
	for {
		least, first := i, branches*i+1
		for k := first; k < min(first+branches, len(t)); k++ {
			if least == i && t[k].before(x) || least != i && t[k].before(t[least]) {
				least = k
			}
		}
		if least == i {
			t.put(i, x, i)
			return
		}
		i = t.put(i, t[least], least)
	}
}

// put puts a timer at a place, and says which one is free now.
func (t timers) put(i int, x timer, free int) int {
	t[i] = x
	x.m.place = int32(i)
	return free
}
