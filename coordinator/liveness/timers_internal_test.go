package liveness

import (
	"testing"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/rooted"
	"pgregory.net/rapid"
)

// Timers are in order whatever is set and removed, and each member stands once.
func TestTimers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var heap timers
		members := make([]*member, 30)
		want := map[*member]clock.Instant{}
		for i := range members {
			members[i] = &member{id: rooted.MemberID(rune('a' + i)), place: -1}
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			m := rapid.SampledFrom(members).Draw(t, "member")
			at := clock.Instant(rapid.IntRange(1, 20).Draw(t, "at"))
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				heap.set(m, at)
				want[m] = at
			case 2:
				heap.soon(m, at)
				if old, ok := want[m]; !ok || at < old {
					want[m] = at
				}
			case 3:
				heap.set(m, never)
				delete(want, m)
			}
		}
		last := timer{m: &member{}}
		for len(heap) > 0 {
			first := heap[0]
			if first.before(last) || want[first.m] != first.at || int(first.m.place) != 0 {
				t.Fatalf("%s at %d came behind %s at %d, wanted at %d", first.m.id, first.at, last.m.id, last.at, want[first.m])
			}
			delete(want, first.m)
			heap.remove(first.m)
			last = first
		}
		if len(want) > 0 {
			t.Fatalf("%d timers are lost", len(want))
		}
	})
}
