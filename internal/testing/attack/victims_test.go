package attack

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/rooted"
)

// Kinds of calls that others make.
const (
	timestamps = iota
	routes
	publishes
	kinds
)

var kindNames = [kinds]string{"timestamps", "routes", "publishes"}

// figures are what others saw in some time.
type figures struct {
	took   [kinds][]time.Duration // sorted
	failed []error
	lasted time.Duration
}

func (f *figures) p99(kind int) time.Duration {
	if len(f.took[kind]) == 0 {
		return 0
	}
	return f.took[kind][len(f.took[kind])*99/100]
}

// longest is the longest answer: a moment in which nobody is served shows there first.
func (f *figures) longest(kind int) time.Duration {
	if n := len(f.took[kind]); n > 0 {
		return f.took[kind][n-1]
	}
	return 0
}

func (f *figures) rate(kind int) int {
	return int(float64(len(f.took[kind])) / f.lasted.Seconds())
}

// victims are the others: callers of each kind who ask, think, and ask again.
type victims struct {
	mu  sync.Mutex
	now *figures // guarded by mu; nil: nobody looks
}

const (
	callersOfAKind = 4
	// thinking is between two calls of a caller.
	thinking = 4 * time.Millisecond
	// victimRegions is how many regions there are to look up.
	victimRegions = 64
	// callLimit is as long as anything may take: how long calls took is reported.
	callLimit = patience
)

func regionKey(i int) []byte { return fmt.Appendf(nil, "victim-%03d", i) }

func startVictims(t *testing.T, cl *client.Client) *victims {
	v := &victims{}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	epochs := make([]uint64, victimRegions)
	publish := func(ctx context.Context, i int) error {
		epochs[i]++
		_, err := cl.PublishRegion(ctx, &rooted.Region{
			Keyspace: 1,
			ID:       rooted.RegionID(i + 1), Start: string(regionKey(i)), End: string(regionKey(i)) + "~", Epoch: rooted.Epoch{Version: 1, ConfVersion: epochs[i]},
		})
		return err
	}
	for i := range victimRegions {
		proctest.Eventually(t, patience, func() error {
			callCtx, done := context.WithTimeout(ctx, callLimit)
			defer done()
			return publish(callCtx, i)
		})
	}
	ask := func(kind, caller, n int) error {
		callCtx, done := context.WithTimeout(ctx, callLimit)
		defer done()
		switch kind {
		case timestamps:
			_, err := cl.Tso(callCtx, 1)
			return err
		case routes:
			_, err := cl.GetRegionByKey(callCtx, regionKey(n%victimRegions))
			return err
		default:
			return publish(callCtx, (n*callersOfAKind+caller)%victimRegions)
		}
	}
	for kind := range kinds {
		for caller := range callersOfAKind {
			all.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					begun := time.Now()
					err := ask(kind, caller, n)
					v.note(ctx, kind, time.Since(begun), err)
					time.Sleep(thinking) // how long this caller thinks
				}
			})
		}
	}
	return v
}

func (v *victims) note(ctx context.Context, kind int, took time.Duration, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.now == nil || ctx.Err() != nil {
		return
	}
	v.now.took[kind] = append(v.now.took[kind], took)
	if err != nil && len(v.now.failed) < 5 {
		v.now.failed = append(v.now.failed, fmt.Errorf("%s after %v: %w", kindNames[kind], took, err))
	}
}

// during notes what others see while fn runs.
func (v *victims) during(fn func()) figures {
	f := &figures{}
	v.mu.Lock()
	v.now = f
	v.mu.Unlock()
	begun := time.Now()
	fn()
	v.mu.Lock()
	v.now = nil
	v.mu.Unlock()
	f.lasted = time.Since(begun)
	for k := range f.took {
		slices.Sort(f.took[k])
	}
	return *f
}

// enoughServed is how many calls of each kind are answered while an attack goes on.
const enoughServed = callersOfAKind

// served says whether others are served while somebody looks.
func (v *victims) served() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for k, took := range v.now.took {
		if n := len(took) - len(v.now.failed); n < enoughServed {
			return fmt.Errorf("%d %s were answered", n, kindNames[k])
		}
	}
	return nil
}

// settle waits until calls of every kind are answered again.
func (v *victims) settle(t *testing.T) {
	t.Helper()
	v.during(func() { proctest.Eventually(t, patience, v.served) })
}
