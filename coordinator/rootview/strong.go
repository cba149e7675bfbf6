package rootview

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// ReadIndexer asks the root for a position that a linearizable read must reach:
// at or behind everything that was acknowledged before the call. Calls may
// overlap; an error means that nothing is known.
type ReadIndexer interface {
	ReadIndex(ctx context.Context) (state.Token, error)
}

// readIndex is one position of the root for everyone who came before it was asked for.
type readIndex struct {
	waiter                // ready: answered and reached, or failed
	err      error        // set before ready is closed
	early    bool         // so is this: it is from before the cluster was made, and of no log yet
	requests atomic.Int64 // that still wait for it
}

// readIndexes forms read indexes; runReadIndex asks for them, one at a time.
type readIndexes struct {
	limit int64
	wake  chan struct{} // one is forming; capacity one

	mu sync.Mutex
	// Guarded by mu.
	forming *readIndex // not asked for yet: whoever comes may join
	ended   bool       // nobody will ask any more
}

// join returns a read index that will be asked for after this call.
func (r *readIndexes) join() (*readIndex, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil, reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "this coordinator is shutting down; ask another one")
	}
	if r.forming == nil {
		r.forming = &readIndex{waiter: waiter{ready: make(chan struct{}), place: -1}}
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
	if r.forming.requests.Load() >= r.limit {
		return nil, overloaded(int(r.limit))
	}
	r.forming.requests.Add(1)
	return r.forming, nil
}

// raise has the root asked for a position, for nobody but the view's Known.
func (r *readIndexes) raise() {
	if asked, err := r.join(); err == nil {
		asked.requests.Add(-1)
	}
}

// take closes the forming one to newcomers.
func (r *readIndexes) take() *readIndex {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.forming
	r.forming = nil
	return taken
}

// end refuses whoever waits for one that is still forming, and whoever comes.
func (r *readIndexes) end() {
	r.mu.Lock()
	left := r.forming
	r.forming, r.ended = nil, true
	r.mu.Unlock()
	if left != nil {
		left.fail(reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "this coordinator is shutting down; ask another one"))
	}
}

func (r *readIndex) fail(err error) {
	r.err = err
	close(r.ready)
}

// Strong waits until the view reflects every change that was acknowledged
// before the call, and returns the position that shows it. It refuses with
// REASON_ROOT_UNAVAILABLE when the root did not answer, with
// REASON_ROOT_LAG_EXCEEDED when it did and the view did not get there before the
// deadline, with REASON_OVERLOADED when too many wait.
func (f *Follower) Strong(ctx context.Context) (state.Token, error) {
	ctx, cancel := f.replyInTime(ctx)
	defer cancel()
	return f.strong(ctx)
}

func (f *Follower) strong(ctx context.Context) (state.Token, error) {
	r, err := f.indexes.join()
	if err != nil {
		return state.Token{}, err
	}
	select {
	case <-r.ready:
	case <-ctx.Done():
		if r.requests.Add(-1) == 0 {
			f.waiters.remove(&r.waiter)
		}
		return state.Token{}, f.notStrong(ctx)
	}
	if r.err != nil {
		return state.Token{}, r.err
	}
	if r.early {
		return state.Token{}, nil
	}
	if v := f.View(); v.Token.Incarnation != r.at.Incarnation {
		return state.Token{}, sameLog(v, r.at)
	}
	return r.at, nil
}

// notStrong refuses a request that ran out of time.
func (f *Follower) notStrong(ctx context.Context) error {
	if ctx.Err() == context.Canceled {
		return context.Cause(ctx)
	}
	v := f.View()
	if v.Lag() == 0 {
		return f.withLag(reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "the root did not confirm a position in time"), v)
	}
	return f.withLag(reason.New(rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, "the view is %d entries behind the root", v.Lag()), v)
}

// runReadIndex asks for one read index after the other until the context ends.
func (f *Follower) runReadIndex(ctx context.Context) {
	defer f.indexes.end()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.indexes.wake:
		}
		if r := f.indexes.take(); r != nil {
			f.ask(ctx, r)
		}
	}
}

// ask asks the root for a position, and lets those who want it wait until the
// view is there.
func (f *Follower) ask(ctx context.Context, r *readIndex) {
	callCtx, cancel := context.WithTimeout(ctx, f.cfg.ReadIndexTimeout)
	defer cancel()
	seen := f.View().Token
	token, err := f.cfg.ReadIndexer.ReadIndex(callCtx)
	if err != nil {
		r.fail(unavailable(err))
		return
	}
	r.early = seen.Incarnation == 0 && token.Incarnation == 0
	f.noteKnown(token)
	r.at = token
	switch waiting, err := f.waiters.addRead(f, r); {
	case err != nil:
		r.fail(err)
	case !waiting:
		close(r.ready)
	}
}

// addRead is add for a read index, unless nobody waits for it any more.
func (l *waitList) addRead(f *Follower, r *readIndex) (waiting bool, err error) {
	if waiting, err = l.add(f, &r.waiter); !waiting {
		return waiting, err
	}
	if r.requests.Load() == 0 {
		l.remove(&r.waiter)
	}
	return true, nil
}

// unavailable is what a failed read index means to the reader, who knows nothing
// of root peers.
func unavailable(err error) error {
	switch reason.Of(err) {
	case rootv1.Reason_REASON_ROOT_UNAVAILABLE, rootv1.Reason_REASON_OVERLOADED, rootv1.Reason_REASON_CLUSTER_MISMATCH:
		return err
	}
	return reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "ask the root for a read index: %v", err)
}

// defaultReadIndexTimeout bounds one read index: long enough for an election,
// short enough that those who come later are not held up by a lost answer.
const defaultReadIndexTimeout = 2 * time.Second
