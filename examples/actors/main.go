// Command actors keeps counters in the memory of nodes that come, go and die.
//
//	go run ./examples/actors         a cluster, four nodes and callers: kill one
//	go run ./examples/actors node    one node, beside a cluster that runs
//	go run ./examples/actors call    call actors, and say each second how that went
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/examples/internal/demo"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/router"
)

const (
	keyspace = "actors"
	// endWithin is how long a node that was asked to end has to give its slots away.
	endWithin = 20 * time.Second
	// refuseFor is how long it still answers callers who have not heard that it has none.
	refuseFor = time.Second
)

func main() { os.Exit(demo.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:]) })) }

func run(ctx context.Context, args []string) error {
	command := "demo"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	f := flag.NewFlagSet("actors "+command, flag.ContinueOnError)
	id := f.String("id", "", "`name` of the node")
	dir := f.String("dir", "", "`folder` of checkpoints, which the nodes share")
	ends := f.String("coordinator-addr", os.Getenv("NOKV_COORDINATOR_ADDR"), "`addresses` of coordinators")
	actors := f.Int("actors", 2000, "how many actors are called")
	rate := f.Float64("rate", 500, "calls a second")
	if err := demo.Parse(f, args, 0); err != nil {
		return err
	}
	switch {
	case command == "demo":
		return show(ctx)
	case command != "node" && command != "call":
		return fmt.Errorf("there is no %q: use node, call, or nothing for all of it", command)
	case *ends == "":
		return errors.New("say where coordinators are: --coordinator-addr")
	case command == "node" && (*id == "" || *dir == ""):
		return errors.New("say who the node is and where checkpoints are: --id, --dir")
	}
	c, err := client.New(client.Config{Endpoints: strings.Split(*ends, ",")})
	if err != nil {
		return err
	}
	defer c.Close()
	if command == "node" {
		return serve(ctx, c, *id, *dir)
	}
	return call(ctx, c, *actors, *rate, func(line string) { fmt.Println(line) })
}

// serve is a node: a member of the control plane, and an HTTP server of the actors whose slots it
// owns. It ends when ctx does, after its slots were given to others.
func serve(ctx context.Context, c *client.Client, id, dir string) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	m, err := member.New(member.Config{
		ID: id, Address: lis.Addr().String(), ProbeAddress: "127.0.0.1:0", Keyspaces: []string{keyspace}, Client: c,
		Logger: demo.Logger(),
	})
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	n := newNode(id, dir)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := &http.Server{Handler: n.routes(m), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	var all sync.WaitGroup
	all.Go(func() {
		defer stop()
		served <- server.Serve(lis)
	})
	all.Go(func() { n.tell(running) })
	all.Go(func() {
		defer stop()
		select {
		case <-ctx.Done():
		case <-running.Done(): // it ends by itself
			return
		}
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
		defer cancel()
		if err := m.Drain(drain, "the node was asked to end"); err != nil {
			fmt.Println("not drained:", err)
		}
	})
	err = m.Run(running, n)
	stop()
	// Callers who have not heard of it yet are refused, and ask elsewhere: if their connections were closed under
	// their requests, nobody would know whether these were run.
	time.Sleep(refuseFor)
	// The next owners are answered to the end; behind it they read the files.
	shut, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = server.Shutdown(shut)
	all.Wait()
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// call runs callers until ctx ends.
func call(ctx context.Context, c *client.Client, actors int, rate float64, say func(string)) error {
	r, err := router.New(router.Config{Client: c, Keyspaces: []string{keyspace}})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	newCallers(r, actors).run(ctx, rate, say)
	return <-ended
}

// settings are the command that makes the keyspace: the preset for actors, with what a demo cannot
// wait for. A node whose process has ended is replaced at once, and not waited for; one that hangs is
// after 5 s instead of 90; slots are evened out at once when a node comes, also one that failed a moment
// ago; and each slot is checkpointed every 5 s.
func settings() []string {
	return []string{
		"keyspace", "create", keyspace, "--preset", "actors", "--policy-strategy", "balanced",
		"--liveness-probe", "true", "--liveness-closed-stream", "dead", "--start-hold", "1ms",
		"--liveness-interval", "500ms", "--liveness-suspect-after", "2500ms", "--liveness-dead-after", "5s", "--ownership-ttl", "5s",
		"--policy-rebalance-spacing", "1s", "--policy-rebalance-settle", "1ms", "--guards-no-move-back", "1ms",
		"--policy-rebalance-in-flight", "64", "--cadence-checkpoint-interval", "5s",
	}
}

// show is all of it: a cluster, nodes and callers, and how the calls go.
func show(ctx context.Context) error {
	d, err := demo.Start(ctx, os.Stdout)
	if err != nil {
		return err
	}
	defer d.Stop()
	for _, id := range []string{"a", "b", "c", "d"} {
		p, err := d.Self(ctx, id, "node", "--id", id, "--dir", d.Dir)
		if err != nil {
			return err
		}
		d.Say(fmt.Sprintf("node %s runs: kill -9 %d ends it, and its actors begin again elsewhere; kill %d moves them", id, p.PID(), p.PID()))
	}
	d.Say("another node: go run ./examples/actors node --id e --dir " + d.Dir + " --coordinator-addr " + d.Coordinators)
	if _, err := d.NoKV(ctx, settings()...); err != nil {
		return err
	}
	callers, err := d.Self(ctx, "callers", "call")
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-callers.Ended():
		return errors.New("the callers have ended")
	}
}
