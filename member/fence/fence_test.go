package fence_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/nokv/nokv/member/fence"
	"github.com/nokv/nokv/rooted"
)

// Rule 3: whatever order epochs come in, what is written is never of a lower one than
// what was written before.
func TestRule3NothingBelowTheHighestLands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g fence.Guard
		var last rooted.Epoch
		for range rapid.IntRange(1, 30).Draw(t, "writes") {
			e := rooted.Epoch{Version: rapid.Uint64Range(1, 4).Draw(t, "version"), ConfVersion: rapid.Uint64Range(1, 4).Draw(t, "conf")}
			below := e.Version < last.Version || e.ConfVersion < last.ConfVersion
			err := g.Do(7, e, func() error { last = e; return nil })
			if _, stale := errors.AsType[*fence.StaleError](err); stale != below {
				t.Fatalf("%s behind %s: %v", e, last, err)
			}
		}
	})
}

func TestGuardIsBounded(t *testing.T) {
	g := fence.Guard{Regions: 64}
	for id := rooted.RegionID(1); id <= 64; id++ {
		if err := g.Raise(id, rooted.Epoch{Version: 1, ConfVersion: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Raise(65, rooted.Epoch{Version: 1, ConfVersion: 1}); !errors.Is(err, fence.ErrFull) {
		t.Errorf("one more than it may know: %v", err)
	}
	if err := g.Raise(64, rooted.Epoch{Version: 1, ConfVersion: 2}); err != nil {
		t.Error(err)
	}
}

// The check and the write are one step: a write that has begun is over before one of a
// higher epoch begins.
func TestWritesOfARegionDoNotOverlap(t *testing.T) {
	var g fence.Guard
	var all sync.WaitGroup
	at, inside := uint64(0), false
	for conf := range uint64(200) {
		all.Go(func() {
			_ = g.Do(1, rooted.Epoch{Version: 1, ConfVersion: conf}, func() error {
				if inside || conf < at {
					t.Errorf("%d behind %d, inside: %t", conf, at, inside)
				}
				inside, at = true, conf
				inside = false
				return nil
			})
		})
	}
	all.Wait()
}

func ExampleGuard() {
	var g fence.Guard
	file := ""
	put := func(epoch rooted.Epoch, text string) {
		err := g.Do(17, epoch, func() error { file = text; return nil })
		fmt.Println(file, err)
	}
	put(rooted.Epoch{Version: 1, ConfVersion: 3}, "by m1")
	put(rooted.Epoch{Version: 1, ConfVersion: 4}, "by m2, which took over")
	put(rooted.Epoch{Version: 1, ConfVersion: 3}, "by m1, which was asleep")
	// Output:
	// by m1 <nil>
	// by m2, which took over <nil>
	// by m2, which took over region 17: epoch 1.3 is over, 1.4 was seen
}
