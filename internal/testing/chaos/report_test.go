package chaos

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/testing/testreport"
)

// totals are what runs did together.
type totals struct {
	runs, operations, retried, refused, entries int
	byKind, skipped                             map[string]int
	recovered                                   []time.Duration
}

func newTotals() *totals {
	return &totals{byKind: make(map[string]int), skipped: make(map[string]int)}
}

func (d *totals) report(t testing.TB) {
	faults := 0
	kinds := slices.Sorted(maps.Keys(d.byKind))
	for i, k := range kinds {
		faults += d.byKind[k]
		kinds[i] = fmt.Sprintf("%s %d", k, d.byKind[k])
	}
	slices.Sort(d.recovered)
	if len(d.recovered) == 0 {
		d.recovered = []time.Duration{0}
	}
	testreport.Linef(t, "chaos: %d runs, %d faults (%s), %d operations checked, %d writes tried again after an unknown outcome, %d calls refused or unanswered, %d log entries replayed, served again after %s (median), %s (worst)",
		d.runs, faults, strings.Join(kinds, ", "), d.operations, d.retried, d.refused, d.entries,
		d.recovered[len(d.recovered)/2].Round(ms), d.recovered[len(d.recovered)-1].Round(ms))
	for k, n := range d.skipped {
		testreport.Linef(t, "chaos: SKIPPED, AND NOT SHOWN: %s, %d times: this machine cannot have it", k, n)
	}
}

// keep saves what a failed run left.
func (r *run) keep() {
	if !r.t.Failed() || r.c == nil {
		return
	}
	if err := os.MkdirAll(*keepIn, 0o755); err != nil {
		r.t.Errorf("a folder for what a failed run leaves: %v", err)
	}
	dir, err := os.MkdirTemp(*keepIn, fmt.Sprintf("nokv-chaos-%d-", r.s.seed))
	if err != nil {
		r.t.Error(err)
		return
	}
	_ = os.WriteFile(filepath.Join(dir, "schedule.txt"), []byte(r.s.String()), 0o644)
	if f, err := os.Create(filepath.Join(dir, "history.jsonl")); err == nil {
		r.e.mu.Lock()
		err = r.e.write(f)
		r.e.mu.Unlock()
		if err != nil {
			r.t.Error(err)
		}
		_ = f.Close()
	}
	for m := range members {
		raw, _ := os.ReadFile(r.c.Log(m)) // there may be none
		_ = os.WriteFile(filepath.Join(dir, place(m)+".log"), raw, 0o644)
	}
	r.t.Logf("the run is in %s; again with -chaos.schedule %s", dir, filepath.Join(dir, "schedule.txt"))
}

// write writes the history as package history reads it.
func (e *evidence) write(f io.Writer) error {
	w := history.NewWriter(f)
	calls := slices.Clone(e.calls)
	for _, x := range e.writes {
		c := history.Call{Client: x.client, Op: history.OpPublish, CallNS: int64(x.called), ReturnNS: int64(x.returned)}
		if x.returned == history.Never {
			c.ReturnNS = 0
		}
		calls = append(calls, c)
	}
	for _, x := range e.reads {
		calls = append(calls, history.Call{Client: x.client, Endpoint: x.node, Op: history.OpRoute, CallNS: int64(x.called), ReturnNS: int64(x.returned)})
	}
	for _, c := range calls {
		if err := w.Write(c); err != nil {
			return err
		}
	}
	return w.Flush()
}
