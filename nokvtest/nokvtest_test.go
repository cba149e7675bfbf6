package nokvtest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func TestTheExample(t *testing.T) { testFailover(t) }

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

// A member that drained and then ended has left, however its process ended; one that ended with
// regions has failed. What is rooted tells the two apart, and who left is not counted as failed.
func TestAMemberThatDrainedHasLeft(t *testing.T) {
	ends := map[string]func(*testing.T, *nokvtest.Member){
		"stopped": func(t *testing.T, m *nokvtest.Member) { m.Stop(t) },
		"killed":  func(t *testing.T, m *nokvtest.Member) { m.Kill(t) },
	}
	for name, end := range ends {
		for _, drained := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", drained ", drained), func(t *testing.T) {
				everywhere(t, func(t *testing.T) {
					c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
					m1 := c.Member(t, "m1", &app{})
					c.Member(t, "m2", &app{})
					c.Assign(t, "games", []byte("g1"), "m1")
					if drained {
						ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
						defer cancel()
						if err := m1.Drain(ctx, "an upgrade"); err != nil {
							t.Fatal(err)
						}
					}
					end(t, m1)
					var m *rootv1.Member
					for deadline := time.Now().Add(proctest.Patience); m.GetState() != rootv1.MemberState_MEMBER_STATE_FAILED; time.Sleep(10 * time.Millisecond) {
						said, err := c.Client().GetMember(t.Context(), "m1", client.Strong())
						if err != nil || time.Now().After(deadline) {
							t.Fatalf("m1 is %v, %v", said, err)
						}
						m = said.GetMember()
					}
					said, err := c.Client().Status(t.Context(), c.Addresses()[0])
					if err != nil {
						t.Fatal(err)
					}
					want := uint64(1)
					if drained {
						want = 0
					}
					if rooted.HasLeft(m) != drained || said.GetMembersFailed() != want {
						t.Errorf("%d have failed, and m1 is %v", said.GetMembersFailed(), m)
					}
				})
			})
		}
	}
}

func TestAKilledMemberIsReplaced(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		a1, a2 := &app{}, &app{}
		m1, m2 := c.Member(t, "m1", a1), c.Member(t, "m2", a2, "games")
		key := []byte("g1")
		before := c.Assign(t, "games", key, "m1")
		if err := m1.Do(t.Context(), member.Request{Keyspace: "games", Key: key, Region: before.Region.ID, Epoch: before.Region.Epoch}, nothing); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		m1.Kill(t)
		after := c.AwaitOwner(t, "games", key, "m2")
		t.Logf("taken over after %v", time.Since(begun))
		if dead, err := c.Client().GetMember(t.Context(), "m1", client.Strong()); err != nil || !strings.Contains(dead.GetMember().GetReason(), "refuses connections") {
			t.Errorf("the closed probe was no proof: %v, %v", dead, err)
		}
		if after.Region.Epoch.ConfVersion <= before.Region.Epoch.ConfVersion {
			t.Errorf("epoch %v behind %v", after.Region.Epoch, before.Region.Epoch)
		}
		if err := m2.Do(t.Context(), member.Request{Keyspace: "games", Key: key, Region: after.Region.ID, Epoch: after.Region.Epoch}, nothing); err != nil {
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
		a1 := &app{}
		c.Member(t, "m1", a1)
		c.Member(t, "m2", &app{})
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
		m1 := c.Member(t, "m1", &app{})
		c.Member(t, "m2", &app{})
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

// A coordinator that is cut off from the root has not heard of the era behind its own: who holds the
// Tenure is not what it says.
func TestTheHolderIsThatOfTheNewestEra(t *testing.T) {
	for range 10 { // clusters, because it is chance which coordinator a client asks
		synctest.Test(t, func(t *testing.T) {
			c := nokvtest.Start(t, nokvtest.Coordinators(2))
			first, era := c.Holder(t), c.Client().Era()
			c.Cut(first, "root-1")
			c.Await(t, "another era serves", func() bool {
				_, err := c.Client().Tso(t.Context(), 1)
				return err == nil && c.Client().Era() > era
			})
			if got := c.Holder(t); got == first {
				t.Errorf("%s holds era %d, and is cut off from the root", got, c.Client().Era())
			}
		})
	}
}

// A member that is cut off is silent, stops itself, and is back when the link is.
func TestACutMemberIsSuspectedOnly(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		m1 := c.Member(t, "m1", &app{})
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
			return m1.Do(ctx, member.Request{Keyspace: "games", Key: []byte("g1")}, nothing) == nil
		})
	})
}

// A member that is paused looks like one that hangs: it is given up, and begins anew.
func TestAPausedMemberIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		m1 := c.Member(t, "m1", &app{})
		c.Member(t, "m2", &app{})
		c.Member(t, "m3", &app{})
		c.Assign(t, "games", []byte("g1"), "m1")
		first := m1.Status().Incarnation
		resume := c.Pause("m1")
		c.Await(t, "it is given up", func() bool {
			m, err := c.Client().GetMember(t.Context(), "m1")
			return err == nil && m.GetMember().GetState().String() == "MEMBER_STATE_FAILED"
		})
		resume()
		c.Await(t, "it begins anew", func() bool { return m1.Status().Incarnation > first })
	})
}

