package nokvtest_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
)

// sessions is an application that hosts regions.
type sessions struct{}

func (sessions) Acquire(context.Context, member.Region) error           { return nil }
func (sessions) Release(context.Context, member.Region) ([]byte, error) { return nil, nil }

// testFailover is a test of an application: its owner dies, and the other one serves. It is
// called TestFailover in a file of tests.
func testFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in virtual time; without this line, in real time
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		m1, m2 := c.Member(t, "m1", sessions{}), c.Member(t, "m2", sessions{})
		key := []byte("game-17")
		c.Assign(t, "games", key, "m1")

		m1.Kill(t)
		route := c.AwaitOwner(t, "games", key, "m2")
		ask := member.Request{Keyspace: "games", Key: key, Region: route.Region.ID, Epoch: route.Region.Epoch}
		if err := m2.Do(t.Context(), ask, func(context.Context, member.Region) error { return nil }); err != nil {
			t.Error(err)
		}
	})
}

// The owner of a key is killed, and the other member serves it.
func Example() {
	// go test calls testFailover. There is no output to compare: what runs a test prints
	// lines of its own under go test -v.
	testing.RunTests(func(_, _ string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "TestFailover", F: testFailover}})
}
