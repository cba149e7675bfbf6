package simulation

import (
	"fmt"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/nokv/nokv/internal/history"
	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/roottest"
)

// variant is the system with one rule left out.
type variant string

const (
	noVariant           variant = ""
	checkThenGenerate   variant = "check, then generate"
	countsFromReply     variant = "ttl counted from the reply"
	clocksBeyondBound   variant = "clock rates beyond the bound"
	successorBelowFence variant = "successor not above the fence"
	servesBeforeFence   variant = "serves before the fence is rooted"
	windowsReused       variant = "windows reused across eras"
	retiresBeforeEnd    variant = "retires before it stops to serve"
	earlierConfirmation variant = "ttl 0 with a confirmation sent earlier"
	viewOlderThanToken  variant = "view served older than its token"
	strongWithoutRead   variant = "strong read without a read index"
	boundIgnored        variant = "bounded read without a bound"
	tailSkipsEntry      variant = "tail skips an entry"
	appendsUnsynced     variant = "acknowledged before it is durable"
	pastsLetIn          variant = "folders from the past are let in"

	// Of ownership.
	confirmsUnchecked variant = "members confirmed without a check of the era"
	confirmsUncounted variant = "a fence that does not count confirmations"
	releasedBelow     variant = "a frontier below what was done"
	goodbyeForgotten  variant = "an end without a drain that releases nothing"
	unfenced          variant = "a resource that looks at no epoch"
	countsFromAnswer  variant = "a member's ttl counted from later than its frame"
	unchecked         variant = "no check behind a member's work"
	cutTakenForDeath  variant = "no answer taken as proof of death"
	passerConfirms    variant = "confirmed by whoever passes a stream on"
	lastWordsInMemory variant = "last words in the memory of coordinators alone"
)

// knobs are what a run is made of.
type knobs struct {
	seed         uint64
	variant      variant
	coordinators int
	ttl          time.Duration
	// trouble is how long faults are injected, interval the mean time between two.
	trouble, interval time.Duration
	drift             int64
	// members is how many there are, beside one that has another's id; 0: none.
	members int
	// fence is how long one may act without being confirmed, where the fence is a ttl:
	// longer than it takes to be given up. probes: members' own addresses are asked.
	fence  time.Duration
	probes bool
	// fencing: what disturbs members lets fences run out.
	fencing bool
	// detours: members are told of the holder, and reach it by way of another coordinator if they must.
	detours bool
	// stalls is how often a member stands still inside work.
	stalls float64
	// loads: keyspaces are evened out by what members tell, and one of them has ranges that
	// the planner reshapes.
	loads bool
	// loses has a root peer lose its disk for ever, and be replaced; pasts has its folder come back from
	// its past.
	loses, pasts bool
	// gaps is how often a coordinator stands still between two steps of one reply, slow how
	// often a message is.
	gaps, slow float64
}

func knobsOf(seed uint64, v variant) knobs {
	k := knobs{
		seed: seed, variant: v, coordinators: 2, ttl: 60 * time.Millisecond,
		trouble: 1200 * time.Millisecond, interval: 60 * time.Millisecond, drift: 4,
		gaps: 0.002, slow: 0.01,
	}
	switch seed % 4 {
	case 0:
		k.ttl = 0
	case 1:
		k.ttl = 150 * time.Millisecond
	}
	if seed%3 == 0 {
		k.coordinators = 3
	}
	k.loses = v == noVariant && seed%*lose == 0
	k.pasts = v == noVariant && !k.loses && seed%pastsEvery == 5 || v == pastsLetIn
	if seed%5 == 0 && !k.pasts { // two of three roots would hardly get anything done
		k.interval = 20 * time.Millisecond
	}
	switch v {
	case checkThenGenerate:
		k.ttl, k.gaps = 30*time.Millisecond, 0.05
	case earlierConfirmation:
		k.ttl = 0
	case countsFromReply:
		k.ttl, k.slow = 100*time.Millisecond, 0.1
	case clocksBeyondBound:
		k.ttl, k.drift, k.interval = 200*time.Millisecond, 600, 20*time.Millisecond
	}
	return k
}

// Sizes of things, in which rare things are common.
const (
	silentAfter      = 200 * time.Millisecond
	unavailableAfter = 400 * time.Millisecond
	maxTSOAhead      = time.Minute
	// worst is the furthest a root's wall clock is stepped.
	worstRootWall = 20 * time.Second
	slowest       = 100 * time.Millisecond
	electionMost  = 200 * time.Millisecond
)

func rootConfig(k knobs) roottest.Config {
	r := replica.Defaults()
	r.Tick, r.HeartbeatTicks, r.ElectionTicks = 10*time.Millisecond, 2, 10
	r.CheckpointEntries, r.RetainEntries, r.HashEvery = 30, 12, 16
	if r.MaxEntryBytes = 1 << 10; k.members > 0 {
		r.MaxEntryBytes = 64 << 10 // grants are many in a command
	}
	r.MaxTSOAhead = maxTSOAhead
	return roottest.Config{
		Peers: 3, Replica: r, SegmentBytes: 8 << 10, DriftPermille: k.drift,
		TailIdle: 40 * time.Millisecond, TailBatchBytes: 512, AppendsUnsynced: k.variant == appendsUnsynced, Forgetful: k.variant == appendsUnsynced || k.variant == pastsLetIn,
	}
}

