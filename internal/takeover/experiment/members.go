package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/internal/takeover"
)

// MemberConfig says how members are taken away, and how often.
type MemberConfig struct {
	Hosting
	Action takeover.Action
	Victim takeover.Victim
	Rounds int
	// Steady is how long nothing happens before each round.
	Steady time.Duration
}

// Validate says what is wrong with c.
func (c *MemberConfig) Validate() error {
	switch {
	case c.Action == takeover.Kill && (c.Victim == takeover.Member || c.Victim == takeover.All):
	case c.Action == takeover.Hang && c.Victim == takeover.Member:
	default:
		return fmt.Errorf("%s %q: use member, and to kill also member+holder+leader", c.Action, c.Victim)
	}
	switch {
	case c.Rounds < 1 || c.Rounds > 10_000:
		return fmt.Errorf("rounds %d: want 1 to 10,000", c.Rounds)
	case c.Steady < leastSteady:
		return fmt.Errorf("duration %s: want %s or more", c.Steady, leastSteady)
	case c.Victim == takeover.All && c.Coordinators < 2:
		return fmt.Errorf("coordinators %d: want 2 or more, because one must take over", c.Coordinators)
	}
	return c.Hosting.Validate()
}

// MemberExperiment takes members away, and measures how long it takes until others serve
// their regions and callers know.
type MemberExperiment struct {
	*site
	c      MemberConfig
	rounds []*memberRound
}

// memberRound is a round with what was counted.
type memberRound struct {
	takeover.Failover
	// entries of the log that granted something.
	entries int
	// roots, coordinators and members are the processor time of the processes that were
	// there all the time.
	roots, coordinators, members time.Duration
}

// OpenMembers starts the processes. The owner ends them with Close.
func OpenMembers(c MemberConfig) (*MemberExperiment, error) {
	s, err := openSite(c.Hosting)
	if err != nil {
		return nil, err
	}
	return &MemberExperiment{site: s, c: c}, nil
}

// Close ends every process, at once.
func (x *MemberExperiment) Close() { x.close() }

// Run runs every round.
func (x *MemberExperiment) Run(ctx context.Context) (*MemberReport, error) {
	if err := x.populate(ctx); err != nil {
		return nil, err
	}
	for n := range x.c.Rounds {
		begun := time.Now()
		r, err := x.round(ctx, x.workers[n%len(x.workers)])
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", n+1, err)
		}
		x.rounds = append(x.rounds, r)
		if x.c.Verbose || time.Since(begun) > slowRound {
			fmt.Fprintf(x.c.Progress, "round %d of %d: %s, %.1f ms\n", n+1, x.c.Rounds, strings.Join(r.Victims, ","), ms(r.Done()-r.At))
		}
	}
	return x.report(), nil
}

// round is one action, until everything is as before.
func (x *MemberExperiment) round(ctx context.Context, victim *worker) (*memberRound, error) {
	if err := until(ctx, func() error { return x.connected(ctx) }); err != nil {
		return nil, err
	}
	if err := x.give(ctx, victim); err != nil {
		return nil, err
	}
	before, err := x.waitHealthy(ctx)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, x.c.Steady); err != nil {
		return nil, err
	}
	r := &memberRound{Failover: takeover.Failover{Round: takeover.Round{Action: x.c.Action, Victim: x.c.Victim}, Regions: x.c.Regions}}
	var others []int
	if x.c.Victim == takeover.All {
		others = []int{before.holder, before.leader}
	}
	x.describe(r, victim, others)
	r.count(x, victim, others, -1)
	if err := x.strike(r, victim, others); err != nil {
		return nil, err
	}
	if err := until(ctx, func() error { return x.gone(victim) }); err != nil {
		return nil, fmt.Errorf("after the %s of %s: %w", r.Action, strings.Join(r.Victims, " and "), err)
	}
	r.Until = x.now()
	r.count(x, victim, others, 1)
	if err := x.measure(r, victim); err != nil {
		return nil, err
	}
	return r, x.restore(ctx, victim, others)
}

