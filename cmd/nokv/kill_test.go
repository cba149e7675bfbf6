package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/test/size"
)

var (
	kills    = size.Int("kills", 20, 200, "kill -9 and restart so many processes in TestR04RandomKills")
	killSeed = flag.Uint64("kill-seed", 0, "seed of TestR04RandomKills; 0: a new one")
)

// recoverWithin is how long a cluster may take to serve everything again after
// a kill. What it takes is in the report; this is the bound on a busy machine.
const recoverWithin = proctest.Patience

// lowLoad is how many answers of each kind there must have been between two
// kills: a kill of an idle cluster shows nothing.
const lowLoad = 5

func TestR04RandomKills(t *testing.T) {
	t.Parallel()
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("again with -kill-seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c := newCluster(t, 2)
	c.StartAll()
	c.WaitHealthy(recoverWithin)
	l := startLoad(t, c.CoordinatorAddrs)
	l.waitProgress(lowLoad, recoverWithin, "before any kill")

	var killed int
	var outages []time.Duration
	byName := make(map[string]int)
	for killed < *kills {
		for _, victim := range victims(rng, c, *kills-killed) {
			c.Kill(victim)
			byName[c.Name(victim)]++
			killed++
		}
		down := time.Duration(rng.IntN(300)) * time.Millisecond
		time.Sleep(down)
		begin := time.Now()
		for i := range c.Size() {
			if !c.Process(i).Running() {
				c.Start(i)
			}
		}
		l.waitProgress(lowLoad, recoverWithin, fmt.Sprintf("after %d kills", killed))
		outages = append(outages, time.Since(begin))
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
	}
	c.WaitHealthy(recoverWithin)
	l.finish()
	ctx, cancel := context.WithTimeout(t.Context(), recoverWithin)
	defer cancel()
	judge(ctx, t, c, l)
	slices.Sort(outages)
	testreport.Linef(t, "real processes: %d kills -9 over %d processes %v, %d publishes, %d id runs, %d timestamp runs acknowledged, %d calls failed, serving again after %s (median), %s (worst)",
		killed, len(byName), byName, l.acknowledged(), len(l.ids), len(l.timestamps),
		l.failed[loadID].Load()+l.failed[loadTso].Load()+l.failed[loadPublish].Load(),
		outages[len(outages)/2].Round(time.Millisecond), outages[len(outages)-1].Round(time.Millisecond))
}

// victims chooses whom to kill at the same moment: mostly one, sometimes a
// pair, now and then everybody.
func victims(rng *rand.Rand, c *cluster, most int) []int {
	n := 1
	switch roll := rng.IntN(10); {
	case roll == 0:
		n = c.Size()
	case roll <= 2:
		n = 2
	}
	return rng.Perm(c.Size())[:min(n, most)]
}

// judge checks the load's record against the cluster, and the cluster with itself.
func judge(ctx context.Context, t *testing.T, c *cluster, l *load) {
	t.Helper()
	cl, err := client.New(client.Config{Endpoints: c.CoordinatorAddrs, TLS: c.TLS()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	l.judge(ctx, cl)
	sameState(t, c)
	c.WaitHealthy(recoverWithin)
}

// sameState waits until all root peers have applied the same and compares
// their state hashes.
func sameState(t *testing.T, c *cluster) {
	t.Helper()
	sameStateOf(t, c, 0, 1, 2)
}

func sameStateOf(t *testing.T, c *cluster, members ...int) {
	t.Helper()
	proctest.Eventually(t, recoverWithin, func() error {
		peers := rootStatusOf(t, c)
		first := peers[members[0]]
		for _, m := range members[1:] {
			p := peers[m]
			if p.AppliedIndex != first.AppliedIndex || p.AppliedIndex == 0 {
				return fmt.Errorf("nodes %d and %d have applied %d and %d", first.NodeID, p.NodeID, first.AppliedIndex, p.AppliedIndex)
			}
			if p.StateHash != first.StateHash {
				t.Fatalf("at index %d node %d has state hash %s, node %d has %s", p.AppliedIndex, p.NodeID, p.StateHash, first.NodeID, first.StateHash)
			}
		}
		return nil
	})
}

// rootStatusOf is what `nokv root status -o json` prints.
func rootStatusOf(t *testing.T, c *cluster) []rootPeerOutput {
	t.Helper()
	r := c.Run(append([]string{"root", "status", "-o", "json"}, c.RootFlags()...)...)
	var peers []rootPeerOutput
	if err := json.Unmarshal([]byte(r.Stdout), &peers); err != nil || len(peers) != c.Roots() {
		t.Fatalf("root status: %v\n%s\n%s", err, r.Stdout, r.Stderr)
	}
	return peers
}
