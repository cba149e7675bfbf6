package server

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/shown"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// run answers members until ctx ends: all that have said something, or are to be shown
// something, at once, so that one check of the era is for all of them.
func (t *members) run(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { t.watch(ctx) })
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-t.wake:
			t.round(ctx)
		case <-look.C:
			t.cutSlow()
		case <-ctx.Done():
			return
		}
	}
}

// watch has run look at every new view.
func (t *members) watch(ctx context.Context) {
	for ctx.Err() == nil {
		reader := t.server.cfg.Views.Subscribe(t.server.view().Token)
		signal(t.wake)
		for err := error(nil); err == nil; _, err = reader.Next(ctx) {
			signal(t.wake)
		}
	}
}

// cutSlow ends the streams whose members take nothing.
func (t *members) cutSlow() {
	for _, m := range t.streams {
		t.mu.Lock()
		slow := !m.unwritten.IsZero() && time.Since(m.unwritten) >= t.server.cfg.Limits.SendTimeout
		t.mu.Unlock()
		if slow {
			m.live.cut(errSlowReader)
		}
	}
}

// memberAnswer is what is about to be sent to one member.
type memberAnswer struct {
	to      *memberStream
	says    *coordinatorv1.MemberAnswer
	confirm bool // if the era is held
}

// maxShows is about how many regions one round shows: those who wait for its confirmations wait for no more.
const maxShows = 1 << 14

// round answers everybody who is ready: first those to whom there is nothing to be shown, then as many of the
// others as one round shows something.
func (t *members) round(ctx context.Context) {
	t.follow(ctx)
	t.mu.Lock()
	if t.core != nil {
		for _, s := range t.core.Dirty() {
			if m := t.streams[s]; m != nil {
				t.readyLocked(m)
			}
		}
	}
	ready := t.ready
	t.ready = nil
	for _, m := range ready {
		m.ready = false
	}
	t.mu.Unlock()
	if len(ready) == 0 {
		return
	}
	holding := t.server.cfg.Authority.Status()
	held := holding.Phase == tenure.Holding && holding.Era != 0
	var all []memberAnswer
	confirms, shows := false, 0
	slices.SortStableFunc(ready, func(a, b *memberStream) int { return cmp.Compare(a.shows(), b.shows()) })
	for i, m := range ready {
		if shows >= maxShows {
			t.later(ready[i:])
			break
		}
		if a := t.answer(m); a != nil {
			shows += len(a.Set.GetRegions()) + len(a.Set.GetEnded())
			one := memberAnswer{to: m, says: a, confirm: held && t.mayConfirm(m, a.GetSequence())}
			m.answered = a.GetSequence()
			confirms = confirms || one.confirm
			all = append(all, one)
		}
	}
	if confirms && t.check(ctx, holding.Era) != nil {
		confirms = false
	}
	for _, a := range all {
		if a.confirm && confirms {
			a.says.Confirmed, a.says.Era = true, holding.Era
		}
		a.to.send(a.says)
	}
}

// shows is 1 if there is something to be shown on the stream, 0 if not.
func (m *memberStream) shows() int {
	if m.shown == nil || m.shown.Pending() {
		return 1
	}
	return 0
}

// later has the next round look at streams.
func (t *members) later(all []*memberStream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range all {
		t.readyLocked(m)
	}
}

// check is the one for all answers that were made before it.
func (t *members) check(ctx context.Context, era uint64) error {
	ctx, cancel := context.WithTimeout(ctx, t.server.cfg.Limits.StreamWait)
	defer cancel()
	return t.server.cfg.Authority.Check(ctx, era)
}

// mayConfirm reports whether an answer may confirm a frame, if the era is held.
func (t *members) mayConfirm(m *memberStream, sequence uint64) bool {
	if sequence == m.answered || !t.core.State().Acts(state.Owner{Member: m.id, Incarnation: m.incarnation}) {
		return false
	}
	e := t.server.cfg.Members
	return e == nil || e.Answered(m.id, m.incarnation, t.server.cfg.Clock.Now())
}