// describe names who was there.
func (x *MemberExperiment) describe(r *memberRound, victim *worker, others []int) {
	r.Victims = []string{string(victim.id)}
	r.Members = []string{string(victim.id)}
	for m := range x.Size() {
		name := x.Name(m)
		r.Members = append(r.Members, name)
		if m < x.Roots() {
			r.Roots = append(r.Roots, name)
		}
		if slices.Contains(others, m) {
			r.Victims = append(r.Victims, name)
		}
	}
}

// count adds the processor time of the processes that stay, or takes it off.
func (r *memberRound) count(x *MemberExperiment, victim *worker, others []int, times time.Duration) {
	for m, p := range x.processes {
		switch {
		case slices.Contains(others, m):
		case m < x.Roots():
			r.roots += times * usageOf(p).processor
		default:
			r.coordinators += times * usageOf(p).processor
		}
	}
	for _, w := range x.workers {
		if w != victim {
			r.members += times * usageOf(w.process).processor
		}
	}
}

// strike does it to the victim, and to processes of the cluster, in the same moment.
func (x *MemberExperiment) strike(r *memberRound, victim *worker, others []int) error {
	all := []*procs.Process{victim.process}
	for _, m := range others {
		all = append(all, x.processes[m])
	}
	for _, p := range all {
		if !p.Running() {
			return errors.New("a victim ended before its time")
		}
	}
	r.At = x.now()
	for _, p := range all {
		if err := p.SignalGroup(signals[r.Action]); err != nil {
			return err
		}
	}
	if r.Action == takeover.Hang {
		return nil
	}
	for _, p := range all {
		if _, err := p.Wait(stopBound); err != nil {
			return err
		}
		if p == victim.process {
			r.Gone = x.now()
		}
		p.Kill() // joins what watched it
	}
	return nil
}

// restore has the victims there again.
func (x *MemberExperiment) restore(ctx context.Context, victim *worker, others []int) error {
	for _, m := range others {
		if err := x.start(m); err != nil {
			return err
		}
	}
	if x.c.Action == takeover.Hang {
		if err := victim.process.SignalGroup(signalResume); err != nil {
			return err
		}
	} else if err := victim.startProcess(); err != nil {
		return err
	}
	// It is another incarnation, and has nothing: not even what it thought that it had.
	return until(ctx, func() error {
		if err := x.listen(); err != nil {
			return fatalError{err}
		}
		if len(victim.held) > 0 {
			return fmt.Errorf("member %s still says that it has %d regions", victim.id, len(victim.held))
		}
		return x.connected(ctx)
	})
}

// measure finds out when what happened.
func (x *MemberExperiment) measure(r *memberRound, victim *worker) (err error) {
	if r.Events, err = x.events(x.zero); err != nil {
		return err
	}
	root := takeover.Ticks{Name: "root: grants", Colour: 1}
	for _, n := range x.entries.since(r.At) {
		if slices.Contains(n.failed, victim.id) && r.Rooted == 0 {
			r.Rooted = n.at
		}
		if n.granted > 0 {
			r.Granted = n.at
			r.entries++
			root.At = append(root.At, n.at)
		}
	}
	r.Lanes = append(r.Lanes, root)
	for _, w := range x.workers {
		if w == victim {
			continue
		}
		lane := takeover.Ticks{Name: "member " + string(w.id)}
		for _, s := range w.since(r.At) {
			lane.At = append(lane.At, s.at)
			r.Told = max(r.Told, s.at)
		}
		r.Lanes = append(r.Lanes, lane)
	}
	for i, reader := range x.readers {
		lane := takeover.Ticks{Name: fmt.Sprintf("caller %d", i+1), Colour: 1, At: reader.since(r.At)}
		if n := len(lane.At); n > 0 {
			r.Learned = max(r.Learned, lane.At[n-1])
		}
		r.Lanes = append(r.Lanes, lane)
	}
	if r.Rooted == 0 || r.Granted == 0 || r.Told == 0 || r.Learned == 0 {
		return fmt.Errorf("not seen: verdict at %s, grants at %s, served at %s, known at %s", r.Rooted, r.Granted, r.Told, r.Learned)
	}
	return nil
}

