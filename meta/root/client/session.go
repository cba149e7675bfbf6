package client

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

var (
	errSilent = errors.New("the peer did not answer in time")
	errMoved  = errors.New("another peer leads by now")
)

// request is the proposals that travel together.
type request struct {
	id        uint64
	proposals []*proposal
	commands  []*rootv1.Command
}

// session is one ProposeStream to one peer. The goroutine that runs it sends;
// one more receives.
type session struct {
	q       *proposer
	p       *peer
	stream  grpc.BidiStreamingClient[rootv1.ProposeRequest, rootv1.ProposeResponse]
	attempt *attempt
	silence *time.Timer   // ends the stream when an answer is overdue
	freed   chan struct{} // a level: a request was answered

	overloaded atomic.Int64 // refusals in a row because the peer's queue was full
	answered   atomic.Bool  // the peer answered as the leader

	// refusal is the request whose refusal ended the session, when the root has
	// certainly not judged it. The receiver sets it.
	refusal []*request
	// unsent is the request that the stream did not take, if it said so. The sender
	// sets it.
	unsent *request

	mu       sync.Mutex // guards what follows
	lastID   uint64
	inFlight []*request // in the order they were sent
}

// run sends what is queued, over one stream after the other, until ctx ends.
func (q *proposer) run(ctx context.Context) {
	var p spacing
	for q.wait(ctx) {
		target, err := q.c.peers.get(q.c.leader.target())
		if err != nil {
			q.failQueued(err)
			continue
		}
		answered, err := q.session(ctx, target)
		if answered {
			p.reset()
		}
		if ctx.Err() != nil {
			return
		}
		v := q.c.judge(target, err)
		if own := q.c.barred(err); v == refused && own != nil {
			q.failQueued(unanswered(own, false, nil))
		} else if v == refused {
			q.failQueued(reason.FromGRPC(err))
		}
		q.c.next(ctx, &p, v)
	}
}

// wait returns when something is queued, or false when ctx ends.
func (q *proposer) wait(ctx context.Context) bool {
	for ctx.Err() == nil {
		q.mu.Lock()
		queued := len(q.queue) > 0
		q.mu.Unlock()
		if queued {
			return true
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
		}
	}
	return false
}

// session runs one stream to p until it ends and gives back what it left
// without an answer. The error is never nil.
func (q *proposer) session(ctx context.Context, p *peer) (answered bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &session{q: q, p: p, freed: make(chan struct{}, 1)}
	s.attempt = q.c.leader.begin(p.id, func() { cancel(errMoved) })
	defer q.c.leader.end(s.attempt)
	s.silence = time.AfterFunc(q.c.cfg.AttemptTimeout, func() { cancel(errSilent) })
	defer s.silence.Stop()
	s.attempt.waits()

	if err := q.c.identify(ctx, p); err != nil {
		return false, causeOf(ctx, err)
	}
	if s.stream, err = p.root.ProposeStream(ctx); err != nil {
		return false, causeOf(ctx, err)
	}
	s.silence.Stop()
	s.attempt.rests()

	received := make(chan error, 1)
	var receiver sync.WaitGroup
	receiver.Go(func() {
		received <- s.receive()
		cancel(nil) // Ends a send that is stuck, and so the session.
	})
	s.send(ctx)
	receiver.Wait()
	err = <-received
	if s.unsent != nil {
		q.refuseUnwritable(s.unsent)
	}
	// Only now: while the sender ran it would have sent them to the same peer.
	q.giveBack(s.inFlight, false, err)
	q.giveBack(s.refusal, true, err)
	return s.answered.Load(), causeOf(ctx, err)
}

