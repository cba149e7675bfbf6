package explorer

import (
	"bytes"
	"unsafe"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Sizes of a world. A configuration may use less.
const (
	maxProcesses = 3
	maxCalls     = 2
	maxFlights   = 2
	maxEras      = 4
	// maxValue is the highest value that a world can tell apart.
	maxValue = 15
)

// config is one exploration: how large the world is and what may happen in it.
type config struct {
	name string
	// processes is the number of coordinators; calls are outstanding at once,
	// of clients of their own, or all of one client.
	processes, calls int
	oneClient        bool
	// ttl is in units of local clocks, of which a tick of true time is slow or
	// fast; 0: every value is confirmed.
	ttl uint8
	// eras and values bound what is given; window is the size of a window.
	eras, values, window uint8
	// flights is how many confirmations may be in flight.
	flights uint8
	mandate rootv1.Mandate
	// rootIDs is how many ids the root may give by itself.
	rootIDs uint8
	// restore allows one restore from one backup.
	restore bool
	// claimed windows: a claim brings the first window of its era.
	claimed bool
	// calm leaves out crashes and shutdowns, still the leader changes.
	calm, still bool
	// again: a holder may give its era up, to claim over it.
	again bool
	// eager coordinators ask to be confirmed at any time. With a ttl of 0 that
	// changes nothing but the number of worlds: a confirmation serves only calls
	// that waited when it was sent.
	eager bool
	// onwards: it is also asked whether a client can be served from everywhere.
	onwards bool
	// off is the rule left out; blind has a bit for each predicate that is not
	// looked at.
	off   rule
	blind uint16
}

// Rates of local clocks: what they count during a tick of true time. wait is
// rule 3's: the ttl, and as much more as fast is more than slow.
const (
	slow = 2
	fast = 3
)

func (c *config) wait() uint8 { return c.ttl * fast / slow }

// world is a state of the model: bytes only, so that it is comparable and has
// no padding.
type world struct {
	// root is the index of the rooted state in the table; backup that of the
	// backed up one, plus 1.
	root, backup uint16
	// accepted has a bit for each value that a client has, while it matters.
	accepted uint16
	// most is the highest value that a client has.
	most uint8
	// since is what the leader's clock has counted since it last confirmed the
	// current era, or since its election.
	since uint8
	// orphan is a claim of a dead process at the leader.
	orphan claim
	// incarnation is that of the root, given the highest era it ever gave.
	incarnation, given uint8
	// inherited is what each era started above.
	inherited [maxEras + 2]uint8
	// floors are the highest reigns that the clients have seen.
	floors    [maxCalls]reign
	calls     [maxCalls]call
	processes [maxProcesses]process
}

// reign is a cluster incarnation and an era in it; it orders.
type reign uint8

func reignOf(incarnation, era uint8) reign { return reign(incarnation<<4 | era) }

func (r reign) era() uint8         { return uint8(r & 15) }
func (r reign) incarnation() uint8 { return uint8(r >> 4) }

// claim is what the leader has of a claim over the current era.
type claim uint8

const (
	noClaim claim = iota
	// claimed: there is no era to expire.
	claimed
	// claimedOver: the leader found the era expired.
	claimedOver
)

type phase uint8

const (
	standby phase = iota
	holding
	draining
	// stopped: it will not hold an era again.
	stopped
)

// process is one life of a coordinator. The zero process has just started.
type process struct {
	// id is its identity in rooted records; 0: in none.
	id          uint8
	incarnation uint8
	phase       phase
	claim       claim
	// grant is an era that was given to it and that it has not heard of, with
	// the frontier inherited and the window that the claim brought.
	grant, grantAbove    uint8
	grantFrom, grantUpTo uint8
	// held is the era held, confirmed and fenced what it has heard about it.
	held, confirmed, fenced uint8
	// left is for how long, by its clock, the era counts as confirmed.
	left    uint8
	flights [maxFlights]flight
	// runs is the index of its idalloc.Runs in the table, plus 1.
	runs uint8
	// ask is a window asked for, by the era askEra.
	ask              ask
	askEra           uint8
	askFrom, askUpTo uint8
	// retire is an era to be retired in a request under way, with its frontier.
	retire, retireAt uint8
	// late is a copy of an old claim that is still under way: the era that it
	// expects, plus 1.
	late uint8
	// checked: the guard was asked before values were generated.
	checked uint8
}

// flight is a confirmation, or its answer, under way; sent first comes first.
type flight struct {
	is flightIs
	// age is what the holder's clock has counted since it was sent.
	age uint8
}

type flightIs uint8

const (
	noFlight flightIs = iota
	asking
	answeredActive
	answeredOver
)

type ask uint8

const (
	noAsk ask = iota
	asked
	askGiven
	// askRefused: the fence is another one, in askUpTo.
	askRefused
	askOver
)

// call is a request of a client.
type call struct {
	is callIs
	// process has it, until it is served.
	process uint8
	value   uint8
	reign   reign
	// ticket is how many flights were under way when it asked to be confirmed:
	// those behind them serve it.
	ticket uint8
	// most and began are what was true when the call began: the highest value
	// that any client had, and the lowest reign that might still be served.
	most  uint8
	began reign
}

type callIs uint8

const (
	idle callIs = iota
	// generated: a value was taken and not checked.
	generated
	// waiting for a confirmation that is sent after the value was taken.
	waiting
	// served: the reply is under way.
	served
)

// bytesOf is the memory of a struct of bytes.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

func (p *process) flying() uint8 {
	n := uint8(0)
	for _, f := range p.flights {
		if f.is != noFlight {
			n++
		}
	}
	return n
}

func (w *world) fencedByClaim() bool {
	for i := range w.processes {
		if w.processes[i].claim == claimedOver {
			return true
		}
	}
	return w.orphan == claimedOver
}

// normalize makes worlds equal that differ in nothing that matters: the order
// of processes and of calls, ids that nobody will compare again, bits of values
// that nobody can serve again.
func (m *model) normalize(w *world) {
	r := m.roots.at(w.root)
	if r.era == 0 || r.retired || m.ttl == 0 {
		w.since = m.wait()
	}
	var used [maxEras + 2]bool
	live := ^uint16(0)<<(w.inherited[r.era]+1) | m.callValues(w)
	if r.era == 0 {
		live = ^uint16(0)
	}
	for i := range m.processes {
		p := &w.processes[i]
		used[p.held], used[p.grant] = true, true
		if p.id != 0 && p.id != r.holder && p.held == 0 && p.grant == 0 && p.retire == 0 && !m.restore {
			p.id = 0
		}
		if p.runs != 0 {
			live |= m.runs.free(p.runs)
		}
		if p.ask != noAsk {
			live |= span(p.askFrom, p.askUpTo)
		}
		live |= span(p.grantFrom, p.grantUpTo)
	}
	for i := range m.calls {
		if w.calls[i].is != idle {
			used[w.calls[i].reign.era()] = true
		}
	}
	w.accepted &= live
	for e := uint8(1); e < uint8(len(used)); e++ {
		if e != r.era && !used[e] && !used[e-1] {
			w.inherited[e] = 0
		}
	}
	m.sortProcesses(w)
	m.sortCalls(w)
}

func (m *model) callValues(w *world) (bits uint16) {
	for i := range m.calls {
		if c := &w.calls[i]; c.is != idle {
			bits |= 1 << c.value
		}
	}
	return bits
}

// span has a bit for each value in (from, to].
func span(from, to uint8) uint16 {
	if to <= from {
		return 0
	}
	return uint16((uint32(1)<<(to+1) - 1) &^ (uint32(1)<<(from+1) - 1))
}

func (m *model) sortProcesses(w *world) {
	for i := 1; i < m.processes; i++ {
		for j := i; j > 0 && bytes.Compare(bytesOf(&w.processes[j-1]), bytesOf(&w.processes[j])) > 0; j-- {
			w.processes[j-1], w.processes[j] = w.processes[j], w.processes[j-1]
			for k := range m.calls {
				c := &w.calls[k]
				if c.is != generated && c.is != waiting {
					continue
				}
				switch c.process {
				case uint8(j):
					c.process = uint8(j - 1)
				case uint8(j - 1):
					c.process = uint8(j)
				}
			}
		}
	}
}

// sortCalls sorts calls of one client, or clients of one call each.
func (m *model) sortCalls(w *world) {
	if m.calls < 2 {
		return
	}
	a, b := &w.calls[0], &w.calls[1]
	order := bytes.Compare(bytesOf(a), bytesOf(b))
	if !m.oneClient && order == 0 {
		order = int(w.floors[0]) - int(w.floors[1])
	}
	if order <= 0 {
		return
	}
	*a, *b = *b, *a
	if !m.oneClient {
		w.floors[0], w.floors[1] = w.floors[1], w.floors[0]
	}
}
