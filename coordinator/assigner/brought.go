package assigner

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/nokv/nokv/coordinator/placement/propose"
)

// mostThought is how long a strategy that is brought as code may take in one plan.
const mostThought = 100 * time.Millisecond

// brought is an application's code as a strategy. What it does wrong is contained: it has no
// opinion then, for the rest of the plan.
type brought struct {
	raw      *Raw
	strategy propose.Strategy
	keyspace string
	// Of this plan: how long it has thought, and that it is asked no more.
	thought time.Duration
	over    bool
	// told: the log has it that it panicked, or was slow.
	told bool
}

// begin has strategies be asked again, in the next plan.
func (h *hooks) begin() {
	for _, b := range h.code {
		b.thought, b.over = 0, false
	}
}

// Propose implements propose.Strategy.
func (b *brought) Propose(q *propose.Question) (i int, ok bool) {
	if b.over {
		b.raw.count.fallback("code_over", 1)
		return 0, false
	}
	begun := b.raw.cfg.Clock.Now()
	defer func() {
		if p := recover(); p != nil {
			i, ok = 0, false
			b.stop("panic", "panic", fmt.Sprintf("%.200v", p), "stack", string(debug.Stack()))
		}
	}()
	i, ok = b.strategy.Propose(q)
	if b.thought += b.raw.cfg.Clock.Now().Sub(begun); b.thought > mostThought {
		b.stop("slow", "took", b.thought)
	}
	return i, ok
}

func (b *brought) stop(why string, about ...any) {
	b.over = true
	b.raw.count.fallback("code_"+why, 1)
	if !b.told {
		b.told = true
		b.raw.cfg.Logger.Error("a strategy of the application is passed over for the rest of a plan", append([]any{"keyspace", b.keyspace, "why", why}, about...)...)
	}
}
