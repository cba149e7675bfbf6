package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/config"
	"github.com/nokv/nokv/coordinator"
	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/coordinator/rest"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/budget"
	"github.com/nokv/nokv/internal/debugvars"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func coordinatorCommand() *command {
	return &command{
		name: "coordinator", args: "-coordinator-id ID -root-peer ID=ADDR ... [flags]", summary: "serve routes, ids and timestamps",
		long: `
A coordinator owns no files: kill it at any time. It follows the metadata root
and serves routes; the one that holds the Tenure also serves ids and timestamps.

  nokv coordinator -addr 127.0.0.1:2379 -coordinator-id c1 \
    -root-peer 1=127.0.0.1:2380 -root-peer 2=127.0.0.1:2381 -root-peer 3=127.0.0.1:2382

With -config the address and the root peers come from the file; flags win.
"nokv coordinator list" shows the coordinators of a cluster.`,
		children: []*command{coordinatorList(), coordinatorRemove()},
		setup: func(f *flags) func(context.Context, *env, []string) error {
			s := f.server(config.DefaultCoordinatorAddr)
			var roots peerMap
			f.Var(&roots, "root-peer", "root peer `ID=ADDR`: its node id and gRPC address; repeat for each")
			id := f.String("coordinator-id", "", "stable `name` of this coordinator, the same after a restart (required)")
			advertise := f.String("advertise-addr", "", "`address` that callers use (default -addr)")
			ttl := f.duration("tenure-ttl", tenure.DefaultTTL, "how long the root's confirmation of authority is good for; 0: confirm every reply and trust no clock")
			mostTTL := f.duration("tenure-ttl-max", tenure.DefaultMostTTL, "longest `time` that -tenure-ttl grows to while confirmations come late; not above -tenure-ttl: it stays")
			idStart := f.Uint64("id-start", 1, "lowest id ever to serve")
			tsStart := f.Uint64("ts-start", 1, "lowest timestamp ever to serve")
			var origins origins
			f.Var(&origins, "allow-origin", "`origin`, such as https://console.example, whose pages may ask for REST in a browser; repeat for each (default none)")
			var hooks hookAllow
			f.Var(&hooks, "hook-allow", "`address` at which hooks of keyspaces may be asked: HOST, *.DOMAIN, IP or CIDR, with a :PORT or without; repeat for each (default none). Loopback and link-local addresses need one of their own")
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return serveCoordinator(ctx, e, s, &coordinatorOptions{
					roots: roots.peers, id: *id, advertise: *advertise, ttl: *ttl, mostTTL: *mostTTL, idStart: *idStart, tsoStart: *tsStart,
					origins: origins, hooks: hooks,
				})
			}
		},
	}
}

// coordinatorOptions describe one coordinator to run in this process.
type coordinatorOptions struct {
	roots             map[uint64]string
	id, advertise     string
	ttl, mostTTL      time.Duration
	idStart, tsoStart uint64
	origins           []string       // of pages that may ask for REST
	hooks             []string       // addresses at which hooks are asked
	certs             *mtls.Source   // nil: none
	insecure          bool           // others reach it all the same
	secret            *seal.Key      // nil: none
	budget            *budget.Budget // nil: one of its own
}

func serveCoordinator(ctx context.Context, e *env, s *serverFlags, o *coordinatorOptions) error {
	file, scope, err := s.load()
	if err != nil {
		return err
	}
	addr := *s.addr
	if file != nil {
		if addr == "" {
			if addr, err = file.ResolveCoordinatorAddr(scope); err != nil {
				return err
			}
		}
		if len(o.roots) == 0 {
			if o.roots, err = file.RootPeers(scope); err != nil {
				return err
			}
		}
	}
	if addr == "" {
		addr = config.DefaultCoordinatorAddr
	}
	if err := o.check(addr); err != nil {
		return err
	}
	e.tuneGC()
	logger, flush, err := s.logger(e, "coordinator")
	if err != nil {
		return err
	}
	defer flush()
	o.certs, o.insecure, err = s.secure(principal.Coordinator, o.id, logger, listening{"-addr", addr}, listening{"-advertise-addr", o.advertise},
		listening{"-metrics-addr", *s.metricsAddr})
	if err != nil {
		return err
	}
	if o.secret, err = seal.Open(*s.secretFile); err != nil {
		return err
	}
	lis, err := listen("coordinator "+o.id, addr)
	if err != nil {
		return err
	}
	defer lis.Close()
	if o.advertise == "" {
		o.advertise = advertised(addr, lis)
	}
	var metrics net.Listener
	if *s.metricsAddr != "" {
		if metrics, err = listen("metrics", *s.metricsAddr); err != nil {
			return err
		}
		defer metrics.Close()
	}
	o.budget = s.budget()
	return o.run(ctx, lis, metrics, logger)
}

