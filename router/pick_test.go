package router_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// spread is how often each member is taken for a key, in so many calls.
func (b *bench) spread(calls int, key string) map[rooted.MemberID]int {
	b.t.Helper()
	out := map[rooted.MemberID]int{}
	for range calls {
		got, err := b.Resolve(b.t.Context(), []byte(key), router.Options{})
		must(b.t, err)
		out[got.Member]++
	}
	return out
}

func picking(t *testing.T, cfg router.Config, f func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, cfg)
		defer end()
		b.snapshot(region(1, "", "m", 2, 1, 2, 3), region(2, "m", "", 2, 4))
		b.t = t
		f(b)
	})
}

func TestP09P56P58RoundRobinTakesTurns(t *testing.T) {
	picking(t, router.Config{}, func(b *bench) {
		if got := fmt.Sprint(b.spread(300, "a")); got != "map[m1:100 m2:100 m3:100]" {
			t.Error(got)
		}
		if got := fmt.Sprint(b.spread(10, "z")); got != "map[m4:10]" {
			t.Errorf("one owner: %s", got)
		}
		// P-36, P-41: one of the set dies, and the others go on.
		b.members(member(2, failed))
		if got := fmt.Sprint(b.spread(300, "a")); got != "map[m1:150 m3:150]" {
			t.Errorf("with one dead: %s", got)
		}
		b.members(member(3, failed))
		if got := fmt.Sprint(b.spread(10, "a")); got != "map[m1:10]" {
			t.Errorf("with two dead: %s", got)
		}
	})
}

func TestP60RandomTakesAny(t *testing.T) {
	picking(t, router.Config{Pick: router.Random}, func(b *bench) {
		got := b.spread(3000, "a")
		for id, n := range got {
			if n < 800 || n > 1200 {
				t.Errorf("%s: %d of 3000", id, n)
			}
		}
		if len(got) != 3 {
			t.Errorf("%v", got)
		}
	})
}

// The least loaded is taken, by what is under way or what the caller says; in turn where
// that is equal.
func TestP59LeastLoaded(t *testing.T) {
	loads := map[rooted.MemberID]int64{"m1": 5, "m2": 3, "m3": 3}
	picking(t, router.Config{Pick: router.LeastLoaded, Load: func(m client.Member) int64 { return loads[m.ID] }}, func(b *bench) {
		got := b.spread(100, "a")
		if got["m1"] != 0 || got["m2"] == 0 || got["m3"] == 0 {
			t.Errorf("%v", got)
		}
		loads["m1"] = 1
		if got := b.spread(100, "a"); got["m1"] != 100 {
			t.Errorf("%v", got)
		}
	})
	picking(t, router.Config{Pick: router.LeastLoaded}, func(b *bench) {
		under := map[rooted.MemberID]int{}
		release := make(chan struct{})
		for range 9 {
			go func() {
				_ = b.Do(b.t.Context(), []byte("a"), router.Options{}, func(ctx contextT, t router.Target) error {
					<-release
					return nil
				})
			}()
			synctest.Wait()
		}
		for range 3 {
			got, err := b.Resolve(t.Context(), []byte("a"), router.Options{})
			must(t, err)
			under[got.Member]++
		}
		close(release)
		if len(under) != 3 {
			t.Errorf("three at each: the next ones go to %v", under)
		}
	})
}

func TestTwoChoicesTakeTheLessLoaded(t *testing.T) {
	loads := map[rooted.MemberID]int64{"m1": 9}
	picking(t, router.Config{Pick: router.TwoChoices, Load: func(m client.Member) int64 { return loads[m.ID] }}, func(b *bench) {
		if got := b.spread(300, "a"); got["m1"] != 0 || got["m2"] < 100 || got["m3"] < 100 {
			t.Errorf("%v", got)
		}
	})
}

func TestP61PickFuncChooses(t *testing.T) {
	var asked [][]client.Member
	n := 2
	picking(t, router.Config{PickFunc: func(key []byte, among []client.Member) int {
		asked = append(asked, append([]client.Member(nil), among...))
		return n
	}}, func(b *bench) {
		if got := b.spread(3, "a"); got["m3"] != 3 {
			t.Errorf("%v", got)
		}
		for _, n = range []int{-1, 3, 1 << 40} {
			if got := b.spread(3, "a"); got["m1"] != 3 {
				t.Errorf("number %d: %v", n, got)
			}
		}
		before := len(asked)
		b.spread(3, "z")
		if len(asked) != before || len(asked[0]) != 3 || asked[0][2].Address != address(3) {
			t.Errorf("asked %d times, first of %v", len(asked)-before, asked[0])
		}
	})
}

// Of replicas the first leads.
func TestReplicasAreNotAChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, end := start(t, router.Config{})
		defer end()
		b.t = t
		reported := keyspace(1, "default")
		reported.Settings.Placement = rootv1.Placement_PLACEMENT_REPORTED
		b.send(&coordinatorv1.WatchRegionsResponse{
			Snapshot: true, Changes: now(region(1, "", "", 2, 2, 1)), Keyspaces: []*coordinatorv1.KeyspaceChange{{Keyspace: reported}},
			Members: []*coordinatorv1.MemberChange{{Member: member(1, active)}, {Member: member(2, active)}},
		})
		if got := b.spread(10, "a"); got["m2"] != 10 {
			t.Errorf("%v", got)
		}
		b.members(member(2, failed))
		if got := b.spread(10, "a"); got["m1"] != 10 {
			t.Errorf("without it: %v", got)
		}
	})
}

// Who could not be reached is avoided for a while, where there are others.
func TestUnreachableMembersAreAvoided(t *testing.T) {
	var heard []client.Member
	picking(t, router.Config{AvoidFor: 10 * time.Second, OnUnreachable: func(m client.Member, _ error) { heard = append(heard, m) }}, func(b *bench) {
		got, err := b.Resolve(t.Context(), []byte("a"), router.Options{})
		must(t, err)
		b.Unreachable(got, errors.New("refused"))
		if spread := b.spread(100, "a"); spread[got.Member] != 0 || len(spread) != 2 {
			t.Errorf("%v, without %s", spread, got.Member)
		}
		if len(heard) != 1 || heard[0].ID != got.Member || heard[0].Address != got.Address {
			t.Errorf("heard %v", heard)
		}
		one, err := b.Resolve(t.Context(), []byte("z"), router.Options{})
		must(t, err)
		b.Unreachable(one, errors.New("refused"))
		if spread := b.spread(3, "z"); spread["m4"] != 3 {
			t.Errorf("the only one: %v", spread)
		}
		time.Sleep(11 * time.Second)
		if spread := b.spread(300, "a"); spread[got.Member] != 100 {
			t.Errorf("later: %v", spread)
		}
	})
}
