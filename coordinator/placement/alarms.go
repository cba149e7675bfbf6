package placement

import (
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

// never is later than every moment.
const never = clock.Instant(1<<63 - 1)

// alarm is when a region is to be looked at again.
type alarm struct {
	at     clock.Instant
	region state.RegionID
}

// alarms are a heap; one that is not what later says of its region is over.
type alarms []alarm

func (a *alarms) push(x alarm) {
	*a = append(*a, x)
	h := *a
	for i := len(h) - 1; i > 0 && h[i].at < h[(i-1)/2].at; i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
}

func (a *alarms) pop() alarm {
	h := *a
	top, last := h[0], len(h)-1
	h[0] = h[last]
	*a = h[:last]
	h = *a
	for i := 0; ; {
		least := i
		for k := 2*i + 1; k <= 2*i+2 && k < len(h); k++ {
			if h[k].at < h[least].at {
				least = k
			}
		}
		if least == i {
			return top
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// next is when the first alarm goes that is not over.
func (a *alarms) next(later map[state.RegionID]clock.Instant) clock.Instant {
	for len(*a) > 0 {
		if x := (*a)[0]; later[x.region] == x.at {
			return x.at
		}
		a.pop()
	}
	return never
}
