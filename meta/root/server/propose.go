package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/shorten"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// maxCommands is the most commands in one request (root.proto).
const maxCommands = 1024

// Propose implements rootv1.RootServer.
func (s *Server) Propose(ctx context.Context, req *rootv1.ProposeRequest) (*rootv1.ProposeResponse, error) {
	results, err := s.propose(ctx, req)
	if err != nil {
		return nil, err
	}
	return &rootv1.ProposeResponse{RequestId: req.GetRequestId(), Results: results}, nil
}

// propose has a request judged. Errors are *reason.Error.
func (s *Server) propose(ctx context.Context, req *rootv1.ProposeRequest) ([]*rootv1.CommandResult, error) {
	if err := s.checkChange(req.GetClusterId()); err != nil {
		return nil, err
	}
	if n := len(req.GetCommands()); n == 0 || n > maxCommands {
		return nil, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "%d commands: a request has 1 to %d", n, maxCommands)
	}
	who, size := places.Of(ctx), proto.Size(req)
	if size <= state.MaxHolderBytes && !slices.ContainsFunc(req.Commands, ofOthers) {
		// Room of its own: neither counts nor bytes of publishers are in its way.
		if err := s.authority.Enter(who); err != nil {
			return nil, err
		}
		defer s.authority.Leave(who)
	} else {
		if err := s.proposals.Enter(who); err != nil {
			return nil, err
		}
		defer s.proposals.Leave(who)
		account := s.waiting.Account(who.String())
		defer account.Close()
		if err := account.Take(size); err != nil {
			return nil, err
		}
		defer account.Give(size)
	}
	for _, c := range req.Commands {
		clearVerdict(c)
		s.cfg.Access.Sign(ctx, c)
	}
	results, err := s.admitted(ctx, req.Commands)
	s.cfg.Access.Rejected(ctx, results)
	shorten.Results(results)
	return results, s.withLeader(err)
}

func ofOthers(c *rootv1.Command) bool { return !state.OfHolder(c) }

// admitted has commands judged that may enter the log: what only root peers make,
// what is above the rooted feature level, and what its actor may not ask for is
// answered here, each by itself.
func (s *Server) admitted(ctx context.Context, commands []*rootv1.Command) ([]*rootv1.CommandResult, error) {
	known, err := s.known(ctx, commands)
	if err != nil {
		return nil, err
	}
	results := make([]*rootv1.CommandResult, len(commands))
	var kept []*rootv1.Command
	for i, c := range commands {
		detail := s.barred(ctx, c, known)
		if detail == nil {
			kept = append(kept, c)
			continue
		}
		results[i] = &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Token: known.Token().Proto(), Error: detail}
	}
	if len(kept) == 0 {
		return results, nil
	}
	judged, err := s.judge(ctx, kept)
	if err != nil || len(kept) == len(commands) {
		return judged, err
	}
	for i := range results {
		if results[i] == nil {
			results[i], judged = judged[0], judged[1:]
		}
	}
	return results, nil
}

// known is a state to judge commands by before they enter the log. Callers are
// judged by everything that was acknowledged when they called, which a leader has
// behind the first entry of its own. A rejection is final: a state that would reject
// any is the leader's, and has everything that was acknowledged by now. The feature
// level never falls: what is above it there was not applied before, so that no
// repetition is rejected.
func (s *Server) known(ctx context.Context, commands []*rootv1.Command) (*state.State, error) {
	v := s.cfg.Replica.View()
	doubtful := func(c *rootv1.Command) bool { return s.barred(ctx, c, v.State) != nil }
	if (s.cfg.Access == nil || v.Settled()) && !slices.ContainsFunc(commands, doubtful) {
		return v.State, nil
	}
	return s.currentAsLeader(ctx)
}

// barred says why a command may not enter the log; nil: it may.
func (s *Server) barred(ctx context.Context, c *rootv1.Command, known *state.State) *rootv1.ErrorDetail {
	if d := known.CheckLevel(c); d != nil {
		return d
	}
	for _, e := range c.GetEvents() {
		if e.GetFeatureLevelRaised() != nil {
			return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "the feature level is raised by the root leader: ask it to").Detail
		}
	}
	return reason.From(s.cfg.Access.Proposed(ctx, c, known))
}

// clearVerdict removes what only a root leader may say.
func clearVerdict(c *rootv1.Command) {
	for _, e := range c.GetEvents() {
		if claim := e.GetTenureClaimed(); claim != nil {
			claim.PredecessorExpired, claim.UnlessConfirmed = false, false
		}
	}
}

