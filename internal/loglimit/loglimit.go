// Package loglimit keeps what goes on and on, such as a call that fails and is made again, from
// filling a log: it is said once a minute, with how many were not.
package loglimit

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Every is the time between two lines of one kind.
const Every = time.Minute

// Lines bounds those of each kind. The zero Lines has said nothing. Its methods may be called by
// any number of goroutines.
type Lines struct {
	mu    sync.Mutex
	kinds map[string]*kind // guarded by mu
}

// kind is what was said of one.
type kind struct {
	last   time.Time
	unsaid int // since then
}

// Warn logs at Warn if nothing of the kind was within Every, with the number of those that were
// not said since as "more"; else at Debug. Kinds are kept: there must be few.
func (l *Lines) Warn(logger hclog.Logger, of, msg string, args ...any) {
	more, due := l.due(of, time.Now())
	switch {
	case !due:
		logger.Debug(msg, args...)
	case more > 0:
		logger.Warn(msg, append(args, "more", more)...)
	default:
		logger.Warn(msg, args...)
	}
}

// due says whether a line may be said, and how many of its kind were not since the last.
func (l *Lines) due(of string, now time.Time) (more int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kinds[of]
	switch {
	case k == nil:
		if l.kinds == nil {
			l.kinds = map[string]*kind{}
		}
		k = &kind{}
		l.kinds[of] = k
	case now.Sub(k.last) < Every:
		k.unsaid++
		return 0, false
	}
	more, k.unsaid, k.last = k.unsaid, 0, now
	return more, true
}
