package experiment

import (
	"context"
	"fmt"
	"time"
)

// DrainConfig says how a member is drained, and under which load.
type DrainConfig struct {
	Hosting
	Rounds int
	// Rate is how many requests a second callers make of its regions; 0: none.
	Rate int
	// Commits is how many callers change other regions meanwhile, one change each 5 ms.
	Commits int
	// InFlight is how many moves may be under way from one member, and to one; 0: as the
	// preset says.
	InFlight int
	// Steady is how long there is load before each drain, which it is compared with.
	Steady time.Duration
}

// Validate says what is wrong with c.
func (c *DrainConfig) Validate() error {
	switch {
	case c.Rounds < 1 || c.Rounds > 1000:
		return fmt.Errorf("rounds %d: want 1 to 1,000", c.Rounds)
	case c.Rate < 0 || c.Rate > 100_000:
		return fmt.Errorf("rate %d: want 0 to 100,000 requests a second", c.Rate)
	case c.Commits < 0 || c.Commits > 1000:
		return fmt.Errorf("commits %d: want 0 to 1,000 callers", c.Commits)
	case c.InFlight < 0 || c.InFlight > 4096:
		return fmt.Errorf("in-flight %d: want 0 to 4,096", c.InFlight)
	case c.Steady < leastSteady:
		return fmt.Errorf("duration %s: want %s or more", c.Steady, leastSteady)
	}
	return c.Hosting.Validate()
}

// DrainReport is what `nokv bench move -o json` prints. The field names stay.
type DrainReport struct {
	Rounds  int    `json:"rounds"`
	Preset  string `json:"preset"`
	Members int    `json:"members"`
	Regions int    `json:"regions"`
	// DrainMs is from the drain until others serve every region, and every caller knows.
	DrainMs Quantiles `json:"drain"`
	// Entries of the log of a drain, the most of any: with plans, with readiness, with
	// completions, which are the grants; and all that have any of them.
	Planned   int `json:"planned_entries"`
	Readied   int `json:"ready_entries"`
	Completed int `json:"grant_entries"`
	Entries   int `json:"entries"`
	// Violations counts regions that somebody served before another one had let go, and those
	// that two processes acquired at one epoch.
	Violations int      `json:"violations"`
	Broken     []string `json:"broken,omitempty"`
	// Requests of members, before the drains and in them. Added is by how much a request in a
	// drain took longer than the median before.
	Requests *Compared  `json:"requests,omitempty"`
	Added    *Quantiles `json:"added,omitempty"`
	// Commits are changes of other regions.
	Commits *Compared `json:"commits,omitempty"`
	// RootUs, CoordinatorUs and MemberUs are processor time a region, as for a failover, with
	// that of the load.
	RootUs        float64 `json:"root_us_a_region"`
	CoordinatorUs float64 `json:"coordinator_us_a_region"`
	MemberUs      float64 `json:"member_us_a_region"`
}

// Compared are calls before and during something.
type Compared struct {
	Before  Quantiles `json:"before"`
	During  Quantiles `json:"during"`
	Calls   int       `json:"calls_during"`
	Failed  int       `json:"failed"`
	Retried int       `json:"retried"`
	// Error of one that failed.
	Error string `json:"error,omitempty"`
}

// DrainExperiment drains members, one after another.
type DrainExperiment struct {
	*site
	c                 DrainConfig
	requests, commits record
	before, during    struct{ requests, commits []request }
	drains            []time.Duration
	out               DrainReport
	used              struct{ roots, coordinators, members time.Duration }
}

// OpenDrain starts the processes. The owner ends them with Close.
func OpenDrain(c DrainConfig) (*DrainExperiment, error) {
	c.Hosting.inFlight = c.InFlight
	s, err := openSite(c.Hosting)
	if err != nil {
		return nil, err
	}
	return &DrainExperiment{site: s, c: c}, nil
}

// Close ends every process, at once.
func (x *DrainExperiment) Close() { x.close() }

// Run drains as often as it shall.
func (x *DrainExperiment) Run(ctx context.Context) (*DrainReport, error) {
	if err := x.populate(ctx); err != nil {
		return nil, err
	}
	loaded, stop := context.WithCancel(ctx)
	defer stop()
	if x.c.Rate > 0 {
		x.running.Go(func() { x.ask(loaded, x.c.Rate, &x.requests) })
	}
	if err := x.commit(loaded, x.c.Commits, &x.commits); err != nil {
		return nil, err
	}
	for n := range x.c.Rounds {
		if err := x.round(ctx, x.workers[n%len(x.workers)]); err != nil {
			return nil, fmt.Errorf("round %d: %w", n+1, err)
		}
		if x.c.Verbose {
			fmt.Fprintf(x.c.Progress, "round %d of %d: %.1f ms\n", n+1, x.c.Rounds, ms(x.drains[n]))
		}
	}
	return x.report(), nil
}