// judge proposes commands. When the replica will not even propose them because
// of one (its form, its clock), they are halved until that one stands alone and
// is answered as rejected: a request holds commands of many callers.
func (s *Server) judge(ctx context.Context, commands []*rootv1.Command) ([]*rootv1.CommandResult, error) {
	results, err := s.cfg.Replica.Propose(ctx, commands)
	detail := reason.From(err)
	if err == nil || !aboutOneCommand(detail.GetReason()) {
		return results, err
	}
	if len(commands) == 1 {
		return []*rootv1.CommandResult{{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: detail}}, nil
	}
	half := len(commands) / 2
	left, err := s.judge(ctx, commands[:half])
	if err != nil {
		return nil, err
	}
	right, err := s.judge(ctx, commands[half:])
	if err != nil {
		return nil, unknownAfter(err)
	}
	return append(left, right...), nil
}

// unknownAfter is the error of a request of which a part was judged.
func unknownAfter(err error) error {
	if reason.Of(err) == rootv1.Reason_REASON_OUTCOME_UNKNOWN {
		return err
	}
	return reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN, "a part was judged, then: %v", err)
}

// aboutOneCommand says that a refusal is not about this peer or this moment.
func aboutOneCommand(r rootv1.Reason) bool {
	switch r {
	case rootv1.Reason_REASON_UNSPECIFIED, rootv1.Reason_REASON_NOT_LEADER, rootv1.Reason_REASON_OVERLOADED,
		rootv1.Reason_REASON_ROOT_UNAVAILABLE, rootv1.Reason_REASON_OUTCOME_UNKNOWN, rootv1.Reason_REASON_CLUSTER_MISMATCH:
		return false
	}
	return true
}

// withLeader adds the leader's gRPC address to a refusal that names the leader.
func (s *Server) withLeader(err error) error {
	if err == nil {
		return nil
	}
	detail := reason.From(err)
	if detail == nil {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "%v", err)
	}
	if detail.GetReason() != rootv1.Reason_REASON_NOT_LEADER || detail.GetLeaderId() == 0 || detail.GetLeaderAddress() != "" {
		return err
	}
	hinted := reason.New(detail.GetReason(), "%s", detail.GetMessage())
	hinted.Detail.LeaderId, hinted.Detail.LeaderAddress = detail.GetLeaderId(), s.address(detail.GetLeaderId())
	return hinted
}

func (s *Server) address(node uint64) string {
	if node == s.cfg.NodeID {
		return s.cfg.Address
	}
	return s.cfg.Peers.Address(node)
}

// ProposeStream implements rootv1.RootServer.
func (s *Server) ProposeStream(stream grpc.BidiStreamingServer[rootv1.ProposeRequest, rootv1.ProposeResponse]) error {
	return s.guarded(stream, "propose stream", func(out *outlet) error { return s.pipeline(stream, out) })
}

// pipeline hands requests to the replica as they come and sends answers as they
// are ready. A request's place is free again when its answer was sent, so at
// most MaxStreamProposals answers wait and their channel never blocks.
func (s *Server) pipeline(stream grpc.BidiStreamingServer[rootv1.ProposeRequest, rootv1.ProposeResponse], out *outlet) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	places := make(chan struct{}, s.cfg.MaxStreamProposals)
	answers := make(chan *rootv1.ProposeResponse, s.cfg.MaxStreamProposals)
	var judging, sending sync.WaitGroup
	var sendErr error
	sending.Go(func() {
		for answer := range answers {
			if sendErr == nil {
				sendErr = out.send(answer)
			}
			if sendErr != nil {
				cancel()
			}
			out.pending.Add(-1)
			<-places
		}
	})
	err := s.receive(ctx, stream, func(req *rootv1.ProposeRequest) bool {
		came := time.Now()
		select {
		case places <- struct{}{}:
		case <-s.stopping:
			return false
		case <-ctx.Done():
			return false
		}
		out.pending.Add(1)
		judging.Go(func() { answers <- s.answer(ctx, req, came) })
		return true
	})
	judging.Wait()
	close(answers)
	sending.Wait()
	if sendErr != nil {
		return sendErr
	}
	return err
}

// receive reads requests until the caller is done or the server stops.
func (s *Server) receive(ctx context.Context, stream grpc.BidiStreamingServer[rootv1.ProposeRequest, rootv1.ProposeResponse], take func(*rootv1.ProposeRequest) bool) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !take(req) {
			return ctx.Err()
		}
	}
}

// answer judges one request of a stream, and counts it as a call.
func (s *Server) answer(ctx context.Context, req *rootv1.ProposeRequest, came time.Time) *rootv1.ProposeResponse {
	method := s.stats.Method(rootv1.Root_Propose_FullMethodName)
	method.Begin(1)
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ProposeTimeout)
	defer cancel()
	results, err := s.propose(ctx, req)
	method.End(1, came, err)
	s.cfg.Access.Refused(ctx, 1, err)
	resp := &rootv1.ProposeResponse{RequestId: req.GetRequestId(), Results: results}
	if err != nil {
		resp.Results, resp.Error = nil, reason.From(err)
		if resp.Error == nil {
			resp.Error = &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_OUTCOME_UNKNOWN, Message: err.Error()}
		}
	}
	return resp
}
