// Command tenantpool keeps PostgreSQL connections for many tenants in few processes.
//
//	go run ./examples/tenantpool             PostgreSQL, a cluster, three pods, a caller and load: kill a pod
//	go run ./examples/tenantpool pod         one pod, beside a cluster and a PostgreSQL server that run
//	go run ./examples/tenantpool caller      a process that clients ask
//	go run ./examples/tenantpool postgres    a PostgreSQL server in an empty folder, for as long as it runs
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
	"syscall"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/examples/internal/demo"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/proxy"
	"github.com/nokv/nokv/router"
)

const (
	keyspace = "tenants"
	// endWithin is how long a pod that was asked to end has to give its tenants away.
	endWithin = 10 * time.Second
	// mostPods are those that there may be: so many times a pod's connections are what
	// PostgreSQL may be asked for.
	mostPods = 5
)

func main() { os.Exit(demo.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:]) })) }

func run(ctx context.Context, args []string) error {
	command := "demo"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	f := flag.NewFlagSet("tenantpool "+command, flag.ContinueOnError)
	ends := f.String("coordinator-addr", os.Getenv("NOKV_COORDINATOR_ADDR"), "`addresses` of coordinators")
	addr := f.String("addr", "127.0.0.1:0", "`address` to listen at; a pod is dialled there")
	dir := f.String("dir", "", "empty `folder` for the data of a PostgreSQL server, which are removed when it ends")
	hold := f.Duration("hold", 40*time.Second, "`time` that a request waits for the next pod of its tenant: longer than the death of a pod takes to be known")
	var cfg poolConfig
	f.StringVar(&cfg.ID, "id", "", "`name` of the pod")
	f.StringVar(&cfg.Postgres, "postgres", os.Getenv("TENANTPOOL_POSTGRES"), "connection `string` of PostgreSQL")
	f.StringVar(&cfg.Group, "group", "shared", "`label` of the pod: shared, or dedicated")
	f.IntVar(&cfg.Connections, "connections", 16, "`most` connections that the pod has open, for all tenants")
	f.IntVar(&cfg.PerTenant, "per-tenant", 4, "`most` of them for one tenant")
	f.IntVar(&cfg.Queue, "queue", 2, "requests of a tenant that `wait` for a connection when it counts as saturated")
	f.DurationVar(&cfg.Idle, "idle", 30*time.Second, "`time` after which a connection that nobody uses is closed")
	if err := demo.Parse(f, args, 0); err != nil {
		return err
	}
	switch command {
	case "demo":
		return show(ctx)
	case "postgres":
		return servePostgres(ctx, *dir, func(line string) { fmt.Println(line) })
	case "pod", "caller":
	default:
		return fmt.Errorf("there is no %q: use pod, caller, postgres, or nothing for all of it", command)
	}
	if *ends == "" {
		return errors.New("say where coordinators are: --coordinator-addr")
	}
	c, err := client.New(client.Config{Endpoints: strings.Split(*ends, ",")})
	if err != nil {
		return err
	}
	defer c.Close()
	lis, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	if command == "caller" {
		return call(ctx, c, lis, *hold)
	}
	return serve(ctx, c, lis, cfg)
}

// serve is a pod: a member of the control plane, and an HTTP server of the tenants that it was
// given. It ends when ctx does, after its tenants were given to others.
func serve(ctx context.Context, c *client.Client, lis net.Listener, cfg poolConfig) error {
	p, err := newPod(ctx, cfg)
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	p.member, err = member.New(member.Config{
		ID: cfg.ID, Address: lis.Addr().String(), Keyspaces: []string{keyspace}, Client: c,
		Labels: map[string]string{"group": cfg.Group}, Pins: member.PinsConfig{Cleanup: p.rollBack}, Logger: demo.Logger(),
	})
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	fmt.Printf("pod %s is at %s, for %s tenants\n", cfg.ID, lis.Addr(), cfg.Group)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var all sync.WaitGroup
	all.Go(func() { p.tell(running) })
	served := make(chan error, 1)
	all.Go(func() {
		defer stop()
		served <- listen(running, lis, p.routes())
	})
	all.Go(func() {
		defer stop()
		select {
		case <-ctx.Done():
		case <-running.Done(): // it ends by itself
			return
		}
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
		defer cancel()
		if err := p.member.Drain(drain, "the pod was asked to end"); err != nil {
			fmt.Println("not drained:", err)
		}
	})
	err = p.member.Run(running, p)
	stop()
	all.Wait()
	return errors.Join(err, <-served)
}

