package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/takeover"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/rooted"
)

// failoverRun is one run of `nokv bench failover`.
type failoverRun struct {
	o       *failoverOptions
	cluster *failoverCluster
	load    *failoverLoad
	// start is the zero of all times.
	start    time.Time
	progress io.Writer
	terminal bool

	rounds []*measuredRound
	// Set at the end: counts of calls, and broken promises in words.
	calls, failed int
	broken        []string
}

// measuredRound is a round with what was measured.
type measuredRound struct {
	takeover.Round
	gaps   map[string]takeover.Gap
	parts  []takeover.Part
	steady time.Duration
}

func (r *measuredRound) names() string { return strings.Join(r.Victims, ",") }

func newFailoverRun(e *env, o *failoverOptions, dir string) (*failoverRun, error) {
	f := &failoverRun{o: o, start: time.Now(), progress: e.stderr, terminal: isTerminal(e.stderr)}
	var err error
	if f.cluster, err = newFailoverCluster(dir, *o.coordinators, *o.ttl); err != nil {
		return nil, err
	}
	if f.load, err = newFailoverLoad(f.start, f.cluster.CoordinatorAddrs, *o.clients, *o.timeout); err != nil {
		f.cluster.close()
		return nil, err
	}
	return f, nil
}

func (f *failoverRun) close() {
	f.load.close()
	f.cluster.close()
}

// isTerminal says whether a person is likely to read w as it is written.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// slowRound is how long a round may take before it is told of anyway.
const slowRound = 10 * time.Second

// now is the time since the start.
func (f *failoverRun) now() time.Duration { return time.Since(f.start) }

// all runs every round, then judges what callers were given.
func (f *failoverRun) all(ctx context.Context) error {
	if _, err := f.cluster.waitHealthy(ctx); err != nil {
		return fmt.Errorf("the cluster did not become healthy: %w", err)
	}
	if err := makeRegions(ctx, &env{stderr: f.progress}, f.cluster.admin, failoverKeyspace, failoverRegions); err != nil {
		return err
	}
	if err := until(ctx, func() error { return f.cluster.knowRegions(ctx, failoverRegions) }); err != nil {
		return err
	}
	f.load.run(ctx)
	for n := range *f.o.rounds {
		begun := time.Now()
		r, err := f.round(ctx, n)
		if err != nil {
			return fmt.Errorf("round %d: %w", n+1, err)
		}
		f.rounds = append(f.rounds, r)
		if f.terminal || time.Since(begun) > slowRound {
			fmt.Fprintf(f.progress, "round %d of %d: %s, %.1f ms\n", n+1, *f.o.rounds, r.names(), ms(r.gaps[history.OpTSO].Length()))
		}
	}
	return f.judge(ctx)
}

// round is one kill, or one restart.
func (f *failoverRun) round(ctx context.Context, n int) (*measuredRound, error) {
	before, err := f.steady(ctx)
	if err != nil {
		return nil, err
	}
	from := f.now()
	if err := wait(ctx, *f.o.duration); err != nil {
		return nil, err
	}
	r := &measuredRound{gaps: make(map[string]takeover.Gap)}
	r.Victim, r.Orderly = f.o.victim(n)
	victims := before.members(r.Victim)
	r.At = f.now()
	if err := f.cluster.end(victims, r.Orderly); err != nil {
		return nil, err
	}
	if !r.Orderly { // who is left takes over: what is started again too early would be in the race
		r.Gone = f.now()
		if err := until(ctx, func() error { return f.load.silent(r.Gone) }); err != nil {
			return nil, fmt.Errorf("after the kill of %s: %w", f.cluster.Name(victims[0]), err)
		}
	}
	for _, v := range victims {
		if err := f.cluster.start(v); err != nil {
			return nil, err
		}
	}
	after, err := f.steady(ctx)
	if err != nil {
		return nil, err
	}
	r.Until = f.now()
	if err := moved(r.Victim, before, after); err != nil {
		return nil, err
	}
	f.describe(r, victims)
	return r, f.measure(r, from)
}

