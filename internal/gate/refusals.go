package gate

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	refusal "github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// refusals are calls of a caller that were refused for want of room, against those that
// were not. Who asks on, whatever the pause that a refusal asks for, gets it: behind calls
// that came while most are refused a connection is not read for a while. All connections
// of a caller have one score, as they have one account, so that many of them, or one after
// the other, are read as slowly as one.
type refusals struct {
	score atomic.Int32
	key   string // the caller's
	// Guarded by refusing.mu: connections, and, when none is left, since when, and the
	// place in refusing.closed.
	open   int
	at     int64
	closed *list.Element
}

// refusing has the refusals of all callers: of those with a connection, and for
// rememberFlood of those without. Whatever their score was, they are remembered, because
// calls end, and are refused, behind the end of their connection.
type refusing struct {
	mu     sync.Mutex
	of     map[string]*refusals // guarded by mu, by caller
	closed list.List            // guarded by mu; *refusals without a connection, longest first
}

const (
	// maxClosed bounds the callers without a connection that are remembered.
	maxClosed = 8 << 10
	// forgetAtOnce is how many of them one connection more or less forgets: more than it
	// adds, and as much work however many there are.
	forgetAtOnce = 2
)

// open has the refusals of a caller that has a connection more.
func (r *refusing) open(key string, now int64) *refusals {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(now)
	of := r.of[key]
	switch {
	case of == nil:
		if r.of == nil {
			r.of = map[string]*refusals{}
		}
		of = &refusals{key: key}
		r.of[key] = of
	case of.open == 0:
		r.closed.Remove(of.closed)
		if of.past(now) {
			of.score.Store(0)
		}
	}
	of.open++
	return of
}

// close takes back an open.
func (r *refusing) close(of *refusals, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if of.open--; of.open == 0 {
		of.at, of.closed = now, r.closed.PushBack(of)
	}
	r.forget(now)
}

// forget drops callers whose time is over, or that there is no place for. r.mu is held.
func (r *refusing) forget(now int64) {
	for range forgetAtOnce {
		first := r.closed.Front()
		if first == nil {
			return
		}
		of := first.Value.(*refusals)
		if r.closed.Len() <= maxClosed && !of.past(now) {
			return
		}
		r.closed.Remove(first)
		delete(r.of, of.key)
	}
}

// past says whether the last connection was closed long ago.
func (r *refusals) past(now int64) bool { return now-r.at > int64(rememberFlood) }

const (
	servedCounts = 4    // refusals that a call makes up for which is served
	patientUntil = 64   // of the score
	maxScore     = 1024 // of the score
	// callPause is the pause for each call at the highest score, maxPause that between
	// two Reads: what else comes on the connection, such as room for what is sent, waits
	// no longer than on a far network. slowBytes are read at a time, also before there
	// was a call: a new connection would begin with all the calls that one Read brings.
	callPause = 10 * time.Millisecond
	maxPause  = 50 * time.Millisecond
	slowBytes = 512
)

// note counts a call that ended with err.
func (r *refusals) note(err error) {
	switch score := r.score.Load(); {
	case err != nil && refusal.Of(err) == rootv1.Reason_REASON_OVERLOADED:
		r.score.Store(min(score+1, maxScore))
	case score > 0:
		r.score.Store(max(score-servedCounts, 0))
	}
}

// slow says whether the caller's connections are read slowly.
func (r *refusals) slow() bool { return r.score.Load() > patientUntil }

// pause is how long a connection is not read behind so many calls.
func (r *refusals) pause(calls int) time.Duration {
	score := r.score.Load()
	if score <= patientUntil {
		return 0
	}
	return min(time.Duration(calls)*callPause*time.Duration(score)/maxScore, maxPause)
}
