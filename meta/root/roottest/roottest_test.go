package roottest_test

import (
	"errors"
	"flag"
	"fmt"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/nokv/nokv/internal/testing/testreport"
	"github.com/nokv/nokv/meta/root/roottest"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/test/size"
)

var (
	seeds = size.Int("seeds", 100, 20_000, "how many seeds the simulation runs")
	first = flag.Uint64("seed", 1, "the first seed")
	lose  = flag.Uint64("lose", 16, "a seed that this divides loses a disk for ever, and has its peer replaced")
)

// writer publishes newer and newer descriptors of regions of its own, one at a
// time, and remembers what was acknowledged.
type writer struct {
	w      *roottest.World
	link   *roottest.Link
	id     int
	next   int
	acked  map[uint64]string // log index to key
	active bool
	// told is called with each index that is acknowledged; nil: nobody is.
	told func(uint64)
}

func (wr *writer) loop() {
	if !wr.active {
		return
	}
	wr.next++
	key := fmt.Sprintf("%d/%06d", wr.id, wr.next)
	cmd := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{
		Region: &rootv1.Region{KeyspaceId: 1, StartKey: []byte(key), EndKey: []byte(key + "~")},
	}}}}}
	wr.link.Propose([]*rootv1.Command{cmd}, 2*time.Second, func(results []state.Result) {
		if results != nil && results[0].Outcome != rootv1.Outcome_OUTCOME_REJECTED {
			wr.acked[results[0].Token.Index] = key
			if wr.told != nil {
				wr.told(results[0].Token.Index)
			}
		}
		wr.w.After(wr.w.Between(0, 3*time.Millisecond), wr.loop)
	})
}

// disturb injects one random fault, then the next.
func disturb(w *roottest.World, c *roottest.Cluster, active *bool) {
	if !*active {
		return
	}
	p := c.Peers[w.Rand.IntN(len(c.Peers))]
	other := c.Peers[w.Rand.IntN(len(c.Peers))]
	kind := w.Rand.IntN(9)
	if c.Returning() {
		kind = -1 // What is refused then, and by whom, is known.
	}
	switch kind {
	case 0:
		p.Kill()
	case 1:
		p.PowerCut()
	case 2:
		p.CrashWithin(40, w.Chance(0.5))
	case 3:
		p.Pause()
		w.After(w.Between(10*time.Millisecond, 800*time.Millisecond), p.Resume)
	case 4:
		most := 800 * time.Millisecond
		if w.Chance(0.2) {
			most = 4 * time.Second // Others lead meanwhile.
		}
		p.SlowAppend(w.Between(time.Millisecond, most))
	case 5:
		if p != other {
			w.Fault("link cut")
			c.Net.Cut(p.Place, other.Place)
			w.After(w.Between(50*time.Millisecond, time.Second), func() { c.Net.Mend(p.Place, other.Place) })
		}
	case 6:
		if l := c.Leader(); l != nil {
			l.Kill()
		}
	case 7:
		if l := c.Leader(); l != nil {
			l.Transfer(0)
		}
	case 8:
		for _, q := range c.Peers {
			q.PowerCut()
		}
	}
	w.After(w.Between(20*time.Millisecond, 400*time.Millisecond), func() { disturb(w, c, active) })
}

