package liveness_test

import (
	"testing"
	"time"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// All members of a keyspace fall silent at one moment: those that have a quicker keyspace too are not failed
// because the others are not suspected yet.
func TestGuardMassFailureOfMembersWithDifferentPatience(t *testing.T) {
	w := newWard(t)
	w.keyspace(20, "patient", &rootv1.KeyspaceSettings{
		Placement: rootv1.Placement_PLACEMENT_ASSIGNED, Liveness: &rootv1.Liveness{IntervalMillis: 5000, SuspectAfterMillis: 15_000, DeadAfterMillis: 30_000}, // as the preset partitions
	})
	both := []string{"b1", "b2"}
	for _, id := range both {
		w.core.SetMember(&rootv1.Member{Id: id, Incarnation: 1, State: active, ProbeAddress: id + ":1", Keyspaces: []string{"games", "patient"}}, w.now)
		w.connect(id, 1)
	}
	for _, id := range []string{"p1", "p2"} {
		w.join(id, 1, "patient")
	}
	for _, id := range []string{"g1", "g2", "g3", "g4"} {
		w.join(id, 1, "games")
	}
	w.run(time.Minute)
	for _, id := range []string{"b1", "b2", "p1", "p2"} { // 4 of 4 of patient; 2 of 6 of games
		w.hang(id)
	}
	w.run(5 * time.Minute)
	w.noVerdict()
}
