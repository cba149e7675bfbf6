package server

import (
	"context"
	"errors"
	"io"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// relay passes a member's stream on to another coordinator: frames there, answers back, each
// as it came. It is how a member that cannot reach the holder of the Tenure is heard and
// confirmed by it. The member counts its ttl from when it sent a frame, and the holder
// makes, checks and sends its answer as it does for any stream; what the way between them
// takes only shortens what is left of the ttl. The member's right to speak for its name was
// judged here, of its own connection; the other coordinator takes this one's word for it.
//
// Nothing of the stream is noted here: the member has a stream of its own to this
// coordinator. When either side ends, so does the other.
func (m *memberStream) relay(f *coordinatorv1.MemberFrame) error {
	hello := f.GetHello()
	if err := checkSender(hello.GetMemberId(), hello.GetIncarnation()); err != nil {
		return err
	}
	if hello.GetRelayedBy() != "" {
		return invalid("hello.relay_to", "coordinator %.64q passes the stream on already: it is passed on once", hello.GetRelayedBy())
	}
	to := m.server.view().State.Coordinator(state.CoordinatorID(hello.GetRelayTo()))
	if to == nil || m.server.cfg.Relay == nil {
		return reason.New(rootv1.Reason_REASON_NOT_FOUND, "coordinator %.64q is not known here: ask one that is, see nokv coordinator list", hello.GetRelayTo())
	}
	asked := m.server.askedVainly(hello)
	ctx, cancel := context.WithCancel(m.live.ctx)
	defer cancel()
	there, err := m.server.cfg.Relay(ctx, to)
	if err != nil {
		if m.live.ctx.Err() == nil { // else it may be the member that went
			err = status.Error(codes.Unavailable, err.Error())
		}
		asked(err)
		return status.Errorf(codes.Unavailable, "coordinator %.64q cannot be reached from here either: %v", hello.GetRelayTo(), err)
	}
	hello.RelayTo, hello.RelayedBy = "", string(m.server.cfg.ID)
	m.server.streams.work.Go(func() { m.live.cut(m.passBack(there, asked)) })
	for err == nil {
		if err = there.Send(f); err == nil {
			f, err = m.receive()
		}
	}
	if errors.Is(err, io.EOF) {
		_ = there.CloseSend() // passBack tells how the other side ended
		<-m.live.end
		return nil
	}
	return err
}

// passBack passes answers back until the other side ends.
func (m *memberStream) passBack(there grpc.BidiStreamingClient[coordinatorv1.MemberFrame, coordinatorv1.MemberAnswer], asked func(error)) error {
	for first := true; ; first = false {
		a, err := there.Recv()
		if first {
			asked(err)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = m.live.over()
		}
		if err == nil {
			err = m.live.send(m.stream, a)
		}
		if err != nil {
			return err
		}
	}
}

// askedVainly returns what is to be told how a stream for another coordinator began: with an
// answer, or with the error it ended with before there was one. While that coordinator holds
// the Tenure it is noted whether it could be reached for the member.
func (s *Server) askedVainly(hello *coordinatorv1.MemberHello) func(error) {
	st, begun := s.view().State, s.cfg.Clock.Now()
	member, err := speaker(st, state.MemberID(hello.GetMemberId()), hello.GetIncarnation())
	if err != nil || st.Tenure().GetHolderId() != hello.GetRelayTo() {
		return func(error) {}
	}
	id, incarnation, era := state.MemberID(member.GetId()), member.GetIncarnation(), state.Era(st.Tenure().GetEra())
	return func(err error) {
		now := s.cfg.Clock.Now()
		switch code := status.Code(err); {
		case err == nil || reason.Of(err) != rootv1.Reason_REASON_UNSPECIFIED:
			s.vain.forget(id) // what it says, it says itself
		case code == codes.Unavailable || code == codes.DeadlineExceeded || now.Sub(begun) >= vainAfter:
			s.vain.note(id, incarnation, era, now)
		}
	}
}
