package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/nokvtest"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

type hosts struct{}

func (hosts) Acquire(context.Context, member.Region) error           { return nil }
func (hosts) Release(context.Context, member.Region) ([]byte, error) { return nil, nil }

func find(t *testing.T, c *nokvtest.Cluster, key string) client.Route {
	t.Helper()
	route, err := c.Client().GetRegionByKey(t.Context(), []byte(key), client.In("games"), client.Strong())
	must(t, err)
	return route
}

// The Registry of a control plane gives a key to the member it picked, once, and picks
// members that have few more than those that have many.
func TestP77TheRegistryBindsToWhoHasLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		g := proxy.NewRegistry(c.Client())
		if _, err := g.Pick(t.Context(), "games"); !errors.Is(err, client.ErrNoActiveMembers) {
			t.Errorf("nobody is there: %v", err)
		}
		m1 := c.Member(t, "m1", hosts{})
		defer c.FreezePlanner()()
		for i := range 20 {
			to, err := g.Pick(t.Context(), "games")
			must(t, err)
			if to.Member != "m1" || to.Address != "m1:7000" || to.Incarnation != m1.Status().Incarnation {
				t.Fatalf("%+v is picked, want m1", to)
			}
			must(t, g.Bind(t.Context(), "games", fmt.Append(nil, "k", i), to))
		}
		m2 := c.Member(t, "m2", hosts{})
		to := router.Target{Member: "m2", Incarnation: m2.Status().Incarnation}
		if err := g.Bind(t.Context(), "games", []byte("k0"), to); err == nil || find(t, c, "k0").Region.Owners[0].Member != "m1" {
			t.Errorf("a key is given to a second one: %v", err)
		}
		g = proxy.NewRegistry(c.Client()) // a list of its own, with both
		picked := map[string]int{}
		for range 40 {
			to, err := g.Pick(t.Context(), "games")
			must(t, err)
			picked[string(to.Member)]++
		}
		if picked["m2"] != 30 || picked["m1"] != 10 {
			t.Errorf("%v is picked, want 30 of m2, which has 20 fewer", picked)
		}
	})
}

// What a key stands for ends once: when it was made again meanwhile, the second one stays.
func TestP78WhatWasMadeAgainStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nokvtest.Start(t, nokvtest.Keyspace("games", "games"))
		m1 := c.Member(t, "m1", hosts{})
		c.Member(t, "m2", hosts{})
		g := proxy.NewRegistry(c.Client())
		key := []byte("k")
		bind := func(member string, incarnation uint64) router.Target {
			t.Helper()
			c.Await(t, "bound", func() bool {
				return g.Bind(t.Context(), "games", key, router.Target{Member: rooted.MemberID(member), Incarnation: incarnation}) == nil
			})
			return router.Target{Member: rooted.MemberID(member), Region: find(t, c, "k").Region}
		}
		first := bind("m1", m1.Status().Incarnation)
		must(t, g.Unbind(t.Context(), "games", key, first))
		if route, err := c.Client().GetRegionByKey(t.Context(), key, client.In("games"), client.Strong()); !errors.Is(err, client.ErrNotFound) {
			t.Fatalf("%v %v, want nothing there", route.Region, err)
		}
		must(t, g.Unbind(t.Context(), "games", key, first)) // told again
		second := bind("m1", m1.Status().Incarnation)
		must(t, g.Unbind(t.Context(), "games", key, first)) // a request to the first, which took long
		if got := find(t, c, "k").Region; got.ID != second.Region.ID {
			t.Fatalf("region %d is there, want %d", got.ID, second.Region.ID)
		}
		// Moved by the planner, it is still what the request was about.
		c.Assign(t, "games", key, "m2")
		must(t, g.Unbind(t.Context(), "games", key, second))
		if _, err := c.Client().GetRegionByKey(t.Context(), key, client.In("games"), client.Strong()); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("%v, want nothing there", err)
		}
		// Taken for dead, and alive by now.
		bind("m1", m1.Status().Incarnation)
		if err := g.Unbind(t.Context(), "games", key, router.Target{}); !errors.Is(err, proxy.ErrOwned) {
			t.Errorf("%v, want ErrOwned", err)
		}
		find(t, c, "k")
	})
}

// given is a registry in which a key whose owner is dead was just given to another one.
type given struct {
	registry
	give func()
}

func (g *given) Unbind(ctx context.Context, keyspace string, key []byte, from router.Target) error {
	if from.Member == "" {
		g.give()
		return fmt.Errorf("look again: %w", proxy.ErrOwned)
	}
	return g.registry.Unbind(ctx, keyspace, key, from)
}

// A key is not taken away behind its owner's death if it was given to another one meanwhile: that
// one is asked to end it.
func TestP78WhatWasGivenToAnotherIsEndedThere(t *testing.T) {
	w := start(t, says("zero"), http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusNoContent) }))
	g := &given{registry: registry{w: w, alive: true}, give: func() { w.move(1) }}
	remove := serve(t, w.proxy(proxy.Config{Registry: g}).LookupAndDeregister(0))
	w.at(0, failed)
	proxyTold(t, w)
	code, _, body := ask(t, "POST", remove.URL, "k", "")
	if r := w.last(1); code != http.StatusNoContent || r.Tag != proxy.Deregistered || g.did != "unbind k m1" {
		t.Errorf("%d %s %s, the registry was told %q, want 204 deregistered and unbind k m1", code, r.Tag, body, g.did)
	}
}
