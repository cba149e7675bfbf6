package liveness

import (
	"slices"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Holdings tells what incarnations own, and members may own, by the root. A state.State does.
type Holdings interface {
	// IncarnationKeyspaces calls fn for the assigned keyspaces that a member's incarnation
	// owns regions of; for one maybe twice.
	IncarnationKeyspaces(incarnation uint64, fn func(ks rooted.KeyspaceID, regions int))
	// HostedBy names those whom grants let own regions of a keyspace, the same for keyspaces that have the
	// same hosts; empty: grants do not say who may. Hosts reports whether a member may.
	HostedBy(keyspace string) string
	Hosts(id rooted.MemberID, keyspace string) bool
}

// Core is the failure detector of one coordinator. It is for one goroutine, and the
// moments it is given never decrease. After whatever is told to it, Due says when
// Turn is to be called; that may be now.
type Core struct {
	s       Settings
	members map[rooted.MemberID]*member
	timers  timers
	owned   Holdings
	pools   pools

	// holding: this process holds the Tenure of era, which began here at began.
	holding bool
	era     rooted.Era
	began   clock.Instant

	// forgotten is when a member that was dropped may last have been confirmed.
	forgotten clock.Instant

	// probes and questions number what was asked for.
	probes, questions uint64
	// round began at roundAt; passed counts its verdicts without proof.
	roundAt clock.Instant
	passed  int
	tolls   tolls
	count   Counters
	// beside: the Turn under way is TurnBeside, which leaves ripe to the next one.
	beside bool
	ripe   []rooted.MemberID
}

// Counters count what a Core did since the process began.
type Counters struct {
	Frames, Suspicions, Probes, Questions uint64
	// Verdicts, and those of them that had a proof.
	Verdicts, Proven uint64
	// Holds counts verdicts that a guard held, once each.
	Holds uint64
}

// StreamID names a stream of a member to this coordinator: never 0, and of two streams the newer one
// has the larger.
type StreamID uint64

// life is one incarnation of a member.
type life struct {
	incarnation uint64
	// address is its own, where probes go; empty: none.
	address string
	// stream is its open stream here; 0: none. newest is the newest one that it had.
	stream, newest StreamID
	// answered is when it was last confirmed from here; 0: never. older is when it last may
	// have been by fences from before pools.changes was fences.
	answered, older clock.Instant
	fences          uint64
	signals         Signals
	// broke is when its stream here ended, or, later, when no coordinator had one of it any
	// more; 0: it had none. elsewhere is when at the latest a frame of it came to another
	// coordinator, open when another one last said that its stream there is open; 0: never.
	broke, elsewhere, open clock.Instant
	// untold: it may have been proven dead since somebody was told. sure: everybody who may hear it
	// confirmed what a probe found.
	untold, sure bool

	// probe is the number of the newest probe, which is under way while asked is not 0;
	// next is when there may be another, refused and tries what came of those before.
	probe          uint64
	asked, next    clock.Instant
	refused, tries uint8
	// found is the proof that a probe found which began at foundAt: it counts when those who
	// were asked since then contradict it not. 0: none.
	found   Signals
	foundAt clock.Instant
}

func (l *life) proven() bool { return l.signals&proofs != 0 }

// over reports whether the incarnation acts no more, whatever fences it has: it is proven, by its own
// last word or its process's, or by what everybody confirmed.
func (l *life) over() bool { return l.proven() && (l.sure || l.signals&(Gone|ProcessEnded) != 0) }

// formerly is when it last may have been confirmed by fences that were others than those
// of now.
func (l *life) formerly(changes uint64) clock.Instant {
	if l.fences == changes {
		return l.older
	}
	return l.answered
}

// member is what is known of one member.
type member struct {
	life
	id    rooted.MemberID
	class *class
	state rootv1.MemberState

	// known is when this incarnation was first seen rooted, heard when its last frame
	// came here; 0: never.
	known, heard clock.Instant
	// vanished is when it was last heard before it began to look gone; 0: it does not.
	vanished clock.Instant
	// doubted: callers could not reach it; suspected until then.
	doubted clock.Instant
	// question is the number of the question about it that is open since wondered, told
	// when the last one was put that has been answered, or should have been, toldByAll when the
	// last one was that everybody answered who may hear it.
	question                  uint64
	wondered, told, toldByAll clock.Instant
	// judged: a verdict about this incarnation is on its way to the root.
	judged bool
	held   Guard
	// ripe: it is among those of Core.ripe.
	ripe bool
	// explained: it has failed by a proof, or because somebody said so, by the root.
	explained bool

	// failures are the moments of the last failures of any incarnation; recovered is
	// when the last of them was followed by a registration.
	failures  []clock.Instant
	recovered clock.Instant
	// past are incarnations before this one, oldest first; forgotten is when one of those
	// that are not among them any more was last confirmed.
	past      []life
	forgotten clock.Instant

	// place is that in timers, -1 for none.
	place int32
}

const (
	// maxPast bounds the incarnations that are remembered beside the current one.
	maxPast = 4
	// maxFailures bounds the failures that are remembered of a member.
	maxFailures = state.MaxFlapFailures
)

// New makes a Core that knows nobody and holds nothing.
func New(s Settings) *Core {
	return &Core{s: s.withDefaults(), members: map[rooted.MemberID]*member{}, pools: newPools()}
}

// Noticed tells the time before anything else is told at it. When what was due is done so late that
// the process stood still, silence counts from here: what members sent has not been read.
func (c *Core) Noticed(now clock.Instant) {
	if len(c.timers) == 0 || now.Sub(c.timers[0].at) < LeastInterval/2 {
		return
	}
	c.pools.stoodStill(now.Sub(c.timers[0].at), now)
}

// SetHoldings gives the newest view of what members own.
func (c *Core) SetHoldings(owned Holdings) { c.owned = owned }

// SetKeyspace tells of a keyspace as rooted.
func (c *Core) SetKeyspace(k *rootv1.Keyspace) { c.pools.set(k) }

// DropKeyspace tells that a keyspace is gone.
func (c *Core) DropKeyspace(id rooted.KeyspaceID) { c.pools.drop(id) }

// SetMember tells of a member as rooted. A higher incarnation ends the one before:
// if that one had neither failed nor taken its leave, it failed now.
func (c *Core) SetMember(r *rootv1.Member, now clock.Instant) {
	id := rooted.MemberID(r.GetId())
	m := c.members[id]
	if r.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED {
		c.DropMember(id)
		return
	}
	stranger := m == nil // when it failed is not known
	if stranger {
		m = &member{id: id, place: -1, forgotten: c.forgotten}
		c.members[id] = m
	}
	switch {
	case r.GetIncarnation() < m.incarnation:
		return
	case r.GetIncarnation() > m.incarnation:
		m.begin(r.GetIncarnation(), c.pools.changes, now)
	}
	if r.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED && m.accepting() && !stranger {
		m.fail(now)
	}
	if r.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED && slices.Contains(r.GetSignals(), ProcessEndedSignal) {
		m.signals |= ProcessEnded
	}
	m.explained = r.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED && explained(r.GetSignals())
	m.state, m.address = r.GetState(), r.GetProbeAddress()
	if !m.accepting() {
		m.held = NotHeld
	}
	m.class = c.pools.join(m.class, r.GetKeyspaces())
	c.timers.soon(m, now)
}

// DropMember forgets a member, which owns nothing, but not for how long it may act for what was taken
// from it.
func (c *Core) DropMember(id rooted.MemberID) {
	if m := c.members[id]; m != nil {
		c.forgotten = max(c.forgotten, m.forgotten, m.life.answered)
		for i := range m.past {
			c.forgotten = max(c.forgotten, m.past[i].answered)
		}
		c.timers.remove(m)
		c.pools.leave(m.class)
		delete(c.members, id)
	}
}

// begin makes a newer incarnation the current one. It is told nothing that was changed
// before it was rooted.
func (m *member) begin(incarnation, fences uint64, now clock.Instant) {
	if m.incarnation != 0 {
		if m.accepting() && m.signals&(Goodbye|Gone) == 0 {
			m.fail(now)
		}
		if n := len(m.failures); n > 0 && m.failures[n-1] > m.recovered {
			m.recovered = now
		}
		m.remember(m.life)
	}
	m.life = life{incarnation: incarnation, fences: fences}
	m.state = rootv1.MemberState_MEMBER_STATE_ACTIVE
	m.known, m.heard, m.vanished, m.doubted = now, 0, 0, 0
	m.question, m.wondered, m.told, m.toldByAll, m.judged, m.held, m.explained = 0, 0, 0, 0, false, NotHeld, false
}

// remember keeps an incarnation that is over. Of the oldest is kept for how long its
// fence runs: what else is known is of nobody else.
func (m *member) remember(l life) {
	m.past = append(m.past, l)
	if len(m.past) > maxPast {
		m.forgotten = max(m.forgotten, m.past[0].answered)
		m.past = slices.Delete(m.past, 0, 1)
	}
}

func (m *member) fail(now clock.Instant) {
	if len(m.failures) == maxFailures {
		m.failures = slices.Delete(m.failures, 0, 1)
	}
	m.failures = append(m.failures, now)
}

// accepting reports whether the current incarnation may act, by the root.
func (m *member) accepting() bool {
	return m.state == rootv1.MemberState_MEMBER_STATE_ACTIVE || m.state == rootv1.MemberState_MEMBER_STATE_DRAINING
}

// lifeOf is what is known of an incarnation; nil when nothing is.
func (m *member) lifeOf(incarnation uint64) *life {
	if incarnation == m.incarnation {
		return &m.life
	}
	for i := range m.past {
		if incarnation == m.past[i].incarnation {
			return &m.past[i]
		}
	}
	return nil
}

// current returns the member if that is its current incarnation.
func (c *Core) current(id rooted.MemberID, incarnation uint64) *member {
	if m := c.members[id]; m != nil && m.incarnation == incarnation {
		return m
	}
	return nil
}

// own returns the record of an incarnation, and its member.
func (c *Core) own(id rooted.MemberID, incarnation uint64) (*member, *life) {
	m := c.members[id]
	if m == nil {
		return nil, nil
	}
	return m, m.lifeOf(incarnation)
}

// Begin tells that this process holds the Tenure of an era from now on. No fence runs out
// before its ttl has passed from here; silence counts across eras.
func (c *Core) Begin(era rooted.Era, now clock.Instant) {
	c.holding, c.era, c.began = true, era, now
	c.roundAt, c.passed = now, 0
	for _, m := range c.members {
		for i := range m.past {
			m.past[i].probeAnew()
		}
		m.probeAnew()
		c.timers.soon(m, now)
	}
}

// End tells that this process does not hold the Tenure any more. Verdicts that were
// handed out and not rooted are not passed.
func (c *Core) End() {
	c.holding = false
	for _, m := range c.members {
		m.judged, m.held, m.question, m.wondered, m.told, m.toldByAll, m.asked = false, NotHeld, 0, 0, 0, 0, 0
	}
}

// Opened tells that a stream of a member began, with its first frame. Two streams of one member may be
// told of in either order, each by whoever serves it: one that a newer one has replaced changes nothing.
func (c *Core) Opened(id rooted.MemberID, incarnation uint64, stream StreamID, now clock.Instant) {
	m, l := c.own(id, incarnation)
	if l == nil || stream < l.newest {
		return
	}
	l.stream, l.newest = stream, stream
	l.probe, l.asked, l.refused, l.found = 0, 0, 0, 0 // a probe from before says nothing of a process that is there
	if l == &m.life {
		c.Frame(id, incarnation, now)
	}
}

// Closed tells that a stream ended, for whatever reason.
func (c *Core) Closed(id rooted.MemberID, incarnation uint64, stream StreamID, now clock.Instant) {
	m, l := c.own(id, incarnation)
	if l == nil || l.stream != stream {
		return
	}
	l.probeAnew()
	l.stream, l.broke = 0, now
	l.signals |= StreamClosed
	c.timers.soon(m, now)
}

// Frame tells that a frame came. It says whether the incarnation is the current one
// here: of others nothing is noted.
func (c *Core) Frame(id rooted.MemberID, incarnation uint64, now clock.Instant) bool {
	m := c.current(id, incarnation)
	if m == nil {
		return false
	}
	c.count.Frames++
	if m.signals&TakesNothing != 0 {
		return true
	}
	first := m.heard == 0
	m.heard = now
	if (m.signals&passing != 0 || m.vanished != 0) && !m.judged {
		m.signals &^= passing
		m.vanished, m.held = 0, NotHeld
		m.probeAnew()
		first = true
	}
	if first {
		c.timers.soon(m, now)
	}
	return true
}

// Behind tells whether an incarnation takes nothing that it is shown, before its Frame is told: it is not
// confirmed then, and what it sends counts as silence. It may act for what it does not know was taken from it.
func (c *Core) Behind(id rooted.MemberID, incarnation uint64, yes bool) {
	switch m := c.current(id, incarnation); {
	case m == nil:
	case yes:
		m.signals |= TakesNothing
	default:
		m.signals &^= TakesNothing
	}
}

// Goodbye tells that an incarnation said it will leave; gone, that it has stopped serving
// everything, which counts also when the next one has registered meanwhile.
func (c *Core) Goodbye(id rooted.MemberID, incarnation uint64, gone bool, now clock.Instant) {
	m, l := c.own(id, incarnation)
	if l == nil {
		return
	}
	l.signals |= Goodbye
	if gone {
		l.signals |= Gone
		l.untold = true
	}
	c.timers.soon(m, now)
}

// Left reports whether an incarnation said, here, that it has stopped serving everything.
func (c *Core) Left(id rooted.MemberID, incarnation uint64) bool {
	_, l := c.own(id, incarnation)
	return l != nil && l.signals&Gone != 0
}

// ProcessEnded tells that whoever waits for the process says that it ended.
func (c *Core) ProcessEnded(id rooted.MemberID, incarnation uint64, now clock.Instant) {
	if m, l := c.own(id, incarnation); l != nil {
		l.signals |= ProcessEnded
		l.untold = true
		c.timers.soon(m, now)
	}
}

// DialFailed tells that a caller could not connect to a member. It raises suspicion
// for a while, and nothing else.
func (c *Core) DialFailed(id rooted.MemberID, incarnation uint64, now clock.Instant) {
	if m := c.current(id, incarnation); m != nil && m.class.watched {
		m.signals |= DialFailures
		m.doubted = now.Add(m.class.suspect)
		c.timers.soon(m, m.doubted)
	}
}

// Answered must be asked right before an answer is made that confirms a member. It
// says whether the incarnation may be confirmed, and if so counts its fence from
// now on: now is not before the frame came that is answered.
func (c *Core) Answered(id rooted.MemberID, incarnation uint64, now clock.Instant) bool {
	m := c.current(id, incarnation)
	if m == nil || !c.holding || !m.accepting() || m.judged || m.proven() || m.signals&TakesNothing != 0 {
		return false
	}
	if m.fences != c.pools.changes { // this answer may have been made before the change was known
		m.fences, m.older = c.pools.changes, now
	}
	m.answered = now
	return true
}

// Withdraw tells that a verdict was refused by the root, for good: the incarnation may
// be confirmed and judged again.
func (c *Core) Withdraw(id rooted.MemberID, incarnation uint64, now clock.Instant) {
	if m := c.current(id, incarnation); m != nil && m.judged {
		m.judged, m.told = false, 0
		c.timers.soon(m, now.Add(again))
	}
}

// ClearAt is when regions of an incarnation, whose keyspace has that fence, may be
// granted elsewhere: 0 for at once, and a moment that never comes while it may still
// be confirmed, or while this process does not hold the Tenure.
func (c *Core) ClearAt(id rooted.MemberID, incarnation uint64, f Fence) clock.Instant {
	if !c.holding {
		return never
	}
	if f == (Fence{}) {
		return 0
	}
	m := c.members[id]
	if m == nil {
		return c.runsOut(c.forgotten, c.forgotten, f)
	}
	l := m.lifeOf(incarnation)
	switch {
	case l == nil && incarnation > m.incarnation: // not rooted yet, as far as is known here
		return never
	case l == &m.life && m.accepting() && !m.judged: // also when proven: the verdict comes first
		return never
	case l != nil && l.over():
		return 0
	case l == nil: // it may be any that was forgotten
		return c.runsOut(m.forgotten, m.forgotten, f)
	default:
		return c.lifeEnds(l, f)
	}
}

// Clear reports whether ClearAt has come.
func (c *Core) Clear(id rooted.MemberID, incarnation uint64, f Fence, now clock.Instant) bool {
	return c.ClearAt(id, incarnation, f) <= now
}

// lifeEnds is when an incarnation's fence has certainly run out.
func (c *Core) lifeEnds(l *life, f Fence) clock.Instant {
	return c.runsOut(l.answered, l.formerly(c.pools.changes), f)
}

// runsOut is when a fence has certainly run out of whom this process confirmed last at
// answered, and formerly by what the fence was: an earlier holder confirmed nobody after
// this era began.
func (c *Core) runsOut(answered, formerly clock.Instant, f Fence) clock.Instant {
	since := c.began
	return max(max(since, answered).Add(c.s.stretched(f.TTL)), max(since, formerly).Add(c.s.stretched(f.Former)))
}
