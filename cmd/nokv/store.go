package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"time"

	"github.com/nokv/nokv/config"
	"github.com/nokv/nokv/internal/debugvars"
	"github.com/nokv/nokv/mtls/principal"
	"github.com/nokv/nokv/store"
)

func serveCommand() *command {
	return &command{
		name: "serve", args: "--coordinator-addr ADDR[,ADDR] --store-id N --workdir DIR [flags]", summary: "host regions of a reported keyspace: the reference store",
		long: `
A store hosts the regions of which it is an owner, as member store-N, and serves a small
versioned KV over those that it leads: its first owner leads a region.

Its regions are NOT replicated by raft. The data of a region is in the workdir of the one
store that leads it, and is copied when the lead goes to another owner: with that disk it
is lost. Use it to see routes, epochs, splits, merges and leader transfers with real data.

  nokv serve --coordinator-addr 127.0.0.1:2379 --config raft_config.json --scope host \
    --store-id 1 --workdir ./artifacts/cluster/store-1

What it hosts comes from its workdir and from the root, never from the regions of
the config, which maps store ids to addresses and nothing else. It serves when a
coordinator has answered its registration, and from then on also while none answers. A workdir is of one store: --store-id must match.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			s, o := storeFlags(f)
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return o.serve(ctx, e, s)
			}
		},
	}
}

// storeOptions describe one store to run.
type storeOptions struct {
	coordinators, workdir, keyspace *string
	id                              *uint64
	heartbeat                       *time.Duration
	rebind                          *bool
	addrs                           peerMap
}

func storeFlags(f *flags) (*serverFlags, *storeOptions) {
	s := f.serving("that of the config, or 127.0.0.1:20160")
	o := &storeOptions{
		coordinators: f.String("coordinator-addr", "", "coordinator `addresses` host:port[,host:port...] (required, here, in NOKV_COORDINATOR_ADDR or in the config)"),
		id:           f.Uint64("store-id", 0, "`number` of this store, 1 or more (required)"),
		workdir:      f.String("workdir", "", "`folder` of this store alone (required, here or in the config)"),
		keyspace:     f.String("keyspace", "default", "`name` of the keyspace whose regions it hosts"),
		rebind:       f.Bool("rebind", false, "take the workdir as it is, once: into a cluster that was restored from a backup, or though another copy of it has run since, which loses what that wrote"),
		heartbeat:    f.duration("heartbeat", store.DefaultHeartbeat, "`time` between two heartbeats"),
	}
	f.Var(&o.addrs, "store-addr", "where a store is reached, `ID=ADDR`, whatever the config and the root say; repeat for each")
	return s, o
}

func (o *storeOptions) serve(ctx context.Context, e *env, s *serverFlags) error {
	cfg, addr, err := o.resolve(s)
	if err != nil {
		return err
	}
	if err := checkListen(addr, cfg.Advertise); err != nil {
		return err
	}
	e.tuneGC()
	logger, flush, err := s.logger(e, fmt.Sprintf("store-%d", *o.id))
	if err != nil {
		return err
	}
	defer flush()
	cfg.Logger = logger
	cfg.TLS, cfg.Insecure, err = s.secure(principal.Member, string(store.MemberID(*o.id)), logger, listening{"-addr", addr},
		listening{"-store-addr", cfg.Advertise}, listening{"-metrics-addr", *s.metricsAddr})
	if err != nil {
		return err
	}
	lis, err := listen(fmt.Sprintf("store %d", *o.id), addr)
	if err != nil {
		return err
	}
	defer lis.Close()
	if cfg.Advertise == "" {
		cfg.Advertise = advertised(addr, lis)
	}
	var metrics net.Listener
	if *s.metricsAddr != "" {
		if metrics, err = listen("metrics", *s.metricsAddr); err != nil {
			return err
		}
		defer metrics.Close()
	}
	cfg.Budget = s.budget()
	st, err := store.Open(*cfg)
	if err != nil {
		return err
	}
	logger.Info("store starts", "store", cfg.StoreID, "addr", lis.Addr(), "advertise", cfg.Advertise, "workdir", cfg.Workdir, "workdir_id", hex.EncodeToString(st.WorkdirID()))
	return serveMetrics(ctx, metrics, debugvars.Source{Vars: st.Vars, Healthy: st.Healthy, TLS: cfg.TLS, Logger: logger}, func(ctx context.Context) error {
		return st.Run(ctx, lis)
	})
}

// resolve takes what flags leave open from the config. Its regions are not looked at.
func (o *storeOptions) resolve(s *serverFlags) (*store.Config, string, error) {
	if *o.id == 0 {
		return nil, "", usagef("--store-id is required: the number of this store, the same after a restart")
	}
	file, scope, err := s.load()
	if err != nil {
		return nil, "", err
	}
	cfg := &store.Config{StoreID: *o.id, Workdir: *o.workdir, Keyspace: *o.keyspace, Heartbeat: *o.heartbeat, Rebind: *o.rebind, StoreAddrs: map[uint64]string{}}
	addr, coordinators := *s.addr, *o.coordinators
	if coordinators == "" {
		coordinators = s.flags.env.variable("NOKV_COORDINATOR_ADDR")
	}
	if file != nil {
		if err := fromFile(cfg, &addr, &coordinators, file, scope); err != nil {
			return nil, "", err
		}
	}
	for id, a := range o.addrs.peers {
		cfg.StoreAddrs[id] = a
	}
	cfg.Advertise = o.addrs.peers[*o.id]
	switch {
	case coordinators == "":
		return nil, "", usagef("--coordinator-addr or NOKV_COORDINATOR_ADDR is required: host:port of one coordinator or more")
	case cfg.Workdir == "":
		return nil, "", usagef("--workdir is required: a folder of this store alone")
	case cfg.Heartbeat == 0:
		return nil, "", usagef("heartbeat 0: want more")
	case addr == "":
		addr = "127.0.0.1:20160"
	}
	cfg.Coordinators, err = splitAddrs("--coordinator-addr", coordinators)
	return cfg, addr, err
}

// fromFile fills in what flags have left open.
func fromFile(cfg *store.Config, addr, coordinators *string, file *config.File, scope config.Scope) error {
	for _, other := range file.Stores {
		a, dir, err := file.ResolveStore(other.StoreID, scope)
		if err != nil {
			return err
		}
		cfg.StoreAddrs[other.StoreID] = a
		if other.StoreID == cfg.StoreID {
			if *addr == "" {
				*addr = a
			}
			if cfg.Workdir == "" {
				cfg.Workdir = dir
			}
		}
	}
	if *coordinators != "" {
		return nil
	}
	a, err := file.ResolveCoordinatorAddr(scope)
	*coordinators = a
	return err
}
