package replica

import (
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
)

type handClock struct{ now clock.Instant }

func (c *handClock) Now() clock.Instant { return c.now }
func (c *handClock) Wall() uint64       { return 1 }

// A process that stands still between the last look at the clock and the end of its
// Turn publishes what it knew before: nobody may go by it.
func TestStandstillAtTheEndOfATurn(t *testing.T) {
	clk := &handClock{now: 1}
	r := &Replica{cfg: Config{}.withDefaults(), clock: clk, box: newMailbox(clk)}
	r.overseer = time.NewTimer(time.Hour)
	r.stall.Store(new(make(chan struct{})))
	r.view.Store(&View{Leader: 2})
	r.turnBegun = clk.Now()
	now := clk.Now() // as in turn; SIGSTOP here:
	clk.now = clk.now.Add(10 * time.Second)
	r.endTurn(nil, now, r.overdueAt(now))
	if v := r.View(); !v.Stalled && v.LeaderlessSince == 0 {
		t.Error("what was known 10 s ago is said to be of the present")
	}
}
