// Package places bounds how many calls of one kind wait, and shares them among
// callers.
//
// It promises: (1) there are at most as many as the limit; (2) one caller has at
// most as many as are left free behind it: half of them when others have none, and
// whoever comes finds as many as the greediest could have more; (3) nobody waits
// for a place: what is refused is refused at once, and told when to come back.
package places

import (
	"context"
	"net"
	"reflect"
	"sync"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/peer"
)

// Caller is who shares places with others: a principal; where there are none, a
// connection.
type Caller struct {
	principal  principal.Principal
	connection net.Addr // nil: the principal is known
}

// String is the caller's name: for logs and accounts.
func (c Caller) String() string {
	if c.connection != nil {
		return c.connection.String()
	}
	return c.principal.String()
}

// Of is who made the call of a gRPC method.
func Of(ctx context.Context) Caller {
	if p := principal.FromContext(ctx); p.Known() {
		return Caller{principal: p}
	}
	// One value for all calls of a connection, which is another one's only if it is
	// no pointer.
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil && reflect.TypeOf(p.Addr).Comparable() {
		return Caller{connection: p.Addr}
	}
	return Caller{}
}

// Places are the places of one kind of calls. Make them with New.
type Places struct {
	what  string
	limit int64

	mu sync.Mutex
	// Guarded by mu.
	taken int64
	of    map[Caller]share
	// refused is how many of those who have no place were refused since one of them
	// was given one.
	refused int64
}

// share is what one caller has.
type share struct {
	taken   int64
	refused int64 // since it last got a place
}

// New makes as many places as limit for what they are called in refusals.
func New(what string, limit int64) *Places {
	return &Places{what: what, limit: limit, of: map[Caller]share{}}
}

// Enter takes a place, or says that there is none. Leave must follow.
func (p *Places) Enter(c Caller) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	own, has := p.of[c]
	if own.taken >= p.limit-p.taken {
		if !has {
			p.refused++
			return p.refusalLocked(0, p.refused)
		}
		own.refused++
		p.of[c] = own
		return p.refusalLocked(own.taken, own.refused)
	}
	if !has {
		p.refused = 0
	}
	p.taken++
	p.of[c] = share{taken: own.taken + 1}
	return nil
}

// Leave gives a place back.
func (p *Places) Leave(c Caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	own := p.of[c]
	if own.taken--; own.taken == 0 {
		delete(p.of, c)
	} else {
		p.of[c] = own
	}
}

// Taken is how many have a place.
func (p *Places) Taken() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// retryAfterMillis is the shortest pause that a refusal asks for.
const retryAfterMillis = 20

// maxRetryAfterMillis is the longest pause that a refusal asks for.
const maxRetryAfterMillis = 1000

// refusalLocked says how many there are. The pause it asks for grows with how often the
// caller was refused since it was not, whatever others get.
func (p *Places) refusalLocked(own, refused int64) error {
	refusal := reason.New(rootv1.Reason_REASON_OVERLOADED,
		"%d %s are under way, %d of them yours, of %d at most: try again, or ask another coordinator", p.taken, p.what, own, p.limit)
	refusal.Detail.Limit = uint64(p.limit)
	refusal.Detail.RetryAfterMillis = uint64(min(retryAfterMillis*(1+8*refused/p.limit), maxRetryAfterMillis))
	return refusal
}
