package main

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// What pods may ask for leaves PostgreSQL a fifth, and another pod is wanted well before that.
func TestP72PodsLeaveConnectionsToOthers(t *testing.T) {
	good := poolConfig{ID: "p", Postgres: "host=/tmp", Connections: 16, PerTenant: 4, Queue: 2, Idle: time.Second}
	for name, row := range map[string]struct {
		change func(*poolConfig)
		most   int
		says   string
	}{
		"a fifth is left":           {func(*poolConfig) {}, 100, ""},
		"more than that":            {func(c *poolConfig) { c.Connections = 17 }, 100, "give 16 at most"},
		"a smaller server":          {func(*poolConfig) {}, 99, "give 15 at most"},
		"no name":                   {func(c *poolConfig) { c.ID = "" }, 100, "--id"},
		"no server":                 {func(c *poolConfig) { c.Postgres = "" }, 100, "--postgres"},
		"more for one than for all": {func(c *poolConfig) { c.PerTenant = 17 }, 100, "--per-tenant 17"},
		"nothing for a tenant":      {func(c *poolConfig) { c.PerTenant = 0 }, 100, "--per-tenant 0"},
		"nobody waits":              {func(c *poolConfig) { c.Queue = 0 }, 100, "--queue 0"},
		"closed at once":            {func(c *poolConfig) { c.Idle = 0 }, 100, "--idle 0s"},
	} {
		c := good
		row.change(&c)
		err := errors.Join(c.validate(), c.fits(row.most))
		if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v, want %q", name, err, row.says)
		}
	}
	of := func(name string) int {
		s := settings()
		n, err := strconv.Atoi(s[slices.Index(s, name)+1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if wanted := of("--scaling-max-members") * good.Connections * of("--scaling-up-permille") / 1000; wanted > 100/2 {
		t.Errorf("another pod is wanted at %d connections of 100", wanted)
	}
}

// A request that waits for a connection of a tenant which another pod was given has not run: it is told so, and
// is tried there.
func TestP84ARequestOfALostTenantHasNotRun(t *testing.T) {
	p := &pod{cfg: poolConfig{Postgres: "host=/nothing user=nobody", PerTenant: 1, Idle: time.Second}, slots: make(slots, 1), shares: map[rooted.RegionID]*share{}}
	r := member.Region{ID: 7, Start: "ann"}
	if err := p.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	s := p.share(7)
	if err := p.Evict(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if _, err := s.take(t.Context()); router.RefusalOf(err) == nil {
		t.Errorf("it is told %v", err)
	}
}

// A request waits for a connection no longer than it may, and no more of them do: what cannot be served is told so.
func TestP72RequestsWaitForConnectionsWithinBounds(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	host, port, err := net.SplitHostPort(lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{cfg: poolConfig{Postgres: "sslmode=disable user=nobody host=" + host + " port=" + port, PerTenant: 1, Idle: time.Second}, slots: make(slots, 1)}
	s, err := p.newShare(7, "ann")
	if err != nil {
		t.Fatal(err)
	}
	s.within = time.Millisecond
	if _, err := s.take(t.Context()); !errors.Is(err, errFull) || s.waiting.Load() != 0 {
		t.Errorf("with no connection: %v, and %d wait", err, s.waiting.Load())
	}
	s.waiting.Store(maxWaiting)
	if _, err := s.take(t.Context()); !errors.Is(err, errMany) || s.waiting.Load() != maxWaiting {
		t.Errorf("behind %d others: %v, and %d wait", maxWaiting, err, s.waiting.Load())
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s.waiting.Store(0)
	if _, err := s.take(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("of a client that is gone: %v", err)
	}
}

// What cannot be reached as it is asked for is not waited for, and who ends meanwhile is not told of it.
func TestAPodDoesNotWaitForWhatCannotCome(t *testing.T) {
	if err := answers(t.Context(), "host=127.0.0.1 port=none"); err == nil || !strings.Contains(err.Error(), "port") {
		t.Errorf("a connection string that is none: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := answers(ended, "host=/nothing user=nobody"); !errors.Is(err, context.Canceled) {
		t.Errorf("ended while it waits: %v", err)
	}
}

// A pod opens no more connections than it may: it has spare ones closed, or waits, and gives the place
// of one that closed, or could not be made, to the next.
func TestP72APodKeepsToItsConnections(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	places, asked := make(slots, 1), 0
	var first net.Conn
	dial := places.dial(&net.Dialer{}, func() {
		if asked++; asked > 1 {
			_ = first.Close()
		}
	})
	if first, err = dial(t.Context(), "tcp", lis.Addr().String()); err != nil || places.open() != 1 {
		t.Fatalf("%d open, %v", places.open(), err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dial(over, "tcp", lis.Addr().String()); !errors.Is(err, errFull) || places.open() != 1 {
		t.Errorf("with no place: %d open, %v", places.open(), err)
	}
	second, err := dial(t.Context(), "tcp", lis.Addr().String())
	if err != nil || asked < 2 || places.open() != 1 {
		t.Fatalf("with one to spare: %d open, asked %d times, %v", places.open(), asked, err)
	}
	_ = first.Close() // again: it has no place any more
	if err := second.Close(); err != nil || places.open() != 0 {
		t.Errorf("closed, %d are open, %v", places.open(), err)
	}
	_ = lis.Close()
	if _, err := dial(t.Context(), "tcp", lis.Addr().String()); err == nil || places.open() != 0 {
		t.Errorf("not made, %d are open, %v", places.open(), err)
	}
}
