// Command stream counts words of a stream in partitions, exactly, while workers come and die.
//
//	go run ./examples/stream             a cluster, a producer and three workers: kill one
//	go run ./examples/stream worker      one worker, beside a cluster that runs
//	go run ./examples/stream produce     add lines to the partitions
//	go run ./examples/stream counts      what was counted, and what there is to count
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/examples/internal/demo"
	"github.com/nokv/nokv/member"
)

const (
	keyspace   = "words"
	partitions = 12
	// endWithin is how long a worker that is asked to end has to give its partitions away, and how
	// long to save what is left then.
	endWithin = 5 * time.Second
)

func main() { os.Exit(demo.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:]) })) }

func run(ctx context.Context, args []string) error {
	command := "demo"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	f := flag.NewFlagSet("stream "+command, flag.ContinueOnError)
	id := f.String("id", "", "`name` of the worker")
	dir := f.String("dir", "", "`folder` with input and checkpoints, which the workers share")
	ends := f.String("coordinator-addr", os.Getenv("NOKV_COORDINATOR_ADDR"), "`addresses` of coordinators")
	lines := f.Int("lines", 0, "how many lines to add; 0: until Ctrl-C")
	rate := f.Float64("rate", 200, "lines a second")
	if err := demo.Parse(f, args, 0); err != nil {
		return err
	}
	switch command {
	case "demo":
		return show(ctx)
	case "worker", "produce", "counts":
	default:
		return fmt.Errorf("there is no %q: use worker, produce, counts, or nothing for all of it", command)
	}
	if at, err := os.Stat(*dir); *dir == "" || err != nil || !at.IsDir() {
		return fmt.Errorf("--dir is %q, which is no folder that can be read (%v): name the one that the workers share", *dir, err)
	}
	switch {
	case command == "worker" && (*id == "" || *ends == ""):
		return errors.New("say who the worker is and where coordinators are: --id, --coordinator-addr")
	case command == "worker":
		// A worker that cannot save would be given partitions all the same.
		try, err := os.CreateTemp(*dir, ".worker-")
		if err != nil {
			return fmt.Errorf("--dir is %q, where no checkpoint can be written: %w: name the folder that the workers share", *dir, err)
		}
		if err := errors.Join(try.Close(), os.Remove(try.Name())); err != nil {
			return err
		}
		return work(ctx, *id, *dir, strings.Split(*ends, ","))
	case command == "produce":
		if *lines < 0 || !(*rate >= 1e-3) || *rate > 1e6 {
			return fmt.Errorf("--lines is %d and --rate %g: lines are 0 or more, and a rate is above 0, 0.001 to 1e6 a second", *lines, *rate)
		}
		return produce(ctx, *dir, *lines, *rate)
	}
	t, err := total(*dir)
	if err != nil {
		return err
	}
	fmt.Println(t)
	return nil
}

// work is a worker: a member of the control plane that counts what it owns. It ends when ctx
// does, after its partitions were given to others.
func work(ctx context.Context, id, dir string, endpoints []string) error {
	c, err := client.New(client.Config{Endpoints: endpoints})
	if err != nil {
		return err
	}
	defer c.Close()
	m, err := member.New(member.Config{
		// Nobody calls a worker, so that it has no port but the one that shows it lives.
		ID: id, Address: "127.0.0.1:1", ProbeAddress: "127.0.0.1:0", Keyspaces: []string{keyspace}, Client: c,
		Logger: demo.Logger(),
	})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		defer stop()
		select {
		case <-ctx.Done():
		case <-running.Done(): // it ends by itself
			return
		}
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
		defer cancel()
		if err := m.Drain(drain, "the worker was asked to end"); err != nil {
			fmt.Println("not drained:", err)
		}
	}()
	return m.Run(running, newCounter(id, dir))
}

// settings are the command that makes the keyspace: the preset for stream processors, but that a
// worker whose process has ended is replaced at once. The preset waits 30 s for it to come back,
// because who has much state in memory would rather have it where it was.
func settings() []string {
	return []string{
		"keyspace", "create", keyspace, "--preset", "partitions", "--layout", "slots", "--slots", fmt.Sprint(partitions),
		"--liveness-probe", "true", "--liveness-closed-stream", "dead", "--start-hold", "1ms",
	}
}

// show is all of it: a cluster, workers and a producer, and what they have counted.
func show(ctx context.Context) error {
	d, err := demo.Start(ctx, os.Stdout)
	if err != nil {
		return err
	}
	defer d.Stop()
	for _, id := range []string{"w1", "w2", "w3"} {
		p, err := d.Self(ctx, id, "worker", "--id", id, "--dir", d.Dir)
		if err != nil {
			return err
		}
		d.Say(fmt.Sprintf("worker %s runs: kill -9 %d ends it, and its partitions go to the others", id, p.PID()))
	}
	if _, err := d.NoKV(ctx, settings()...); err != nil {
		return err
	}
	if _, err := d.Self(ctx, "producer", "produce", "--dir", d.Dir); err != nil {
		return err
	}
	for tick := time.NewTicker(5 * time.Second); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-d.ClusterEnded():
			return errors.New("the cluster has ended, and the example with it")
		case <-tick.C:
			t, err := total(d.Dir)
			if err != nil {
				return err
			}
			d.Say(t.String())
		}
	}
}
