package tenure_test

import (
	"context"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// testRoot is a root leader that answers after a delay, over the real state
// machine and the clock of package time.
type testRoot struct {
	delay time.Duration

	mu       sync.Mutex
	machine  *machine
	since    time.Time
	changed  chan struct{}
	confirms int
	extends  int
	// cut: nothing passes; each holder has its own in endpoint.
	cut map[string]bool
	// wall bounds timestamps in Unix milliseconds; 0: no bound. With one, or with
	// noFirst, claims bring no windows.
	wall    uint64
	noFirst bool
	// changeFirst falsifies the windows of claims.
	changeFirst func(*rootv1.Window)
}

func newTestRoot(delay time.Duration) *testRoot {
	return &testRoot{delay: delay, machine: newMachine(), changed: make(chan struct{}), cut: map[string]bool{}}
}

// endpoint is what one holder sees of the root. It fills Root and Views.
type endpoint struct {
	r  *testRoot
	id string
}

// travel passes half the delay; it fails when the endpoint is cut off.
func (e endpoint) travel(ctx context.Context) error {
	if e.r.delay > 0 {
		t := time.NewTimer(e.r.delay / 2)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	e.r.mu.Lock()
	cut := e.r.cut[e.id]
	e.r.mu.Unlock()
	if cut {
		<-ctx.Done()
	}
	return ctx.Err()
}

// exchange is a round trip around fn, which runs under the root's mutex.
func exchange[T any](ctx context.Context, e endpoint, fn func() T) (T, error) {
	var none T
	if err := e.travel(ctx); err != nil {
		return none, err
	}
	e.r.mu.Lock()
	v := fn()
	e.r.mu.Unlock()
	if err := e.travel(ctx); err != nil {
		return none, err
	}
	return v, nil
}

func (r *testRoot) applyLocked(c *rootv1.Command) *rootv1.CommandResult {
	result := r.machine.apply(c)
	close(r.changed)
	r.changed = make(chan struct{})
	return result
}

func (e endpoint) Claim(ctx context.Context, c *rootv1.TenureClaimed, windows ...*rootv1.FirstWindow) (*rootv1.ClaimTenureResponse, error) {
	return exchange(ctx, e, func() *rootv1.ClaimTenureResponse {
		t := e.r.machine.s.Tenure()
		over := t != nil && !t.Retired && t.Era == c.ExpectedEra
		ttl := time.Duration(t.GetTtlMillis()) * time.Millisecond
		if wait := time.Until(e.r.since.Add(ttl + ttl/10)); over && ttl > 0 && wait > 0 {
			return refusedClaim(rootv1.Reason_REASON_PRIMACY, t.Era, wait+time.Millisecond)
		}
		c.PredecessorExpired = over
		if e.r.noFirst || e.r.wall != 0 {
			windows = nil
		}
		result := e.r.applyLocked(e.r.machine.claim(c, windows))
		e.r.since = time.Now()
		for _, event := range result.Events {
			if event.Window != nil && e.r.changeFirst != nil {
				e.r.changeFirst(event.Window)
			}
		}
		return &rootv1.ClaimTenureResponse{Result: result}
	})
}

func (e endpoint) Confirm(ctx context.Context, q *rootv1.ConfirmTenureRequest) (*rootv1.ConfirmTenureResponse, error) {
	return exchange(ctx, e, func() *rootv1.ConfirmTenureResponse {
		e.r.confirms++
		t := e.r.machine.s.Tenure()
		active := t.Era == q.Era && !t.Retired && t.End == nil && t.HolderIncarnation == q.HolderIncarnation
		if active {
			e.r.since = time.Now()
		}
		return &rootv1.ConfirmTenureResponse{Active: active, Tenure: t}
	})
}

func (e endpoint) Propose(ctx context.Context, commands ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	return exchange(ctx, e, func() []*rootv1.CommandResult {
		var out []*rootv1.CommandResult
		for _, c := range commands {
			f := c.Events[0].GetFenceExtended()
			if f != nil {
				e.r.extends++
			}
			if f.GetMandate() == rootv1.Mandate_MANDATE_TSO && e.r.wall != 0 && e.r.machine.window(f).To>>18 > e.r.wall {
				out = append(out, &rootv1.CommandResult{
					Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_CLOCK_BOUND},
				})
				continue
			}
			out = append(out, e.r.applyLocked(c))
		}
		return out
	})
}

func (e endpoint) Authority() (tenure.Authority, bool) {
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	return tenure.Authority{Tenure: e.r.machine.s.Tenure(), Handover: e.r.machine.handover()}, true
}

func (e endpoint) Changed() <-chan struct{} {
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	return e.r.changed
}

// inspect reads the root's state.
func (r *testRoot) inspect(fn func(m *machine)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r.machine)
}
