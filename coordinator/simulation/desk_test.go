package simulation

import (
	"slices"
	"time"

	"github.com/nokv/nokv/coordinator/assigner"
	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/liveness"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/coordinator/shown"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// desk is what a coordinator has to do with members: their streams, as package server
// has them, around the same cores, and the assigner.
type desk struct {
	n    *node
	soft *catalog.Soft
	raw  *assigner.Raw
	// core shows what shows has led to.
	core *shown.Core
	// shows and plans are what core and raw have not followed yet.
	shows, plans news

	conns   []*end
	streams map[*shown.Stream]*memberStream
	heard   map[state.MemberID]*heardMember
	opened  uint64
	ready   []*memberStream
	rounds  bool // one is about to begin
	checks  bool // one waits for the check of its era

	// The assigner's shell. looks numbers its looks; era is that of the newest orders.
	looks   int
	woken   bool
	joining bool
	era     state.Era
}

// news are changes since somebody looked; jumped: not all of them.
type news struct {
	any, jumped bool
	changes     []state.Change
}

func (s *news) add(b rootview.Batch) {
	s.any, s.jumped = true, s.jumped || b.Snapshot
	s.changes = append(s.changes, b.Changes...)
}

// heardMember is a member that was heard here.
type heardMember struct {
	incarnation uint64
	at          clock.Instant
	stream      *memberStream
}

// memberStream is a coordinator's side of a member's line.
type memberStream struct {
	end    *end
	worker *worker
	// back makes what is to happen at the member arrive there: from another coordinator, where that passes
	// the stream on.
	back        func(func(*line)) func()
	id          state.MemberID
	incarnation uint64
	number      uint64
	begun       clock.Instant
	sequence    uint64
	since       clock.Instant
	showing     state.Token
	shown       *shown.Stream
	answered    uint64
	told        bool // terms
	holder      string
	taken       uint64
	ready, left bool
	unwritten   bool
	waits       bool
	has         *coordinatorv1.ShownState
	showed      state.Token
	again       bool
	missed      bool
}

func (d *desk) start(n *node) {
	*d = desk{n: n}
	if len(n.r.workers) == 0 {
		return
	}
	d.soft = catalog.NewSoft(catalog.SoftConfig{})
	d.streams, d.heard = map[*shown.Stream]*memberStream{}, map[state.MemberID]*heardMember{}
	d.startAssigner()
}

func (d *desk) stop() {
	for _, e := range d.conns {
		e.close(true)
	}
}

// onView is told of every view.
func (d *desk) onView(b rootview.Batch, v *rootview.View) {
	if d.raw == nil || !v.Loaded() {
		return
	}
	if !d.shows.any {
		d.n.after(d.n.r.Between(0, 200*time.Microsecond), d.round)
	}
	d.shows.add(b)
	d.plans.add(b)
	d.wake()
}

// accept takes a connection, and says who takes its frames.
func (d *desk) accept(far *end, w *worker, back func(func(*line)) func()) func(*coordinatorv1.MemberFrame) {
	m := &memberStream{end: far, worker: w, back: back}
	d.keep(far)
	far.ended = d.n.then(func() { d.close(m) })
	return within(&d.n.process, func(f *coordinatorv1.MemberFrame) { d.onFrame(m, f) })
}

// keep keeps connections that end with the process.
func (d *desk) keep(ends ...*end) {
	d.conns = append(slices.DeleteFunc(d.conns, func(e *end) bool { return e.over }), ends...)
}

// relay is server's: it passes a member's stream on to another coordinator, frames there and answers back. When
// either side ends, so does the other.
func (d *desk) relay(far *end, to *node, w *worker) func(*coordinatorv1.MemberFrame) {
	out, there := d.n.r.newConn(d.n.place, to.place)
	d.keep(far, out)
	far.ended = d.n.then(func() { out.close(true) })
	out.ended = d.n.then(func() { far.close(true) })
	back := func(fn func(*line)) func() {
		arrives := w.onLine(far.peer, fn)
		return d.n.then(func() { far.send(arrives) })
	}
	out.send(func() {
		if !to.up {
			there.close(true)
			return
		}
		out.carry = to.desk.accept(there, w, back)
	})
	return within(&d.n.process, func(f *coordinatorv1.MemberFrame) {
		if d.n.r.k.variant == passerConfirms {
			a := &coordinatorv1.MemberAnswer{Era: d.n.view.core.View().State.Tenure().GetEra(), Sequence: f.GetSequence(), Confirmed: true}
			far.send(w.onLine(far.peer, func(l *line) { w.onAnswer(l, a) }))
		}
		out.send(func() {
			if out.carry != nil {
				out.carry(f)
			}
		})
	})
}

// cut ends a stream from here, with a reason.
func (d *desk) cut(m *memberStream, why error) {
	d.close(m)
	m.end.send(m.back(func(l *line) { m.worker.ended(l, why) }))
	m.end.over = true
}

func (d *desk) close(m *memberStream) {
	if m.left {
		return
	}
	m.left = true
	if m.number == 0 {
		return
	}
	if h := d.heard[m.id]; h.stream == m {
		h.stream = nil
	}
	d.readied(m)
	d.raw.Closed(m.id, m.incarnation, m.number, 0)
}

// onFrame is server's take.
func (d *desk) onFrame(m *memberStream, f *coordinatorv1.MemberFrame) {
	if m.left {
		return
	}
	now, st := d.n.now(), d.n.view.core.View().State
	if m.sequence++; f.GetSequence() != m.sequence {
		d.n.r.fail("Held: frame %d of a stream of %s is its number %d", f.GetSequence(), m.worker.id, m.sequence)
	}
	if m.sequence == 1 {
		m.id, m.incarnation = state.MemberID(f.GetHello().GetMemberId()), f.GetHello().GetIncarnation()
	}
	member, err := speaker(st, m.id, m.incarnation)
	if err == nil && d.soft.Ended(m.id, m.incarnation) {
		err = reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "it has ended")
	}
	if err == nil && m.number == 0 {
		err = d.open(m, now)
	}
	if err != nil {
		d.cut(m, err)
		return
	}
	heard := server.HeardFrame{Member: m.id, Incarnation: m.incarnation, Stream: m.number, At: now, Load: f.GetLoad(), Goodbye: f.GetGoodbye(), Showed: d.showed(m, f)}
	if f.GetComplete() && m.since == 0 {
		m.since = now
	}
	m.again = m.again || f.GetSequence() == 1 && !f.GetComplete()
	for _, p := range f.GetRegions() {
		turned, err := d.soft.Report(st, member, p, now)
		switch {
		case reason.Of(err) == rootv1.Reason_REASON_INVALID_REQUEST:
			d.n.r.fail("Held: %s reports %v: %w", m.id, p, err)
		case err != nil:
			m.missed = true
			continue
		case turned:
			heard.Turned = append(heard.Turned, state.RegionID(p.GetRegionId()))
		}
		if load, serves := server.SaidOf(p); serves {
			heard.Loads = append(heard.Loads, load)
		}
	}
	for _, id := range f.GetGone() {
		d.soft.Gone(state.RegionID(id), m.incarnation)
		heard.Gone = append(heard.Gone, state.RegionID(id))
	}
	if m.since != 0 && !f.GetPartial() {
		d.soft.Complete(st, m.incarnation, m.since)
		m.since, heard.Complete = 0, true
	}
	if f.GetGoodbye().GetGone() && !f.GetPartial() {
		d.soft.End(m.id, m.incarnation)
	}
	d.raw.Frame(heard)
	d.heard[m.id].at = now
	m.taken = f.GetSequence()
	if f.GetShown() != nil {
		m.has = f.GetShown()
	}
	d.readied(m)
}

