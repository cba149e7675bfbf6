package ownership

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/placement"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// detectors is the table of what coordinators think of members: real liveness.Cores with
// the view that they have been told of, numbered.
type detectors struct {
	*config
	roots   *roots
	all     []*detector
	byPrint map[string]uint32
	steps   memo[hint, detectOutcome]
	plans   map[planning][]uint16
	reports *table[report]
}

// detector is a Core at a moment of its own clock.
type detector struct {
	core *liveness.Core
	at   uint8 // the coordinator
	view uint32
	now  clock.Instant

	// era is the one that it holds by its view; 0: none.
	era uint8
	// takes has a bit for each process that may get something new, clear for each whose
	// regions may be granted elsewhere.
	takes, clear uint8
	// left has a bit for each process that has said its last word here.
	left uint8
	// due: Turn has something to do.
	due bool
	// trusted has a bit for each process whose address somebody else answers at, where
	// that is taken for life.
	trusted uint8
	// heard is how many units ago a process was heard, plus 1, with connected if it has a stream
	// here; 0: long ago, or never.
	heard [maxProcesses]uint8
}

// connected says in a word that a stream is open.
const connected = 1 << 7

// hint is something that a Core is told.
type hint struct {
	from uint32
	what hintIs
	// at is a process, or units of time.
	at uint8
	// Of a turn: what becomes of the probes, and how many units ago others have heard
	// members, plus 1, as in detector.
	probes [maxProcesses]liveness.ProbeResult
	words  [maxProcesses]uint8
	view   uint32
}

type hintIs uint8

const (
	timePasses hintIs = iota
	follows
	opened
	closed
	heardFrame
	confirms
	turns
	// turnsUnanswered is a turn in which others cannot be asked.
	turnsUnanswered
	withdrawn
	goodbyes
)

type detectOutcome struct {
	to uint32
	ok bool
	// probed has a bit for each process that is probed, asked for each that others are
	// asked about, verdicts for each that has failed, gone for each of those that has said so.
	probed, asked, verdicts, gone uint8
}

func newDetectors(c *config, r *roots, reports *table[report]) *detectors {
	return &detectors{config: c, roots: r, reports: reports, byPrint: map[string]uint32{}, steps: newMemo[hint, detectOutcome](), plans: map[planning][]uint16{}}
}

// start is a Core that has just started, and sees a state.
func (t *detectors) start(at uint8, view uint32) uint32 {
	s := liveness.Settings{DriftPermille: 1000 * (fast - slow) / slow, AskTime: unit, Round: time.Hour}
	if t.off == driftWaited {
		s.DriftPermille = 1
	}
	d := &detector{core: liveness.New(s), at: at, now: clock.Instant(begin), view: view}
	t.roots.at(view).st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		d.core.SetKeyspace(k)
		return true
	})
	t.follow(d, view, true)
	return t.intern(d)
}

func (t *detectors) at(i uint32) *detector { return t.all[i] }

func (t *detectors) tell(h hint) detectOutcome {
	if o, known := t.steps.find(&h); known {
		return o
	}
	d := *t.all[h.from]
	d.core = d.core.Clone()
	var o detectOutcome
	t.happen(&d, h, &o)
	o.to = t.intern(&d)
	t.steps.keep(&h, o)
	return o
}

func (t *detectors) happen(d *detector, h hint, o *detectOutcome) {
	r := t.roots.at(d.view)
	id, incarnation := t.memberOf(int(h.at)%maxProcesses), r.incarnation(int(h.at)%maxProcesses)
	switch h.what {
	case timePasses:
		d.now = d.now.Add(time.Duration(h.at) * unit)
		for i := range t.processes {
			if d.trusted&(1<<i) != 0 {
				d.core.Frame(t.memberOf(int(i)), r.incarnation(int(i)), d.now)
			}
		}
	case follows:
		t.follow(d, h.view, false)
	case opened:
		// No process has two streams to a coordinator, and each is closed before the next.
		d.core.Opened(id, incarnation, liveness.StreamID(incarnation), d.now)
	case closed:
		d.core.Closed(id, incarnation, liveness.StreamID(incarnation), d.now)
	case heardFrame:
		o.ok = d.core.Frame(id, incarnation, d.now)
	case confirms:
		o.ok = d.core.Answered(id, incarnation, d.now)
	case turns, turnsUnanswered:
		t.turn(d, h, o)
	case withdrawn:
		d.core.Withdraw(id, incarnation, d.now)
	case goodbyes:
		d.core.Goodbye(id, incarnation, true, d.now)
	}
}

