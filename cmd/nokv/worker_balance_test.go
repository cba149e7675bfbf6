package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nokv/nokv/rooted"
)

// Load that workers tell is evened out: a second one comes to a keyspace that the first has
// alone, and gets its part of the load. The command line says what was done and why.
func TestWorkersAreEvenedOutByLoad(t *testing.T) {
	t.Parallel()
	h := startForWorkers(t, "-tenure-ttl", longTTL) // averages of load are those of an era
	load := []string{"--load", "1000", "--noise", "0", "--step", "0s"}
	h.come(load...)
	h.must("keyspace", "create", "zipf", "--layout", "slots", "--slots", "48", "--liveness-interval", "200ms", "--policy-rebalance-by", "load",
		"--policy-rebalance-mean-permille", "1200", "--policy-rebalance-interval", "1s", "--policy-rebalance-spacing", "1s")
	h.eventually(func(context.Context) error { return h.hosts(48, 0) })
	demo := &worker{load: 1000, step: new(time.Duration)}
	sum := func(i int) (load float64) {
		for id := range h.held(i) {
			load += demo.loadOf(rooted.RegionID(id), 0)
		}
		return load
	}
	all := sum(0)
	h.come(load...)
	h.eventually(func(context.Context) error {
		if err := h.hosts(48, 0, 1); err != nil {
			return err
		}
		if a, b := sum(0), sum(1); max(a, b) > 0.75*all { // the last steps take minutes: averages, and budgets
			return fmt.Errorf("of load %.1f the workers have %.1f with %d regions, and %.1f with %d", all, a, len(h.held(0)), b, len(h.held(1)))
		}
		return nil
	})
	h.oneOwnerAnEpoch()

	var of struct {
		Round *roundOutput `json:"round"`
	}
	h.eventually(func(context.Context) error { // by count, until loads are told
		if err := json.Unmarshal([]byte(h.must("keyspace", "get", "zipf", "-o", "json")), &of); err != nil {
			return err
		}
		if r := of.Round; r == nil || r.By != "load" || r.Trigger == "" || r.AfterPermille == 0 || r.AfterPermille > 2000 {
			return fmt.Errorf("how it was evened out is shown as %+v", r)
		}
		return nil
	})
	if table := h.must("status"); !strings.Contains(table, "EVENED OUT") || !strings.Contains(table, "zipf") {
		t.Errorf("status does not say how it was evened out:\n%s", table)
	}
	var reasons []string
	ctx, cancel := context.WithTimeout(t.Context(), hostedWithin)
	defer cancel()
	for x, err := range h.client.ListTransitions(ctx, 0, true) {
		if err != nil {
			t.Fatal(err)
		}
		reasons = append(reasons, word(x.GetCause().String(), "OPERATION_REASON_"))
	}
	if slices.Sort(reasons); len(reasons) == 0 || slices.ContainsFunc(reasons, func(r string) bool { return r != "load" && r != "hot" && r != "count" }) {
		t.Errorf("the moves are for %v", reasons)
	}
}

// must runs a command that has to succeed, and returns what it printed.
func (h *hosting) must(args ...string) string {
	h.t.Helper()
	r := h.Run(append(args, "--timeout", hostedWithin.String(), "--coordinator-addr", h.Coordinators())...)
	if r.Code != exitOK {
		h.t.Fatalf("nokv %s: %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}