func speaker(st *state.State, id state.MemberID, incarnation uint64) (*rootv1.Member, error) {
	member, err := catalog.Sender(st, id, incarnation)
	if err == nil && member.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED {
		return nil, reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "incarnation %d has failed", incarnation)
	}
	return member, err
}

func (d *desk) open(m *memberStream, now clock.Instant) error {
	h := d.heard[m.id]
	switch {
	case h != nil && h.incarnation > m.incarnation:
		return reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "incarnation %d is over", m.incarnation)
	case h == nil:
		h = &heardMember{incarnation: m.incarnation}
		d.heard[m.id] = h
	}
	h.incarnation = m.incarnation
	replaced := h.stream
	d.opened++
	m.number, m.begun, h.stream, h.at = d.opened, now, m, now
	if replaced != nil {
		d.cut(replaced, errReplaced)
	}
	d.raw.Opened(m.id, m.incarnation, m.number, now)
	return nil
}

func (d *desk) showed(m *memberStream, f *coordinatorv1.MemberFrame) bool {
	if token := state.TokenFromProto(f.GetShown().GetToken()); token.Compare(m.showing) > 0 {
		m.showing = token
	}
	if f.GetPartial() || m.showing.Compare(m.showed) <= 0 {
		return false
	}
	m.showed = m.showing
	return true
}