func (x *DrainExperiment) round(ctx context.Context, victim *worker) error {
	if err := x.give(ctx, victim); err != nil {
		return err
	}
	for _, w := range x.workers { // how they got what they have now was no handing over
		w.served, w.let = nil, nil
	}
	from := x.now()
	if err := wait(ctx, x.c.Steady); err != nil {
		return err
	}
	at := x.now()
	x.count(-1)
	if _, err := x.admin.DrainMember(ctx, victim.id, 0, "bench move", false); err != nil {
		return err
	}
	if err := until(ctx, func() error { return x.gone(victim) }); err != nil {
		return fmt.Errorf("after the drain of %s: %w", victim.id, err)
	}
	x.count(1)
	done := x.finished(at)
	x.before.requests = append(x.before.requests, x.requests.between(from, at)...)
	x.before.commits = append(x.before.commits, x.commits.between(from, at)...)
	if err := wait(ctx, leastSteady); err != nil { // what was under way at the end has its answer
		return err
	}
	x.during.requests = append(x.during.requests, x.requests.between(at, done)...)
	x.during.commits = append(x.during.commits, x.commits.between(at, done)...)
	x.drains = append(x.drains, done-at)
	x.out.Broken = append(x.out.Broken, handedOver(x.workers)...)
	_, err := x.admin.DrainMember(ctx, victim.id, 0, "bench move", true)
	return err
}

// finished is when the last of everything was seen, and counts the entries until then.
func (x *DrainExperiment) finished(at time.Duration) (done time.Duration) {
	var planned, readied, completed, entries int
	for _, n := range x.entries.since(at) {
		some := 0
		for _, k := range []struct {
			entries *int
			of      int
		}{{&planned, n.planned}, {&readied, n.readied}, {&completed, n.completed}} {
			if k.of > 0 {
				*k.entries++
				some = 1
			}
		}
		entries += some
		done = max(done, n.at)
	}
	for _, w := range x.workers {
		for _, s := range w.since(at) {
			done = max(done, s.at)
		}
	}
	for _, r := range x.readers {
		for _, learned := range r.since(at) {
			done = max(done, learned)
		}
	}
	x.out.Planned, x.out.Readied = max(x.out.Planned, planned), max(x.out.Readied, readied)
	x.out.Completed, x.out.Entries = max(x.out.Completed, completed), max(x.out.Entries, entries)
	return done
}

func (x *DrainExperiment) count(times time.Duration) {
	x.used.roots += times * x.processor(0, x.Roots())
	x.used.coordinators += times * x.processor(x.Roots(), x.Size())
	for _, w := range x.workers {
		x.used.members += times * usageOf(w.process).processor
	}
}

func (x *DrainExperiment) report() *DrainReport {
	out := &x.out
	out.Rounds, out.Preset, out.Members, out.Regions = len(x.drains), x.c.Preset, x.c.Members, x.c.Regions
	out.DrainMs = showQuantiles(x.drains)
	out.Broken = append(out.Broken, x.owners.broken...)
	out.Violations = len(out.Broken)
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(len(x.drains)*x.c.Regions) }
	out.RootUs, out.CoordinatorUs, out.MemberUs = each(x.used.roots), each(x.used.coordinators), each(x.used.members)
	if x.c.Rate > 0 {
		var median time.Duration
		out.Requests, median = compare(x.before.requests, x.during.requests)
		var added []time.Duration
		for _, q := range x.during.requests {
			if q.err == nil {
				added = append(added, max(q.took-median, 0))
			}
		}
		q := showQuantiles(added)
		out.Added = &q
	}
	if x.c.Commits > 0 {
		out.Commits, _ = compare(x.before.commits, x.during.commits)
	}
	return out
}

// compare says how calls did, and what their median was before.
func compare(before, during []request) (c *Compared, median time.Duration) {
	c = &Compared{Calls: len(during)}
	times, failed, _, err := took(before)
	c.Before, c.Failed = showQuantiles(times), failed
	if len(times) > 0 {
		median = times[(len(times)-1)/2]
	}
	times, failed, c.Retried, _ = took(during)
	c.During, c.Failed = showQuantiles(times), c.Failed+failed
	if err == nil {
		_, _, _, err = took(during)
	}
	if err != nil {
		c.Error = err.Error()
	}
	return c, median
}
