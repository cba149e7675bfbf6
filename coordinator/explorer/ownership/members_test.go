package ownership

import (
	"fmt"
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/shown"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/held"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/protobuf/proto"
)

// members is the table of what processes hold: real held.Cores, numbered. What happens to
// one is done once, to a clone, and remembered.
type members struct {
	*config
	roots   *roots
	all     []*member
	byPrint map[string]uint32
	steps   memo[happening, holdOutcome]
	frames  table[frame]
	reports table[report]
	sets    map[showing]*coordinatorv1.ShownSet
}

// member is a Core at a moment of its own clock.
type member struct {
	core        *held.Core
	process     int
	incarnation uint64
	now         clock.Instant
	// sequence is that of the newest frame of each stream.
	sequence [maxCoordinators]uint64
	// work is admitted, at most one piece.
	work []*held.Grant
	// calls are those that the application has not answered.
	calls []call
	// leaving: it was told to end.
	leaving bool

	// acts are the conf versions at which it admits work now, by region; 0: it does not.
	acts [maxRegions]uint8
	// working and workConf are region, plus 1, and epoch of the admitted work.
	working, workConf uint8
}

// call is one to the application; unwanted: it may give it up.
type call struct {
	held.Call
	unwanted bool
}

// frame is what one says, of what matters to a coordinator.
type frame struct {
	complete bool
	first    bool
	// gone: it is a last word.
	gone bool
	// reports are numbers of reports, 0: not told of.
	reports [maxRegions]uint16
}

// report is what is said of a region.
type report struct {
	gone       bool
	conf       uint8
	phase      coordinatorv1.RegionPhase
	transition string
	frontier   string
	fronted    bool
}

type showing struct {
	root    uint32
	process uint8
}

// happening is something that a Core is told.
type happening struct {
	from uint32
	what what
	// at is a coordinator, a region, a call or units of time.
	at       uint8
	frontier uint8
	// Of an answer: the frames since the one that is answered, the era, the set shown as
	// of a rooted state, plus 1.
	back, era uint8
	confirmed bool
	terms     bool
	push      bool
	set       uint32
}

type what uint8

const (
	passes what = iota
	opens
	says
	closes
	hears
	does
	fails
	admits
	checks
	retires
	stops
	leaves
	passesBack
)

type holdOutcome struct {
	to uint32
	// ok: it was admitted, it passed the check, a frame was due.
	ok    bool
	frame uint32
}

// table numbers values; 0 is none.
type table[T comparable] struct {
	all    []T
	number map[T]uint16
}

func (t *table[T]) of(v T) uint16 {
	n, known := t.number[v]
	if known {
		return n
	}
	if t.number == nil {
		t.number = map[T]uint16{}
		t.all = make([]T, 1)
	}
	n = uint16(len(t.all))
	if int(n) != len(t.all) {
		panic("ownership: a table is full")
	}
	t.all = append(t.all, v)
	t.number[v] = n
	return n
}

func (t *table[T]) at(n uint16) *T { return &t.all[n] }

func newMembers(c *config, r *roots) *members {
	// Number 0 is no Core.
	return &members{config: c, roots: r, all: make([]*member, 1), byPrint: map[string]uint32{}, steps: newMemo[happening, holdOutcome](), sets: map[showing]*coordinatorv1.ShownSet{}}
}

// start is a Core that has just registered.
func (t *members) start(process int, incarnation uint64) uint32 {
	return t.intern(&member{
		core: held.New(held.Config{Member: t.memberOf(process), Incarnation: incarnation}), process: process, incarnation: incarnation, now: clock.Instant(begin),
	})
}

func (t *members) at(i uint32) *member { return t.all[i] }

// tell tells a Core of something.
func (t *members) tell(h happening) holdOutcome {
	if o, known := t.steps.find(&h); known {
		return o
	}
	was := t.all[h.from]
	m := *was
	m.core, m.work = was.core.CloneWith(was.work)
	m.calls = slices.Clone(was.calls)
	var o holdOutcome
	t.happen(&m, h, &o)
	m.settle()
	o.to = t.intern(&m)
	t.steps.keep(&h, o)
	return o
}

