package coordinator_test

import (
	"fmt"
	"strings"

	"github.com/nokv/nokv/coordinator"
)

// dedicated places the regions of large tenants on members that are labelled for them, and has
// no opinion of others.
type dedicated struct{}

// Propose implements coordinator.Strategy.
func (dedicated) Propose(q *coordinator.Question) (int, bool) {
	if !strings.HasPrefix(q.Key, "large/") {
		return 0, false
	}
	best := -1
	for i := range q.Candidates {
		c := &q.Candidates[i]
		if c.Labels["tier"] == "large" && q.Allowed(i) && (best < 0 || c.Load < q.Candidates[best].Load) {
			best = i
		}
	}
	return best, best >= 0
}

// An application that embeds a coordinator brings a strategy of its own for a keyspace.
func ExampleStrategy() {
	cfg := coordinator.Config{Strategies: map[string]coordinator.Strategy{"tenants": dedicated{}}}

	q := coordinator.Question{
		Key: "large/acme",
		Candidates: []coordinator.Candidate{
			{ID: "m1", Load: 1},
			{ID: "m2", Load: 9, Labels: map[string]string{"tier": "large"}},
			{ID: "m3", Load: 5, Labels: map[string]string{"tier": "large"}},
		},
		Allowed: func(int) bool { return true },
	}
	i, ok := cfg.Strategies["tenants"].Propose(&q)
	fmt.Println(q.Candidates[i].ID, ok)
	// Output: m3 true
}
