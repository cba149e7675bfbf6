package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/meta/root/state"
)

// Who asks no more is forgotten, and an incarnation counts by what it asked itself.
func TestRule10VainIsBounded(t *testing.T) {
	var v vain
	now := clock.Instant(1)
	for i := range 10_000 {
		now = now.Add(time.Second)
		v.note(state.MemberID(fmt.Sprint("pod-", i)), 1, state.Era(1+i/100), now)
	}
	if n := len(v.asked); n > 30 {
		t.Errorf("%d members are remembered, of which 12 count", n)
	}
	for i := range uint64(4) {
		now = now.Add(4 * time.Second)
		v.note("m1", 1+i/3, 1, now) // the last one is another incarnation's first
	}
	if v.last(1, now)["m1"] {
		t.Error("a process that asked once counts as one that asked for 12 s")
	}
}