// follow goes on to a state, as the assigner does.
func (t *detectors) follow(d *detector, view uint32, first bool) {
	was, is := t.roots.at(d.view), t.roots.at(view)
	d.view = view
	d.core.SetHoldings(is.st)
	if t.off == verdictWaits {
		d.core.SetHoldings(nil)
	}
	is.st.Members(func(m *rootv1.Member) bool {
		if first || was.st.Member(state.MemberID(m.GetId())) != m {
			d.core.SetMember(m, d.now)
		}
		return true
	})
	era := uint8(0)
	if is.holder == d.at+1 {
		era = is.era
	}
	switch {
	case era == d.era:
	case era == 0:
		d.core.End()
	default:
		if d.era != 0 {
			d.core.End()
		}
		began := d.now
		if t.off == newHolderWaits {
			began = began.Add(-time.Minute)
		}
		d.core.Begin(rooted.Era(era), began)
	}
	d.era = era
}

// turn has a Core look, and brings what it asked for at once.
func (t *detectors) turn(d *detector, h hint, o *detectOutcome) {
	r := t.roots.at(d.view)
	b := d.core.Turn(d.now)
	for _, p := range b.Probes {
		process := r.processOf(uint8(p.Incarnation))
		o.probed |= 1 << process
		result := h.probes[process]
		if t.off == otherIsDead && result == liveness.AnsweredOther {
			d.core.Frame(p.Member, p.Incarnation, d.now)
			d.trusted |= 1 << process
			result = liveness.AnsweredSame
		}
		if t.off == resetProvesNothing && result == liveness.NoAnswer {
			result = liveness.Refused
		}
		d.core.Probed(p, result, d.now)
	}
	var words []liveness.Word
	for i, age := range h.words {
		if age != 0 && r.incarnations[i] != 0 && t.off != heardLives {
			words = append(words, liveness.Word{Member: t.memberOf(i), Incarnation: r.incarnation(i), Age: time.Duration(age&^connected-1) * unit, Connected: age&connected != 0})
		}
	}
	if len(b.Question.Members) > 0 {
		d.core.Told(b.Question, words, h.what == turns || t.off == silentMayHear, d.now)
	}
	for _, id := range b.Question.Members {
		for i := range t.processes {
			if r.incarnations[i] != 0 && t.memberOf(int(i)) == id && r.st.Member(id).GetIncarnation() == r.incarnation(int(i)) {
				o.asked |= 1 << i
			}
		}
	}
	for _, v := range b.Verdicts {
		o.verdicts |= 1 << r.processOf(uint8(v.Incarnation))
		if v.Signals&liveness.Gone != 0 {
			o.gone |= 1 << r.processOf(uint8(v.Incarnation))
		}
	}
}

// horizon is how far a moment may be away and still be told from others: a fence has run
// out by then, and silence is death; and probes without an answer are repeated.
func (c *config) horizon() time.Duration {
	if c.probe {
		return 10 * unit
	}
	return max(time.Duration(c.ttl)*fast/slow, dead) * unit
}

func (t *detectors) intern(d *detector) uint32 {
	t.look(d)
	key := fmt.Append(nil, d.at, d.view, d.trusted, d.core.Due() == 0, "|")
	key = d.core.AppendFingerprint(key, d.now, t.horizon())
	if i, known := t.byPrint[string(key)]; known {
		return i
	}
	i := uint32(len(t.all))
	t.all = append(t.all, d)
	t.byPrint[string(key)] = i
	return i
}

func (t *detectors) look(d *detector) {
	r := t.roots.at(d.view)
	d.takes, d.clear, d.left, d.due = 0, 0, 0, d.core.Due() <= d.now
	for i := range t.processes {
		incarnation := r.incarnation(int(i))
		if incarnation == 0 {
			continue
		}
		id := t.memberOf(int(i))
		if d.core.Left(id, incarnation) {
			d.left |= 1 << i
		}
		if r.st.Member(id).GetIncarnation() == incarnation {
			s := d.core.Standing(id)
			if s.Takes(d.now) {
				d.takes |= 1 << i
			}
			d.heard[i] = 0
			if age := d.now.Sub(s.Heard); s.Heard != 0 && age < t.horizon() {
				d.heard[i] = uint8(age/unit) + 1
			}
			if s.Connected {
				d.heard[i] = cmp.Or(d.heard[i], uint8(t.horizon()/unit)+1) | connected
			}
		}
		if d.core.Clear(id, incarnation, liveness.Fence{TTL: t.fence()}, d.now) {
			d.clear |= 1 << i
		}
	}
}

// planning is all that a plan depends on.
type planning struct {
	view         uint32
	takes, clear uint8
	left         uint8
	late         lateness
	soft         [maxRegions][maxProcesses]uint16
	shown        [maxProcesses]uint32
}

