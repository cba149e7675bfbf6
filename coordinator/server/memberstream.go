package server

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/shown"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/oneline"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// MaxFrameBytes bounds one frame of a member, in bytes.
	MaxFrameBytes = 256 << 10
	// maxEarly bounds the regions that a member is asked to report again one by one.
	maxEarly = 4096
	// maxRefusals bounds what is said of bad input in one answer.
	maxRefusals = 64
	// maxCommands bounds the commands that wait for one member, of about 50 bytes each.
	maxCommands = 1024
	// takeTime is how long a member has to take a set that it was shown, on whichever stream.
	takeTime = time.Minute
)

// MemberEvents hears of members' streams. Opened, Frame and Closed of one stream come in
// order, of different ones at the same time. Nothing may block.
type MemberEvents interface {
	// Opened and Closed tell of a stream that an incarnation of a member has here; each
	// has a number of its own.
	Opened(id state.MemberID, incarnation, stream uint64, now clock.Instant)
	Closed(id state.MemberID, incarnation, stream uint64, now clock.Instant)
	// Frame tells that one was taken; what of it was refused is not in it.
	Frame(f HeardFrame)
	// Answered is asked right before an answer is made that confirms an incarnation, and
	// says whether it may be. now is not before the frame came that is answered.
	Answered(id state.MemberID, incarnation uint64, now clock.Instant) bool
}

// HeardFrame is a frame that was taken. What it says of regions is in the soft state.
type HeardFrame struct {
	Member              state.MemberID
	Incarnation, Stream uint64
	At                  clock.Instant
	// Load is nil when it is as before.
	Load *coordinatorv1.MemberLoad
	// Turned are the regions that are in another phase than before, or at another epoch.
	Turned []state.RegionID
	// Showed: the member has taken a newer set than before on this stream. Behind: it has not taken one that it
	// was shown takeTime ago, or not said all behind that.
	Showed, Behind bool
	// Loads are of those regions in the frame that the member serves, Gone those that it does
	// not report any more.
	Loads []RegionLoad
	Gone  []state.RegionID
	// Complete: with this frame the member has said everything on this stream.
	Complete bool
	// Lost: there was no room for something that the member said last of a region on this stream.
	Lost    bool
	Replies []*coordinatorv1.MemberCommandReply
	// Goodbye is nil unless the member leaves.
	Goodbye *coordinatorv1.Goodbye
}

// RegionLoad is what a member says of a region that it serves.
type RegionLoad struct {
	Region state.RegionID
	Epoch  state.Epoch
	Load   float64
	// Keys in it; 0: not told.
	Keys      uint64
	Saturated bool
}

// SaidOf is the load in a report; false: the member does not serve the region.
func SaidOf(p *coordinatorv1.RegionReport) (RegionLoad, bool) {
	return RegionLoad{state.RegionID(p.GetRegionId()), rooted.EpochFromProto(p.GetEpoch()), p.GetLoad(), p.GetKeyCount(), p.GetSaturated()},
		p.GetPhase() == coordinatorv1.RegionPhase_REGION_PHASE_SERVING
}

// memberStream is one stream of a member. A goroutine of its own reads; answers are sent
// by members.run, which never waits: there is no more than one that was not written yet.
type memberStream struct {
	server      *Server
	live        *live
	stream      grpc.ServerStream
	id          state.MemberID
	incarnation uint64
	number      uint64
	begun       clock.Instant
	turn        *memberTurn

	// Owned by the goroutine that reads. since is when the complete report began that
	// is under way; 0: none.
	sequence uint64
	since    clock.Instant
	lost     lostReports
	showing  state.Token // told in a frame that others continue

	// Owned by members.run. answered is the frame that was answered last, told the terms
	// that were.
	shown    *shown.Stream
	answered uint64
	told     toldTerms

	sending sync.Mutex
	over    bool // guarded by sending: nothing may be sent any more

	// Guarded by members.mu. taken is the newest frame; unwritten since when an answer is
	// not written, zero: it is; ready: in members.ready.
	taken     uint64
	ready     bool
	left      bool
	unwritten time.Time
	waits     bool // there is something to be sent when that is written
	has       *coordinatorv1.ShownState
	showed    state.Token                 // of the newest set that reports here are about
	again     bool                        // a complete report is to be asked for
	missed    state.Token                 // of the newest view by which reports were refused of regions that are not its own; zero: none
	setAt     state.Token                 // of the newest set that was shown here
	early     map[state.RegionID]struct{} // what was said of them was refused so; more than maxEarly: of others too
	refusals  []*rootv1.ErrorDetail
	commands  []*coordinatorv1.MemberCommand
	// undrained is why the root did not let the member drain; nil: it was not asked, or did.
	undrained *rootv1.ErrorDetail
}