// call is a caller: it has no state, and there may be any number. Requests of a tenant go to a
// pod that has it, by package proxy; those of a transaction to the pod that began it.
func call(ctx context.Context, c *client.Client, lis net.Listener, hold time.Duration) error {
	r, err := router.New(router.Config{Client: c, Keyspaces: []string{keyspace}, Pick: router.LeastLoaded, Hold: hold})
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	path, err := proxy.Path("/tenants/{key}/...")
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	key := func(req *http.Request) ([]byte, error) {
		tenant, err := path(req)
		if err == nil && !tenantName.Match(tenant) { // before it is given to a pod
			err = errName
		}
		return tenant, err
	}
	p, err := proxy.New(proxy.Config{Router: r, Key: key, ClaimOnMiss: true, Pins: proxy.NewPins(r, ""), Hold: hold})
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	fmt.Println("callers ask http://" + lis.Addr().String())
	mux := http.NewServeMux()
	mux.Handle("/tenants/", p.Lookup())
	mux.Handle("/transaction/", p.LookupLockAndProxy())
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	routed := make(chan error, 1)
	go func() {
		defer stop()
		routed <- r.Run(ctx)
	}()
	err = listen(ctx, lis, mux)
	stop()
	return errors.Join(err, <-routed, p.Close())
}

// listen serves until ctx ends, and then what it has begun.
func listen(ctx context.Context, lis net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	shut, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := server.Shutdown(shut)
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// settings are the command that makes the keyspace: the preset for tenants, with the pod that has
// the fewest open connections for whatever is placed; tenants whose names begin with big- at pods
// for them, and all others at the others.
func settings() []string {
	const rules = `{"policy": {"labelRules": [
		{"keyPrefix": "YmlnLQ==", "labels": {"group": "dedicated"}},
		{"keyPrefix": "", "labels": {"group": "shared"}}]}}`
	return []string{
		"keyspace", "create", keyspace, "--preset", "tenants", "--settings", rules, "--policy-strategy", "least_loaded",
		"--policy-rebalance-by", "load", "--policy-rebalance-settle", "8784h",
		"--scaling-enabled", "true", "--scaling-up-permille", "600", "--scaling-min-members", "4", "--scaling-max-members", fmt.Sprint(mostPods),
	}
}

// show is all of it: PostgreSQL, a cluster, pods, a caller, and clients that ask it.
func show(ctx context.Context) error {
	d, err := demo.Start(ctx, os.Stdout)
	if err != nil {
		return err
	}
	defer d.Stop()
	data, err := os.MkdirTemp("", "tenantpool-")
	if err != nil {
		return err
	}
	d.Say("data of PostgreSQL are in " + data + " until the example ends; kill -9 leaves them there")
	database, err := d.Self(ctx, "postgres", "postgres", "--dir", data)
	if err != nil {
		return errors.Join(err, os.RemoveAll(data))
	}
	defer func() { // it ends what it has started, and then there is nobody who still writes there
		database.Signal(syscall.SIGTERM)
		select {
		case <-database.Ended():
		case <-time.After(endWithin):
		}
		_ = os.RemoveAll(data)
	}()
	if _, err := d.NoKV(ctx, settings()...); err != nil {
		return err
	}
	if _, err := d.NoKV(ctx, "pin", "rotate"); err != nil {
		return err
	}
	needed := []*demo.Process{database}
	for _, id := range []string{"p1", "p2", "p3", "d1"} {
		group := map[bool]string{true: "dedicated", false: "shared"}[id == "d1"]
		p, err := d.Self(ctx, id, "pod", "--id", id, "--postgres", at(data), "--group", group)
		if err != nil {
			return err
		}
		d.Say(fmt.Sprintf("pod %s runs, for %s tenants: kill %d gives its tenants away, kill -9 leaves that to the others", id, group, p.PID()))
		needed = append(needed, p)
	}
	if err := arePresent(ctx, d, needed); err != nil {
		return err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0") // a free port for the caller
	if err != nil {
		return err
	}
	front := lis.Addr().String()
	if err := lis.Close(); err != nil {
		return err
	}
	if _, err := d.Self(ctx, "caller", "caller", "--addr", front); err != nil {
		return err
	}
	d.Say("ask http://" + front + " as the README says")
	l := newLoad("http://"+front, 12)
	return l.run(ctx, d.Say)
}

// arePresent waits until the pods are members, as long as every process runs that is needed for that: all
// but the first are pods.
func arePresent(ctx context.Context, d *demo.Demo, needed []*demo.Process) error {
	for {
		for _, p := range needed {
			select {
			case <-p.Ended():
				return fmt.Errorf("%s has ended before the pods were there: what it said is above", p.Name)
			default:
			}
		}
		said, err := d.NoKV(ctx, "member", "list", "-o", "json")
		if err != nil {
			return err
		}
		if strings.Count(said, `"address"`) >= len(needed)-1 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