// revive brings peers up again that are down.
func revive(t *testing.T, w *roottest.World, c *roottest.Cluster, active *bool) {
	if !*active {
		return
	}
	for _, p := range c.Peers {
		if !p.Alive() && !p.Stale && !c.Returning() && w.Chance(0.5) {
			if err := p.Restart(); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.ReplaceStale()
	w.After(w.Between(10*time.Millisecond, 200*time.Millisecond), func() { revive(t, w, c, active) })
}

// regressions are seeds that found a bug once. They run first.
//
//	2238: a peer that had the checkpoint it was sent refused it, for ever
var regressions = []uint64{2238}

// TestRootSimulation runs three peers under every fault, then heals them and
// asks: nothing acknowledged is missing, all peers are equal, and they serve.
func TestRootSimulation(t *testing.T) {
	faults := make(map[string]int)
	total, checkpoints, transfers := 0, 0, 0
	asked := make(map[string]int)
	var replaced roottest.Replacements
	run := append([]uint64(nil), regressions...)
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		run = append(run, seed)
	}
	for i, seed := range run {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, seed)
			w := roottest.NewWorld(seed)
			c, err := roottest.New(w, roottest.Small())
			if err != nil {
				t.Fatal(err)
			}
			c.Net.Lose, c.Net.Repeat, c.Net.Slow = 0.02, 0.02, 0.02
			active := true
			p := newPromises(t, w, c)
			for i := range 4 {
				p.ask(c.NewLink(roottest.Place(fmt.Sprint("asker-", i))), &active)
			}
			w.After(time.Second, func() { p.vouch(&active) })
			var writers []*writer
			for i := range 3 {
				wr := &writer{w: w, link: c.NewLink(roottest.Place(fmt.Sprint("client-", i))), id: i, acked: map[uint64]string{}, active: true, told: p.acknowledged}
				writers = append(writers, wr)
				wr.loop()
			}
			c.Operate(func() bool { return active })
			w.After(500*time.Millisecond, func() { disturb(w, c, &active) })
			w.After(500*time.Millisecond, func() { revive(t, w, c, &active) })
			if losing := i >= len(regressions) && seed%*lose == 0; losing {
				w.After(w.Between(600*time.Millisecond, 1200*time.Millisecond), func() { c.Lose(c.Peers[w.Rand.IntN(len(c.Peers))]) })
			}
			if i >= len(regressions) && seed%8 == 5 {
				w.After(w.Between(600*time.Millisecond, 1200*time.Millisecond), func() { c.ComeBack(roottest.Ways[seed/8%3]) })
			}
			w.RunFor(3*time.Second, nil)
			w.RunFor(10*time.Second, func() bool { return !c.Returning() })
			active = false
			if err := c.Heal(); err != nil {
				t.Fatal(err)
			}
			serves(t, w, c, writers)
			if !w.RunFor(10*time.Second, c.ReplaceStale) {
				t.Fatalf("nobody replaces a peer that was refused: %s", where(c))
			}
			if c.Replaced.Lost > 0 {
				loseAnyOne(t, w, c, writers)
			}
			for _, wr := range writers {
				wr.active = false
			}
			w.RunFor(3*time.Second, nil)
			if err := errors.Join(c.CheckAgreement(nil), c.CheckPeers()); err != nil {
				t.Fatal(err)
			}
			checkDurability(t, c, writers)
			replaced.Add(c.Replaced)
			total += acked(writers)
			checkpoints, transfers = checkpoints+c.Checkpoints, transfers+c.Transfers
			for what, n := range p.asked {
				asked[what] += n
			}
			for k, n := range w.Faults {
				faults[k] += n
			}
		})
		if t.Failed() {
			t.Fatalf("repeat with -run 'TestRootSimulation' -seed %d -seeds 1 -lose %d", seed, *lose)
		}
	}
	if total < 20**seeds {
		t.Errorf("only %d writes were acknowledged in %d seeds: the load was too low", total, *seeds)
	}
	for _, kind := range []string{"process killed", "power cut", "crash inside a disk operation", "process paused", "slow append", "link cut", "leadership transfer", "message lost", "grant given", "settings changed", "era asked to end", "older copy refused", "disk put back from an older copy", "clone started beside the original"} {
		if faults[kind] == 0 && *seeds >= 50 {
			t.Errorf("fault %q never happened", kind)
		}
	}
	for _, what := range []string{"reads", "confirmations", "claims", "successors", "vouched"} {
		if asked[what] < *seeds {
			t.Errorf("only %d %s in %d seeds: the load was too low", asked[what], what, *seeds)
		}
	}
	if *seeds >= 100 && (replaced.Done < *seeds/int(*lose)-1 || replaced.Cancelled == 0 || replaced.Back == 0) {
		t.Errorf("of replacements there were only %+v", replaced)
	}
	testreport.Linef(t, "root simulation: %d seeds, %d writes acknowledged, %d reads, %d confirmations, %d eras, %d checkpoints, %d transfers; %d disks lost, %d peers replaced, %d replacements cancelled, "+
		"%d peers back with an old disk, %d steps; faults: %s", *seeds, total, asked["reads"], asked["confirmations"], asked["successors"], checkpoints, transfers, replaced.Lost, replaced.Done, replaced.Cancelled,
		replaced.Back, replaced.Steps, roottest.FaultCounts(faults))
}

