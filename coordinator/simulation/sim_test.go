package simulation

import (
	"flag"
	"fmt"
	"testing"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/test/size"
)

var (
	seeds = size.Int("seeds", 200, 20_000, "how many seeds the simulation runs")
	first = flag.Uint64("seed", 1, "the first seed")
	lose  = flag.Uint64("lose", 16, "a seed that this divides loses a root peer's disk for ever, and has it replaced")
	goOn  = flag.Bool("go-on", false, "go on after a seed that failed")
)

// kinds are the faults that must have happened.
var kinds = []string{
	"process killed", "power cut", "crash inside a disk operation", "process paused", "slow append", "leadership transfer",
	"root's wall clock stepped", "coordinator killed", "coordinator shut down", "coordinator paused", "machine suspended",
	"paused between generate and check", "wall clock stepped", "wall clock strobed", "clock refused", "holder suspected",
	"root cut from roots", "link between roots cut", "coordinator cut from roots", "link between coordinator and root cut",
	"grant given", "grant taken", "settings changed", "era asked to end",
	"coordinator cut from clients", "coordinator cut until its era was claimed", "message lost", "message late", "message repeated", "stream broken", "bootstrap required",
	"older copy refused", "disk put back from an older copy", "clone started beside the original",
}

// totals are what many runs did.
type totals struct {
	counts
	faults                                            map[string]int
	replaced                                          roottest.Replacements
	grants, eras, views, checkpoints, transfers, rows int
}

func (s *totals) add(r *run) {
	s.counts.add(r.count)
	s.grants += len(r.history.Grants)
	s.eras += len(r.history.Tenures)
	s.views += len(r.views)
	s.checkpoints += r.roots.Checkpoints
	s.transfers += r.roots.Transfers
	s.rows += int(r.roots.Log.Last())
	s.replaced.Add(r.roots.Replaced)
	for k, n := range r.Faults {
		s.faults[k] += n
	}
}

// TestSimulation runs the whole control plane under every fault, and asks for
// every promise.
func TestSimulation(t *testing.T) {
	total := totals{faults: make(map[string]int)}
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			r, errs := simulate(t, knobsOf(seed, noVariant))
			for _, err := range errs {
				t.Error(err)
			}
			if !r.enough() {
				t.Errorf("the load was too low: %d values given, %+v", len(r.history.Grants), r.count)
			}
			total.add(r)
		})
		if t.Failed() && !*goOn {
			t.Fatal(repeat("TestSimulation", seed, fmt.Sprint("-seeds 1 -lose ", *lose)))
		}
	}
	total.judge(t)
	testreport.Linef(t, "simulation of roots and coordinators: %d seeds, %d log entries, %d writes, %d reads (%d refused for their bound), %d values given by %d eras, "+
		"%d views, %d of them from snapshots, %d checkpoints, %d sent to peers; %d root peers lost and %d replaced, %d new ones given up, %d old ones back; faults: %s", *seeds, total.rows, total.writes, total.reads,
		total.bounded, total.grants, total.eras, total.views, total.snapshots, total.checkpoints, total.transfers,
		total.replaced.Lost, total.replaced.Done, total.replaced.Cancelled, total.replaced.Back, roottest.FaultCounts(total.faults))
}

// judge asks that what the runs were for did happen.
func (s *totals) judge(t *testing.T) {
	if *seeds < 50 {
		return
	}
	for _, kind := range kinds {
		if s.faults[kind] == 0 {
			t.Errorf("fault %q never happened", kind)
		}
	}
	for what, n := range map[string]int{
		"reads refused for their bound": s.bounded, "reads from a view that lags": s.staleViews, "views from snapshots": s.snapshots,
		"writes with an unknown outcome": s.unknown, "checkpoints": s.checkpoints, "checkpoints sent to peers": s.transfers,
		"handovers": s.eras - *seeds, "root peers replaced": s.replaced.Done, "first windows with a claim": s.firstWindows,
	} {
		if n < *seeds/50 {
			t.Errorf("only %d %s in %d seeds", n, what, *seeds)
		}
	}
}

// One seed is one history.
func TestSeedIsHistory(t *testing.T) {
	var hashes [2]uint64
	for i := range hashes {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r, _ := simulate(t, knobsOf(15, noVariant))
			hashes[i] = r.history.Hash() ^ r.roots.Log.Last()<<32 ^ uint64(r.World.Now())
		})
	}
	if hashes[0] != hashes[1] {
		t.Errorf("the same seed gave %x and %x", hashes[0], hashes[1])
	}
}
