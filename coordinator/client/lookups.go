package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// lookups merges callers of GetRegionByKey into requests of the route stream:
// those who ask in the same keyspace under the same conditions, so that none
// waits or is refused for what another one asked. Of a kind one request is under
// way at a time, beside full ones; a sealed request takes nobody in, so a caller's
// answer comes from a request that was sent after it asked.
type lookups struct {
	c  *Client
	id atomic.Uint64 // last given to a request

	mu    sync.Mutex
	kinds map[lookupKind]*lookupQueue // guarded by mu
}

// lookupKind is what callers have in common who share a request.
type lookupKind struct {
	keyspace   string
	freshness  coordinatorv1.Freshness
	lag, age   uint64 // of bounded reads
	bounds     uint8  // which of the two are set
	token      rooted.Token
	descriptor uint64 // 0, or a number of a caller's own: what waits for a revision is not shared
}

// lookupQueue is the requests of a kind. Guarded by lookups.mu.
type lookupQueue struct {
	open *lookupBatch // gathers callers; nil: there are none
	busy int          // requests under way
}

// lookupBatch is the callers of one request.
type lookupBatch struct {
	kind    lookupKind
	options *coordinatorv1.ReadOptions
	// The keys, whose place is where, of how many callers, and how long the answer may take;
	// guarded by lookups.mu until it is sealed.
	raw      []byte
	keys     int
	places   map[string]int // of strong reads, which many make of one key when its owner is gone
	callers  int
	patience time.Duration
	expires  time.Time
	latch    latch
	done     chan struct{} // closed when what follows is set
	answer   *keysAnswer
	by       string
	err      error
}

// keptKinds is how many kinds are remembered while nobody asks.
const keptKinds = 64

func (l *lookups) nextID() uint64 { return l.id.Add(1) }

func (l *lookups) kindOf(r *read) lookupKind {
	k := lookupKind{keyspace: r.keyspace}
	o := r.options
	if o == nil {
		return k
	}
	k.freshness, k.token = o.GetFreshness(), rooted.TokenFromProto(o.GetRequiredRootToken())
	k.lag, k.age = o.GetMaxRootLag(), o.GetMaxRootLagMillis()
	if o.MaxRootLag != nil {
		k.bounds |= 1
	}
	if o.MaxRootLagMillis != nil {
		k.bounds |= 2
	}
	if o.GetRequiredDescriptorRevision() != 0 {
		k.descriptor = l.nextID()
	}
	return k
}

// find is GetRegionByKey. An errElsewhere: by a call of its own, please.
func (l *lookups) find(ctx context.Context, key []byte, r *read) (Route, error) {
	const op = "GetRegionByKey"
	for {
		if l.c.ctx.Err() != nil {
			return Route{}, &Error{Op: op, Cause: ErrClosed}
		}
		b, place := l.join(ctx, key, r)
		answered := true
		select {
		case <-b.done:
		case <-ctx.Done():
			answered = false
		}
		if b.latch.leave() {
			l.launch(l.next(b.kind))
		}
		switch {
		case !answered:
			return Route{}, waited(op, ctx.Err(), l.c.routes.seen.Load())
		case b.err == nil:
			return b.route(place, r.keyspace, key)
		case !again(ctx, b.err):
			return Route{}, named(op, b.err)
		}
	}
}

// named is an error of the stream as one of a call.
func named(op string, err error) error {
	if e, ok := err.(*Error); ok {
		own := *e
		own.Op = op
		return &own
	}
	return err
}

// route is a caller's own part of the answer.
func (b *lookupBatch) route(place int, keyspace string, key []byte) (Route, error) {
	const op = "GetRegionByKey"
	route, err := b.answer.route(place)
	if err != nil {
		return Route{}, &Error{Op: op, Cause: err}
	}
	if route.Region == nil {
		if keyspace == "" {
			keyspace = "default"
		}
		var t trail
		e := refused(&rootv1.ErrorDetail{
			Reason:       rootv1.Reason_REASON_NOT_FOUND,
			Message:      fmt.Sprintf("no region of keyspace %q holds the key %.64q", keyspace, key),
			CurrentToken: route.At.Proto(),
		})
		t.note(b.by, e)
		return Route{}, t.fail(op, nil)
	}
	return route, nil
}

