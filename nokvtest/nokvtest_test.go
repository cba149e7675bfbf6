package nokvtest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
)

// app notes which regions it has.
type app struct {
	mu  sync.Mutex
	has map[string]bool
	log []string
}

func newApp() *app { return &app{has: map[string]bool{}} }

func (a *app) Acquire(_ context.Context, r member.Region) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.has[r.Start] = true
	a.log = append(a.log, "acquire "+r.Start)
	return nil
}

func (a *app) Release(_ context.Context, r member.Region) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.has, r.Start)
	a.log = append(a.log, "release "+r.Start)
	return []byte("f"), nil
}

func (a *app) calls() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.log...)
}

// everywhere runs a test in real and in virtual time.
func everywhere(t *testing.T, test func(t *testing.T)) {
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t)
	})
	t.Run("virtual", func(t *testing.T) { synctest.Test(t, test) })
}

func TestAClusterServes(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			everywhere(t, func(t *testing.T) {
				begun := time.Now()
				c := nokvtest.Start(t, nokvtest.Roots(n), nokvtest.Coordinators(n))
				t.Logf("ready after %v", time.Since(begun))
				a, err := c.Client().Now(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				b, err := c.Client().Now(t.Context())
				if err != nil || b <= a {
					t.Errorf("%d behind %d, %v", b, a, err)
				}
				if got := len(c.Addresses()); got != n {
					t.Errorf("%d addresses of %d coordinators", got, n)
				}
			})
		})
	}
}

func TestAKilledMemberIsReplaced(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		a1, a2 := newApp(), newApp()
		m1, m2 := c.Member(t, "m1", a1), c.Member(t, "m2", a2, "games")
		key := []byte("g1")
		before := c.Assign(t, "games", key, "m1")
		if err := m1.Do(t.Context(), member.Request{Keyspace: "games", Key: key, Epoch: before.Region.Epoch}, func(context.Context, member.Region) error { return nil }); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		m1.Kill(t)
		after := c.AwaitOwner(t, "games", key, "m2")
		t.Logf("taken over after %v", time.Since(begun))
		if took := time.Since(begun); took > time.Second {
			t.Errorf("that took %v: the closed probe was no proof", took)
		}
		if after.Region.Epoch.ConfVersion <= before.Region.Epoch.ConfVersion {
			t.Errorf("epoch %v behind %v", after.Region.Epoch, before.Region.Epoch)
		}
		if err := m2.Do(t.Context(), member.Request{Keyspace: "games", Key: key, Epoch: after.Region.Epoch}, func(context.Context, member.Region) error { return nil }); err != nil {
			t.Errorf("the next owner: %v", err)
		}
		if err := m1.Do(t.Context(), member.Request{Keyspace: "games", Key: key}, nil); err != nokvtest.ErrKilled {
			t.Errorf("the killed one: %v", err)
		}
		if got := a1.calls(); len(got) != 1 {
			t.Errorf("a killed member was called: %q", got)
		}
	})
}

func TestAMoveReleasesFirst(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		a1 := newApp()
		c.Member(t, "m1", a1)
		c.Member(t, "m2", newApp())
		c.Assign(t, "games", []byte("g1"), "m1")
		c.Await(t, "m1 has it", func() bool { return len(a1.calls()) == 1 })
		moved := c.Assign(t, "games", []byte("g1"), "m2")
		if got := a1.calls(); len(got) != 2 || got[1] != "release g1" {
			t.Errorf("m1 was asked %q", got)
		}
		if moved.Region.Frontier != "f" {
			t.Errorf("frontier %q", moved.Region.Frontier)
		}
	})
}

// A frozen planner gives nothing to anybody, and does when it is thawed.
func TestAFrozenPlanner(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		m1 := c.Member(t, "m1", newApp())
		c.Member(t, "m2", newApp())
		c.Assign(t, "games", []byte("g1"), "m1")
		thaw := c.FreezePlanner()
		m1.Kill(t)
		c.Await(t, "m1 has failed", func() bool {
			m, err := c.Client().GetMember(t.Context(), "m1")
			return err == nil && m.GetMember().GetState().String() == "MEMBER_STATE_FAILED"
		})
		if route := c.Assign(t, "games", []byte("g2"), "m2"); route.Region.Owners[0].Member != "m2" {
			t.Errorf("assigned to %v", route.Region.Owners)
		}
		r, err := c.Client().GetRegionByKey(t.Context(), []byte("g1"), client.In("games"), client.Strong())
		if err != nil || len(r.Region.Owners) > 0 && r.Region.Owners[0].Member == "m2" {
			t.Errorf("the frozen planner gave it away: %v, %v", r.Region, err)
		}
		thaw()
		c.AwaitOwner(t, "games", []byte("g1"), "m2")
	})
}

// An era ends, and a coordinator is killed: another one goes on, above.
func TestErasAndCoordinatorsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // who ended an era leaves the next to others for 5 s
		c := nokvtest.Start(t, nokvtest.Coordinators(2))
		first := c.Holder(t)
		before, err := c.Client().Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		era := c.EndEra(t)
		second := c.Holder(t)
		if second == first {
			t.Errorf("%s holds era %d as before", first, era)
		}
		c.KillCoordinator(t, second)
		after, err := c.Client().Now(t.Context())
		if err != nil || after <= before {
			t.Errorf("%d behind %d, %v", after, before, err)
		}
		c.RestartCoordinator(t, second)
		c.Await(t, "it is back", func() bool {
			s, err := c.Client().Status(t.Context(), second+":7100")
			return err == nil && s.GetCoordinatorId() == second
		})
	})
}

// A member that is cut off is silent, stops itself, and is back when the link is.
func TestACutMemberIsSuspectedOnly(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		m1 := c.Member(t, "m1", newApp())
		c.Assign(t, "games", []byte("g1"), "m1")
		mend := c.Cut("m1", "c1")
		c.Await(t, "m1 is suspected", func() bool {
			m, err := c.Client().GetMember(t.Context(), "m1")
			return err == nil && m.GetHealth().String() != "MEMBER_HEALTH_LIVE"
		})
		mend()
		c.Await(t, "m1 serves again", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return m1.Do(ctx, member.Request{Keyspace: "games", Key: []byte("g1")}, func(context.Context, member.Region) error { return nil }) == nil
		})
	})
}

func BenchmarkStart(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				nokvtest.Start(b, nokvtest.Roots(n), nokvtest.Coordinators(n))
			}
		})
	}
}
