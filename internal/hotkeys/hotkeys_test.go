package hotkeys_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/hotkeys"
)

// The hottest keys of many are found, in order, with about their shares; and the median
// is where half of the uses are.
func TestHottestKeysAreFound(t *testing.T) {
	s := hotkeys.New(rand.Uint32N)
	r := rand.New(rand.NewPCG(1, 2))
	for range 400_000 {
		switch n := r.IntN(100); {
		case n < 30:
			s.Touch([]byte("m/hot"))
		case n < 45:
			s.Touch([]byte("a/warm"))
		default:
			s.Touch(fmt.Appendf(nil, "x/%d", r.IntN(10_000)))
		}
	}
	hot, median := s.Top(16)
	if len(hot) < 2 || hot[0].Key != "m/hot" || hot[1].Key != "a/warm" {
		t.Fatalf("the hottest are %v", hot)
	}
	for i, want := range []uint32{300, 150} {
		if got := hot[i].Permille; got < want-60 || got > want+60 {
			t.Errorf("%s has %d thousandths, not about %d", hot[i].Key, got, want)
		}
	}
	if median <= "a/warm" {
		t.Errorf("the median is %q", median)
	}
	// What was hot is not for ever.
	for range 1_000_000 {
		s.Touch([]byte("b/new"))
	}
	if hot, _ := s.Top(1); hot[0].Key != "b/new" || hot[0].Permille < 800 {
		t.Errorf("now the hottest is %v", hot)
	}
}

// What is cut at the median has three tenths of the uses on each side, where no key has more than four: also
// where one key is before the middle and behind it.
func TestTheMedianLeavesEnoughOnBothSides(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		s, uses, total := hotkeys.New(func(uint32) uint32 { return 0 }), map[string]int{}, 0
		for k := range 3 + r.IntN(60) {
			n := 1 + r.IntN(40)
			if r.IntN(3) > 0 {
				n = 1
			}
			uses[fmt.Sprintf("%03d", k)] = n
			total += n
		}
		below, most := 0, 0
		for k, n := range uses {
			for range n {
				s.Touch([]byte(k))
			}
			most = max(most, n)
		}
		if most > 4*total/10 {
			continue
		}
		_, median := s.Top(1)
		for k, n := range uses {
			if k < median {
				below += n
			}
		}
		if 10*below < 3*total || 10*below > 7*total {
			t.Fatalf("%d of %d are below %q: %v", below, total, median, uses)
		}
	}
}

func TestOddKeys(t *testing.T) {
	s := hotkeys.New(rand.Uint32N)
	for range 1000 {
		s.Touch(nil)
		s.Touch([]byte(strings.Repeat("k", hotkeys.MaxKeyBytes+1)))
	}
	if hot, median := s.Top(16); len(hot) != 0 || median != "" {
		t.Errorf("%v, %q", hot, median)
	}
}
