// Command kv is a bank over three stores: snapshots and transactions across regions, with
// timestamps and routes of the control plane.
//
//	go run ./examples/kv             a cluster, three stores and a bank: kill a store
//	go run ./examples/kv open        makes the accounts, in the regions that there are
//	go run ./examples/kv bank        tellers and an auditor, beside a cluster that runs
//	go run ./examples/kv audit       the sum of all accounts, in one snapshot
//	go run ./examples/kv reshape     splits, merges and leader transfers, one each second
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nokv/nokv/examples/internal/demo"
)

const stores = 3

func storeName(i int) string { return fmt.Sprintf("store-%d", i) }

func main() { os.Exit(demo.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:]) })) }

func run(ctx context.Context, args []string) error {
	command := "demo"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	f := flag.NewFlagSet("kv "+command, flag.ContinueOnError)
	ends := f.String("coordinator-addr", os.Getenv("NOKV_COORDINATOR_ADDR"), "`addresses` of coordinators")
	if err := demo.Parse(f, args, 0); err != nil {
		return err
	}
	if command == "demo" {
		return show(ctx)
	}
	if *ends == "" {
		return errors.New("say where coordinators are: --coordinator-addr")
	}
	k, err := openKV(ctx, strings.Split(*ends, ","))
	if err != nil {
		return err
	}
	defer k.close()
	switch command {
	case "open":
		return openAccounts(ctx, k)
	case "bank":
		return tell(ctx, k, func(line string) { fmt.Println(line) })
	case "audit":
		sum, count, at, err := audit(ctx, k)
		if err == nil {
			fmt.Printf("%d accounts have %d, at %d\n", count, sum, at)
		}
		return err
	case "reshape":
		return each(ctx, time.Second, func() error { fmt.Println(k.reshape(ctx)); return nil })
	}
	return fmt.Errorf("there is no %q: use open, bank, audit, reshape, or nothing for all of it", command)
}

// tell runs a bank, and says each five seconds and at the end what it did.
func tell(ctx context.Context, k *kv, say func(string)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	b := &bank{kv: k, begun: time.Now()}
	ended := make(chan error, 1)
	go func() {
		ended <- b.run(ctx)
		stop()
	}()
	_ = each(ctx, 5*time.Second, func() error { say(b.String()); return nil })
	err := <-ended
	say(b.String())
	return err
}

func each(ctx context.Context, every time.Duration, do func() error) error {
	for tick := time.NewTicker(every); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := do(); err != nil {
				return err
			}
		}
	}
}

// serve starts a store, again under the same number: its regions are in its folder.
func serve(ctx context.Context, d *demo.Demo, i int) (*demo.Process, error) {
	return d.Serve(ctx, storeName(i), "serve", "--store-id", fmt.Sprint(i), "--workdir", filepath.Join(d.Dir, storeName(i)), "--addr", "127.0.0.1:0", "--heartbeat", "200ms", "--log-level", "warn")
}

// open publishes three regions, each led by another store, and opens the accounts.
func open(ctx context.Context, d *demo.Demo, k *kv) error {
	for i := range stores {
		start, end := account(i*accounts/stores), account((i+1)*accounts/stores)
		if i == 0 {
			start = ""
		}
		if i == stores-1 {
			end = ""
		}
		args := []string{"region", "publish", start, end}
		for j := range stores {
			args = append(args, "--owner", storeName(1+(i+j)%stores))
		}
		if _, err := d.NoKV(ctx, args...); err != nil {
			return err
		}
	}
	return openAccounts(ctx, k)
}

// show is all of it: a cluster, stores, a bank, and regions that do not stay as they are.
func show(ctx context.Context) error {
	d, err := demo.Start(ctx, os.Stdout)
	if err != nil {
		return err
	}
	defer d.Stop()
	for i := 1; i <= stores; i++ {
		p, err := serve(ctx, d, i)
		if err != nil {
			return err
		}
		d.Say(fmt.Sprintf("%s runs: kill -9 %d ends it; it is started again then", p.Name, p.PID()))
		go func() { // what systemd would do
			for {
				select {
				case <-ctx.Done():
					return
				case <-p.Ended():
				}
				if p, err = serve(ctx, d, i); err != nil {
					return
				}
				d.Say(fmt.Sprintf("%s runs again: kill -9 %d", p.Name, p.PID()))
				if pause(ctx, time.Second) != nil {
					return
				}
			}
		}()
	}
	k, err := openKV(ctx, strings.Split(d.Coordinators, ","))
	if err != nil {
		return err
	}
	defer k.close()
	if err := ready(ctx, d); err != nil {
		return err
	}
	if err := open(ctx, d, k); err != nil {
		return err
	}
	teller, err := d.Self(ctx, "bank", "bank")
	if err != nil {
		return err
	}
	d.Say(fmt.Sprintf("a second bank runs: kill -9 %d ends it, and others end its locks", teller.PID()))
	go func() { _ = each(ctx, 2*time.Second, func() error { d.Say(k.reshape(ctx)); return nil }) }()
	return tell(ctx, k, d.Say)
}

// ready waits until every store is known: a region cannot have an owner before.
func ready(ctx context.Context, d *demo.Demo) error {
	for {
		out, err := d.NoKV(ctx, "member", "list", "-o", "json")
		if err != nil {
			return err
		}
		if strings.Count(out, `"id"`) == stores {
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
