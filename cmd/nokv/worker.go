package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

func workerCommand() *command {
	return &command{
		name: "worker", args: "--id NAME [--members N] [flags]", summary: "run demo members with simulated load, to try NoKV",
		long: `
A member hosts regions of assigned keyspaces. These ones keep nothing: they say what
they acquire and release, report a load that is made up, and answer requests:

  curl http://ADDRESS/games/KEY           as the region is held now
  curl http://ADDRESS/games/KEY?epoch=1.2 at exactly this epoch

Who does not have it any more names the next owner in the headers Nokv-Member and
Nokv-Epoch, to be asked once; nokv member list has the addresses.

With --members N there are N of them in this process, NAME-1 to NAME-N. The first Ctrl-C
or SIGTERM gives the regions to others before the process ends; the second one ends it.

Load of a region is --load times its weight: a few regions have most (Zipf), who that
is changes with each --step, and there is some noise.

With certificates, each member needs its own, with its name: --certs has them in
folders member-NAME, or is that of the only one.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			w := &worker{flags: f}
			f.StringVar(&w.id, "id", "", "`name` of the member, the same after a restart (required)")
			f.IntVar(&w.members, "members", 1, "how many members, 1 to 1,000")
			f.StringVar(&w.host, "host", "127.0.0.1", "`address` without a port that members listen on, and are reached at")
			f.keyspaces(&w.keyspaces)
			f.Float64Var(&w.load, "load", 1, "load of the hottest region")
			f.Float64Var(&w.noise, "noise", 0.1, "how much of the load is noise, 0 to 1")
			w.step = f.duration("step", 30*time.Second, "`time` after which other regions are hot; 0: never")
			w.drain = f.duration("drain", 10*time.Second, "`time` that others have to take the regions when this process ends; 0: none")
			level := f.String("log-level", "warn", "`trace, debug, info, warn, error or off`")
			w.ends = f.endpoints()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				switch {
				case len(args) > 0:
					return usagef("no arguments, got %q", args)
				case w.id == "" || !isName(w.id):
					return usagef("--id %q: want a name without spaces, the same after a restart", w.id)
				case w.host == "" || strings.ContainsAny(w.host, " /") || strings.Contains(w.host, ":") && net.ParseIP(w.host) == nil:
					return usagef("--host %q: want a name or an address without a port, such as 127.0.0.1", w.host)
				case w.members < 1 || w.members > 1000:
					return usagef("members %d: want 1 to 1000", w.members)
				case !(w.load >= 0) || math.IsInf(w.load, 0) || !(w.noise >= 0 && w.noise <= 1):
					return usagef("load %v, noise %v: want 0 or more, and 0 to 1", w.load, w.noise)
				case hclog.LevelFromString(*level) == hclog.NoLevel:
					return usagef("log-level %q: use trace, debug, info, warn, error or off", *level)
				}
				w.logger = hclog.New(&hclog.LoggerOptions{Name: "nokv", Level: hclog.LevelFromString(*level), Output: e.stderr})
				return w.run(ctx, e)
			}
		},
	}
}

// worker is demo members in one process.
type worker struct {
	flags       *flags
	id, host    string
	keyspaces   []string
	members     int
	load, noise float64
	step, drain *time.Duration
	ends        endpointFlags
	logger      hclog.Logger
	begun       time.Time

	mu  sync.Mutex
	env *env // guarded by mu: whoever prints
}

// workerEvent is a line of nokv worker -o json. The field names stay.
type workerEvent struct {
	Time     time.Time `json:"time"`
	Member   string    `json:"member"`
	Event    string    `json:"event"`
	Address  string    `json:"address,omitempty"`
	Keyspace string    `json:"keyspace,omitempty"`
	Region   uint64    `json:"region,omitempty"`
	Epoch    string    `json:"epoch,omitempty"`
	Key      string    `json:"key,omitempty"`
	Why      string    `json:"why,omitempty"`
}

func (w *worker) say(v workerEvent) {
	v.Time = time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.env.output == "json" {
		_ = w.env.printLine(v)
		return
	}
	line := fmt.Sprintf("%s  %s  %s", v.Time.Format("15:04:05.000"), v.Member, v.Event)
	if v.Region != 0 {
		line += fmt.Sprintf("  region %d at %s  %s %q", v.Region, v.Epoch, v.Keyspace, v.Key)
	}
	for _, s := range []string{v.Address, v.Why} {
		if s != "" {
			line += "  " + s
		}
	}
	fmt.Fprintln(w.env.stdout, line)
}

// say is say of a region.
func (d *demo) say(event string, r member.Region, why string) {
	d.worker.say(workerEvent{
		Member: d.id, Event: event, Keyspace: r.Keyspace, Region: uint64(r.ID), Epoch: showEpoch(r.Epoch), Key: showKey([]byte(r.Start)), Why: why,
	})
}

func showEpoch(e rooted.Epoch) string { return fmt.Sprintf("%d.%d", e.Version, e.ConfVersion) }

// run starts every member, and waits until all have ended.
func (w *worker) run(ctx context.Context, e *env) error {
	w.env, w.begun = e, time.Now()
	t, err := w.ends.resolve(w.logger)
	if err != nil {
		return err
	}
	demos := make([]*demo, w.members)
	for i := range demos {
		if demos[i], err = w.demo(i, t); err != nil {
			for _, d := range demos[:i] {
				d.close()
			}
			return err
		}
	}
	runCtx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var running, watching sync.WaitGroup
	var mu sync.Mutex
	for _, d := range demos {
		running.Go(func() {
			defer d.close()
			if err := d.run(runCtx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				stop(fmt.Errorf("member %s: %w", d.id, err))
			}
		})
	}
	watching.Go(func() {
		select {
		case <-ctx.Done():
		case <-runCtx.Done():
			return
		}
		w.leave(demos)
		stop(nil)
	})
	running.Wait()
	err = context.Cause(runCtx)
	stop(nil)
	watching.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// leave gives all regions to others, if there is time for it.
func (w *worker) leave(demos []*demo) {
	if *w.drain == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), *w.drain)
	defer cancel()
	var leaving sync.WaitGroup
	for _, d := range demos {
		leaving.Go(func() {
			begin := time.Now()
			if err := d.member.Drain(ctx, "the worker was asked to end"); err != nil {
				w.say(workerEvent{Member: d.id, Event: "not drained", Why: err.Error()})
				return
			}
			w.say(workerEvent{Member: d.id, Event: "drained", Why: "in " + time.Since(begin).Round(time.Millisecond).String()})
		})
	}
	leaving.Wait()
}

// demo is one member. It implements member.Handler.
type demo struct {
	worker   *worker
	id       string
	member   *member.Member
	client   *client.Client
	listener net.Listener
	certs    *mtls.Source

	mu   sync.Mutex
	held map[rooted.RegionID]*hosted // guarded by mu
}

// hosted is a region that is held, and how many requests it has had: its frontier.
type hosted struct{ requests uint64 }

// demo makes a member that does not run yet.
func (w *worker) demo(i int, t target) (*demo, error) {
	d := &demo{worker: w, id: w.id, certs: t.certs, held: map[rooted.RegionID]*hosted{}}
	if w.members > 1 {
		d.id = fmt.Sprintf("%s-%d", w.id, i+1)
	}
	if d.certs != nil {
		own := filepath.Join(d.certs.Dir(), "member-"+d.id)
		if _, err := os.Stat(own); err == nil {
			if d.certs, err = mtls.Open(own, mtls.Options{Logger: w.logger.Named("certs")}); err != nil {
				return nil, err
			}
		}
		if who := d.certs.Principal(); who.Role != principal.Member || who.Name != d.id {
			return nil, usagef("the certificate in %s is that of %s, not of member/%s: nokv cert issue --role member --name %s makes one, for --certs or a folder member-%s in it", d.certs.Dir(), who, d.id, d.id, d.id)
		}
	}
	var err error
	if d.client, err = client.New(client.Config{Endpoints: t.addrs, TLS: d.certs, Logger: w.logger.Named("client")}); err != nil {
		return nil, usagef("%s", err)
	}
	if d.listener, err = net.Listen("tcp", net.JoinHostPort(w.host, "0")); err != nil {
		_ = d.client.Close()
		return nil, err
	}
	cfg := member.Config{
		ID: d.id, Address: d.listener.Addr().String(), ProbeAddress: net.JoinHostPort(w.host, "0"), Kind: "worker",
		Keyspaces: w.keyspaces, Client: d.client, TLS: d.certs, Logger: w.logger,
	}
	if d.member, err = member.New(cfg); err != nil {
		d.close()
		return nil, usagef("%s", err)
	}
	return d, nil
}

func (d *demo) close() {
	_ = d.listener.Close()
	_ = d.client.Close()
}

// run serves until ctx ends.
func (d *demo) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{Handler: d.certs.Handler(d), ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { _ = server.Serve(d.certs.HTTP(d.listener)) })
	defer server.Close()
	beside.Go(func() { d.simulate(ctx) })
	d.worker.say(workerEvent{Member: d.id, Event: "starts", Address: d.listener.Addr().String()})
	err := d.member.Run(ctx, d)
	d.worker.say(workerEvent{Member: d.id, Event: "ended"})
	cancel()
	return err
}

// Acquire implements member.Handler.
func (d *demo) Acquire(_ context.Context, r member.Region) error {
	d.keep(r)
	d.say("acquired", r, "")
	return nil
}

// Release implements member.Handler. The frontier is the number of requests that the
// region has had.
func (d *demo) Release(_ context.Context, r member.Region) ([]byte, error) {
	n := d.drop(r)
	d.say("released", r, "")
	return strconv.AppendUint(nil, n, 10), nil
}

// Merge implements member.Merger.
func (d *demo) Merge(_ context.Context, left, right member.Region) ([]byte, error) {
	l, _ := strconv.Atoi(left.Frontier)
	r, _ := strconv.Atoi(right.Frontier)
	d.say("merged", left, fmt.Sprintf("with region %d", right.ID))
	return strconv.AppendInt(nil, int64(max(l, r)), 10), nil
}

// Evict implements member.Evicter.
func (d *demo) Evict(_ context.Context, r member.Region) error {
	d.drop(r)
	d.say("lost", r, "it was given to another member")
	return nil
}

// Prepare implements member.Preparer.
func (d *demo) Prepare(_ context.Context, r member.Region, from member.Peer) error {
	d.say("prepared", r, fmt.Sprintf("to take it from %s", from.ID))
	return nil
}

// Abandon implements member.Preparer.
func (d *demo) Abandon(_ context.Context, r member.Region) error {
	d.say("abandoned", r, "the move was given up")
	return nil
}

// Checkpoint implements member.Checkpointer.
func (d *demo) Checkpoint(_ context.Context, r member.Region) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.held[r.ID]; h != nil {
		return strconv.AppendUint(nil, h.requests, 10), nil
	}
	return []byte(r.Frontier), nil
}

// Stopped implements member.Stopper.
func (d *demo) Stopped(_ context.Context, keyspace string) {
	d.worker.say(workerEvent{Member: d.id, Event: "stopped", Keyspace: keyspace, Why: "nobody confirms it in keyspace " + keyspace})
}

// Resumed implements member.Stopper.
func (d *demo) Resumed(_ context.Context, keyspace string) {
	d.worker.say(workerEvent{Member: d.id, Event: "resumed", Keyspace: keyspace, Why: "in keyspace " + keyspace})
}

func (d *demo) keep(r member.Region) {
	n, _ := strconv.ParseUint(r.Frontier, 10, 64)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[r.ID] = &hosted{n}
}

// drop says how many requests the region has had.
func (d *demo) drop(r member.Region) (requests uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.held[r.ID]; h != nil {
		requests = h.requests
	}
	delete(d.held, r.ID)
	return requests
}

// request counts a request of a region.
func (d *demo) request(r member.Region) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.held[r.ID]
	if h == nil {
		return 0 // it was lost since the request was let in, which the check behind it finds
	}
	h.requests++
	return h.requests
}

// ServeHTTP answers GET /KEYSPACE/KEY.
func (d *demo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	keyspace, key, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if !ok || r.Method != http.MethodGet {
		http.Error(w, "want GET /KEYSPACE/KEY", http.StatusBadRequest)
		return
	}
	req := member.Request{Keyspace: keyspace, Key: []byte(key)}
	if text := cmp.Or(r.URL.Query().Get("epoch"), r.Header.Get(router.HeaderEpoch)); text != "" {
		var err error
		if req.Epoch, err = router.ParseEpoch(text); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	var answer string
	err := d.member.Do(r.Context(), req, func(_ context.Context, region member.Region) error {
		answer = fmt.Sprintf("%s serves %q in region %d at %s: request %d of incarnation %d\n",
			d.id, key, region.ID, showEpoch(region.Epoch), d.request(region), d.member.Status().Incarnation)
		return nil
	})
	if no := router.RefusalOf(err); no != nil { // also when the right was lost behind the work: nothing was said yet
		no.WriteHTTP(w)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, answer)
}

// simulateEvery is the time between two loads that are made up.
const simulateEvery = 500 * time.Millisecond

// simulate reports load until ctx ends.
func (d *demo) simulate(ctx context.Context) {
	ticker := time.NewTicker(simulateEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		d.mu.Lock()
		loads := make(map[rooted.RegionID]float64, len(d.held))
		for id := range d.held {
			loads[id] = d.worker.loadOf(id, time.Since(d.worker.begun))
		}
		d.mu.Unlock()
		total := 0.0
		for id, load := range loads {
			total += load
			d.member.Report(id, member.Stats{Load: load})
		}
		d.member.SetLoad(member.Load{Load: total})
	}
}

// zipfRanks is how many weights there are: regions of one rank weigh the same.
const zipfRanks = 1024

// loadOf is the load of a region at a time since the worker began.
func (w *worker) loadOf(id rooted.RegionID, since time.Duration) float64 {
	step := uint64(0)
	if *w.step > 0 {
		step = uint64(since / *w.step)
	}
	// A rank by chance that is the same in every process.
	rank := rand.New(rand.NewPCG(uint64(id), step)).IntN(zipfRanks)
	return w.load / float64(1+rank) * (1 + w.noise*(2*rand.Float64()-1))
}