// Draw draws the round that took the median time, as SVG.
func (x *MemberExperiment) Draw() []byte {
	sorted := slices.Clone(x.rounds)
	slices.SortStableFunc(sorted, func(a, b *memberRound) int { return cmp.Compare(a.Done()-a.At, b.Done()-b.At) })
	return sorted[(len(sorted)-1)/2].Failover.Draw()
}

// MemberReport is what `nokv bench failover --kill member -o json` prints. The field names
// stay.
type MemberReport struct {
	Action  string `json:"action"`
	Victim  string `json:"victim"`
	Rounds  int    `json:"rounds"`
	Preset  string `json:"preset"`
	Members int    `json:"members"`
	Regions int    `json:"regions"`
	// From the action until every region is served elsewhere, and every caller knows.
	P50Ms float64 `json:"p50_ms"`
	P99Ms float64 `json:"p99_ms"`
	MaxMs float64 `json:"max_ms"`
	// Violations counts regions that two processes acquired at one epoch.
	Violations int      `json:"violations"`
	Broken     []string `json:"broken,omitempty"`
	// From the action until: the verdict is rooted, the last region is another member's, the
	// last one is served, the last caller knows. The first two are seen in the log, by the
	// bench itself, which may hear of a grant a moment after the member that gets it.
	Rooted  Quantiles `json:"rooted"`
	Granted Quantiles `json:"granted"`
	Told    Quantiles `json:"told"`
	Learned Quantiles `json:"learned"`
	// Parts are what the whole time is made of, in order.
	Parts []PartSummary `json:"parts"`
	// GrantEntries is the most entries of the log that the grants of a round took.
	GrantEntries int `json:"grant_entries"`
	// Processor time a region, in microseconds, of all processes of a kind together that
	// were there before and after, from the action until all was done; 0: not known.
	RootUs        float64 `json:"root_us_a_region"`
	CoordinatorUs float64 `json:"coordinator_us_a_region"`
	MemberUs      float64 `json:"member_us_a_region"`
	// Each is a line for each round.
	Each []MemberRound `json:"each"`
}

// MemberRound is one round.
type MemberRound struct {
	Process string      `json:"process"`
	Ms      float64     `json:"ms"`
	Entries int         `json:"entries"`
	Parts   []RoundPart `json:"parts"`
}

// report sums the rounds up.
func (x *MemberExperiment) report() *MemberReport {
	out := &MemberReport{
		Action: string(x.c.Action), Victim: string(x.c.Victim), Rounds: len(x.rounds), Preset: x.c.Preset, Members: x.c.Members, Regions: x.c.Regions,
		Violations: len(x.owners.broken), Broken: x.owners.broken,
	}
	quantiles := func(at func(*memberRound) time.Duration) Quantiles {
		var all []time.Duration
		for _, r := range x.rounds {
			all = append(all, at(r)-r.At)
		}
		return showQuantiles(all)
	}
	out.Rooted = quantiles(func(r *memberRound) time.Duration { return r.Rooted })
	out.Granted = quantiles(func(r *memberRound) time.Duration { return r.Granted })
	out.Told = quantiles(func(r *memberRound) time.Duration { return r.Told })
	out.Learned = quantiles(func(r *memberRound) time.Duration { return r.Learned })
	done := quantiles(func(r *memberRound) time.Duration { return r.Done() })
	out.P50Ms, out.P99Ms, out.MaxMs = done.P50Ms, done.P99Ms, done.MaxMs
	parts := newPartSums(takeover.FailoverParts)
	var roots, coordinators, members time.Duration
	for _, r := range x.rounds {
		show := MemberRound{Process: strings.Join(r.Victims, ","), Ms: ms(r.Done() - r.At), Entries: r.entries}
		for _, p := range r.Failover.Parts() {
			show.Parts = append(show.Parts, RoundPart{p.Name, ms(p.Length())})
			parts.add(r.Victim, p)
		}
		out.Each = append(out.Each, show)
		out.GrantEntries = max(out.GrantEntries, r.entries)
		roots, coordinators, members = roots+r.roots, coordinators+r.coordinators, members+r.members
	}
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(len(x.rounds)*x.c.Regions) }
	out.RootUs, out.CoordinatorUs, out.MemberUs = each(roots), each(coordinators), each(members)
	out.Parts = parts.show()
	return out
}