// serves asks that writes are acknowledged.
func serves(t *testing.T, w *roottest.World, c *roottest.Cluster, writers []*writer) {
	t.Helper()
	before := acked(writers)
	if !w.RunFor(5*time.Second, func() bool { return acked(writers) > before+10 }) {
		t.Fatalf("does not serve: %d acknowledged, %s", before, where(c))
	}
}

// loseAnyOne asks that the lost peer has been replaced, so that the cluster
// serves without any one of those that are there now.
func loseAnyOne(t *testing.T, w *roottest.World, c *roottest.Cluster, writers []*writer) {
	t.Helper()
	for _, wr := range writers[1:] {
		wr.active = false // One is enough to see, and cheaper.
	}
	if !w.RunFor(10*time.Second, func() bool { return !c.Replacing() }) {
		t.Fatalf("the lost peer is not replaced: %s", where(c))
	}
	p := c.Peers[w.Rand.IntN(len(c.Peers))]
	p.Kill()
	serves(t, w, c, writers)
	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
}

// where says where everybody is.
func where(c *roottest.Cluster) string {
	text := fmt.Sprintf("%+v", c.Replaced)
	for _, p := range c.Peers {
		text += fmt.Sprintf("; root %d up %v, %v", p.ID, p.Alive(), p.Err)
		if v := p.View(); v != nil {
			text += fmt.Sprintf(" %v term %d leader %d applied %d of %d log [%d, %d] members %v peers %v",
				v.Role, v.Term, v.Leader, v.Applied, v.Commit, v.FirstIndex, v.LastIndex, v.Members, v.Peers)
		}
	}
	return text
}

func acked(writers []*writer) int {
	n := 0
	for _, wr := range writers {
		n += len(wr.acked)
	}
	return n
}

// checkDurability asks that each acknowledged region is in the log at its token.
func checkDurability(t *testing.T, c *roottest.Cluster, writers []*writer) {
	t.Helper()
	final, err := c.Log.Replay(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, wr := range writers {
		for index, key := range wr.acked {
			r := final.RegionAt(1, key)
			if r == nil || r.Start != key {
				t.Errorf("region %q was acknowledged at %d and is not there", key, index)
			} else if r.Revision > index {
				t.Errorf("region %q was acknowledged at %d and is of %d", key, index, r.Revision)
			}
		}
	}
}

// One seed is one history.
func TestSeedIsHistory(t *testing.T) {
	run := func(t *testing.T) (hash uint64) {
		cryptotest.SetGlobalRandom(t, 7)
		w := roottest.NewWorld(7)
		c, err := roottest.New(w, roottest.Small())
		if err != nil {
			t.Fatal(err)
		}
		c.Net.Lose = 0.05
		wr := &writer{w: w, link: c.NewLink("client-0"), acked: map[uint64]string{}, active: true}
		wr.loop()
		active := true
		disturb(w, c, &active)
		revive(t, w, c, &active)
		w.RunFor(2*time.Second, nil)
		st, err := c.Log.Replay(nil)
		if err != nil {
			t.Fatal(err)
		}
		return st.Hash() ^ uint64(w.Now()) ^ c.Log.Last()
	}
	var hashes []uint64
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) { hashes = append(hashes, run(t)) })
	}
	if hashes[0] != hashes[1] {
		t.Errorf("the same seed gave %x and %x", hashes[0], hashes[1])
	}
}
