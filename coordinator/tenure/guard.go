package tenure

import (
	"context"
	"sync/atomic"

	"github.com/nokv/nokv/internal/clock"
)

// Guard answers "may what was generated be served": generate, then Check, then
// reply. A pause anywhere is harmless, because a value taken before a
// successful Check is linearized at the Check. Checking first and generating
// after is a bug.
type Guard struct {
	clock clock.Clock
	grant atomic.Pointer[grant]
	// wait blocks until a confirmation that is sent after the call; refuse
	// says why era cannot be served. Both are the Holder's.
	wait   func(ctx context.Context, g *grant) error
	refuse func(era uint64) error
}

// grant is the guard's part of one era; it is never used for another.
type grant struct {
	era uint64
	// until is the Instant before which the era counts as confirmed; 0: it does not.
	until atomic.Int64
}

// Check returns nil if era is active at some moment between the call and the
// return. While a confirmation is good that costs one clock read; otherwise it
// waits, within ctx, for one that is sent after the call. Errors are
// *reason.Error: REASON_ERA_STALE or REASON_TENURE_NOT_HELD when the era is
// over, REASON_COORDINATOR_SUPERSEDED, REASON_ROOT_UNAVAILABLE when none came
// in time, REASON_OVERLOADED when too many wait; or ctx's when it was cancelled.
func (g *Guard) Check(ctx context.Context, era uint64) error {
	current := g.grant.Load()
	if current == nil || current.era != era {
		return g.refuse(era)
	}
	if g.good(current) {
		return nil
	}
	return g.wait(ctx, current)
}

// good reads the clock first and the grant after it: a grant that was taken
// back in between, before the era was retired, is then seen as taken back.
func (g *Guard) good(current *grant) bool {
	now := g.clock.Now()
	return now < clock.Instant(current.until.Load())
}
