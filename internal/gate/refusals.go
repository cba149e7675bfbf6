package gate

import (
	"maps"
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
	// Guarded by refusing.mu: connections, and when the last one was closed.
	open int
	at   int64
}

// refusing has the refusals of all callers.
type refusing struct {
	mu sync.Mutex
	of map[string]*refusals // guarded by mu, by caller
}

// open has the refusals of a caller that has a connection more.
func (r *refusing) open(key string, now int64) *refusals {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.of[key]
	if of == nil || of.open == 0 && now-of.at > int64(rememberFlood) {
		if len(r.of) >= maxOrigins {
			maps.DeleteFunc(r.of, func(_ string, o *refusals) bool { return o.open == 0 })
		}
		if r.of == nil {
			r.of = map[string]*refusals{}
		}
		of = new(refusals)
		r.of[key] = of
	}
	of.open++
	return of
}

// close forgets a caller with its last connection, unless it is read slowly.
func (r *refusing) close(key string, of *refusals, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if of.open--; of.open > 0 {
		return
	}
	if of.at = now; of.score.Load() <= patientUntil {
		delete(r.of, key)
	}
}

const (
	servedCounts = 4    // refusals that a call makes up for which is served
	patientUntil = 64   // of the score
	maxScore     = 1024 // of the score
	// callPause is the pause for each call at the highest score, maxPause that between
	// two Reads: what else comes on the connection, such as room for what is sent, waits
	// no longer than on a far network. slowBytes are read behind one.
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

// pause is how long a connection is not read behind so many calls.
func (r *refusals) pause(calls int) time.Duration {
	score := r.score.Load()
	if calls == 0 || score <= patientUntil {
		return 0
	}
	return min(time.Duration(calls)*callPause*time.Duration(score)/maxScore, maxPause)
}
