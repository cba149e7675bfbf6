package client

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nokv/nokv/internal/why"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Claimed is the region of a key that was claimed.
type Claimed struct {
	// Route to it, as of the claim.
	Route
	// Made: it was not there before, and is since this call or one at the same time.
	Made bool
	// Orphaned: it has no owner who may act; it is about to get one.
	Orphaned bool
}

// Claim finds the region of a key, and has it made with an owner where there is none: in a
// keyspace of points whose policy.on_miss is claim. Concurrent callers share requests, and
// of those who claim one key all get the same region. A call whose outcome is not known is
// repeated, which finds what the first one made.
//
// ErrNoActiveMembers: nobody can take it. ErrCapacityExceeded: a limit of the keyspace.
// ErrLayoutMismatch: the keyspace has no claims; the error says which setting it is.
func (c *Client) Claim(ctx context.Context, keyspace string, key []byte, opts ...ReadOption) (Claimed, error) {
	const op = "Claim"
	r := readOf(append(opts[:len(opts):len(opts)], In(keyspace)))
	if err := checkLookup(op, r.keyspace, key); err != nil {
		return Claimed{}, err
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	kind := claimKind{c.lookups.kindOf(&r), why.Outgoing(ctx)}
	for {
		if c.ctx.Err() != nil {
			return Claimed{}, &Error{Op: op, Cause: ErrClosed}
		}
		b, place := c.claims.join(kind, &r, key)
		answered := true
		select {
		case <-b.done:
		case <-ctx.Done():
			answered = false
		}
		if b.latch.leave() {
			c.claims.launch(c.claims.next(kind))
		}
		if !answered {
			c.claims.abandon(b)
			return Claimed{}, &Error{Op: op, Cause: ctx.Err()}
		}
		switch {
		case b.err != nil && again(ctx, b.err):
		case b.err != nil:
			return Claimed{}, named(op, b.err)
		case b.answer.GetRegions()[place].GetError().GetReason() == rootv1.Reason_REASON_OVERLOADED:
			// The answer was too long for all of them.
		default:
			r.saw(b.answer.GetDisclosure())
			if r.session != nil {
				r.session.Saw(rooted.TokenFromProto(b.answer.GetRegions()[place].GetToken()))
			}
			return b.claimed(op, place, key)
		}
	}
}

// claimed is a caller's own part of an answer.
func (b *claimBatch) claimed(op string, place int, key []byte) (Claimed, error) {
	one := b.answer.GetRegions()[place]
	if d := one.GetError(); d != nil {
		return Claimed{}, &Error{Op: op, Reason: d.GetReason(), Detail: d, Cause: errRefused, Tries: []Try{{Times: 1, Said: words(d)}}}
	}
	if !bytes.Equal(one.GetRegion().GetStartKey(), key) {
		return Claimed{}, &Error{Op: op, Cause: fmt.Errorf("%w: it has a region of another key", errUnfit)}
	}
	out := Claimed{Route: routeOf(one.GetRegion(), b.members, "", b.answer.GetDisclosure()), Made: one.GetMade(), Orphaned: one.GetOrphaned()}
	out.At = rooted.TokenFromProto(one.GetToken())
	return out, nil
}

// claimKind is what callers have in common who share a request.
type claimKind struct {
	lookupKind
	why string
}

// claimers merges callers of Claim: of a kind one request is under way at a time, beside
// full ones.
type claimers struct {
	c  *Client
	mu sync.Mutex
	// Guarded by mu. A kind that nobody asks for is forgotten.
	kinds map[claimKind]*claimQueue
}

// claimQueue is the requests of a kind. Guarded by claimers.mu.
type claimQueue struct {
	open *claimBatch // gathers callers; nil: there are none
	busy int         // requests under way
}

// claimBatch is the callers of one request.
type claimBatch struct {
	kind    claimKind
	options *coordinatorv1.ReadOptions
	ctx     context.Context
	stop    context.CancelFunc
	desert  func() // nobody waits any more
	// Guarded by claimers.mu; when it is sealed keys change no more.
	keys   [][]byte
	bytes  int
	sealed bool
	latch  latch
	done   chan struct{} // closed when what follows is set
	// answer has one region for each key.
	answer  *coordinatorv1.ClaimRegionsResponse
	members directory
	err     error
}

// maxClaimBytes is the most bytes of keys of one request.
const maxClaimBytes = 256 << 10

// join puts a key into the open request of its kind and returns its place there. It
// launches the request if none is under way, and a full one at once.
func (l *claimers) join(kind claimKind, r *read, key []byte) (*claimBatch, int) {
	l.mu.Lock()
	q := l.kinds[kind]
	if q == nil {
		q = &claimQueue{}
		l.kinds[kind] = q
	}
	var full, ready *claimBatch
	if b := q.open; b != nil && (len(b.keys) == MaxKeys || b.bytes+len(key) > maxClaimBytes) {
		full = q.seal()
	}
	b := q.open
	if b == nil {
		b = &claimBatch{kind: kind, options: r.options, done: make(chan struct{})}
		ctx, cancel := context.WithCancelCause(l.c.ctx)
		b.ctx, b.stop = context.WithDeadlineCause(ctx, time.Now().Add(l.c.cfg.DefaultTimeout), errGaveUp)
		b.desert = func() { cancel(errGaveUp) }
		if kind.why != "" {
			b.ctx = why.With(b.ctx, kind.why)
		}
		q.open = b
	}
	place := len(b.keys)
	b.keys, b.bytes = append(b.keys, bytes.Clone(key)), b.bytes+len(key)
	if q.busy == 0 {
		ready = q.seal()
	}
	l.mu.Unlock()
	l.launch(full)
	l.launch(ready)
	return b, place
}

// seal takes the open request; whoever has it launches it. Called with claimers.mu held.
func (q *claimQueue) seal() *claimBatch {
	b := q.open
	if b != nil {
		q.open, b.sealed = nil, true
		q.busy++
	}
	return b
}

// abandon ends a request for which nobody waits. One that has not been sent may be joined.
func (l *claimers) abandon(b *claimBatch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.sealed && b.deserted() {
		b.desert()
	}
}

// deserted reports whether nobody waits for a sealed request.
func (b *claimBatch) deserted() bool { return b.latch.early() == int64(len(b.keys)) }

// next gives up the place of a request that has ended, and takes the open one of its kind
// if no other is under way.
func (l *claimers) next(kind claimKind) *claimBatch {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.kinds[kind]
	q.busy--
	if q.busy > 0 {
		return nil
	}
	if q.open == nil {
		delete(l.kinds, kind)
	}
	return q.seal()
}

func (l *claimers) launch(b *claimBatch) {
	if b == nil {
		return
	}
	if b.deserted() {
		l.finish(b, nil, &Error{Op: "Claim", Cause: errGaveUp})
		return
	}
	l.c.count.claimRequests.Add(1)
	l.c.count.claimCallers.Add(uint64(len(b.keys)))
	if !l.c.spawn(func() { l.ask(b) }) {
		l.finish(b, nil, &Error{Op: "Claim", Cause: ErrClosed})
	}
}

func (l *claimers) ask(b *claimBatch) {
	req := &coordinatorv1.ClaimRegionsRequest{Keyspace: b.kind.keyspace, Keys: b.keys, Read: b.options}
	answer, err := do(b.ctx, l.c, operation{name: "Claim", authority: true, changes: true}, req, coordinatorv1.CoordinatorClient.ClaimRegions)
	if err == nil && len(answer.GetRegions()) != len(b.keys) {
		err = &Error{Op: "Claim", Cause: fmt.Errorf("%w: %d regions for %d keys", errUnfit, len(answer.GetRegions()), len(b.keys))}
	}
	l.finish(b, answer, err)
}

// finish gives a request's callers their answers. When they have woken, one of them
// launches what gathered meanwhile.
func (l *claimers) finish(b *claimBatch, answer *coordinatorv1.ClaimRegionsResponse, err error) {
	b.answer, b.err = answer, err
	b.members = directoryOf(answer.GetOwners())
	gone := b.latch.end(len(b.keys))
	b.stop()
	b.desert()
	close(b.done)
	if gone {
		l.launch(l.next(b.kind))
	}
}

// Claim finds the region of a key, here or by Client.Claim, and keeps the answer. With
// options it always asks. Whoever is told by a member that it does not own the region calls
// Invalidate, and Claim again: what was invalidated is not answered before the root itself
// says that it is still so.
func (k *Cache) Claim(ctx context.Context, key []byte, opts ...ReadOption) (Claimed, error) {
	if len(opts) == 0 {
		if r, ok := k.Lookup(key); ok {
			return Claimed{Route: r}, nil
		}
	}
	at, known := k.At()
	if known {
		opts = append(opts[:len(opts):len(opts)], AtLeast(at.Token))
	}
	r, err := k.c.Claim(ctx, k.cfg.Keyspace, key, opts...)
	if err == nil && k.isRefuted(r.Region) {
		if r, err = k.c.Claim(ctx, k.cfg.Keyspace, key, Strong()); err == nil {
			k.confirm(r.Region)
		}
	}
	if err == nil && known {
		err = asNew("Claim", r.At, at.Token)
	}
	if err != nil {
		return Claimed{}, err
	}
	k.keep(r.Route)
	return r, nil
}