// lateness is which of a move's bounds have passed, by the holder's clock.
type lateness uint8

const (
	inTime lateness = iota
	prepared
	tooLate
)

// plan is what the holder asks the root for: numbers of commands.
func (t *detectors) plan(p planning) []uint16 {
	if ops, known := t.plans[p]; known {
		return ops
	}
	r := t.roots.at(p.view)
	seen := clock.Instant(begin)
	now := seen.Add(map[lateness]time.Duration{prepared: prepareMax, tooLate: deadline}[p.late])
	in := placement.NewWork(r.st, seen).Take(&observed{t, &p}, now)
	made := placement.Make(in)
	var ops []uint16
	for i := range made.Operations {
		op := &made.Operations[i]
		if t.off == frontierToldExactly && op.Kind == placement.Complete {
			op.Frontier, op.SetFrontier = "", false
		}
		if t.off == lastWordCounts && op.Kind == placement.Assign {
			op.Frontier, op.SetFrontier = "", false
		}
		if t.off == epochExpected {
			op.Epoch = state.Epoch{}
		}
		if t.off == planNamed {
			op.PlannedAt = 0
		}
		event := op.Event()
		if t.off == epochExpected && op.Kind == placement.Assign {
			event.GetRegionsAssigned().GetAssignments()[0].ExpectedEpoch = nil
		}
		ops = append(ops, t.roots.order(command{
			name: fmt.Sprintf("%s of region %d", op.Kind, op.Region), era: t.planEra(r), region: regionIndex(op.Region) + 1, events: []*rootv1.Event{event},
		}))
	}
	t.plans[p] = ops
	return ops
}

// planEra is the era that commands require.
func (c *config) planEra(r *truth) uint8 {
	if c.off == planNamed {
		return anyEra
	}
	return r.era
}

// observed is what a plan is told beside the root.
type observed struct {
	*detectors
	p *planning
}

const never = clock.Instant(1<<63 - 1)

func (o *observed) Takes(id state.MemberID) bool {
	return o.p.takes&(1<<o.current(id)) != 0
}

// Damped: nobody fails often enough in these worlds.
func (o *observed) Damped(state.MemberID) bool { return false }

// Unfit: everybody acquires what it is given in these worlds.
func (o *observed) Unfit(state.Owner, state.KeyspaceID) bool     { return false }
func (o *observed) Probation(state.Owner, state.KeyspaceID) bool { return false }

func (o *observed) current(id state.MemberID) int {
	r := o.roots.at(o.p.view)
	return r.processOf(uint8(r.st.Member(id).GetIncarnation()))
}

func (o *observed) ClearAt(_ state.MemberID, incarnation uint64, f liveness.Fence) clock.Instant {
	if f == (liveness.Fence{}) || o.off == verdictWaits || o.p.clear&(1<<o.roots.at(o.p.view).processOf(uint8(incarnation))) != 0 {
		return 0
	}
	return never
}

func (o *observed) Shown(_ state.MemberID, incarnation uint64) state.Token {
	if at := o.p.shown[o.roots.at(o.p.view).processOf(uint8(incarnation))]; at != 0 {
		return o.roots.at(at - 1).st.Token()
	}
	return state.Token{}
}

func (o *observed) Report(region state.RegionID, owner state.Owner) (placement.Report, bool) {
	r := o.roots.at(o.p.view)
	process := r.processOf(uint8(owner.Incarnation))
	if process < 0 {
		return placement.Report{}, false
	}
	n := o.p.soft[regionIndex(region)][process]
	if t := r.st.PendingTransition(region); o.off == releaseAwaited && t.GetReadyAt() != nil {
		return placement.Report{
			Incarnation: r.incarnation(process), Epoch: r.st.Region(region).Epoch, Phase: coordinatorv1.RegionPhase_REGION_PHASE_RELEASED,
			Transition: t.GetId(), Shown: r.st.Token(), Frontier: r.st.Region(region).Frontier, SetFrontier: true,
		}, true
	}
	if n == 0 {
		return placement.Report{}, false
	}
	said := o.reports.at(n)
	x := placement.Report{
		Incarnation: r.incarnation(process), Epoch: state.Epoch{Version: r.st.Region(region).Epoch.Version, ConfVersion: uint64(said.conf)},
		Phase: said.phase, Transition: said.transition, Frontier: said.frontier, SetFrontier: said.fronted,
		Last: o.p.left&(1<<process) != 0,
	}
	if at := o.p.shown[process]; at != 0 && said.transition != "" {
		x.Shown = o.roots.at(at - 1).st.Token()
	}
	return x, true
}
