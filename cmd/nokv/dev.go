package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/debugvars"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/meta/root"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/ca"
	"github.com/nokv/nokv/mtls/principal"
)

// devRoots is the number of root peers of `nokv dev`.
const devRoots = 3

func devCommand() *command {
	return &command{
		name: "dev", args: "[--workdir DIR] [--coordinators N] [--members N --preset NAME] [--tls]", summary: "run a whole cluster in one process, to try NoKV",
		long: `
Three root peers and coordinators on free loopback ports. The other commands find
it by themselves: where it is stands in <workdir>/dev.json, and in a file of the
user's that NOKV_COORDINATOR_ADDR overrules. With --workdir the data and the ports are
kept; without, they are gone when the process ends. Stop it with Ctrl-C.

Programs that are not this one find it by the line that begins with export.

With -o json it prints what stands in dev.json when the cluster is ready.

With --tls every process has a certificate of its own, made in <workdir>/certs, and
takes nobody without one; the other commands find that of an operator.

With --members it makes a keyspace of the preset's name, with a hundred regions if they
are points, and runs demo members that host them, a process each: see nokv worker. Kill
one of these processes, hang it, or drain its member, and watch nokv member list, and nokv events.

dev.json: {"coordinators","root_peers","metrics"} lists of host:port, {"workdir","pid"},
with --tls {"certs"}, with --members {"workers"}: a list of {"member","pid"}.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			workdir := f.String("workdir", "", "keep the data in this `folder` (default: a temporary one, removed at the end)")
			n := f.Int("coordinators", 2, "how many coordinators, 1 to 16")
			ttl := f.duration("tenure-ttl", tenure.DefaultTTL, "see nokv coordinator --help")
			var demo devMembers
			f.IntVar(&demo.n, "members", 0, "how many demo members, 0 to 16")
			f.StringVar(&demo.preset, "preset", "games", "settings of their keyspace: `name`")
			secure := f.Bool("tls", false, "make certificates, and let nobody in without one")
			level := f.String("log-level", "warn", "`trace, debug, info, warn, error or off`")
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				if *n < 1 || *n > 16 {
					return usagef("coordinators %d: want 1 to 16", *n)
				}
				if err := demo.check(); err != nil {
					return err
				}
				if hclog.LevelFromString(*level) == hclog.NoLevel {
					return usagef("log-level %q: use trace, debug, info, warn, error or off", *level)
				}
				return runDev(ctx, e, *workdir, *n, demo, *ttl, *secure, hclog.LevelFromString(*level))
			}
		},
	}
}

// dev is a cluster in one process.
type dev struct {
	logger hclog.Logger
	// moved are the ports of the last run that are taken now.
	moved []string
	file  devFile
	// notes are where file was written, by path, each locked until the end.
	notes map[string]*os.File
	peers []*root.Peer
	ports devPorts // of the last run
	// Listeners, opened before anything starts so that every address is known.
	rootLis, transportLis, coordinatorLis, metricsLis []net.Listener
	options                                           []*coordinatorOptions
	// certs are those of the root peers, of the coordinators, then the operator's;
	// empty without --tls.
	certs []*mtls.Source
	// workers are the demo members.
	workers []*procs.Process
}

// devPorts is ports.json in the workdir: where the processes of the last run
// listened, host:port, in order. The metrics of root peers come first.
type devPorts struct {
	RootPeers    []string `json:"root_peers"`
	Transports   []string `json:"transports"`
	Coordinators []string `json:"coordinators"`
	Metrics      []string `json:"metrics"`
}

func runDev(ctx context.Context, e *env, workdir string, n int, demo devMembers, ttl time.Duration, secure bool, level hclog.Level) (err error) {
	keep := workdir != ""
	if !keep {
		if workdir, err = os.MkdirTemp("", "nokv-dev-"); err != nil {
			return err
		}
		defer os.RemoveAll(workdir)
		defer removeAtSecondSignal(workdir)()
	}
	if workdir, err = filepath.Abs(workdir); err != nil {
		return err
	}
	e.tuneGC()
	sink := newSink(e.stderr)
	defer sink.close()
	if err := os.MkdirAll(workdir, 0o700); err != nil {
		return fmt.Errorf("workdir: %w", err)
	}
	d := &dev{
		logger: hclog.New(&hclog.LoggerOptions{Name: "nokv", Level: level, Output: sink}),
		file:   devFile{Workdir: workdir, PID: os.Getpid()},
		notes:  make(map[string]*os.File),
	}
	defer d.closeListeners()
	if raw, err := os.ReadFile(filepath.Join(workdir, "ports.json")); err == nil {
		_ = json.Unmarshal(raw, &d.ports) // what cannot be read is made anew
	}
	if secure {
		if err := d.issue(n, demo); err != nil {
			return fmt.Errorf("make certificates: %w", err)
		}
	}
	if err := d.prepare(workdir, n, ttl); err != nil {
		return err
	}
	if len(d.moved) > 0 {
		d.logger.Warn("ports of the last run are taken: using others", "addresses", strings.Join(d.moved, ","))
	}
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer d.endMembers()
	rootsCtx, stopRoots := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRoots()
	var roots, coordinators sync.WaitGroup
	d.start(rootsCtx, runCtx, stop, &roots, &coordinators)
	err = d.ready(runCtx)
	if err == nil && demo.n > 0 {
		err = d.host(runCtx, demo)
	}
	if err == nil {
		err = d.announce(runCtx, e, keep)
	}
	if err != nil {
		stop(err)
	}
	<-runCtx.Done()
	d.endMembers()
	// Coordinators first: they retire their era, so that the next start skips nothing.
	coordinators.Wait()
	stopRoots()
	roots.Wait()
	d.withdraw()
	if cause := context.Cause(runCtx); ctx.Err() == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// prepare opens every listener and workdir.
func (d *dev) prepare(workdir string, n int, ttl time.Duration) error {
	peers, roots := make(map[uint64]string), make(map[uint64]string)
	shared := budget.New(budget.Default())
	for i := range devRoots {
		id := uint64(i) + 1
		peers[id] = d.listen(&d.transportLis, d.ports.Transports)
		roots[id] = d.listen(&d.rootLis, d.ports.RootPeers)
		d.file.RootPeers = append(d.file.RootPeers, roots[id])
		d.file.Metrics = append(d.file.Metrics, d.listen(&d.metricsLis, d.ports.Metrics))
	}
	for i := range n {
		d.file.Coordinators = append(d.file.Coordinators, d.listen(&d.coordinatorLis, d.ports.Coordinators))
		d.file.Metrics = append(d.file.Metrics, d.listen(&d.metricsLis, d.ports.Metrics))
		d.options = append(d.options, &coordinatorOptions{
			id: devCoordinator(i), roots: roots, ttl: ttl, mostTTL: tenure.DefaultMostTTL, idStart: 1, tsoStart: 1, certs: d.own(devRoots + i), budget: shared,
			hooks: []string{"localhost", "127.0.0.0/8", "::1"}, // what runs beside it
		})
	}
	if got := len(d.rootLis) + len(d.transportLis) + len(d.coordinatorLis) + len(d.metricsLis); got != 3*devRoots+2*n {
		return errors.New("no free loopback ports")
	}
	for i := range devRoots {
		id := uint64(i) + 1
		peer, err := root.Open(root.Config{
			NodeID: id, Workdir: filepath.Join(workdir, fmt.Sprintf("meta-root-%d", id)), Peers: peers,
			Advertise: roots[id], TLS: d.own(i), Budget: shared, Logger: d.logger.Named(fmt.Sprintf("meta-root-%d", id)),
		})
		if err != nil {
			for _, p := range d.peers {
				err = errors.Join(err, p.Close())
			}
			return err
		}
		d.peers = append(d.peers, peer)
	}
	return nil
}

func devCoordinator(i int) string { return fmt.Sprintf("c%d", i+1) }

// own is the certificates of a process of this cluster; nil without --tls.
func (d *dev) own(i int) *mtls.Source {
	if len(d.certs) == 0 {
		return nil
	}
	return d.certs[i]
}

// issue makes the certificates of each process and of an operator, anew at each
// start, with an authority that lives as long as the data.
func (d *dev) issue(coordinators int, demo devMembers) error {
	dir := filepath.Join(d.file.Workdir, "certs")
	authority, err := ca.Load(filepath.Join(dir, "ca"))
	if errors.Is(err, fs.ErrNotExist) {
		if authority, err = ca.New("dev", time.Now(), ca.DefaultAuthorityLife); err == nil {
			err = authority.Save(filepath.Join(dir, "ca"))
		}
	}
	if err != nil {
		return err
	}
	var requests []ca.Request
	for i := range devRoots {
		requests = append(requests, ca.Request{Role: principal.Root, Name: fmt.Sprint(i + 1)})
	}
	for i := range coordinators {
		requests = append(requests, ca.Request{Role: principal.Coordinator, Name: devCoordinator(i)})
	}
	for i := range demo.n {
		requests = append(requests, ca.Request{Role: principal.Member, Name: demo.name(i)})
	}
	requests = append(requests, ca.Request{Role: principal.Operator, Name: "dev"})
	for _, r := range requests {
		own := filepath.Join(dir, fmt.Sprintf("%s-%s", r.Role, r.Name))
		pair, err := authority.Issue(r, time.Now())
		if err == nil {
			err = pair.Save(own)
		}
		if err != nil {
			return err
		}
		source, err := mtls.Open(own, mtls.Options{Logger: d.logger.Named("certs")})
		if err != nil {
			return err
		}
		d.certs, d.file.Certs = append(d.certs, source), own
	}
	return nil
}

// listen opens a loopback listener where the last run had its own, or on a free
// port when that is taken; "" when there is none. A free port is one that no outgoing
// connection takes while nokv dev does not run.
func (d *dev) listen(to *[]net.Listener, last []string) string {
	var lis net.Listener
	if i := len(*to); i < len(last) && strings.HasPrefix(last[i], "127.0.0.1:") {
		var err error
		if lis, err = net.Listen("tcp", last[i]); err != nil {
			d.moved = append(d.moved, last[i])
		}
	}
	if lis == nil {
		free, err := procs.Addrs(1)
		if err == nil {
			lis, err = net.Listen("tcp", free[0])
		}
		if err != nil {
			return ""
		}
	}
	*to = append(*to, lis)
	return lis.Addr().String()
}

func (d *dev) listening() devPorts {
	addresses := func(list []net.Listener) []string {
		out := make([]string, len(list))
		for i, lis := range list {
			out[i] = lis.Addr().String()
		}
		return out
	}
	return devPorts{
		RootPeers: addresses(d.rootLis), Transports: addresses(d.transportLis),
		Coordinators: addresses(d.coordinatorLis), Metrics: addresses(d.metricsLis),
	}
}

func (d *dev) closeListeners() {
	for _, list := range [][]net.Listener{d.rootLis, d.transportLis, d.coordinatorLis, d.metricsLis} {
		for _, lis := range list {
			_ = lis.Close()
		}
	}
}

// start runs everything; whatever ends early ends the whole.
func (d *dev) start(rootsCtx, ctx context.Context, stop context.CancelCauseFunc, roots, coordinators *sync.WaitGroup) {
	ended := func(what string, err error) {
		if err != nil {
			stop(fmt.Errorf("%s: %w", what, err))
		}
	}
	for i, peer := range d.peers {
		roots.Go(func() {
			ended(fmt.Sprintf("meta-root %d", i+1), serveMetrics(rootsCtx, d.metricsLis[i], debugvars.Source{Vars: peer.Vars, Healthy: peer.Healthy, TLS: d.own(i), Verify: peer.Verify},
				func(ctx context.Context) error { return peer.Run(ctx, d.rootLis[i], d.transportLis[i]) }))
		})
	}
	for i, o := range d.options {
		coordinators.Go(func() {
			ended("coordinator "+o.id, o.run(ctx, d.coordinatorLis[i], d.metricsLis[devRoots+i], d.logger.Named("coordinator-"+o.id)))
		})
	}
}

// client is that of the operator.
func (d *dev) client() (*client.Client, error) {
	return client.New(client.Config{Endpoints: d.file.Coordinators, TLS: d.own(len(d.certs) - 1)})
}

// ready waits until the cluster serves.
func (d *dev) ready(ctx context.Context) error {
	cl, err := d.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	ready, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := cl.Tso(ready, 1); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the cluster did not become ready: %w", err)
	}
	return ctx.Err()
}

// announce says where the cluster is.
func (d *dev) announce(ctx context.Context, e *env, keep bool) error {
	if err := writeWhole(filepath.Join(d.file.Workdir, "ports.json"), d.listening()); err != nil {
		return err
	}
	err := d.note(filepath.Join(d.file.Workdir, "dev.json"))
	if err != nil {
		return err
	}
	noteErr := os.MkdirAll(e.devNotes(), 0o700)
	if noteErr == nil {
		noteErr = ownFolder(e.devNotes())
	}
	if noteErr == nil {
		noteErr = d.note(filepath.Join(e.devNotes(), fmt.Sprintf("dev-%d-%08x.json", d.file.PID, rand.Uint32())))
	}
	if noteErr != nil {
		d.logger.Warn("the note that other commands find the cluster by cannot be written: tell them where it is with NOKV_COORDINATOR_ADDR", "err", noteErr)
	}
	data := d.file.Workdir
	if !keep {
		data += " (removed at the end; keep it with --workdir DIR)"
	}
	if e.output == "json" {
		return e.print(&d.file, nil)
	}
	fmt.Fprintf(e.stdout, "NoKV is running. Ctrl-C stops it.\n\n")
	for i, a := range d.file.Coordinators {
		fmt.Fprintf(e.stdout, "  coordinator c%d  %s   metrics %s://%s/debug/vars\n", i+1, a, d.own(0).Scheme(), d.file.Metrics[devRoots+i])
	}
	for i, a := range d.file.RootPeers {
		fmt.Fprintf(e.stdout, "  meta-root %d     %s   metrics %s://%s/debug/vars\n", i+1, a, d.own(0).Scheme(), d.file.Metrics[i])
	}
	for _, w := range d.file.Workers {
		fmt.Fprintf(e.stdout, "  member %-9sprocess %d   log %s\n", w.Member, w.PID, filepath.Join(d.file.Workdir, w.Member+".log"))
	}
	fmt.Fprintf(e.stdout, "  data            %s\n\nTry, in another terminal:\n", data)
	fmt.Fprintf(e.stdout, "  %s\n", d.file.export())
	fmt.Fprintf(e.stdout, "  go run ./cmd/nokv tso\n  go run ./cmd/nokv region publish a m\n  go run ./cmd/nokv region get banana\n")
	if len(d.file.Workers) > 0 {
		fmt.Fprintf(e.stdout, "  kill -9 %d; go run ./cmd/nokv events\n", d.file.Workers[0].PID)
	}
	return nil
}

// note writes where the cluster is into a file, which is locked as long as this process
// lives.
func (d *dev) note(path string) error {
	f, err := writeLocked(path, &d.file)
	if err == nil {
		d.notes[path] = f
	}
	return err
}

// withdraw takes the notes of this process away.
func (d *dev) withdraw() {
	for path, f := range d.notes {
		_ = os.Remove(path)
		_ = f.Close()
	}
}

// removeAtSecondSignal removes a folder when a second signal ends the process at
// once. What is returned ends the wait for it.
func removeAtSecondSignal(dir string) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ended := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for range 2 {
			select {
			case <-signals:
			case <-ended:
				return
			}
		}
		for range 10 { // root peers may be making files in it
			if os.RemoveAll(dir) == nil {
				break
			}
		}
		os.Exit(exitInterrupted)
	})
	return func() {
		signal.Stop(signals)
		close(ended)
		wait.Wait()
	}
}

// waitBriefly waits for done, but not for a reader that has stopped.
func waitBriefly(done <-chan struct{}) {
	select {
	case <-done:
	case <-time.After(time.Second):
	}
}
