// Package experiment takes authority, leadership or members away from a cluster of
// processes, and measures what callers miss meanwhile.
//
// It owns a cluster of processes, the load on it, and the judgement of what its
// callers were given. It promises: (1) a round counts only when there was load
// before it, and when what the victim had went to somebody else; (2) every reply of
// the run is checked against the root's log; (3) the processes are gone when
// Close returns; (4) what members say that they have is checked as long as they run:
// two of them never have one region at one epoch. What a gap is, and what it is made of, is package takeover's to say.
package experiment

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/bench"
	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/takeover"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/rooted"
)

// Config says what is done, to whom and how often.
type Config struct {
	// NoKV is the binary that the cluster is made of, Dir the folder for its data.
	NoKV, Dir string
	Action    takeover.Action
	// Victim of Kill and Hang. Restart has the holder and the leader in turn.
	Victim takeover.Victim
	Rounds int
	// TTL of the Tenure.
	TTL time.Duration
	// Steady is how long there is load before each round.
	Steady time.Duration
	// Clients have connections of their own. Timeout is each call's.
	Clients, Coordinators int
	Timeout               time.Duration
	// MaxReplyInterval is the least load before an action, in time between two
	// replies of a client of each kind: a round with less would measure the load.
	MaxReplyInterval time.Duration
	// TLS gives every process a certificate.
	TLS bool
	// KeepCalls keeps every call for Draw.
	KeepCalls bool
	// Progress is told of rounds that take long; of every one with Verbose.
	Progress io.Writer
	Verbose  bool
}

// leastSteady leaves time to see that there is load.
const leastSteady = 200 * time.Millisecond

// Validate says what is wrong with c.
func (c *Config) Validate() error {
	victims := []takeover.Victim{takeover.Holder, takeover.Leader, takeover.Both}
	switch {
	case c.Action == takeover.Restart && c.Victim == "":
	case (c.Action == takeover.Kill || c.Action == takeover.Hang) && slices.Contains(victims, c.Victim):
	case c.Action == takeover.Hang:
		return fmt.Errorf("hang %q: use holder, leader, both or member", c.Victim)
	default:
		return fmt.Errorf("kill %q: use holder, leader, both, restart, member or member+holder+leader", c.Victim)
	}
	switch {
	case c.Rounds < 1 || c.Rounds > 10_000:
		return fmt.Errorf("rounds %d: want 1 to 10,000", c.Rounds)
	case c.Clients < 1 || c.Clients > 64:
		return fmt.Errorf("clients %d: want 1 to 64", c.Clients)
	case c.Coordinators < 2 || c.Coordinators > 16:
		return fmt.Errorf("coordinators %d: want 2 to 16, because one must take over", c.Coordinators)
	case c.TTL%time.Millisecond != 0 || c.TTL > tenure.MaxTTL:
		return fmt.Errorf("tenure-ttl %s: want whole milliseconds, an hour at most", c.TTL)
	case c.Steady < leastSteady:
		return fmt.Errorf("duration %s: want %s or more", c.Steady, leastSteady)
	case c.Timeout <= 0:
		return fmt.Errorf("timeout %s: want more", c.Timeout)
	case c.MaxReplyInterval <= 0:
		return fmt.Errorf("max-reply-interval %s: want more", c.MaxReplyInterval)
	}
	return nil
}

// next is what is done in a round, and to whom.
func (c *Config) next(round int) takeover.Round {
	r := takeover.Round{Action: c.Action, Victim: c.Victim}
	if c.Action == takeover.Restart {
		r.Victim = []takeover.Victim{takeover.Holder, takeover.Leader}[round%2]
	}
	return r
}

// Experiment is a cluster under load, and what was measured on it.
type Experiment struct {
	c       Config
	cluster *cluster
	load    *load
	// start is the zero of all times.
	start time.Time

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
	// resumed are the moments when who hung went on.
	resumed []takeover.Event
}