// answer makes what there is to be said to a member; nil: nothing, or not now.
func (t *members) answer(m *memberStream) *coordinatorv1.MemberAnswer {
	t.mu.Lock()
	left, busy := m.left || t.replacedLocked(m), !m.unwritten.IsZero()
	m.waits = m.waits || busy
	t.mu.Unlock()
	switch {
	case left:
		if m.shown != nil {
			t.core.Close(m.shown)
			delete(t.streams, m.shown)
			m.shown = nil
		}
		return nil
	case m.shown == nil:
		m.shown = t.core.Open(m.id, m.incarnation)
		t.streams[m.shown] = m
	}
	st := t.core.State()
	member, err := speaker(st, m.id, m.incarnation)
	if reason.Of(err) == rootv1.Reason_REASON_MEMBER_RETIRED {
		m.live.cut(err)
		return nil
	}
	if busy || err != nil { // not known here yet
		return nil
	}
	a := &coordinatorv1.MemberAnswer{Era: st.Tenure().GetEra(), State: member.GetState()}
	t.mu.Lock()
	a.Sequence, a.ReportAgain, a.Refusals, a.Commands = m.taken, m.again, m.refusals, m.commands
	has := m.has
	a.DrainRefused = m.undrained
	m.has, m.again, m.refusals, m.commands, m.undrained = nil, false, nil, nil, nil
	t.mu.Unlock()
	if has != nil {
		t.core.Told(m.shown, has)
	}
	a.Set = t.core.Next(m.shown)
	t.mu.Lock()
	if m.caughtUp(a.Set) {
		m.askAgain(a)
	}
	if h := t.heard[m.id]; h != nil && h.stream == m {
		h.owesLocked(m.setAt, t.server.cfg.Clock.Now())
	}
	t.mu.Unlock()
	a.Terms = t.terms.of(t.core, m, member, a.Set)
	if a.Set == nil && a.Terms == nil && a.GetSequence() == m.answered && len(a.Commands) == 0 && a.DrainRefused == nil && !a.ReportAgain && len(a.ReportAgainRegions) == 0 {
		return nil
	}
	return a
}

// askAgain asks for reports that were refused: of their regions, as far as these are known.
// members.mu is held.
func (m *memberStream) askAgain(a *coordinatorv1.MemberAnswer) {
	if a.ReportAgain = a.ReportAgain || len(m.early) == 0 || len(m.early) > maxEarly; !a.ReportAgain {
		for id := range m.early {
			a.ReportAgainRegions = append(a.ReportAgainRegions, uint64(id))
		}
		slices.Sort(a.ReportAgainRegions)
	}
	m.early = nil
}

// caughtUp reports whether what a member said too early may be its own by now, so that it
// is to say it again: it had been shown that by another coordinator, and is shown it here
// with this set, or was after its report was judged. members.mu is held.
func (m *memberStream) caughtUp(set *coordinatorv1.ShownSet) bool {
	if set != nil && !set.GetPartial() {
		m.setAt = state.TokenFromProto(set.GetToken())
	}
	if m.missed == (state.Token{}) || m.setAt.Compare(m.missed) <= 0 {
		return false
	}
	m.missed = state.Token{}
	return true
}

// send sends an answer. Nothing that was sent before is unwritten, so that it does not
// wait for the member.
func (m *memberStream) send(a *coordinatorv1.MemberAnswer) {
	p := newPacket()
	data, err := proto.MarshalOptions{}.MarshalAppend(p.data, a)
	if err != nil { // rooted text, or a command's, that is not UTF-8
		m.live.cut(err)
		return
	}
	p.data = data
	t := m.server.members
	t.mu.Lock()
	m.unwritten, m.waits = time.Now(), m.waits || m.shown.Pending()
	t.mu.Unlock()
	m.sending.Lock()
	defer m.sending.Unlock()
	if m.over {
		return
	}
	if err := m.live.send(m.stream, &memberMessage{p, m}); err != nil {
		m.live.cut(err)
	}
}

// memberMessage is an encoded MemberAnswer.
type memberMessage struct {
	packet *packet
	stream *memberStream // is told when it is written
}

// Get implements mem.BufferPool.
func (m *memberStream) Get(length int) *[]byte { return bufferPool.Get(length) }

// Put implements mem.BufferPool: the transport has written an answer.
func (m *memberStream) Put(buf *[]byte) {
	bufferPool.Put(buf)
	t := m.server.members
	t.mu.Lock()
	defer t.mu.Unlock()
	m.unwritten = time.Time{}
	if m.waits {
		m.waits = false
		t.readyLocked(m)
	}
}

var _ mem.BufferPool = (*memberStream)(nil)

const (
	// maxTermsKeyspaces and maxTermsCoordinators bound what a member is told of.
	maxTermsKeyspaces    = 4096
	maxTermsCoordinators = 64
)

