package explorer

import (
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/nokv/nokv/internal/testing/testreport"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/test/size"
)

var (
	flagStates = size.Int("explorer.states", 30_000, 2_500_000, "search the large configurations up to this many worlds each; 0: until nothing new is found")
	flagDepth  = flag.Int("explorer.depth", 0, "stop the large configurations at this many steps")
)

const (
	ids    = rootv1.Mandate_MANDATE_ALLOC_ID
	stamps = rootv1.Mandate_MANDATE_TSO
)

// leastWorlds is how many worlds the test command must see, leastOfLong its long form.
const (
	leastWorlds = 1_500_000
	leastOfLong = 20_000_000
)

// complete are searched until nothing new is found.
var complete = []config{
	{name: "3 processes, ttl 0", processes: 3, calls: 1, eras: 2, values: 2, window: 1, flights: 1, onwards: true, mandate: ids},
	{name: "3 eras, no crash, ttl 0", processes: 2, calls: 1, eras: 3, values: 4, window: 2, flights: 1, calm: true, onwards: true, mandate: stamps},
	{name: "slow and fast clocks, short ttl", processes: 2, calls: 1, ttl: 2, eras: 2, values: 2, window: 1, flights: 1, calm: true, onwards: true, mandate: stamps},
	{name: "ids that the root gives, no crash, ttl 0", processes: 2, calls: 1, eras: 2, values: 3, window: 1, flights: 1, rootIDs: 1, calm: true, onwards: true, mandate: ids},
	{name: "restore, ttl 0", processes: 2, calls: 1, eras: 2, values: 2, window: 1, flights: 1, restore: true, calm: true, onwards: true, mandate: stamps},
	{name: "restore, first windows by claims, ttl 0", processes: 2, calls: 1, eras: 2, values: 2, window: 1, flights: 1, restore: true, claimed: true, calm: true, onwards: true, mandate: stamps},
	{name: "first windows by claims, ttl 0", processes: 2, calls: 1, eras: 3, values: 4, window: 2, flights: 1, claimed: true, onwards: true, mandate: ids},
	{name: "holders that claim over their own era, ttl", processes: 2, calls: 1, ttl: 2, eras: 2, values: 2, window: 1, flights: 1, again: true, calm: true, onwards: true, mandate: stamps},
	{name: "first windows by claims, ttl", processes: 2, calls: 1, ttl: 2, eras: 2, values: 2, window: 1, flights: 1, claimed: true, mandate: ids},
}

// large are searched as far as the flags say; the long form searches the first ones until nothing new is found.
var large = []config{
	{name: "3 processes, ttl", processes: 3, calls: 1, ttl: 2, eras: 2, values: 2, window: 1, flights: 1, mandate: ids},
	{name: "2 clients, 2 confirmations, ttl 0", processes: 2, calls: 2, eras: 2, values: 2, window: 1, flights: 2, mandate: stamps},
	{name: "3 eras, ttl 0", processes: 2, calls: 1, eras: 3, values: 4, window: 2, flights: 1, onwards: true, mandate: stamps},
	{name: "slow and fast clocks, ttl", processes: 2, calls: 1, ttl: 4, eras: 2, values: 2, window: 1, flights: 1, calm: true, onwards: true, mandate: stamps},
	{name: "ids that the root gives, ttl 0", processes: 2, calls: 1, eras: 2, values: 3, window: 1, flights: 1, rootIDs: 1, onwards: true, mandate: ids},
	{name: "larger: 2 clients, 3 eras, ttl", processes: 2, calls: 2, ttl: 4, eras: 3, values: 6, window: 2, flights: 2, mandate: stamps},
	{name: "larger: holders that claim over their own era, ttl", processes: 2, calls: 1, ttl: 2, eras: 3, values: 3, window: 1, flights: 1, again: true, calm: true, onwards: true, mandate: stamps},
	{name: "larger: 3 processes, 3 eras, ttl", processes: 3, calls: 2, ttl: 4, eras: 3, values: 4, window: 2, flights: 2, mandate: ids},
	{name: "larger: 3 processes, 4 eras, ttl 0", processes: 3, calls: 2, eras: 4, values: 6, window: 2, flights: 2, mandate: stamps},
	{name: "larger: one client, ttl", processes: 2, calls: 2, oneClient: true, ttl: 2, eras: 3, values: 4, window: 2, flights: 1, mandate: stamps},
	{name: "larger: restore, ttl", processes: 2, calls: 2, ttl: 2, eras: 3, values: 6, window: 1, flights: 1, restore: true, mandate: stamps},
	{name: "larger: first windows by claims, ttl", processes: 2, calls: 2, ttl: 2, eras: 3, values: 6, window: 2, flights: 1, claimed: true, mandate: stamps},
	{name: "larger: ids that the root gives, ttl", processes: 2, calls: 1, ttl: 2, eras: 3, values: 6, window: 2, flights: 2, rootIDs: 2, mandate: ids},
}