// causeOf prefers our own reason for ending a stream to what gRPC makes of it.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause == errSilent || cause == errMoved {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// send turns queued proposals into requests while fewer than PipelinedProposals
// are without an answer. It returns when the stream is over.
func (s *session) send(ctx context.Context) {
	for ctx.Err() == nil {
		if n := s.overloaded.Load(); n > 0 {
			sleep(ctx, jitter(min(s.q.c.cfg.MinBackoff<<min(n-1, 16), s.q.c.cfg.MaxBackoff)), nil)
		}
		// Callers that were woken together propose again together: let them queue
		// before the request is cut.
		runtime.Gosched()
		for !s.full() {
			r := s.q.next()
			if r == nil {
				break
			}
			s.begin(r)
			err := s.stream.Send(&rootv1.ProposeRequest{RequestId: r.id, Commands: r.commands, ClusterId: s.q.c.cluster.Load()})
			if err != nil {
				s.unsent = r
				return // The receiver learns why.
			}
		}
		ready := s.q.ready
		if s.full() {
			ready = nil
		}
		select {
		case <-ready:
		case <-s.freed:
		case <-ctx.Done():
		}
	}
}

func (s *session) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.inFlight) >= s.q.c.cfg.PipelinedProposals
}

func (s *session) begin(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	r.id = s.lastID
	if len(s.inFlight) == 0 {
		s.silence.Reset(s.q.c.cfg.AttemptTimeout)
		s.attempt.waits()
	}
	s.inFlight = append(s.inFlight, r)
}

// end takes the request that an answer belongs to; nil: there is none.
func (s *session) end(id uint64) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.inFlight {
		if r.id != id {
			continue
		}
		s.inFlight = append(s.inFlight[:i], s.inFlight[i+1:]...)
		if len(s.inFlight) == 0 {
			s.silence.Stop()
			s.attempt.rests()
		} else {
			s.silence.Reset(s.q.c.cfg.AttemptTimeout)
			s.attempt.waits()
		}
		return r
	}
	return nil
}

// giveUp counts a request among those without an answer again.
func (s *session) giveUp(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight = append(s.inFlight, r)
}

// receive hands answers to callers until the stream ends or the peer turns out
// not to lead; it says why.
func (s *session) receive() error {
	for {
		resp, err := s.stream.Recv()
		if err != nil {
			return err
		}
		r := s.end(resp.GetRequestId())
		if r == nil {
			return fmt.Errorf("root peer %d answered request %d, which is not in flight", s.p.id, resp.GetRequestId())
		}
		if resp.GetError() != nil {
			err = s.refused(r, &reason.Error{Detail: resp.GetError()})
		} else {
			err = s.deliver(r, resp.GetResults())
		}
		if err != nil {
			return err
		}
		select {
		case s.freed <- struct{}{}:
		default:
		}
	}
}

// deliver gives each caller its share of the results.
func (s *session) deliver(r *request, results []*rootv1.CommandResult) error {
	if len(results) != len(r.commands) {
		err := fmt.Errorf("root peer %d answered %d commands with %d results", s.p.id, len(r.commands), len(results))
		s.giveUp(r)
		return err
	}
	s.overloaded.Store(0)
	if !s.answered.Swap(true) {
		s.q.c.judge(s.p, nil)
	}
	for _, p := range r.proposals {
		n := len(p.commands)
		s.q.doubt(p, results[:n])
		p.finish(results[:n:n], nil)
		results = results[n:]
	}
	return nil
}

// doubt takes the position from refusals of commands that are too old to be
// recognised when they were sent before: the position says that a command was sent
// once and not applied, and may be asked for under a new identity.
func (q *proposer) doubt(p *proposal, results []*rootv1.CommandResult) {
	q.mu.Lock()
	unknown := p.unknown
	q.mu.Unlock()
	for _, r := range results {
		if unknown && r.GetError().GetReason() == rootv1.Reason_REASON_OUTCOME_UNKNOWN {
			r.Error.CurrentToken = nil
		}
	}
}

// refused decides about a request that was not judged. An error ends the session.
func (s *session) refused(r *request, why *reason.Error) error {
	switch why.Detail.GetReason() {
	case rootv1.Reason_REASON_NOT_LEADER:
		s.refusal = []*request{r}
		return why
	case rootv1.Reason_REASON_OUTCOME_UNKNOWN, rootv1.Reason_REASON_ROOT_UNAVAILABLE:
		s.giveUp(r)
		return why
	case rootv1.Reason_REASON_OVERLOADED:
		s.overloaded.Add(1)
		s.q.giveBack([]*request{r}, true, why)
		return nil
	}
	for _, p := range r.proposals {
		s.q.refuse(p, why)
	}
	return nil
}
