package server_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// what members are told of the time between two frames is what silence is judged by: of a
// keyspace that says nothing of it, the default, also beside one with frames that are far apart.
func TestMembersAreToldTheIntervalThatCounts(t *testing.T) {
	for name, c := range map[string]struct {
		intervals []uint64
		want      uint64
	}{
		"no keyspace": {nil, 1000}, "one that says nothing": {[]uint64{0}, 1000}, "one that is slow": {[]uint64{30_000}, 10_000},
		"one that says nothing, beside one that is slow": {[]uint64{0, 30_000}, 1000}, "beside one that is fast": {[]uint64{0, 200}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				defer w.end(t)
				least := uint64(1000)
				for i, n := range c.intervals {
					s := state.DefaultSettings()
					s.Liveness = &rootv1.Liveness{IntervalMillis: n}
					if counts := state.LivenessOf(s).GetIntervalMillis(); i == 0 || counts < least {
						least = counts
					}
					w.root.must(t, &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{Name: fmt.Sprint("k", i), Settings: s}}})
				}
				w.must(t, join("m1"))
				m := w.speak(t, "m1", w.incarnation("m1"))
				m.say(&coordinatorv1.MemberFrame{Complete: true})
				if got := m.hear().GetTerms().GetIntervalMillis(); got != c.want || got != least {
					t.Errorf("it is told %d ms, want %d, and %d is what counts", got, c.want, least)
				}
			})
		})
	}
}