// TestExplorer searches every configuration, and the contrast runs beside it.
func TestExplorer(t *testing.T) {
	var sum totals
	begun := time.Now()
	t.Run("configurations", func(t *testing.T) {
		for _, c := range complete {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				sum.explore(t, c, 0, 0)
			})
		}
		for _, c := range large {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				sum.explore(t, c, *flagStates, *flagDepth)
			})
		}
	})
	if t.Failed() {
		return
	}
	testreport.Linef(t, "explorer: %d distinct worlds over %d configurations, %d transitions, up to %d steps deep, in %.0f s; from %d of %d asked, a client is served again and no handover is open",
		sum.worlds.Load(), sum.configs.Load(), sum.transitions.Load(), sum.depth.Load(), time.Since(begun).Seconds(), sum.asked.Load(), sum.asked.Load())
	switch n := sum.worlds.Load(); {
	case int(sum.configs.Load()) < len(complete)+len(large):
		t.Logf("only a part was asked for: the count of %d worlds is not judged", n)
	case n < leastWorlds || size.Long() && n < leastOfLong:
		t.Errorf("only %d worlds were seen, want %d, and %d in the long form", n, leastWorlds, leastOfLong)
	}
}

// totals are summed over searches that run at the same time.
type totals struct {
	worlds, transitions, depth, asked, configs atomic.Int64
}

func (sum *totals) explore(t *testing.T, c config, limit, depth int) {
	s := newSearch(c)
	s.run(limit, depth)
	if s.counterexample != nil {
		t.Fatalf("%s is broken:\n%s", s.counterexample.predicate, s.trace(s.counterexample))
	}
	asked := 0
	if c.onwards && !s.bounded {
		var stuck int
		if asked, stuck = s.reach(); stuck >= 0 {
			t.Fatalf("nobody can be served any more behind:\n%s", s.trace(&counterexample{path: s.path(stuck)}))
		}
		if asked == 0 {
			t.Error("no world has room to go on: the bounds are too small to ask")
		}
	}
	if s.roots.broken != nil {
		t.Error(s.roots.broken)
	}
	t.Log(s.summary(asked))
	sum.worlds.Add(int64(s.worlds.n))
	sum.transitions.Add(int64(s.transitions))
	sum.asked.Add(int64(asked))
	sum.configs.Add(1)
	for {
		old := sum.depth.Load()
		if int64(s.depth) <= old || sum.depth.CompareAndSwap(old, int64(s.depth)) {
			break
		}
	}
}

func (s *search) summary(asked int) string {
	end := "everything"
	if s.bounded {
		end = "as far as the limit"
	}
	return fmt.Sprintf("%d worlds of %d bytes, %d transitions, %d steps deep, %s; %d rooted states, %d runs; asked %d",
		s.worlds.n, unsafe.Sizeof(world{}), s.transitions, s.depth, end, len(s.roots.all), len(s.runs.all), asked)
}
