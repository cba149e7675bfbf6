package access

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// MaxPrincipals is how many callers are told apart in Metrics.
const MaxPrincipals = 1024

// maxReasons bounds the reasons that are told apart; they are append-only numbers.
const maxReasons = 128

// counts are what a Gate counts.
type counts struct {
	refused [principal.Proxy + 1][maxReasons]atomic.Uint64
	// callers is replaced as a whole when one calls for the first time.
	callers atomic.Pointer[map[principal.Principal]*caller]
	others  caller
	mu      sync.Mutex // serialises replacement of callers
}

type caller struct{ calls, refused atomic.Uint64 }

// met counts a call or stream.
func (c *counts) met(p principal.Principal) { c.caller(p).calls.Add(1) }

func (c *counts) caller(p principal.Principal) *caller {
	if known := c.callers.Load(); known != nil {
		if one := (*known)[p]; one != nil {
			return one
		}
		if len(*known) >= MaxPrincipals {
			return &c.others
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[principal.Principal]*caller{}
	if known := c.callers.Load(); known != nil {
		for k, v := range *known {
			next[k] = v
		}
	}
	if one := next[p]; one != nil {
		return one
	}
	if len(next) >= MaxPrincipals {
		return &c.others
	}
	next[p] = new(caller)
	c.callers.Store(&next)
	return next[p]
}

// refused counts the error of a call or stream, and returns it.
func (g *Gate) refused(p principal.Principal, err error) error {
	if err != nil {
		g.count(p, reason.Of(err), 1)
	}
	return err
}

// Refused counts n requests of a stream that were refused with err; nil: they were not.
func (g *Gate) Refused(ctx context.Context, n int, err error) {
	if g != nil && err != nil {
		g.count(principal.FromContext(ctx), reason.Of(err), n)
	}
}

// Rejected counts the commands of a call that were refused.
func (g *Gate) Rejected(ctx context.Context, results []*rootv1.CommandResult) {
	if g == nil {
		return
	}
	p := principal.FromContext(ctx)
	for _, result := range results {
		if result.GetOutcome() == rootv1.Outcome_OUTCOME_REJECTED {
			g.count(p, result.GetError().GetReason(), 1)
		}
	}
}

func (g *Gate) count(p principal.Principal, r rootv1.Reason, n int) {
	if r > 0 && r < maxReasons {
		g.counts.refused[p.Role][r].Add(uint64(n))
		g.counts.caller(p).refused.Add(uint64(n))
	}
}

// Metrics are what a Gate counted.
type Metrics struct {
	// Refused counts refusals by the caller's role and reason.
	Refused map[string]map[string]uint64 `json:"refused"`
	// Principals are the callers, by ROLE/NAME: MaxPrincipals at most; Others are the rest.
	Principals map[string]CallerMetrics `json:"principals"`
	Others     CallerMetrics            `json:"others"`
}

// CallerMetrics count what one caller did.
type CallerMetrics struct {
	// Calls is unary calls and streams, Refused those of them, of the requests in
	// streams, and of commands, that were refused.
	Calls   uint64 `json:"calls"`
	Refused uint64 `json:"refused"`
}

func (c *caller) metrics() CallerMetrics {
	return CallerMetrics{Calls: c.calls.Load(), Refused: c.refused.Load()}
}

// Metrics returns what was counted; nil without a Gate.
func (g *Gate) Metrics() *Metrics {
	if g == nil {
		return nil
	}
	m := &Metrics{Refused: map[string]map[string]uint64{}, Principals: map[string]CallerMetrics{}, Others: g.counts.others.metrics()}
	for role := range g.counts.refused {
		for r := range g.counts.refused[role] {
			if n := g.counts.refused[role][r].Load(); n > 0 {
				word := principal.Role(role).String()
				if m.Refused[word] == nil {
					m.Refused[word] = map[string]uint64{}
				}
				m.Refused[word][reason.Name(rootv1.Reason(r))] = n
			}
		}
	}
	if known := g.counts.callers.Load(); known != nil {
		for p, one := range *known {
			m.Principals[p.String()] = one.metrics()
		}
	}
	return m
}
