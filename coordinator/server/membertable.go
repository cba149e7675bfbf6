package server

import (
	"context"
	"sync"

	"github.com/nokv/nokv/coordinator/shown"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// members are the members that were heard here, and their streams.
type members struct {
	server *Server
	wake   chan struct{} // level: ready has somebody

	// Owned by run. at is the token of what core shows.
	core *shown.Core
	at   state.Token
	// streams are those that run has opened, by the core's.
	streams map[*shown.Stream]*memberStream
	terms   terms

	// opening has streams open one by one, so that all hear of them in their order.
	opening sync.Mutex

	mu sync.Mutex
	// Guarded by mu. heard has no member that is not rooted; opened numbers streams;
	// ready are those that run has to look at.
	heard  map[state.MemberID]*heardMember
	opened uint64
	ready  []*memberStream
}

// heardMember is a member that was heard here.
type heardMember struct {
	incarnation uint64
	at          clock.Instant // of its last frame
	frames      uint64
	load        *coordinatorv1.MemberLoad // nil: not told
	stream      *memberStream             // nil: it has none
	turn        *memberTurn
	// owes is a set that was shown to it at owesSince, and that it has not taken; zero: there is none.
	owes      state.Token
	owesSince clock.Instant
}

func newMembers(s *Server) *members {
	return &members{server: s, wake: make(chan struct{}, 1), heard: map[state.MemberID]*heardMember{}, streams: map[*shown.Stream]*memberStream{}}
}

// open begins a stream, in the place of an older one of the member. gone: it begins with a
// part of the last word.
func (t *members) open(m *memberStream, gone bool) error {
	t.opening.Lock()
	defer t.opening.Unlock()
	now := t.server.cfg.Clock.Now()
	t.mu.Lock()
	h := t.heard[m.id]
	if h != nil && h.incarnation > m.incarnation {
		t.mu.Unlock()
		return reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "incarnation %d of member %.64q is over: %d has a stream here", m.incarnation, string(m.id), h.incarnation)
	}
	if h != nil && h.incarnation == m.incarnation && h.turn.leaving.Load() && !gone {
		t.mu.Unlock()
		return errEnded(m.id, m.incarnation)
	}
	if h == nil || h.incarnation != m.incarnation {
		old := h
		h = &heardMember{incarnation: m.incarnation, turn: new(memberTurn)}
		if old != nil {
			h.stream = old.stream
		}
		t.heard[m.id] = h
	}
	replaced := h.stream
	t.opened++
	m.turn = h.turn
	m.turn.newest.Store(t.opened)
	m.number, m.begun, h.stream, h.at = t.opened, now, m, now // it is answered once its first frame is taken
	t.mu.Unlock()
	if replaced != nil {
		replaced.live.cut(errReplaced)
	}
	if e := t.server.cfg.Members; e != nil {
		e.Opened(m.id, m.incarnation, m.number, now)
	}
	return nil
}

// replacedLocked reports whether another stream took the place of this one, which may have
// come further than its end.
func (t *members) replacedLocked(m *memberStream) bool {
	h := t.heard[m.id]
	return h != nil && h.stream != m
}

func (t *members) close(m *memberStream) {
	t.mu.Lock()
	if h := t.heard[m.id]; h != nil && h.stream == m {
		h.stream = nil
	}
	m.left = true
	t.readyLocked(m)
	t.mu.Unlock()
	if e := t.server.cfg.Members; e != nil {
		e.Closed(m.id, m.incarnation, m.number, t.server.cfg.Clock.Now())
	}
}

// showed notes which set the reports of a stream are about, and says whether that is a newer one, and whether
// the member is behind what it was shown: a frame that others continue has not said all.
func (t *members) showed(m *memberStream, f *coordinatorv1.MemberFrame, now clock.Instant) (newer, behind bool) {
	if token := state.TokenFromProto(f.GetShown().GetToken()); token.Compare(m.showing) > 0 {
		m.showing = token
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if newer = !f.GetPartial() && m.showing.Compare(m.showed) > 0; newer {
		m.showed = m.showing
	}
	h := t.heard[m.id]
	if h == nil || h.stream != m {
		return newer, false
	}
	if newer && m.showed.Compare(h.owes) >= 0 {
		h.owes = state.Token{}
		h.owesLocked(m.setAt, now)
	}
	return newer, h.owes != state.Token{} && now.Sub(h.owesSince) > takeTime
}

// owesLocked notes the newest set that a member was shown, unless it has taken that, or an older one is waited
// for.
func (h *heardMember) owesLocked(set state.Token, now clock.Instant) {
	if h.owes == (state.Token{}) && set.Compare(h.stream.showed) > 0 {
		h.owes, h.owesSince = set, now
	}
}

// Shown is the token of the newest set that an incarnation has taken on its stream here,
// as far as all that it reports is about that, and since when it has the stream. Zero:
// it has none.
func (s *Server) Shown(id state.MemberID, incarnation uint64) (token state.Token, since clock.Instant) {
	t := s.members
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.heard[id]; h != nil && h.stream != nil && h.incarnation == incarnation {
		return h.stream.showed, h.stream.begun
	}
	return state.Token{}, 0
}

// took notes a frame, and has it answered.
func (t *members) took(m *memberStream, said words, f HeardFrame) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.heard[m.id]; h != nil && h.stream == m {
		h.at = f.At
		h.frames++
		if f.Load != nil {
			h.load = f.Load
		}
	}
	m.taken, m.again = said.sequence, m.again || said.again
	if said.missed.Compare(m.missed) > 0 {
		m.missed = said.missed
	}
	for _, id := range said.early {
		if m.early == nil {
			m.early = map[state.RegionID]struct{}{}
		}
		if len(m.early) <= maxEarly {
			m.early[id] = struct{}{}
		}
	}
	if said.has != nil {
		m.has = said.has
	}
	m.refusals = append(m.refusals, said.refusals[:min(len(said.refusals), maxRefusals-len(m.refusals))]...)
	t.readyLocked(m)
}