func (t *members) happen(m *member, h happening, o *holdOutcome) {
	switch h.what {
	case passes:
		m.now = m.now.Add(time.Duration(h.at) * unit)
		m.core.Tick(m.now)
	case opens:
		m.core.Open(int(h.at))
		o.frame, o.ok = t.say(m, h.at)
	case says:
		o.frame, o.ok = t.say(m, h.at)
	case closes:
		m.core.Close(int(h.at))
		m.sequence[h.at] = 0
		if t.passes(uint8(m.process), h.at) {
			m.core.Close(spareStream)
		}
	case hears:
		t.hear(m, h)
	case does:
		call := m.calls[h.at]
		m.calls = slices.Delete(m.calls, int(h.at), int(h.at)+1)
		m.core.Done(call.ID, held.Result{Frontier: frontierOf(h.frontier)}, m.now)
	case fails:
		call := m.calls[h.at]
		m.calls = slices.Delete(m.calls, int(h.at), int(h.at)+1)
		m.core.Done(call.ID, held.Result{Err: "cancelled"}, m.now)
	case admits:
		g, _ := m.core.Table().Admit(held.Request{Region: regionID(h.at)}, &clock.Manual{Elapsed: m.now})
		if o.ok = g != nil; o.ok {
			m.work = append(m.work, g)
		}
	case checks:
		g := m.work[0]
		m.work = nil
		o.ok = m.core.Table().Check(g, &clock.Manual{Elapsed: m.now}) == nil
		if m.core.Table().Leave(g) {
			m.core.Drained(g.Region.ID, m.now)
		}
	case retires:
		m.core.Retire(m.now)
	case stops:
		m.leaving = true
		m.core.Stop(m.now)
	case leaves:
		m.core.Gone("it ends")
	case passesBack: // as if the frame that is answered were sent now
		m.core.Open(spareStream)
		m.core.Frame(spareStream, m.now)
	}
}

// settle takes the calls of the application. What is not about a region is answered at
// once.
func (m *member) settle() {
	for {
		calls := m.core.Calls(100, m.now)
		if len(calls) == 0 {
			return
		}
		for _, c := range calls {
			switch c.Kind {
			case held.Stop, held.Resume:
				m.core.Done(c.ID, held.Result{}, m.now)
			case held.Cancel:
				for i := range m.calls {
					m.calls[i].unwanted = m.calls[i].unwanted || m.calls[i].ID == c.ID
				}
			default:
				m.calls = append(m.calls, call{Call: c})
			}
		}
	}
}

// soon is by how much earlier than due a frame is sent: what a member does within a
// moment, it does here at the same one.
const soon = 5 * time.Millisecond

// say makes a frame if one is due.
func (t *members) say(m *member, stream uint8) (uint32, bool) {
	due := m.core.Due(int(stream))
	if due > m.now.Add(soon) {
		return 0, false
	}
	f := m.core.Frame(int(stream), max(due, m.now))
	m.sequence[stream] = f.GetSequence()
	x := frame{complete: f.GetComplete(), first: f.GetHello() != nil, gone: f.GetGoodbye().GetGone()}
	for _, r := range f.GetRegions() {
		x.reports[regionIndex(rooted.RegionID(r.GetRegionId()))] = t.reports.of(report{
			conf: uint8(r.GetEpoch().GetConfVersion()), phase: r.GetPhase(), transition: r.GetTransitionId(),
			frontier: string(r.GetFrontier()), fronted: r.GetSetFrontier(),
		})
	}
	for _, id := range f.GetGone() {
		x.reports[regionIndex(rooted.RegionID(id))] = t.reports.of(report{gone: true})
	}
	return uint32(t.frames.of(x)), true
}