// Shown implements assigner.Streams.
func (d *desk) Shown(id state.MemberID, incarnation uint64) (token state.Token, since clock.Instant) {
	if h := d.heard[id]; h != nil && h.stream != nil && h.incarnation == incarnation {
		return h.stream.showed, h.stream.begun
	}
	return state.Token{}, 0
}

// readied has the next round look at a stream.
func (d *desk) readied(m *memberStream) {
	if m.ready {
		return
	}
	m.ready = true
	d.ready = append(d.ready, m)
	if !d.rounds {
		d.rounds = true
		d.n.after(d.n.r.Between(0, 300*time.Microsecond), d.round)
	}
}

// round answers everybody who is ready: one check of the era is for all.
func (d *desk) round() {
	d.rounds = false
	if d.checks {
		return // it goes on behind that
	}
	if d.follow(); d.core == nil {
		return
	}
	dirty := d.core.Dirty()
	slices.SortFunc(dirty, func(a, b *shown.Stream) int { return d.streams[a].compare(d.streams[b]) })
	for _, s := range dirty {
		if m := d.streams[s]; m != nil {
			d.readied(m)
		}
	}
	d.rounds = false
	ready := d.ready
	d.ready = nil
	holding := d.n.holder.Raw.Status(d.n.now())
	held := holding.Phase == tenure.Holding && holding.Era != 0
	type answer struct {
		to   *memberStream
		says *coordinatorv1.MemberAnswer
	}
	var plain, confirmed []answer
	for _, m := range ready {
		m.ready = false
		a := d.answer(m)
		if a == nil {
			continue
		}
		one := answer{m, a}
		if held && d.mayConfirm(m, a.GetSequence()) {
			confirmed = append(confirmed, one)
		} else {
			plain = append(plain, one)
		}
		m.answered = a.GetSequence()
	}
	for _, a := range plain {
		d.send(a.to, a.says)
	}
	if len(confirmed) == 0 {
		return
	}
	over := false
	d.checks = true
	finish := func(good bool) {
		if over {
			return
		}
		over, d.checks = true, false
		for _, a := range confirmed {
			if good {
				a.says.Confirmed, a.says.Era = true, holding.Era
			}
			d.send(a.to, a.says)
		}
		d.round()
	}
	if d.n.r.k.variant == confirmsUnchecked {
		d.n.after(d.n.r.Between(0, 100*time.Microsecond), func() { finish(true) })
		return
	}
	if !d.n.holder.Check(holding.Era, func() { finish(true) }) {
		finish(false)
		return
	}
	d.n.after(40*time.Millisecond, func() { finish(false) })
}

// compare orders streams by member; a nil one comes first.
func (m *memberStream) compare(o *memberStream) int {
	switch {
	case m == nil && o == nil:
		return 0
	case m == nil:
		return -1
	case o == nil:
		return 1
	case m.id < o.id:
		return -1
	case m.id > o.id:
		return 1
	}
	return 0
}

func (d *desk) mayConfirm(m *memberStream, sequence uint64) bool {
	if sequence == m.answered || !d.core.State().Acts(state.Owner{Member: m.id, Incarnation: m.incarnation}) {
		return false
	}
	if d.n.r.k.variant == confirmsUncounted {
		return true
	}
	return d.raw.Answered(m.id, m.incarnation, 0)
}

