package client

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Position is a place in the log of one cluster, to go on from later: it may be
// written down and read again. The zero Position is before everything.
type Position struct {
	// Cluster is the cluster that Token is of. 0: it is not known, and nobody
	// notices when it is another one.
	Cluster uint64
	Token   rooted.Token
}

// IsZero says whether the position is before everything.
func (p Position) IsZero() bool { return p == Position{} }

// String is the token and the cluster, such as 1.2.345@00c0ffee00c0ffee; the
// token alone when the cluster is not known, and nothing for the zero Position.
func (p Position) String() string {
	switch {
	case p.IsZero():
		return ""
	case p.Cluster == 0:
		return p.Token.String()
	default:
		return fmt.Sprintf("%s@%016x", p.Token, p.Cluster)
	}
}

// ParsePosition reads what String writes.
func ParsePosition(s string) (Position, error) {
	if s == "" {
		return Position{}, nil
	}
	text, cluster, named := strings.Cut(s, "@")
	var p Position
	var err error
	if named {
		if p.Cluster, err = strconv.ParseUint(cluster, 16, 64); err != nil || len(cluster) != 16 || p.Cluster == 0 {
			return Position{}, fmt.Errorf("position %q: want token@cluster with a cluster of 16 hex digits, such as 1.2.345@00c0ffee00c0ffee", s)
		}
	}
	if p.Token, err = rooted.ParseToken(text); err != nil {
		return Position{}, err
	}
	return p, nil
}

// MarshalText implements encoding.TextMarshaler, in the notation of String.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Position) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePosition(string(text))
	return err
}

// checkPosition refuses a position of another cluster than this client's.
func (c *Client) checkPosition(p Position) error {
	if id := c.cluster.Load(); p.Cluster != 0 && id != 0 && id != p.Cluster {
		return reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH, "position %s is of another cluster: this one is %016x", p, id)
	}
	return nil
}

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