// A member that stops gives back what it has; the next process of its id is another incarnation.
func TestAMemberStopsAndStartsAgain(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		a := &app{}
		m := c.Member(t, "m1", a)
		route := c.Assign(t, "games", []byte("g1"), "m1")
		ask := member.Request{Keyspace: "games", Key: []byte("g1"), Region: route.Region.ID, Epoch: route.Region.Epoch}
		if err := m.Do(t.Context(), ask, nothing); err != nil {
			t.Fatal(err)
		}
		m.Stop(t)
		if got := a.calls(); len(got) != 2 || got[1] != "release g1" {
			t.Errorf("it was asked %q", got)
		}
		again := c.Member(t, "m1", &app{})
		if again.Status().Incarnation <= m.Status().Incarnation {
			t.Errorf("incarnation %d behind %d", again.Status().Incarnation, m.Status().Incarnation)
		}
		c.Assign(t, "games", []byte("g1"), "m1")
	})
}

// Processes beside the test reach coordinators at ports.
func TestLoopback(t *testing.T) {
	t.Parallel()
	c := nokvtest.Start(t, nokvtest.Coordinators(2), nokvtest.Loopback())
	cl, err := client.New(client.Config{Endpoints: c.Addresses()}) // by TCP, as another process would
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := cl.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.KillCoordinator(t, "c1")
	if conn, err := net.Dial("tcp", c.Addresses()[0]); err == nil {
		_ = conn.Close()
		t.Error("the port of a killed coordinator is open")
	}
	c.RestartCoordinator(t, "c1")
	if _, err := cl.Status(t.Context(), c.Addresses()[0]); err != nil {
		t.Error(err)
	}
}

// What a test does wrong is said in one sentence, at once.
func TestMistakesAreSaidInPlainWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, fn := range map[string]func(*aside){
			"nokvtest: start a cluster: Roots(0): want 1 to 5":          func(a *aside) { nokvtest.Start(a, nokvtest.Roots(0)) },
			"nokvtest: start a cluster: Coordinators(99): want 1 to 16": func(a *aside) { nokvtest.Start(a, nokvtest.Coordinators(99)) },
			"nokvtest: start a cluster: TenureTTL(-1ns)":                func(a *aside) { nokvtest.Start(a, nokvtest.TenureTTL(-1)) },
			"nokvtest: start a cluster: make keyspace \"k\":": func(a *aside) {
				nokvtest.Start(a, nokvtest.Keyspace("k", "nothing like it"))
			},
			"nokvtest: member \"\": member config: ID is empty": func(a *aside) { nokvtest.Start(a).Member(a, "", &app{}) },
			"nokvtest: member \"m1\" is not known: it ended\nlisten for probes: listen memory 10.0.0.1:7001: bind: address already in use": func(a *aside) {
				c := nokvtest.Start(a)
				c.Member(a, "m1", &app{})
				c.Member(a, "m1", &app{})
			},
			"nokvtest: there is no coordinator \"c3\": they are c1 to c2": func(a *aside) {
				nokvtest.Start(a, nokvtest.Coordinators(2)).KillCoordinator(a, "c3")
			},
			"nokvtest: assign key \"k\" of tenants to m9: ": func(a *aside) {
				c := nokvtest.Start(a, nokvtest.Keyspace("tenants", "tenants"))
				c.Member(a, "m1", &app{})
				c.Assign(a, "tenants", []byte("k"), "m9")
			},
			"nokvtest: assign key \"k\" of nowhere to m1: ": func(a *aside) { nokvtest.Start(a).Assign(a, "nowhere", []byte("k"), "m1") },
		} {
			begun := time.Now()
			if got := inside(t, fn); !strings.HasPrefix(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("%q was said after %v", want, took)
			}
		}
	})
}

// Nothing is left of clusters when their tests have ended.
func TestNothingIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 2 {
		inside(t, func(a *aside) {
			c := nokvtest.Start(a, nokvtest.Roots(3), nokvtest.Coordinators(2), nokvtest.Keyspace("games", "games"), nokvtest.Loopback())
			m := c.Member(a, "m1", &app{})
			c.Assign(a, "games", []byte("g1"), "m1")
			m.Kill(a)
			c.KillCoordinator(a, "c1")
		})
	}
	for end := time.Now().Add(proctest.Patience); runtime.NumGoroutine() > before && time.Now().Before(end); {
		runtime.Gosched() // goroutines that were told to end are ending
	}
	if now := runtime.NumGoroutine(); now > before {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before\n%s", now, before, buf[:runtime.Stack(buf, true)])
	}
}

func BenchmarkStart(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				var took time.Duration
				inside(b, func(a *aside) {
					begun := time.Now()
					nokvtest.Start(a, nokvtest.Roots(n), nokvtest.Coordinators(n))
					took = time.Since(begun)
				})
				b.ReportMetric(float64(took.Milliseconds()), "ms/ready")
			}
		})
	}
}

// What an application cannot do for a region is shown of it, until it can.
func TestWhatAnApplicationCannotDoIsShownOfItsRegion(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		var broken atomic.Bool
		broken.Store(true)
		c.Member(t, "m1", acquirer(func() error {
			if broken.Load() {
				return errors.New("the disk is full")
			}
			return nil
		}))
		route := c.Assign(t, "games", []byte("g1"), "m1")
		failing := func() string {
			notes, _, err := c.Client().RegionNotes(t.Context(), route.Region.ID, "")
			if err != nil || len(notes) == 0 {
				return ""
			}
			return notes[0].GetFailing()
		}
		c.Await(t, "it is shown", func() bool { return failing() == "m1: the disk is full" })
		broken.Store(false)
		c.Await(t, "it is over", func() bool { return failing() == "" })
	})
}

// acquirer is a handler that acquires as it is told.
type acquirer func() error

func (a acquirer) Acquire(context.Context, member.Region) error         { return a() }
func (acquirer) Release(context.Context, member.Region) ([]byte, error) { return nil, nil }