// join puts a key into the open request of its kind and returns its place there.
// It launches the request if none is under way, and a full one at once.
func (l *lookups) join(ctx context.Context, key []byte, r *read) (*lookupBatch, int) {
	kind := l.kindOf(r)
	patience := l.c.patience(context.Background())
	if kind.token != (rooted.Token{}) || kind.descriptor != 0 {
		// A position may never come. Who has the least time hears how far the view
		// is before it is over, and the others go on by calls of their own.
		patience = l.c.patience(ctx)
	}
	l.mu.Lock()
	q := l.kinds[kind]
	if q == nil {
		q = &lookupQueue{}
		l.kinds[kind] = q
	}
	var full, ready *lookupBatch
	if b := q.open; b != nil && (b.keys == MaxKeys || len(b.raw)+keyBytes+len(key) > maxSharedBytes) {
		full = q.seal()
	}
	b := q.open
	if b == nil {
		b = &lookupBatch{kind: kind, options: r.options, expires: time.Now().Add(l.c.cfg.DefaultTimeout), patience: patience, done: make(chan struct{})}
		q.open = b
	}
	place := b.add(key)
	b.callers, b.patience = b.callers+1, min(b.patience, patience)
	if q.busy == 0 {
		ready = q.seal()
	}
	l.mu.Unlock()
	l.launch(full)
	l.launch(ready)
	return b, place
}

// add puts in a key, once if it is of a strong read, and returns its place.
func (b *lookupBatch) add(key []byte) int {
	strong := b.kind.freshness == coordinatorv1.Freshness_FRESHNESS_STRONG
	if place, ok := b.places[string(key)]; strong && ok {
		return place
	}
	place := b.keys
	if b.raw, b.keys = appendKey(b.raw, key), b.keys+1; strong {
		if b.places == nil {
			b.places = map[string]int{}
		}
		b.places[string(key)] = place
	}
	return place
}

// seal takes the open request; whoever has it launches it. Called with lookups.mu held.
func (q *lookupQueue) seal() *lookupBatch {
	b := q.open
	if b != nil {
		q.open = nil
		q.busy++
	}
	return b
}

// next gives up the place of a request that has ended, and takes the open one of
// its kind if no other is under way.
func (l *lookups) next(kind lookupKind) *lookupBatch {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.kinds[kind]
	q.busy--
	if q.busy > 0 {
		return nil
	}
	if q.open == nil && (len(l.kinds) > keptKinds || kind.descriptor != 0) {
		delete(l.kinds, kind)
	}
	return q.seal()
}

func (l *lookups) launch(b *lookupBatch) {
	if b == nil {
		return
	}
	msg, err := keysMessage(b.raw, b.keys, b.kind.keyspace, b.options, l.nextID(), b.patience)
	if err != nil {
		l.finish(b, nil, invalid("GetRegionByKey", "the read options cannot be encoded: %v", err))
		return
	}
	r := &request[keysRequest, keysReply]{msg: msg, expires: b.expires, bytes: len(msg.raw), deserted: b.deserted, waits: msg.waits}
	r.finish = func(reply *keysReply, err error) {
		b.by = r.by
		l.finish(b, append(r.parts, reply), err)
	}
	l.c.routes.send(r)
}

// deserted says that all callers gave up.
func (b *lookupBatch) deserted() bool { return b.latch.early() == int64(b.callers) }

// finish gives a request's callers their answers. When they have woken, one of
// them launches what gathered meanwhile.
func (l *lookups) finish(b *lookupBatch, parts []*keysReply, err error) {
	b.answer, b.err = &keysAnswer{parts}, err
	gone := b.latch.end(b.callers)
	close(b.done)
	if gone {
		l.launch(l.next(b.kind))
	}
}