// Open starts the processes. The owner ends them with Close.
func Open(c Config) (*Experiment, error) {
	x := &Experiment{c: c, start: time.Now()}
	var err error
	if x.cluster, err = newCluster(c.Dir, c.NoKV, c.Coordinators, c.TTL, c.TLS); err != nil {
		return nil, err
	}
	if x.load, err = newLoad(x.start, x.cluster.CoordinatorAddrs, x.cluster.certs, c.Clients, c.Timeout); err != nil {
		x.cluster.close()
		return nil, err
	}
	return x, nil
}

// Close ends the load and every process, at once.
func (x *Experiment) Close() {
	x.load.close()
	x.cluster.close()
}

// slowRound is how long a round may take before it is told of anyway.
const slowRound = 10 * time.Second

// now is the time since the start.
func (x *Experiment) now() time.Duration { return time.Since(x.start) }

// Run runs every round, then judges what callers were given.
func (x *Experiment) Run(ctx context.Context) (*Report, error) {
	if _, err := x.cluster.waitHealthy(ctx); err != nil {
		return nil, fmt.Errorf("the cluster did not become healthy: %w", err)
	}
	if err := bench.MakeRegions(ctx, x.cluster.admin, keyspace, regions, x.c.Progress); err != nil {
		return nil, err
	}
	if err := until(ctx, func() error { return x.cluster.knowRegions(ctx, regions) }); err != nil {
		return nil, err
	}
	x.load.run(ctx)
	for n := range x.c.Rounds {
		begun := time.Now()
		r, err := x.round(ctx, n)
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", n+1, err)
		}
		x.rounds = append(x.rounds, r)
		if x.c.Verbose || time.Since(begun) > slowRound {
			fmt.Fprintf(x.c.Progress, "round %d of %d: %s, %.1f ms\n", n+1, x.c.Rounds, strings.Join(r.Victims, ","), ms(r.gaps[history.OpTSO].Length()))
		}
	}
	if err := x.judge(ctx); err != nil {
		return nil, err
	}
	return x.report(), nil
}

// round is one action, until everything is as before.
func (x *Experiment) round(ctx context.Context, n int) (*measuredRound, error) {
	before, err := x.steady(ctx)
	if err != nil {
		return nil, err
	}
	from := x.now()
	if err := wait(ctx, x.c.Steady); err != nil {
		return nil, err
	}
	r := &measuredRound{Round: x.c.next(n), gaps: make(map[string]takeover.Gap)}
	victims := before.members(r.Victim)
	x.describe(r, victims)
	r.At = x.now()
	if err := x.cluster.strike(victims, r.Action); err != nil {
		return nil, err
	}
	if err := x.replace(ctx, r, victims, before); err != nil {
		return nil, fmt.Errorf("after the %s of %s: %w", r.Action, strings.Join(r.Victims, " and "), err)
	}
	after, err := x.steady(ctx)
	if err != nil {
		return nil, err
	}
	r.Until = x.now()
	if err := moved(r.Victim, before, after); err != nil {
		return nil, err
	}
	return r, x.measure(r, from)
}

// replace waits until the victims are replaced, and has them there again. A
// restart does not wait. Who is started too early would be in the race.
func (x *Experiment) replace(ctx context.Context, r *measuredRound, victims []int, before authority) error {
	struck := x.now()
	if r.Action == takeover.Kill {
		r.Gone = struck
	}
	if r.Action != takeover.Restart {
		if err := until(ctx, func() error { return x.load.silent(struck) }); err != nil {
			return err
		}
	}
	if r.Action != takeover.Hang {
		for _, v := range victims {
			if err := x.cluster.start(v); err != nil {
				return err
			}
		}
		return nil
	}
	// Callers may be served by what the victim gave away before: who goes on
	// before others have it was never missed.
	if err := until(ctx, func() error {
		now, err := x.cluster.who(ctx, victims)
		return cmp.Or(err, moved(r.Victim, before, now))
	}); err != nil {
		return err
	}
	for _, name := range r.Victims {
		r.resumed = append(r.resumed, takeover.Event{At: x.now(), Who: name, Kind: takeover.Resumes})
	}
	return x.cluster.resume(victims)
}

