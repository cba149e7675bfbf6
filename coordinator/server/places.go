package server

import (
	"context"
	"net"
	"sync"

	"github.com/nokv/nokv/internal/principal"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/peer"
)

// caller is who shares places fairly with others: a principal; where there are
// none, a connection.
type caller struct {
	principal  principal.Principal
	connection net.Addr // nil: the principal is known
}

// callerOf is who made a call.
func callerOf(ctx context.Context) caller {
	if p := principal.FromContext(ctx); p.Known() {
		return caller{principal: p}
	}
	if p, ok := peer.FromContext(ctx); ok {
		// A pointer: one for all calls of a connection, another for each other one.
		if tcp, ok := p.Addr.(*net.TCPAddr); ok {
			return caller{connection: tcp}
		}
	}
	return caller{}
}

// places are what calls of one kind that wait have, up to a limit. One caller has
// at most as many as are left free behind it: half of them, when others have none.
// Nobody waits for a place.
type places struct {
	what  string
	limit int64

	mu sync.Mutex
	// Guarded by mu.
	taken   int64
	of      map[caller]int64
	refused int64 // since a place was last given
}

func newPlaces(what string, limit int64) *places {
	return &places{what: what, limit: limit, of: map[caller]int64{}}
}

// enter takes a place, or says that there is none. leave must follow.
func (p *places) enter(c caller) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.of[c]
	if own >= p.limit-p.taken {
		p.refused++
		return p.refusalLocked(own)
	}
	p.taken++
	p.of[c] = own + 1
	p.refused = 0
	return nil
}

func (p *places) leave(c caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.of[c]--; p.of[c] == 0 {
		delete(p.of, c)
	}
}

// maxRetryAfterMillis is the longest pause that a refusal asks for.
const maxRetryAfterMillis = 1000

// refusalLocked says how many there are. The pause it asks for grows with those who
// were refused since anybody was not.
func (p *places) refusalLocked(own int64) error {
	refusal := reason.New(rootv1.Reason_REASON_OVERLOADED,
		"%d %s are under way, %d of them yours, of %d at most: try again, or ask another coordinator", p.taken, p.what, own, p.limit)
	refusal.Detail.Limit = uint64(p.limit)
	refusal.Detail.RetryAfterMillis = uint64(min(retryAfterMillis*(1+8*p.refused/p.limit), maxRetryAfterMillis))
	return refusal
}
