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
			below := e.Version < last.Version || e.Version == last.Version && e.ConfVersion < last.ConfVersion
			err := g.Do(fence.Keys{}, e, func() error { last = e; return nil })
			if _, stale := errors.AsType[*fence.StaleError](err); stale != below {
				t.Fatalf("%s behind %s: %v", e, last, err)
			}
		}
	})
}

// What one owner was given of what another one had is refused to that one only there.
func TestGuardCutsAndJoinsKeys(t *testing.T) {
	epoch := func(version uint64) rooted.Epoch { return rooted.Epoch{Version: version, ConfVersion: 1} }
	var g fence.Guard
	for _, step := range []struct {
		start, end string
		version    uint64
		stale      bool
	}{
		{"b", "y", 3, false},
		{"f", "m", 5, false},
		{"b", "y", 4, true},
		{"b", "f", 4, false},
		{"m", "y", 3, false},
		{"l", "m", 4, true},
		{"", "c", 3, true},
		{"", "b", 1, false},
		{"x", "", 2, true},
		{"y", "", 2, false},
		{"", "", 6, false},
		{"g", "h", 5, true},
		{"z", "", 5, true},
	} {
		err := g.Raise(fence.Keys{Start: step.start, End: step.end}, epoch(step.version))
		if _, stale := errors.AsType[*fence.StaleError](err); stale != step.stale || !stale && err != nil {
			t.Errorf("[%q, %q) at %d: %v", step.start, step.end, step.version, err)
		}
	}
	for _, none := range []fence.Keys{{Start: "b", End: "b"}, {Start: "b", End: "a"}} {
		if err := g.Raise(none, epoch(9)); err == nil {
			t.Errorf("a guard of no keys, %s", none)
		}
	}
}

func TestGuardIsBounded(t *testing.T) {
	g := fence.Guard{Ranges: 64}
	keys := func(i int) fence.Keys {
		return fence.Keys{Start: fmt.Sprintf("%02d", i), End: fmt.Sprintf("%02d", i+1)}
	}
	one := rooted.Epoch{Version: 1, ConfVersion: 1}
	for i := range 64 {
		if err := g.Raise(keys(i), one); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Raise(keys(64), one); !errors.Is(err, fence.ErrFull) {
		t.Errorf("one more than it may know: %v", err)
	}
	if err := g.Raise(fence.Keys{Start: "035"}, rooted.Epoch{Version: 2, ConfVersion: 1}); err != nil {
		t.Errorf("one that takes the place of others: %v", err)
	}
	if err := g.Raise(fence.Keys{End: "00"}, one); err != nil {
		t.Errorf("one more, where others have gone: %v", err)
	}
}

// The check and the write are one step: a write that has begun is over before one of a
// higher epoch begins, also where the regions are others by then.
func TestWritesOfAKeyDoNotOverlap(t *testing.T) {
	var g fence.Guard
	var all sync.WaitGroup
	at, inside := uint64(0), false
	for conf := range uint64(200) {
		all.Go(func() {
			keys := fence.Keys{Start: string("abcdefgh"[conf%8]), End: string("stuvw"[conf%5])} // all have what is from h to s
			_ = g.Do(keys, rooted.Epoch{Version: 1, ConfVersion: conf}, func() error {
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

// Regions that share no key do not wait for one another.
func TestWritesOfOtherKeysGoOn(t *testing.T) {
	var g fence.Guard
	one := rooted.Epoch{Version: 1, ConfVersion: 1}
	err := g.Do(fence.Keys{Start: "b", End: "c"}, one, func() error {
		return errors.Join(g.Raise(fence.Keys{End: "b"}, one), g.Raise(fence.Keys{Start: "c"}, one))
	})
	if err != nil {
		t.Error(err)
	}
}

func ExampleGuard() {
	var g fence.Guard
	file := ""
	put := func(keys fence.Keys, epoch rooted.Epoch, text string) {
		err := g.Do(keys, epoch, func() error { file = text; return nil })
		fmt.Println(file, err)
	}
	whole, right := fence.Keys{Start: "a", End: "z"}, fence.Keys{Start: "m", End: "z"}
	put(whole, rooted.Epoch{Version: 1, ConfVersion: 3}, "by m1")
	put(right, rooted.Epoch{Version: 2, ConfVersion: 4}, "by m2, which has a part")
	put(whole, rooted.Epoch{Version: 1, ConfVersion: 3}, "by m1, which was asleep")
	// Output:
	// by m1 <nil>
	// by m2, which has a part <nil>
	// by m2, which has a part keys ["a", "z"): epoch 1.3 is over, 2.4 was seen
}