// steady waits until everything is healthy and every caller has new replies.
func (x *Experiment) steady(ctx context.Context) (authority, error) {
	a, err := x.cluster.waitHealthy(ctx)
	if err != nil {
		return a, err
	}
	since := x.now()
	return a, until(ctx, func() error { return x.load.silent(since) })
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
func (x *Experiment) describe(r *measuredRound, victims []int) {
	for m := range x.cluster.Size() {
		name := x.cluster.Name(m)
		r.Members = append(r.Members, name)
		if m < x.cluster.Roots() {
			r.Roots = append(r.Roots, name)
		}
		if slices.Contains(victims, m) {
			r.Victims = append(r.Victims, name)
		}
	}
}

// enough says whether there was load of every kind from a moment to the action,
// and what the longest time without a timestamp was in it.
func enough(r *takeover.Round, from, maxReplyInterval time.Duration) (steady time.Duration, err error) {
	for _, op := range ops {
		least, longest := r.Load(op, from, r.At)
		if need := int((r.At - from) / maxReplyInterval); least < need {
			return 0, fmt.Errorf("too little load before the action: a client had %d replies of kind %s in %s, want %d; is the machine overloaded?",
				least, op, (r.At - from).Round(time.Millisecond), need)
		}
		if op == history.OpTSO {
			steady = longest
		}
	}
	return steady, nil
}

// measure finds the round's gaps, and refuses it when there was too little load.
func (x *Experiment) measure(r *measuredRound, from time.Duration) (err error) {
	if r.Events, err = x.cluster.events(x.start); err != nil {
		return err
	}
	r.Events = append(r.Events, r.resumed...)
	r.Calls = x.load.recorded(from)
	if r.steady, err = enough(&r.Round, from, x.c.MaxReplyInterval); err != nil {
		return err
	}
	for _, op := range ops {
		if r.gaps[op], err = r.Gap(op); err != nil {
			return err
		}
	}
	r.parts = r.Parts(r.gaps[history.OpTSO])
	if !x.c.KeepCalls {
		r.Calls = nil // they are in the load's record too
	}
	return nil
}

// judge ends the load and checks every reply of the run against the root's log.
func (x *Experiment) judge(ctx context.Context) error {
	x.load.stop()
	x.load.running.Wait()
	calls := x.load.recorded(0)
	x.calls = len(calls)
	for i := range calls {
		if calls[i].Err != "" {
			x.failed++
		}
	}
	h := history.FromCalls(calls)
	h.TsoAhead = uint64(maxAhead / time.Millisecond)
	ctx, cancel := context.WithTimeout(ctx, recoverBound)
	defer cancel()
	if err := noteLog(ctx, x.cluster.root, h); err != nil {
		return fmt.Errorf("read the root's log, to judge what callers were given: %w", err)
	}
	for _, v := range h.Check() {
		x.broken = append(x.broken, v.Error())
	}
	if n := x.load.orderViolations(); n > 0 {
		x.broken = append(x.broken, fmt.Sprintf("clients discarded %d timestamps that were not above earlier ones", n))
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

// Calls are all calls of the run.
func (x *Experiment) Calls() []history.Call { return x.load.recorded(0) }

// Draw draws the round whose gap is the median one, as SVG.
func (x *Experiment) Draw() []byte {
	sorted := slices.Clone(x.rounds)
	slices.SortStableFunc(sorted, func(a, b *measuredRound) int {
		return cmp.Compare(a.gaps[history.OpTSO].Length(), b.gaps[history.OpTSO].Length())
	})
	r := sorted[(len(sorted)-1)/2]
	return r.Round.Draw(r.gaps[history.OpTSO])
}