// MemberStream implements coordinatorv1.CoordinatorServer.
func (s *Server) MemberStream(stream grpc.BidiStreamingServer[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer]) error {
	return s.hold(stream.Context(), s.memberStreams, func(l *live) {
		m := &memberStream{server: s, live: l, stream: stream}
		s.streams.work.Go(func() { l.cut(m.read()) })
		<-l.end
		m.sending.Lock()
		defer m.sending.Unlock()
		m.over = true
	})
}

// read takes frames until there are no more.
func (m *memberStream) read() error {
	f, err := m.receive()
	if to := f.GetHello().GetRelayTo(); err == nil && to != "" && to != string(m.server.cfg.ID) {
		return m.relay(f)
	}
	if err == nil {
		err = m.open(f)
	}
	if err != nil {
		return err
	}
	defer m.server.members.close(m)
	for err == nil {
		if err = m.take(f); err == nil {
			f, err = m.receive()
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// receive reads a frame that is one.
func (m *memberStream) receive() (*coordinatorv1.MemberFrame, error) {
	f := new(coordinatorv1.MemberFrame)
	if err := m.stream.RecvMsg(f); err != nil {
		return nil, err
	}
	m.live.received.Add(1)
	if n := proto.Size(f); n > MaxFrameBytes {
		return nil, invalidLimit("frame", uint64(n), MaxFrameBytes)
	}
	m.sequence++
	switch first := m.sequence == 1; {
	case f.GetSequence() != m.sequence:
		return nil, invalid("sequence", "it is %d, this is frame %d of the stream", f.GetSequence(), m.sequence)
	case first && f.GetHello() == nil:
		return nil, invalid("hello", "it is missing in the first frame")
	case !first && f.GetHello() != nil:
		return nil, invalid("hello", "it belongs into the first frame of a stream only")
	}
	return f, nil
}

// open judges who speaks, and begins the stream.
func (m *memberStream) open(f *coordinatorv1.MemberFrame) error {
	hello := f.GetHello()
	if err := checkSender(hello.GetMemberId(), hello.GetIncarnation()); err != nil {
		return err
	}
	if p := principal.FromContext(m.live.ctx); hello.GetRelayedBy() != "" && p.Known() && p.Role != principal.Coordinator {
		return reason.New(rootv1.Reason_REASON_PERMISSION_DENIED, "%s is no coordinator: only coordinators pass members' streams on", p.Actor())
	}
	v, err := m.server.senderView(m.live.ctx, hello.GetMemberId(), hello.GetIncarnation())
	if err != nil {
		return err
	}
	member, err := m.server.speaker(v.state, state.MemberID(hello.GetMemberId()), hello.GetIncarnation())
	if err != nil {
		return v.atToken(err)
	}
	m.id, m.incarnation = state.MemberID(member.GetId()), member.GetIncarnation()
	return m.server.members.open(m, f.GetGoodbye().GetGone())
}

// speaker judges whether an incarnation may have a stream: as catalog.Sender does, and it
// must not have failed.
func speaker(st *state.State, id state.MemberID, incarnation uint64) (*rootv1.Member, error) {
	member, err := catalog.Sender(st, id, incarnation)
	if err == nil && member.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED {
		e := reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "incarnation %d of member %.64q has failed: register with a new start nonce", incarnation, string(id))
		e.Detail.Incarnation = incarnation
		return nil, e
	}
	return member, err
}

// speaker also refuses an incarnation that has said its last word here, on whichever stream: what comes on
// others was said before.
func (s *Server) speaker(st *state.State, id state.MemberID, incarnation uint64) (*rootv1.Member, error) {
	member, err := speaker(st, id, incarnation)
	if err == nil && s.cfg.Soft.Ended(id, incarnation) {
		return nil, errEnded(id, incarnation)
	}
	return member, err
}

func errEnded(id state.MemberID, incarnation uint64) error {
	return reason.New(rootv1.Reason_REASON_MEMBER_RETIRED, "incarnation %d of member %.64q has said that it has ended", incarnation, string(id))
}

// memberTurn is shared by the streams that an incarnation has here. What their frames say of
// regions is taken one frame after the other, so that nothing that was said before a last word
// comes behind it.
type memberTurn struct {
	taking sync.Mutex
	// leaving: a part of the last word was said. A process says it in all of its frames from
	// then on, so that others were sent before.
	leaving atomic.Bool
	// newest is the number of the stream that took the place of the others: what comes on those was
	// said before what comes on it, but for a last word.
	newest atomic.Uint64
}

// take takes what a frame says.
func (m *memberStream) take(f *coordinatorv1.MemberFrame) error {
	said, heard, err := m.note(f)
	if err != nil {
		return err
	}
	if m.server.cfg.Members != nil {
		m.server.cfg.Members.Frame(heard)
	}
	m.server.members.took(m, said, heard)
	return nil
}

// note takes into the soft state what a frame says.
func (m *memberStream) note(f *coordinatorv1.MemberFrame) (said words, heard HeardFrame, err error) {
	m.turn.taking.Lock()
	defer m.turn.taking.Unlock()
	s, view := m.server, m.server.view()
	st := view.State
	member, err := s.speaker(st, m.id, m.incarnation)
	if err != nil {
		return said, heard, err
	}
	switch gone := f.GetGoodbye().GetGone(); {
	case gone:
		m.turn.leaving.Store(true)
	case m.turn.leaving.Load():
		return said, heard, errEnded(m.id, m.incarnation)
	case m.turn.newest.Load() != m.number:
		return said, heard, errReplaced
	}
	now := s.cfg.Clock.Now()
	said = words{sequence: f.GetSequence(), has: f.GetShown()}
	heard = HeardFrame{Member: m.id, Incarnation: m.incarnation, Stream: m.number, At: now, Replies: f.GetReplies(), Goodbye: f.GetGoodbye()}
	if heard.Goodbye != nil {
		heard.Goodbye.Reason = oneline.Of(heard.Goodbye.Reason)
	}
	if f.GetPartial() && heard.Goodbye.GetGone() {
		heard.Goodbye = nil // it counts once all is told that was released: from then on nothing more is taken
	}
	heard.Showed, heard.Behind = s.members.showed(m, f, now)
	if l := f.GetLoad(); l != nil {
		if catalog.IsLoad(l.GetLoad()) && catalog.IsLoad(l.GetCapacity()) {
			heard.Load = l
		} else {
			said.refuse(invalid("load", "%v of %v is no load: both are 0 or more", l.GetLoad(), l.GetCapacity()))
		}
	}
	if f.GetComplete() && m.since == 0 {
		m.since, m.lost = now, lostReports{}
	}
	said.again = f.GetSequence() == 1 && !f.GetComplete()
	for _, p := range f.GetRegions() {
		turned, err := s.cfg.Soft.Report(st, member, p, now)
		m.lost.note(state.RegionID(p.GetRegionId()), err)
		if turned {
			heard.Turned = append(heard.Turned, state.RegionID(p.GetRegionId()))
		}
		if err != nil {
			said.refuse(err)
			if reason.Of(err) != rootv1.Reason_REASON_INVALID_REQUEST {
				said.missed = view.Token
				said.early = append(said.early, state.RegionID(p.GetRegionId()))
			}
			continue
		}
		if load, serves := SaidOf(p); serves {
			heard.Loads = append(heard.Loads, load)
		}
	}
	for _, id := range f.GetGone() {
		s.cfg.Soft.Gone(state.RegionID(id), m.incarnation)
		m.lost.note(state.RegionID(id), nil)
		heard.Gone = append(heard.Gone, state.RegionID(id))
	}
	if m.since != 0 && !f.GetPartial() {
		s.cfg.Soft.Complete(st, m.incarnation, m.since)
		m.since, heard.Complete = 0, true
	}
	heard.Lost = m.lost.any()
	if heard.Goodbye.GetGone() {
		s.cfg.Soft.End(m.id, m.incarnation)
	}
	return said, heard, nil
}

// lostReports are regions of which there was no room for what a stream said last.
type lostReports struct {
	regions map[state.RegionID]struct{}
	// many: there are more than maxEarly, or were; a complete report ends it.
	many bool
}

// note takes what became of a report of a region.
func (l *lostReports) note(id state.RegionID, err error) {
	switch {
	case err == nil || reason.Of(err) != rootv1.Reason_REASON_OVERLOADED:
		delete(l.regions, id)
	case len(l.regions) >= maxEarly:
		l.many = true
	default:
		if l.regions == nil {
			l.regions = map[state.RegionID]struct{}{}
		}
		l.regions[id] = struct{}{}
	}
}

func (l *lostReports) any() bool { return l.many || len(l.regions) > 0 }

// words are what a frame leaves to be answered.
type words struct {
	sequence uint64
	has      *coordinatorv1.ShownState
	again    bool
	missed   state.Token
	early    []state.RegionID
	refusals []*rootv1.ErrorDetail
}

func (w *words) refuse(err error) {
	if len(w.refusals) < maxRefusals {
		w.refusals = append(w.refusals, reason.From(err))
	}
}

var errReplaced = status.Error(codes.Aborted, "another stream of this member opened here and took the place of this one")
