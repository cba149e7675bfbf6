package client

import (
	"context"
	"sync"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Session lets a sequence of calls see its own writes and never go back, at
// whatever coordinators they arrive: it remembers the highest position written
// or seen, and reads with its Read option wait for that position. A Session
// may be used by many goroutines, and its Token passed on to other processes.
type Session struct {
	c *Client

	mu    sync.Mutex
	token rooted.Token // highest seen
}

// NewSession starts a session at a position; the zero Token is before everything.
func (c *Client) NewSession(from rooted.Token) *Session { return &Session{c: c, token: from} }

// Token returns the highest position written or seen.
func (s *Session) Token() rooted.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

// Saw raises the position.
func (s *Session) Saw(token rooted.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token.Compare(s.token) > 0 {
		s.token = token
	}
}

// Read is the option that makes a read part of the session.
func (s *Session) Read() ReadOption {
	return func(r *read) {
		r.session = s
		if at := s.Token(); at != (rooted.Token{}) {
			AtLeast(at)(r)
		}
	}
}

// Publish is Client.Publish as part of the session. A rejection counts as
// seen: a read behind it sees what stood in the way.
func (s *Session) Publish(ctx context.Context, cmd *rootv1.Command) (*rootv1.CommandResult, error) {
	result, err := s.c.Publish(ctx, cmd)
	s.Saw(rooted.TokenFromProto(result.GetToken()))
	return result, err
}