// hear answers a Core.
func (t *members) hear(m *member, h happening) {
	a := &coordinatorv1.MemberAnswer{Era: uint64(h.era), Confirmed: h.confirmed}
	if !h.push {
		a.Sequence = m.sequence[h.at] - uint64(h.back)
	}
	if h.terms {
		a.Terms = &coordinatorv1.MemberTerms{IntervalMillis: ms(unit)}
		for i := range t.config.regions {
			s := t.settings(i)
			a.Terms.Keyspaces = append(a.Terms.Keyspaces, &coordinatorv1.KeyspaceTerms{
				KeyspaceId: uint32(t.roots.all[0].st.KeyspaceByName(keyspaceName(i)).GetId()), Name: keyspaceName(i), Layout: s.GetLayout(),
				Fence: s.GetOwnership().GetFence(), TtlMillis: s.GetOwnership().GetTtlMillis(), HoldRequestsMillis: 100,
			})
		}
	}
	if h.set != 0 {
		a.Set = t.set(h.set-1, m)
		if t.off == newestObeyed && rooted.TokenFromProto(a.Set.GetToken()).Compare(m.core.Obeyed()) < 0 {
			a.Set = proto.CloneOf(a.Set)
			a.Set.Token = m.core.Obeyed().Proto()
		}
	}
	passed := t.off == countFromMember && t.passes(uint8(m.process), h.at)
	if a.Confirmed && (t.off == countFromFrame || passed) {
		// A stream whose first frame is sent now, or was when this was passed back, and confirmed now.
		a.Confirmed = false
		m.must(int(h.at), a)
		if !passed {
			m.core.Open(spareStream)
			m.core.Frame(spareStream, m.now)
		}
		m.must(spareStream, &coordinatorv1.MemberAnswer{Era: a.Era, Sequence: 1, Confirmed: true})
		m.core.Close(spareStream)
		return
	}
	m.must(int(h.at), a)
}

const spareStream = held.MaxStreams - 1

func (m *member) must(stream int, a *coordinatorv1.MemberAnswer) {
	if err := m.core.Answer(stream, a, m.now); err != nil {
		panic(fmt.Sprintf("ownership: %v: %v", err, a))
	}
}

// set is what a coordinator at a rooted state shows an incarnation: all of it.
func (t *members) set(root uint32, m *member) *coordinatorv1.ShownSet {
	key := showing{root, uint8(m.process)}
	set := t.sets[key]
	if set == nil {
		c := shown.New(t.roots.at(root).st)
		set = c.Next(c.Open(t.memberOf(m.process), m.incarnation))
		t.sets[key] = set
	}
	return set
}

// intern finds the number of a Core, new or not.
func (t *members) intern(m *member) uint32 {
	m.look(t.config)
	key := fmt.Appendf(nil, "%d %d %d %d %d|", m.process, m.incarnation, m.core.Waiting(), m.working, m.workConf)
	slices.SortFunc(m.calls, func(a, b call) int { return int(a.Region.ID) - int(b.Region.ID) })
	for _, c := range m.calls {
		key = fmt.Append(key, c.Kind, c.unwanted, c.Region.ID, c.Region.Epoch, c.Region.Frontier)
	}
	if len(m.work) > 0 { // whether its right has ended shows only here
		key = fmt.Append(key, m.core.Table().Check(m.work[0], &clock.Manual{Elapsed: m.now}) == nil)
	}
	key = m.core.AppendFingerprint(key, m.now)
	if i, known := t.byPrint[string(key)]; known {
		return i
	}
	i := uint32(len(t.all))
	t.all = append(t.all, m)
	t.byPrint[string(key)] = i
	return i
}

// look finds out what a Core admits.
func (m *member) look(c *config) {
	m.acts, m.working, m.workConf = [maxRegions]uint8{}, 0, 0
	for i := range c.regions {
		g, _ := m.core.Table().Admit(held.Request{Region: regionID(i)}, &clock.Manual{Elapsed: m.now})
		if g != nil {
			m.acts[i] = uint8(g.Region.Epoch.ConfVersion)
			m.core.Table().Leave(g)
		}
	}
	if len(m.work) > 0 {
		m.working, m.workConf = regionIndex(m.work[0].Region.ID)+1, uint8(m.work[0].Region.Epoch.ConfVersion)
	}
}
