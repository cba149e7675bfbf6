package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/shorten"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// PublishRootEvents implements coordinatorv1.CoordinatorServer.
func (s *Server) PublishRootEvents(ctx context.Context, req *coordinatorv1.PublishRootEventsRequest) (*coordinatorv1.PublishRootEventsResponse, error) {
	if err := checkCommands(req.GetCommands(), proto.Size(req)); err != nil {
		return nil, err
	}
	results, err := s.propose(ctx, req.GetCommands()...)
	if err != nil {
		return nil, err
	}
	s.cfg.Access.Rejected(ctx, results)
	shorten.Results(results)
	return &coordinatorv1.PublishRootEventsResponse{RequestId: req.GetRequestId(), Results: results}, nil
}

// publication is a request of a PublishStream with what is wrong with it.
type publication struct {
	req     *coordinatorv1.PublishRootEventsRequest
	bytes   int
	refused error
}

// PublishStream implements coordinatorv1.CoordinatorServer. Requests are
// proposed in the order they came, those that wait together; a refused request
// is answered and the stream goes on.
func (s *Server) PublishStream(stream grpc.BidiStreamingServer[coordinatorv1.PublishRootEventsRequest, coordinatorv1.PublishRootEventsResponse]) error {
	return s.run(stream.Context(), s.publishStreams, func(l *live) error {
		recv := func() (publication, int, error) {
			req, err := stream.Recv()
			if err != nil {
				return publication{}, 0, err
			}
			size := proto.Size(req)
			return publication{req, size, checkCommands(req.GetCommands(), size)}, size, nil
		}
		answer := func(waiting []publication, since time.Time) error {
			for len(waiting) > 0 {
				n := together(waiting)
				for i, resp := range s.publishTogether(l.ctx, waiting[:n], since) {
					resp.RequestId = waiting[i].req.GetRequestId()
					if err := l.send(stream, resp); err != nil {
						return err
					}
				}
				waiting = waiting[n:]
			}
			return nil
		}
		return exchange(l, s.cfg.Limits, recv, answer)
	})
}

// together is how many requests, at least one, fit in one proposal.
func together(waiting []publication) int {
	commands, bytes := 0, 0
	for i, p := range waiting {
		commands += len(p.req.GetCommands())
		bytes += p.bytes
		if i > 0 && (commands > MaxCommands || bytes > MaxCommandsBytes) {
			return i
		}
	}
	return len(waiting)
}

// publishTogether proposes the commands of all requests that are well formed, the first of
// which came at since.
func (s *Server) publishTogether(ctx context.Context, requests []publication, since time.Time) []*coordinatorv1.PublishRootEventsResponse {
	stats := s.cfg.Stats.Method(coordinatorv1.Coordinator_PublishRootEvents_FullMethodName)
	stats.Begin(len(requests))
	var all []*rootv1.Command
	for _, p := range requests {
		if p.refused == nil {
			all = append(all, p.req.GetCommands()...)
		}
	}
	var results []*rootv1.CommandResult
	var failed error
	if len(all) > 0 {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Limits.StreamWait)
		defer cancel()
		if results, failed = s.proposeUnbounded(ctx, all...); failed != nil {
			failed = s.refusal(failed)
		}
		s.cfg.Access.Rejected(ctx, results)
	}
	out := make([]*coordinatorv1.PublishRootEventsResponse, len(requests))
	for i, p := range requests {
		refused := p.refused
		if refused == nil {
			refused = failed
		}
		s.counted(ctx, stats, 1, since, refused)
		if refused != nil {
			out[i] = &coordinatorv1.PublishRootEventsResponse{Error: s.detail(refused)}
			continue
		}
		n := len(p.req.GetCommands())
		out[i] = &coordinatorv1.PublishRootEventsResponse{Results: results[:n:n]}
		shorten.Results(out[i].GetResults())
		results = results[n:]
	}
	return out
}

// detail is a refusal as it rides in a stream's message.
func (s *Server) detail(err error) *rootv1.ErrorDetail {
	err = s.refusal(err)
	if d := reason.From(err); d != nil {
		return d
	}
	if status.Code(err) == codes.DeadlineExceeded {
		return &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_ROOT_UNAVAILABLE, Message: "the root did not answer in time"}
	}
	return &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_UNSPECIFIED, Message: err.Error()}
}

// propose is proposeUnbounded within MaxWaiting.
func (s *Server) propose(ctx context.Context, cmds ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	who := places.Of(ctx)
	if err := s.changes.Enter(who); err != nil {
		return nil, err
	}
	defer s.changes.Leave(who)
	return s.proposeUnbounded(ctx, cmds...)
}

// proposeUnbounded sends commands to the root and returns one result each.
// When no answer came, nobody knows the outcome.
func (s *Server) proposeUnbounded(ctx context.Context, cmds ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	kept, refused, err := s.permitted(ctx, cmds)
	if err != nil {
		return nil, err
	}
	var results []*rootv1.CommandResult
	if len(kept) > 0 {
		s.identify(kept)
		results, err = s.cfg.Root.Propose(ctx, kept...)
	}
	if err != nil {
		if _, ok := errors.AsType[*reason.Error](err); ok {
			return nil, err
		}
		return nil, reason.New(rootv1.Reason_REASON_OUTCOME_UNKNOWN,
			"the root did not answer (%v): send it again, that is safe", err)
	}
	if len(results) != len(kept) {
		return nil, fmt.Errorf("the root answered %d commands with %d results", len(kept), len(results))
	}
	s.conceal(ctx, results...)
	if refused == nil {
		return results, nil
	}
	for i := range refused {
		if refused[i] == nil {
			refused[i], results = results[0], results[1:]
		}
	}
	return refused, nil
}

// checkCommands says what is wrong with the commands of a publish, a request of size
// bytes. Nothing of them is proposed when one is malformed.
func checkCommands(cmds []*rootv1.Command, size int) error {
	if len(cmds) == 0 {
		return invalid("commands", "there are none")
	}
	if len(cmds) > MaxCommands {
		return invalidLimit("commands", uint64(len(cmds)), MaxCommands)
	}
	if size > MaxCommandsBytes { // which counts what is around them too
		bytes := 0
		for _, cmd := range cmds {
			bytes += proto.Size(cmd)
		}
		if bytes > MaxCommandsBytes {
			return invalidLimit("commands", uint64(bytes), MaxCommandsBytes)
		}
	}
	for i, cmd := range cmds {
		if len(cmd.GetEvents()) == 0 {
			return invalid(fmt.Sprintf("commands[%d].events", i), "there are none")
		}
		if len(cmd.GetRequireKeyspaces()) > 0 { // the refusal tells the names of others' keyspaces
			return invalid(fmt.Sprintf("commands[%d].require_keyspaces", i), "it is for plans of coordinators: leave it out")
		}
		for j, event := range cmd.GetEvents() {
			if d := state.Publishable(event); d != nil {
				return invalid(fmt.Sprintf("commands[%d].events[%d]", i, j), "%s", d.GetMessage())
			}
		}
		readable(cmd)
		if d := state.CheckSmall(cmd); d != nil {
			return malformed(fmt.Sprintf("commands[%d]", i), d)
		}
	}
	return nil
}

// checkCommand is the root's own check, before anything is sent.
func checkCommand(field string, cmd *rootv1.Command) error {
	d := state.CheckCommand(cmd)
	if d == nil {
		return nil
	}
	return malformed(field, d)
}

func malformed(field string, d *rootv1.ErrorDetail) error {
	named := proto.CloneOf(d)
	named.Message = field + ": " + d.GetMessage()
	return &reason.Error{Detail: named}
}