// terms are how members speak here.
type terms struct {
	version uint64
	// Made when they are asked for; valid with known. intervals has those of assigned
	// keyspaces, shortest the shortest of them, 0: none.
	known        bool
	intervals    map[string]uint64
	shortest     uint64
	coordinators []*rootv1.Coordinator
	holder       string
}

// toldTerms are those that a stream was told.
type toldTerms struct {
	version, interval uint64
	keyspaces         []state.KeyspaceID
}

func (t *terms) forget() { t.version, t.known = t.version+1, false }

// changed notes changes, and reports whether all members are to be told soon.
func (t *terms) changed(changes []state.Change) (soon bool) {
	any := false
	for i := range changes {
		switch changes[i].Kind {
		case state.ChangeKeyspace:
			soon = true
		case state.ChangeCoordinator, state.ChangeTenure:
			any = true
		}
	}
	if soon || any {
		t.forget()
	}
	return soon
}

// of are the terms for a stream, nil if it was told them.
func (t *terms) of(core *shown.Core, m *memberStream, member *rootv1.Member, set *coordinatorv1.ShownSet) *coordinatorv1.MemberTerms {
	t.learn(core.State())
	if set == nil && m.told.version == t.version {
		return nil
	}
	now := toldTerms{t.version, t.interval(member), core.Keyspaces(m.shown, maxTermsKeyspaces)}
	if m.told.version == now.version && m.told.interval == now.interval && slices.Equal(m.told.keyspaces, now.keyspaces) {
		return nil
	}
	m.told = now
	p := &coordinatorv1.MemberTerms{IntervalMillis: now.interval, Coordinators: t.coordinators, HolderId: t.holder}
	for _, id := range now.keyspaces {
		p.Keyspaces = append(p.Keyspaces, keyspaceTerms(core.State().Keyspace(id)))
	}
	return p
}

func keyspaceTerms(k *rootv1.Keyspace) *coordinatorv1.KeyspaceTerms {
	s := k.GetSettings()
	p := &coordinatorv1.KeyspaceTerms{
		KeyspaceId: k.GetId(), Name: k.GetName(), Layout: s.GetLayout(), Fence: s.GetOwnership().GetFence(),
		HoldRequestsMillis: state.MovesOf(s).GetHoldRequestsMillis(), Shared: s.GetOwnership().GetMaxOwners() > 1,
	}
	if s.GetLayout().GetPoints() != nil {
		p.IdleEvictMillis = s.GetCadence().GetIdleEvictMillis()
	}
	if p.Fence == rootv1.Fence_FENCE_TTL {
		p.TtlMillis = s.GetOwnership().GetTtlMillis()
	}
	return p
}

// learn reads what all members are told.
func (t *terms) learn(st *state.State) {
	if t.known {
		return
	}
	t.known, t.intervals, t.shortest, t.coordinators, t.holder = true, map[string]uint64{}, 0, nil, ""
	st.Keyspaces("", func(k *rootv1.Keyspace) bool {
		if k.GetSettings().GetPlacement() == rootv1.Placement_PLACEMENT_ASSIGNED {
			n := state.LivenessOf(k.GetSettings()).GetIntervalMillis()
			t.intervals[k.GetName()] = n
			if t.shortest == 0 || n < t.shortest {
				t.shortest = n
			}
		}
		return true
	})
	holder := st.Tenure()
	if !holder.GetRetired() {
		t.holder = holder.GetHolderId()
	}
	if c := st.Coordinator(state.CoordinatorID(t.holder)); c != nil {
		t.coordinators = append(t.coordinators, c)
	}
	st.Coordinators(func(c *rootv1.Coordinator) bool {
		if c.GetId() != t.holder {
			t.coordinators = append(t.coordinators, c)
		}
		return len(t.coordinators) < maxTermsCoordinators
	})
}

// interval is the time between two frames of a member, in milliseconds: the shortest of
// the keyspaces whose regions it takes.
func (t *terms) interval(m *rootv1.Member) uint64 {
	shortest := t.shortest
	if names := m.GetKeyspaces(); len(names) > 0 {
		shortest = 0
		for _, name := range names {
			if n := t.intervals[name]; n > 0 && (shortest == 0 || n < shortest) {
				shortest = n
			}
		}
	}
	return cmp.Or(shortest, state.DefaultIntervalMillis)
}
