package chaos

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/test/hermetic"
	"github.com/nokv/nokv/test/size"
)

var (
	runs         = size.Int("chaos.runs", 0, 50, "run so many random schedules in TestRuns")
	firstSeed    = flag.Uint64("chaos.seed", 0, "seed of the first of them, the others follow; 0: a random one")
	scheduleFile = flag.String("chaos.schedule", "", "`file` with a schedule to run in TestRuns, instead of random ones")
	keepIn       = flag.String("chaos.out", cmp.Or(os.Getenv(hermetic.Logs), os.TempDir()), "`folder` for what a failed run leaves")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(proctest.Main(m))
}

// lowLoad is how many answers of each kind there must be before a fault.
const lowLoad = 5

// run is one schedule on one cluster.
type run struct {
	t     testing.TB
	s     *schedule
	c     *cluster
	e     *evidence
	load  *load
	rng   *rand.Rand
	began time.Time
	// recovered are the times from the end of an episode until everything was
	// served again.
	recovered []time.Duration
	// noDisks says why the root peers have no disks of their own.
	noDisks error
	done    *totals
}

// TestSmoke runs the common faults once.
func TestSmoke(t *testing.T) {
	for _, name := range []string{"smoke-processes.txt", "smoke-links.txt"} {
		t.Run(strings.TrimSuffix(name, ".txt"), func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			s, err := parse(string(raw))
			if err != nil {
				t.Fatal(err)
			}
			if s.seed == 0 {
				s.seed = rand.Uint64()
			}
			done := newTotals()
			play(t, s, done)
			done.report(t)
		})
	}
}

// TestRuns runs what the flags say.
func TestRuns(t *testing.T) {
	done := newTotals()
	if *scheduleFile != "" {
		raw, err := os.ReadFile(*scheduleFile)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parse(string(raw))
		if err != nil {
			t.Fatal(err)
		}
		for i := range max(*runs, 1) {
			t.Run(fmt.Sprint(i), func(t *testing.T) { play(t, s, done) })
		}
	} else {
		seed := *firstSeed
		if seed == 0 {
			seed = rand.Uint64() >> 32
		}
		for i := range *runs {
			t.Run(fmt.Sprintf("seed-%d", seed+uint64(i)), func(t *testing.T) { play(t, randomSchedule(seed+uint64(i)), done) })
		}
	}
	if done.runs > 0 {
		done.report(t)
	}
}

// play runs a schedule and judges it.
func play(t *testing.T, s *schedule, done *totals) {
	t.Logf("the schedule:\n%s", s)
	r := &run{t: t, s: s, e: &evidence{staleness: staleness}, rng: rand.New(rand.NewPCG(s.seed, 2)), began: time.Now(), done: done}
	defer r.keep()
	r.c = newCluster(t, s.ttl)
	if s.has(powerCut) {
		r.noDisks = r.giveDisks()
	}
	for m := range members {
		r.c.start(m, nil)
	}
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	for i := range roots {
		following.Go(func() { r.c.follow(ctx, i, r.e) })
	}
	r.c.WaitHealthy(patience)
	r.load = startLoad(t, r.c, r.e, r.began, s.seed)
	r.progress(lowLoad, "before any fault")
	for _, e := range s.episodes {
		r.episode(e)
	}
	r.heal()
	stop()
	following.Wait()
	r.judge()
}

// episode runs the faults of one line, when everything has just been served. A fault
// lasts as long as the schedule says, and until it has fired.
func (r *run) episode(e episode) {
	r.t.Helper()
	time.Sleep(e.after) // the schedule says so
	r.alive()
	type begun struct {
		fault
		*active
		at time.Time
	}
	var all []begun
	for _, f := range e.faults {
		k, _ := kindByName(f.kind)
		all = append(all, begun{f, k.begin(r, f), time.Now()})
	}
	slices.SortStableFunc(all, func(a, b begun) int { return a.at.Add(a.lasts).Compare(b.at.Add(b.lasts)) })
	for _, b := range all {
		time.Sleep(time.Until(b.at.Add(b.lasts))) // the schedule says so
		if b.seen != nil {
			proctest.Eventually(r.t, patience, b.seen)
		}
		if b.end != nil {
			b.end()
		}
	}
	for _, b := range all {
		if b.skipped != "" {
			r.t.Logf("SKIPPED, AND NOT SHOWN: %s: %s", b.fault, b.skipped)
			r.done.skipped[b.kind]++
			continue
		}
		if err := b.fired(); err != nil {
			r.t.Errorf("%s did not happen: %v", b.fault, err)
		}
		r.done.byKind[b.kind]++
	}
	took := r.progress(lowLoad, "after "+e.String())
	r.recovered = append(r.recovered, took)
	r.t.Logf("%8s %s: served again after %s", r.load.now().Round(ms), e, took.Round(ms))
}

// progress waits until every kind of load has had so many answers more.
func (r *run) progress(least uint64, when string) time.Duration {
	r.t.Helper()
	var from [loadKinds]uint64
	for i := range from {
		from[i] = r.load.progress[i].Load()
	}
	begun := time.Now()
	for n := 1; ; n++ {
		if n%100 == 0 {
			r.alive()
		}
		low := loadKinds
		for i := range from {
			if r.load.progress[i].Load() < from[i]+least {
				low = kindOfLoad(i)
			}
		}
		if low == loadKinds {
			return time.Since(begun)
		}
		if time.Since(begun) > patience {
			r.load.mu.Lock()
			defer r.load.mu.Unlock()
			r.t.Fatalf("%s: fewer than %d %s within %s; the last error of a call: %v", when, least, low, patience, r.load.last)
		}
		time.Sleep(2 * ms) // the load runs in real processes: there is nothing to wait on
	}
}

// alive checks that nobody has ended who was not asked to.
func (r *run) alive() {
	r.t.Helper()
	for m := range members {
		if !r.c.Process(m).Running() {
			r.t.Fatalf("%s has ended by itself:\n%s", place(m), r.c.Process(m).Tail())
		}
	}
}

func (r *run) healthyWithin(m int, within time.Duration) (err error) {
	for begun := time.Now(); time.Since(begun) < within; time.Sleep(20 * ms) { // the other side is another process
		if err = r.c.Healthy(m); err == nil {
			return nil
		}
		if !r.c.Process(m).Running() {
			return fmt.Errorf("%s has ended", place(m))
		}
	}
	return err
}

// judge checks every promise, stops everything and checks the folders.
func (r *run) judge() {
	r.t.Helper()
	for _, err := range r.e.judge() {
		r.t.Error(err)
	}
	r.c.StopAll()
	for i := range roots {
		if v := r.c.Run("root", "verify", r.c.Workdir(i)); v.Code != 0 {
			r.t.Errorf("Durability: verify of %s: exit status %d\n%s%s", rootPlace(i), v.Code, v.Stdout, v.Stderr)
		}
	}
	d := r.done
	d.runs++
	d.operations += len(history.FromCalls(r.e.calls).Grants) + len(r.e.writes) + len(r.e.reads)
	d.refused += int(r.load.refused.Load())
	d.entries += len(r.e.log)
	d.recovered = append(d.recovered, r.recovered...)
	for _, w := range r.e.writes {
		if w.tries > 1 {
			d.retried++
		}
	}
	for _, batches := range r.e.watches {
		d.operations += len(batches)
	}
}

// staleness is how old a bounded answer may be beyond its bound: what a view
// cannot know, by its own account, and how late messages are made here.
const staleness = 500*ms + 2*2*electionTimeout + maxLate