func (o *coordinatorOptions) check(addr string) error {
	if o.id == "" {
		return usagef("-coordinator-id is required: a stable name, the same after a restart")
	}
	if len(o.roots) == 0 {
		return usagef("-root-peer is required: ID=ADDR for each of the root peers (or -config)")
	}
	if !isName(o.id) {
		return usagef("-coordinator-id %q: want up to %d characters without spaces", o.id, state.MaxIDBytes)
	}
	return checkListen(addr, o.advertise)
}

// origins are those of pages: a scheme and a host, nothing behind.
type origins []string

// String implements flag.Value.
func (o *origins) String() string { return strings.Join(*o, ",") }

// Set implements flag.Value.
func (o *origins) Set(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != text {
		return fmt.Errorf("want a scheme and a host, such as https://console.example")
	}
	*o = append(*o, text)
	return nil
}

// hookAllow are addresses of hooks.
type hookAllow []string

// String implements flag.Value.
func (h *hookAllow) String() string { return strings.Join(*h, ",") }

// Set implements flag.Value.
func (h *hookAllow) Set(text string) error {
	if _, err := hook.ParseAllow(text); err != nil {
		return err
	}
	*h = append(*h, text)
	return nil
}

// isName says whether the root takes an id.
func isName(id string) bool {
	return len(id) <= state.MaxIDBytes && rooted.CheckID("id", id) == nil
}

// run serves a coordinator on listeners that are open already, until ctx ends.
func (o *coordinatorOptions) run(ctx context.Context, lis, metrics net.Listener, logger hclog.Logger) error {
	if o.advertise == "" {
		o.advertise = lis.Addr().String()
	}
	c, err := coordinator.New(coordinator.Config{
		ID: o.id, Incarnation: randomID(), Advertise: o.advertise, RootPeers: o.roots, TenureTTL: o.ttl, TenureTTLMost: o.mostTTL,
		IDStart: o.idStart, TSOStart: o.tsoStart, Version: version, TLS: o.certs, Insecure: o.insecure, Secret: o.secret, HookAllow: o.hooks, Budget: o.budget, Logger: logger,
	})
	if err != nil {
		return usagef("%s", err)
	}
	var roots []string
	for _, id := range sortedIDs(o.roots) {
		roots = append(roots, fmt.Sprintf("%d=%s", id, o.roots[id]))
	}
	logger.Info("coordinator starts", "coordinator", o.id, "addr", lis.Addr(), "advertise", o.advertise,
		"roots", strings.Join(roots, ","), "tenure_ttl", o.ttl)
	watchCtx, stopWatch := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { reportRoot(watchCtx, c.Healthy, logger) })
	source := debugvars.Source{Vars: c.Vars, Healthy: c.Healthy, TLS: o.certs, Verify: c.Verify, Paths: rest.Paths, Logger: logger}
	if host, _, err := net.SplitHostPort(o.advertise); err == nil {
		source.Hosts = []string{host}
	}
	source.API = c.REST(source.Caller, o.origins)
	err = serveMetrics(ctx, metrics, source, func(ctx context.Context) error { return c.Run(ctx, lis) })
	stopWatch()
	watch.Wait()
	logger.Info("coordinator stopped", "coordinator", o.id)
	return err
}

// rootCheckEvery is the time between checks of the root, and the bound of one.
const rootCheckEvery = 2 * time.Second

// reportRoot logs when the root goes out of reach and when it is back: in
// between the coordinator serves best effort reads and nothing else. Each further
// reason is logged once: first nobody answers, and then who does may be another
// cluster.
func reportRoot(ctx context.Context, healthy func(context.Context) error, logger hclog.Logger) {
	ticker := time.NewTicker(rootCheckEvery)
	defer ticker.Stop()
	said := make(map[rootv1.Reason]bool) // why it is out of reach
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		checkCtx, cancel := context.WithTimeout(ctx, rootCheckEvery)
		err := healthy(checkCtx)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !said[reason.Of(err)]:
			logger.Warn("root is out of reach: only best effort reads are served until it is back", "err", plain(err.Error()))
			said[reason.Of(err)] = true
		case err == nil && len(said) > 0:
			logger.Info("root is back: everything is served")
			clear(said)
		}
	}
}
