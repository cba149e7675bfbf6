// Package pinkeys keeps the keys of a keyspace's pins as they are rooted, by asking when
// something shows that there is a newer one.
//
// It owns when is asked. It promises: (1) one question is under way at a time, begun at
// least Every apart, and who waits for one waits for one that began after it asked; (2)
// who waits ends with its own context, and with nobody else's; (3) a pin of a key that
// nobody has told is refused only when the question has said so.
package pinkeys

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/pin"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
)

// Every is the least time between two questions.
const Every = 50 * time.Millisecond

// Keys is the keys of one keyspace.
type Keys struct {
	c        *client.Client
	keyspace string
	ring     atomic.Pointer[pin.Ring]
	asked    atomic.Int64 // when an answer came last, or none, in nanoseconds of started
	started  time.Time
	turn     chan struct{} // of who asks
	before   atomic.Bool   // it was asked

	mu   sync.Mutex
	next *question // that has not begun; guarded by mu
}

// question is one that several wait for.
type question struct {
	done chan struct{}
	err  error
}

// New makes Keys, which know nothing before they are asked for.
func New(c *client.Client, keyspace string) *Keys {
	return &Keys{c: c, keyspace: keyspace, started: time.Now(), turn: make(chan struct{}, 1)}
}

// Held is the keys that are known; nil: none.
func (k *Keys) Held() *pin.Ring { return k.ring.Load() }

// Ring is the keys, asked for if they are not known.
func (k *Keys) Ring(ctx context.Context) (*pin.Ring, error) {
	if r := k.ring.Load(); r != nil {
		return r, nil
	}
	if err := k.renew(ctx); err != nil {
		return nil, err
	}
	return k.ring.Load(), nil
}

// Recent is Ring, asked for again if nobody has for a time. What is known stands if there
// is no answer soon.
func (k *Keys) Recent(ctx context.Context, age, soon time.Duration) (*pin.Ring, error) {
	r, err := k.Ring(ctx)
	if err != nil {
		return nil, err
	}
	at := k.asked.Load()
	now := int64(time.Since(k.started))
	// One caller asks; the others go on by what there is.
	if now-at < int64(age) || !k.asked.CompareAndSwap(at, now) {
		return r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	_ = k.renew(ctx)
	return k.ring.Load(), nil
}

// Open opens a pin, and asks for the keys if that needs one that is not known. Errors are
// *pin.Error, or why the keys are not known: client.ErrPermissionDenied, ErrNotFound.
func (k *Keys) Open(ctx context.Context, text string) (pin.Pin, error) {
	r := k.ring.Load()
	if r != nil {
		p, err := r.Open(text, time.Now())
		if !newer(err) {
			return p, err
		}
	} else if _, err := pin.Peek(text); err != nil {
		return pin.Pin{}, err
	}
	if err := k.renew(ctx); err != nil {
		return pin.Pin{}, err
	}
	return k.ring.Load().Open(text, time.Now())
}

// newer says that a pin may be of a key that was made since: of a newer one, or of the
// keyspace that has the name now.
func newer(err error) bool {
	no, ok := errors.AsType[*pin.Error](err)
	return ok && (no.Kind == pin.KeyUnknown || no.Kind == pin.OtherKeyspace)
}

// renew waits for a question that has not begun yet.
func (k *Keys) renew(ctx context.Context) error {
	for {
		k.mu.Lock()
		q := k.next
		mine := q == nil
		if mine {
			q = &question{done: make(chan struct{})}
			k.next = q
		}
		k.mu.Unlock()
		if mine {
			k.ask(ctx, q)
			return q.err
		}
		select {
		case <-q.done:
		case <-ctx.Done():
			return fmt.Errorf("ask for the keys of pins: %w", ctx.Err())
		}
		if !errors.Is(q.err, errGone) {
			return q.err
		}
	}
}

// errGone says that who asked has gone.
var errGone = errors.New("who asked for the keys of pins has gone")

// ask asks in its turn.
func (k *Keys) ask(ctx context.Context, q *question) {
	defer close(q.done)
	begin := func() {
		k.mu.Lock()
		k.next = nil
		k.mu.Unlock()
	}
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		begin()
		q.err = fmt.Errorf("%w: %w", errGone, ctx.Err())
		return
	}
	if k.before.Swap(true) {
		pause := time.NewTimer(Every)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	begin()
	reply, err := k.c.PinKeys(ctx, k.keyspace, client.Strong())
	switch {
	case err != nil && ctx.Err() != nil:
		q.err = fmt.Errorf("%w: %w", errGone, err)
	case err != nil:
		q.err = err
	default:
		q.err = k.learn(reply)
	}
}

func (k *Keys) learn(reply *coordinatorv1.PinKeysResponse) error {
	cluster, keyspace := reply.GetClusterId(), rooted.KeyspaceID(reply.GetKeyspaceId())
	r := k.ring.Load()
	if r != nil {
		if c, id := r.Of(); c != cluster || id != keyspace {
			r = nil
		}
	}
	if r == nil {
		r = pin.NewRing(cluster, keyspace)
	}
	var keys []pin.Key
	for _, said := range reply.GetKeys() {
		if len(said.GetSecret()) != pin.KeyBytes {
			return fmt.Errorf("key %d of pins has %d bytes, not %d", said.GetId(), len(said.GetSecret()), pin.KeyBytes)
		}
		key := pin.Key{ID: said.GetId()}
		copy(key.Secret[:], said.GetSecret())
		keys = append(keys, key)
	}
	if err := r.Learn(time.Now(), keys...); err != nil {
		return err
	}
	if r.Newest() == 0 {
		return pin.ErrNoKey
	}
	k.ring.Store(r)
	k.asked.Store(int64(time.Since(k.started)))
	return nil
}
