package coordinator

import (
	"sync"

	"github.com/nokv/nokv/coordinator/placement/propose"
)

// Strategy names the member that a region without owners shall go to: one that was never
// touched, or whose owner has failed. It only proposes: a member that is not heard, is full,
// has not the labels or would have much more than its part does not get the region, and where
// it names nobody the strategy of the keyspace's settings counts.
//
// It is called where plans are made and claims answered, for one region after the other, and by one goroutine at
// a time: it looks at nothing that it has to wait for. A panic, or more than 100 ms in one plan,
// end its part in that plan; both are counted and logged. It keeps and changes nothing of the
// question.
type Strategy = propose.Strategy

// alone has a Strategy called by one goroutine at a time.
type alone struct {
	mu       sync.Mutex
	strategy Strategy
}

// Propose implements Strategy.
func (a *alone) Propose(q *Question) (int, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.strategy.Propose(q)
}

// together are strategies that plans and claims share.
func together(strategies map[string]Strategy) map[string]Strategy {
	shared := make(map[string]Strategy, len(strategies))
	for name, s := range strategies {
		if s != nil {
			shared[name] = &alone{strategy: s}
		}
	}
	return shared
}

// Question is what a Strategy is asked.
type Question = propose.Question

// Candidate is a member that a Strategy may name.
type Candidate = propose.Candidate
