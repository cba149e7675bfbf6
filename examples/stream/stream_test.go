package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/examples/internal/demo"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/internal/testing/testreport"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" { // this program, as a process of the test
		main()
	}
	os.Exit(proctest.Main(m))
}

// owned is how many partitions each worker has, by the control plane.
func owned(t *testing.T, d *demo.Demo) map[string]int {
	t.Helper()
	out, err := d.NoKV(t.Context(), "region", "list", "--keyspace", keyspace, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var regions []struct {
		Owners []struct {
			Member string `json:"member_id"`
		}
	}
	if err := json.Unmarshal([]byte(out), &regions); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n := map[string]int{}
	for _, r := range regions {
		for _, o := range r.Owners {
			n[o.Member]++
		}
	}
	return n
}

// The flow of a stream processor: three workers have twelve partitions; one is killed, and each of
// the others gets two of its four; they go on from its checkpoints, and no word is counted twice
// or left out. The last worker drains, and nothing is counted again.
func TestR03R12R20R30WordsAreCountedExactly(t *testing.T) {
	path, err := proctest.NoKV()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOKV", path)
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	d, err := demo.Start(ctx, testWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	workers := map[string]*demo.Process{}
	start := func(id string) {
		workers[id], err = d.Self(ctx, id, "worker", "--id", id, "--dir", d.Dir)
		must(err)
	}
	await := func(what string, holds func() bool) time.Duration {
		t.Helper()
		begun := time.Now()
		proctest.Eventually(t, proctest.Patience, func() error {
			if holds() {
				return nil
			}
			return fmt.Errorf("not so: %s", what)
		})
		return time.Since(begun)
	}
	have := func(want ...any) func() bool {
		return func() bool {
			n := owned(t, d)
			return fmt.Sprint(n["w1"], n["w2"], n["w3"]) == fmt.Sprint(want...)
		}
	}
	exact := func() totals {
		t.Helper()
		got, err := total(d.Dir)
		must(err)
		if len(got.Wrong) > 0 {
			t.Fatal(got)
		}
		return got
	}
	for _, id := range []string{"w1", "w2", "w3"} {
		start(id)
	}
	await("three workers are there", func() bool {
		out, err := d.NoKV(ctx, "member", "list", "-o", "json")
		must(err)
		return strings.Count(out, `"id"`) == 3
	})
	_, err = d.NoKV(ctx, append(settings(), "--cadence-checkpoint-interval", "500ms")...) // so that there are some
	must(err)
	await("each worker has four partitions", have(4, 4, 4))
	writing, stop := context.WithCancel(ctx)
	written := make(chan error, 1)
	go func() { written <- produce(writing, d.Dir, 0, 2000) }()
	await("every partition has a checkpoint", func() bool {
		for n := range uint64(partitions) {
			if at, _, err := newest(d.Dir, n); err != nil || at.Offset == 0 {
				must(err)
				return false
			}
		}
		return true
	})
	before := exact()

	workers["w2"].Kill()
	moved := await("each of the others has two more", have(6, 0, 6))
	resumed := await("the counts go on", func() bool { return exact().Read > before.Read+50_000 })
	testreport.Linef(t, "stream: a worker killed: its partitions are the others' after %v (in the document 30 s, of silence), counted on %v later", moved.Round(time.Millisecond), resumed.Round(time.Millisecond))

	stop()
	must(<-written)
	workers["w1"].Signal(syscall.SIGTERM)
	<-workers["w1"].Ended()
	await("the one that was asked to end has given away all", have(0, 0, 12))
	var got totals
	await("every word is counted, once", func() bool { got = exact(); return got.Read == got.Written })
	await("older checkpoints are removed, but for the one before", func() bool {
		for n := range uint64(partitions) {
			if all, err := checkpoints(d.Dir, n); err != nil || len(all) == 0 || len(all) > 2 {
				must(err)
				return false
			}
		}
		return true
	})
	testreport.Linef(t, "stream: %s", got)
}

// testWriter puts what the processes print into the test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}
