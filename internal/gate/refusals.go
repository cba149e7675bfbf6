package gate

import (
	"sync/atomic"
	"time"

	refusal "github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// refusals are calls of a connection that were refused for want of room, against those
// that were not. Who asks on, whatever the pause that a refusal asks for, gets it: behind
// calls that came while most are refused the connection is not read for a while.
type refusals struct{ score atomic.Int32 }

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