// readyLocked has run look at a stream.
func (t *members) readyLocked(m *memberStream) {
	if !m.ready {
		m.ready = true
		t.ready = append(t.ready, m)
		signal(t.wake)
	}
}

// heardOf is what is known of a member here.
func (t *members) heardOf(id state.MemberID) (heardMember, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.heard[id]; h != nil {
		return *h, true
	}
	return heardMember{}, false
}

// MemberStreams is how many streams of members are open here.
func (s *Server) MemberStreams() int {
	t := s.members
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, h := range t.heard {
		if h.stream != nil {
			n++
		}
	}
	return n
}

// sweep drops members that st does not have and that have no stream.
func (t *members) sweep(st *state.State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, h := range t.heard {
		if m := st.Member(id); h.stream == nil && (m == nil || m.GetState() == rootv1.MemberState_MEMBER_STATE_REMOVED) {
			delete(t.heard, id)
		}
	}
}

// Load is what a member last said of itself on a stream here; nil: nothing.
func (s *Server) Load(id state.MemberID, incarnation uint64) *coordinatorv1.MemberLoad {
	if h, ok := s.members.heardOf(id); ok && h.incarnation == incarnation {
		return h.load
	}
	return nil
}

// SaidLoad is the load that an incarnation last said on a stream here.
func (s *Server) SaidLoad(id state.MemberID, incarnation uint64) (float64, bool) {
	l := s.Load(id, incarnation)
	return l.GetLoad(), l != nil
}

// Command sends a command to a member that has a stream here, once, with the next
// answer. It refuses with REASON_NOT_FOUND when there is none of the incarnation, and with
// REASON_OVERLOADED when too many wait.
func (s *Server) Command(id state.MemberID, incarnation uint64, c *coordinatorv1.MemberCommand) error {
	t := s.members
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.heard[id]
	if h == nil || h.stream == nil || h.incarnation != incarnation {
		return reason.New(rootv1.Reason_REASON_NOT_FOUND, "incarnation %d of member %.64q has no stream here", incarnation, string(id))
	}
	if len(h.stream.commands) >= maxCommands {
		return reason.New(rootv1.Reason_REASON_OVERLOADED, "%d commands wait for member %.64q", maxCommands, string(id))
	}
	h.stream.commands = append(h.stream.commands, c)
	t.readyLocked(h.stream)
	return nil
}

// RefuseDrain tells a member that has a stream here, once, with the next answer, that the root did not let
// it drain.
func (s *Server) RefuseDrain(id state.MemberID, incarnation uint64, because *rootv1.ErrorDetail) {
	t := s.members
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.heard[id]; h != nil && h.stream != nil && h.incarnation == incarnation {
		h.stream.undrained = because
		t.readyLocked(h.stream)
	}
}

// HeardMembers implements coordinatorv1.CoordinatorServer.
func (s *Server) HeardMembers(ctx context.Context, req *coordinatorv1.HeardMembersRequest) (*coordinatorv1.HeardMembersResponse, error) {
	n := len(req.GetMemberIds())
	switch {
	case n == 0:
		return nil, invalid("member_ids", "there is none")
	case n > MaxHeardMembers:
		return nil, invalidLimit("member_ids", uint64(n), MaxHeardMembers)
	}
	now := s.cfg.Clock.Now()
	resp := &coordinatorv1.HeardMembersResponse{Token: s.view().Token.Proto()}
	for _, id := range req.GetMemberIds() {
		if h, ok := s.members.heardOf(state.MemberID(id)); ok {
			resp.Members = append(resp.Members, &coordinatorv1.HeardMember{
				MemberId: id, Incarnation: h.incarnation, AgeMillis: uint64(max(now.Sub(h.at), 0).Milliseconds()), Connected: h.stream != nil,
			})
		}
	}
	return resp, nil
}

// MaxHeardMembers bounds the members that are asked about at once.
const MaxHeardMembers = 4096

// follow brings what is shown to the newest view.
func (t *members) follow(ctx context.Context) {
	v := t.server.view()
	if t.core == nil {
		t.core, t.at = shown.New(v.State), v.Token
		t.terms.forget()
		return
	}
	if v.Token == t.at {
		return
	}
	var changes []state.Change
	reader := t.server.cfg.Views.Subscribe(t.at)
	for reader.At().Compare(v.Token) < 0 {
		// What led to a view can be read with it: nobody waits here.
		batch, err := reader.Next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil || batch.Snapshot || reader.At().Compare(v.Token) > 0 {
			t.core.Jump(v.State)
			t.at = v.Token
			t.terms.forget()
			return
		}
		changes = append(changes, batch.Changes...)
	}
	t.core.Apply(v.State, changes)
	t.at = v.Token
	if t.terms.changed(changes) {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, m := range t.streams {
			t.readyLocked(m)
		}
	}
}