// answer is server's.
func (d *desk) answer(m *memberStream) *coordinatorv1.MemberAnswer {
	m.waits = m.waits || m.unwritten
	switch {
	case m.left:
		if m.shown != nil {
			d.core.Close(m.shown)
			delete(d.streams, m.shown)
		}
		return nil
	case m.shown == nil:
		m.shown = d.core.Open(m.id, m.incarnation)
		d.streams[m.shown] = m
	}
	st := d.core.State()
	member, err := speaker(st, m.id, m.incarnation)
	if reason.Of(err) == rootv1.Reason_REASON_MEMBER_RETIRED {
		d.cut(m, err)
		return nil
	}
	if m.unwritten || err != nil {
		return nil
	}
	a := &coordinatorv1.MemberAnswer{Era: st.Tenure().GetEra(), State: member.GetState(), Sequence: m.taken, ReportAgain: m.again}
	has := m.has
	m.has, m.again = nil, false
	if has != nil {
		d.core.Told(m.shown, has)
	}
	if a.Set = d.core.Next(m.shown); a.Set != nil && !a.Set.GetPartial() {
		a.ReportAgain, m.missed = a.ReportAgain || m.missed, false
	}
	if holder := d.holder(st); !m.told || a.Set != nil || m.holder != holder {
		a.Terms, m.holder = d.terms(st, m), holder
	}
	if a.Set == nil && a.Terms == nil && a.GetSequence() == m.answered {
		return nil
	}
	return a
}

// holder is what members are told of the holder of the Tenure, where they take detours.
func (d *desk) holder(st *state.State) string {
	if t := st.Tenure(); d.n.r.k.detours && !t.GetRetired() {
		return t.GetHolderId()
	}
	return ""
}

// terms are the keyspaces' that a stream shows regions of; the coordinators are known.
func (d *desk) terms(st *state.State, m *memberStream) *coordinatorv1.MemberTerms {
	m.told = true
	p := &coordinatorv1.MemberTerms{IntervalMillis: memberInterval, HolderId: d.holder(st)}
	for _, id := range d.core.Keyspaces(m.shown, 64) {
		k := st.Keyspace(id)
		s := k.GetSettings()
		t := &coordinatorv1.KeyspaceTerms{
			KeyspaceId: k.GetId(), Name: k.GetName(), Layout: s.GetLayout(), Fence: s.GetOwnership().GetFence(),
			HoldRequestsMillis: state.MovesOf(s).GetHoldRequestsMillis(), Shared: s.GetOwnership().GetMaxOwners() > 1,
		}
		if t.Fence == rootv1.Fence_FENCE_TTL {
			t.TtlMillis = s.GetOwnership().GetTtlMillis()
		}
		p.Keyspaces = append(p.Keyspaces, t)
	}
	return p
}

// send sends an answer, which is written a moment later.
func (d *desk) send(m *memberStream, a *coordinatorv1.MemberAnswer) {
	if m.left {
		return
	}
	m.unwritten, m.waits = true, m.waits || m.shown.Pending()
	m.end.send(m.back(func(l *line) { m.worker.onAnswer(l, a) }))
	d.n.after(d.n.r.Between(20*time.Microsecond, 200*time.Microsecond), func() {
		if m.unwritten = false; m.waits {
			m.waits = false
			d.readied(m)
		}
	})
}

// follow brings what is shown to the newest view.
func (d *desk) follow() {
	v := d.n.view.core.View()
	switch b := d.shows; {
	case !v.Loaded():
		return
	case d.core == nil:
		d.core = shown.New(v.State)
	case b.jumped:
		d.core.Jump(v.State)
		d.soft.Sweep(v.State)
	case b.any:
		d.core.Apply(v.State, b.changes)
		d.soft.Forget(b.changes)
	}
	d.shows = news{}
}

// words are whom this coordinator hears.
func (d *desk) words(members []state.MemberID) (words []liveness.Word) {
	for _, id := range members {
		if h := d.heard[id]; h != nil {
			words = append(words, liveness.Word{Member: id, Incarnation: h.incarnation, Age: max(d.n.now().Sub(h.at), 0), Connected: h.stream != nil})
		}
	}
	return words
}
