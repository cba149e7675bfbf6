package client

import (
	"context"
	"sync"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// maxIdleConfirms bounds the streams that are kept for the next confirmation.
const maxIdleConfirms = 4

// confirms are streams to the leader for confirmations. Whoever asks has a
// stream for itself meanwhile. A stream that brings no answer, for whatever
// reason, is given up, and the request made anew by a call of its own.
type confirms struct {
	c *Client

	mu     sync.Mutex // guards what follows
	idle   []*confirmStream
	closed bool
}

// confirmStream is one ConfirmStream to one peer.
type confirmStream struct {
	p *peer
	// ctx is the stream's own; cancel ends it.
	ctx     context.Context
	cancel  func()
	stream  grpc.BidiStreamingClient[rootv1.ConfirmTenureRequest, rootv1.ConfirmTenureResponse]
	attempt *attempt
	silence *time.Timer // ends the stream when an answer is overdue
}

func confirmRequest(r *rootv1.ConfirmTenureRequest, cluster uint64) *rootv1.ConfirmTenureRequest {
	return &rootv1.ConfirmTenureRequest{
		Era: r.GetEra(), HolderId: r.GetHolderId(), HolderIncarnation: r.GetHolderIncarnation(), ClusterId: cluster,
	}
}

// ask asks the peer that is thought to lead; nil: no answer came.
func (s *confirms) ask(ctx context.Context, r *rootv1.ConfirmTenureRequest) *rootv1.ConfirmTenureResponse {
	leader, cluster := s.c.leader.current.Load(), s.c.cluster.Load()
	if leader == 0 || cluster == 0 {
		return nil
	}
	one := s.take(leader)
	if one == nil {
		return nil
	}
	out, err := one.ask(ctx, s.c.cfg.AttemptTimeout, confirmRequest(r, cluster))
	if err != nil {
		s.c.end(one)
		return nil
	}
	s.keep(one)
	return out
}

// ask asks on this stream; it is opened by the first request.
func (one *confirmStream) ask(ctx context.Context, patience time.Duration, r *rootv1.ConfirmTenureRequest) (*rootv1.ConfirmTenureResponse, error) {
	defer context.AfterFunc(ctx, one.cancel)()
	one.silence.Reset(patience)
	defer one.silence.Stop()
	one.attempt.waits()
	defer one.attempt.rests()
	if one.stream == nil {
		stream, err := one.p.root.ConfirmStream(one.ctx)
		if err != nil {
			return nil, err
		}
		one.stream = stream
	}
	if err := one.stream.Send(r); err != nil {
		return nil, err
	}
	return one.stream.Recv()
}

// take returns a stream to the leader; nil: there is none to be had.
func (s *confirms) take(leader uint64) *confirmStream {
	p, err := s.c.peers.get(leader)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	var one *confirmStream
	if n := len(s.idle); n > 0 {
		one, s.idle = s.idle[n-1], s.idle[:n-1]
	}
	s.mu.Unlock()
	if one != nil && one.p == p {
		return one
	}
	if one != nil {
		s.c.end(one)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &confirmStream{
		p: p, ctx: ctx, cancel: cancel, attempt: s.c.leader.begin(leader, cancel),
		silence: time.AfterFunc(s.c.cfg.AttemptTimeout, cancel),
	}
}

// keep puts a stream back for the next confirmation.
func (s *confirms) keep(one *confirmStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.idle) >= maxIdleConfirms {
		s.c.end(one)
		return
	}
	s.idle = append(s.idle, one)
}

func (s *confirms) close() {
	s.mu.Lock()
	idle := s.idle
	s.idle, s.closed = nil, true
	s.mu.Unlock()
	for _, one := range idle {
		s.c.end(one)
	}
}

// end gives a stream up.
func (c *Client) end(one *confirmStream) {
	one.silence.Stop()
	one.cancel()
	c.leader.end(one.attempt)
}