// steady waits until everything is healthy and every caller has new replies.
func (f *failoverRun) steady(ctx context.Context) (authority, error) {
	a, err := f.cluster.waitHealthy(ctx)
	if err != nil {
		return a, err
	}
	since := f.now()
	return a, until(ctx, func() error { return f.load.silent(since) })
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// members are those that a victim stands for.
func (a authority) members(v takeover.Victim) []int {
	switch v {
	case takeover.Holder:
		return []int{a.holder}
	case takeover.Leader:
		return []int{a.leader}
	}
	return []int{a.holder, a.leader}
}

// moved says whether what the victim had went to somebody else: otherwise it
// was the wrong one, and nothing was measured.
func moved(v takeover.Victim, before, after authority) error {
	if v != takeover.Leader && after.era <= before.era {
		return fmt.Errorf("the holder was ended and era %d goes on", before.era)
	}
	if v != takeover.Holder && after.term <= before.term {
		return fmt.Errorf("the leader was ended and term %d goes on", before.term)
	}
	return nil
}

// describe names who was there.
func (f *failoverRun) describe(r *measuredRound, victims []int) {
	for m := range f.cluster.Size() {
		name := f.cluster.Name(m)
		r.Members = append(r.Members, name)
		if m < f.cluster.Roots() {
			r.Roots = append(r.Roots, name)
		}
		if slices.Contains(victims, m) {
			r.Victims = append(r.Victims, name)
		}
	}
}

// leastPace is the least load, in time between two replies of a client: a
// round with less would measure the load.
const leastPace = 10 * time.Millisecond

// enough says whether there was load of every kind from a moment to the kill,
// and what the longest time without a timestamp was in it.
func enough(r *takeover.Round, from time.Duration) (steady time.Duration, err error) {
	for _, op := range failoverOps {
		least, longest := r.Load(op, from, r.At)
		if need := int((r.At - from) / leastPace); least < need {
			return 0, fmt.Errorf("too little load before the kill: a client had %d replies of kind %s in %s, want %d; is the machine overloaded?",
				least, op, (r.At - from).Round(time.Millisecond), need)
		}
		if op == history.OpTSO {
			steady = longest
		}
	}
	return steady, nil
}

// measure finds the round's gaps, and refuses it when there was too little load.
func (f *failoverRun) measure(r *measuredRound, from time.Duration) (err error) {
	if r.Events, err = f.cluster.events(f.start); err != nil {
		return err
	}
	r.Calls = f.load.recorded(from)
	if r.steady, err = enough(&r.Round, from); err != nil {
		return err
	}
	for _, op := range failoverOps {
		if r.gaps[op], err = r.Gap(op); err != nil {
			return err
		}
	}
	r.parts = r.Parts(r.gaps[history.OpTSO])
	if *f.o.svg == "" {
		r.Calls = nil // they are in the load's record too
	}
	return nil
}

// judge ends the load and checks every reply of the run against the root's log.
func (f *failoverRun) judge(ctx context.Context) error {
	f.load.stop()
	f.load.running.Wait()
	calls := f.load.recorded(0)
	f.calls = len(calls)
	for i := range calls {
		if calls[i].Err != "" {
			f.failed++
		}
	}
	h := history.FromCalls(calls)
	h.TsoAhead = uint64(maxAhead / time.Millisecond)
	ctx, cancel := context.WithTimeout(ctx, recoverBound)
	defer cancel()
	if err := noteLog(ctx, f.cluster.root, h); err != nil {
		return fmt.Errorf("read the root's log, to judge what callers were given: %w", err)
	}
	for _, v := range h.Check() {
		f.broken = append(f.broken, v.Error())
	}
	if n := f.load.orderViolations(); n > 0 {
		f.broken = append(f.broken, fmt.Sprintf("clients discarded %d timestamps that were not above earlier ones", n))
	}
	return nil
}

// maxAhead is how far timestamps may be ahead of the machine's clock: the root
// leader refuses fences that are further ahead of its own. Each kill of a holder
// may carry them ahead by the window that is rooted ahead of use.
const maxAhead = 10 * time.Minute

// noteLog adds the Tenures and the ids of regions that the root has rooted.
func noteLog(ctx context.Context, root *rootclient.Client, h *history.History) error {
	at, err := root.ReadIndex(ctx)
	if err != nil {
		return err
	}
	stream, err := root.Tail(ctx, rooted.Token{})
	if err != nil {
		return err
	}
	defer stream.Close()
	st := state.New()
	var out state.Applied
	for st.Token().Index < at.Index {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, e := range m.GetEntries() {
			out.Reset()
			if err := st.ApplyEntry(e.GetTerm(), e.GetIndex(), e.GetEntry(), &out); err != nil {
				return err
			}
			for _, c := range out.Changes {
				switch {
				case c.Kind == state.ChangeTenure:
					h.Note(c.Tenure)
				case c.Kind == state.ChangeRegion && c.OldRegion == nil && !c.Removed:
					h.RootIDs = append(h.RootIDs, uint64(c.Region.ID))
				}
			}
		}
	}
	return nil
}

// writeFiles writes what --history and --svg ask for.
func (f *failoverRun) writeFiles() error {
	if *f.o.history != "" {
		if err := f.writeHistory(*f.o.history); err != nil {
			return fmt.Errorf("write %s: %w", *f.o.history, err)
		}
	}
	if *f.o.svg != "" {
		r := f.median()
		if err := os.WriteFile(*f.o.svg, r.Draw(r.gaps[history.OpTSO]), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (f *failoverRun) writeHistory(path string) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := history.NewWriter(file)
	for _, c := range f.load.recorded(0) {
		if err := w.Write(c); err != nil {
			return err
		}
	}
	return w.Flush()
}

// median is the round whose gap is the median one.
func (f *failoverRun) median() *measuredRound {
	sorted := slices.Clone(f.rounds)
	slices.SortStableFunc(sorted, func(a, b *measuredRound) int {
		return compareInts(int64(a.gaps[history.OpTSO].Length()), int64(b.gaps[history.OpTSO].Length()))
	})
	return sorted[(len(sorted)-1)/2]
}