// run is one seed.
type run struct {
	*roottest.World
	k       knobs
	roots   *roottest.Cluster
	nodes   []*node
	clients []*client
	// Members, what they have to do, and whoever asks them.
	spaces     []space
	workers    []*worker
	askers     []*asker
	acts       acts
	owned      ownershipCounts
	operator   *roottest.Link
	operations *identity.Source
	// calm is set when no more faults are injected.
	calm   bool
	healed time.Duration
	broken []error

	history history.History
	writes  []*write
	reads   []*read
	views   []sample
	// acked has the growing index that somebody was told of, with times.
	acked []ack
	count counts
	names names
}

// counts say how much was done.
type counts struct {
	writes, reads, refused, bounded, snapshots, unknown, staleViews, firstWindows, windowsRefused int
	// Of members: requests served and not, work that a resource refused or whose right was
	// lost behind it, processes drained, incarnations begun anew by the same process,
	// confirmations by way of another coordinator.
	served, unserved, fenced, lostBehind, drained, anew, passedOn int
}

func (c *counts) add(o counts) {
	c.writes += o.writes
	c.reads += o.reads
	c.refused += o.refused
	c.bounded += o.bounded
	c.snapshots += o.snapshots
	c.unknown += o.unknown
	c.staleViews += o.staleViews
	c.firstWindows += o.firstWindows
	c.windowsRefused += o.windowsRefused
	c.served += o.served
	c.unserved += o.unserved
	c.fenced += o.fenced
	c.lostBehind += o.lostBehind
	c.drained += o.drained
	c.anew += o.anew
	c.passedOn += o.passedOn
}

func newRun(k knobs) (*run, error) {
	r := &run{World: roottest.NewWorld(k.seed), k: k, names: names{by: map[uint32]string{}}}
	roots, err := roottest.New(r.World, rootConfig(k))
	if err != nil {
		return nil, err
	}
	r.roots = roots
	roots.Net.Lose, roots.Net.Repeat, roots.Net.Slow = 0.01, 0.02, k.slow
	roots.Net.MaxDelay, roots.Net.SlowDelay = time.Millisecond, slowest
	for i := range k.coordinators {
		r.nodes = append(r.nodes, newNode(r, fmt.Sprintf("c%d", i+1)))
	}
	for i := range 6 {
		r.clients = append(r.clients, newClient(r, i))
	}
	r.newMembers()
	return r, nil
}

// live runs load and trouble, then heals and waits until all is well.
func (r *run) live() error {
	for _, n := range r.nodes {
		n.start()
	}
	for _, c := range r.clients {
		c.loop()
	}
	r.startMembers()
	r.After(r.Between(100*time.Millisecond, 400*time.Millisecond), r.disturb)
	r.After(r.Between(100*time.Millisecond, 400*time.Millisecond), r.revive)
	if r.k.variant == noVariant && r.k.members == 0 { // seeds that are known to show something still do
		r.roots.Operate(func() bool { return !r.calm })
	}
	if r.k.loses {
		r.After(r.Between(300*time.Millisecond, 900*time.Millisecond), func() {
			r.roots.Lose(r.roots.Peers[r.Rand.IntN(len(r.roots.Peers))])
		})
	}
	if r.k.pasts {
		r.After(r.Between(300*time.Millisecond, 900*time.Millisecond), r.comeBack)
	}
	r.RunFor(400*time.Millisecond+r.k.trouble, nil)
	// Trouble goes on until it has met enough load.
	r.RunFor(8*time.Second, func() bool { return r.enough() && !r.roots.Returning() })
	return r.heal()
}

// enough says whether there was load to speak of.
func (r *run) enough() bool {
	return len(r.history.Grants) >= 40 && r.count.writes >= 10 && r.count.reads >= 10 && (r.k.members == 0 || r.count.served >= 50)
}

// now is true time, for histories.
func (r *run) now() time.Duration { return time.Duration(r.World.Now()) }

// wall is true Unix milliseconds.
func (r *run) wall() uint64 { return r.World.Wall() }

// fail notes something that must not happen.
func (r *run) fail(format string, args ...any) {
	if len(r.broken) < 5 {
		r.broken = append(r.broken, fmt.Errorf("at %v: %w", r.now(), fmt.Errorf(format, args...)))
	}
}

// acknowledge notes that somebody was told of an index.
func (r *run) acknowledge(index uint64) {
	if n := len(r.acked); n == 0 || r.acked[n-1].index < index {
		r.acked = append(r.acked, ack{r.now(), index})
	}
}

// simulate runs one seed and judges it.
func simulate(t *testing.T, k knobs) (*run, []error) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, k.seed)
	r, err := newRun(k)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.live(); err != nil {
		r.broken = append(r.broken, err)
	}
	return r, append(r.broken, r.check()...)
}
