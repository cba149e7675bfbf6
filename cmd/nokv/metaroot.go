package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/nokv/nokv/internal/debugvars"
	"github.com/nokv/nokv/meta/root"
)

func metaRootCommand() *command {
	return &command{
		name: "meta-root", args: "-node-id N -workdir DIR -transport-addr ADDR -peer ID=ADDR ... [flags]", summary: "run one peer of the metadata root",
		long: `
A root peer owns rooted truth in its workdir. Start three with the same -peer
list; only -addr, -workdir, -node-id and -transport-addr differ. On the first
start they agree on a cluster when all of them are there.

  nokv meta-root -addr 127.0.0.1:2380 -workdir ./artifacts/cluster/meta-root-1 -node-id 1 \
    -transport-addr 127.0.0.1:3380 \
    -peer 1=127.0.0.1:3380 -peer 2=127.0.0.1:3381 -peer 3=127.0.0.1:3382`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			s := f.server("127.0.0.1:2380")
			var peers peerMap
			f.Var(&peers, "peer", "root peer `ID=ADDR`: its node id and raft transport address; the same list on every peer, this one included")
			node := f.Uint64("node-id", 0, "this peer's `id` in the -peer list (required)")
			workdir := f.String("workdir", "", "`folder` of this peer alone (required, or from -config)")
			transport := f.String("transport-addr", "", "`address` of the raft transport (default: this peer's in the -peer list)")
			advertise := f.String("advertise-addr", "", "gRPC `address` that clients use (default -addr)")
			election := f.duration("election-timeout", 500*time.Millisecond, "silence of the leader after which peers elect another; a heartbeat takes a fifth of it")
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				o := &metaRootOptions{node: *node, workdir: *workdir, transport: *transport, advertise: *advertise, peers: peers.peers, election: *election}
				return o.serve(ctx, e, s)
			}
		},
	}
}

// metaRootOptions describe one root peer to run.
type metaRootOptions struct {
	node                          uint64
	workdir, transport, advertise string
	peers                         map[uint64]string
	election                      time.Duration
}

func (o *metaRootOptions) serve(ctx context.Context, e *env, s *serverFlags) error {
	addr, err := o.resolve(s)
	if err != nil {
		return err
	}
	if err := o.check(addr); err != nil {
		return err
	}
	tuneGC()
	logger, flush, err := s.logger(e, fmt.Sprintf("meta-root-%d", o.node))
	if err != nil {
		return err
	}
	defer flush()
	lis, err := listen(fmt.Sprintf("meta-root %d gRPC", o.node), addr)
	if err != nil {
		return err
	}
	defer lis.Close()
	if o.advertise == "" {
		o.advertise = advertised(addr, lis)
	}
	peerLis, err := listen(fmt.Sprintf("meta-root %d transport", o.node), o.transport)
	if err != nil {
		return err
	}
	defer peerLis.Close()
	var metrics net.Listener
	if *s.metricsAddr != "" {
		if metrics, err = listen("metrics", *s.metricsAddr); err != nil {
			return err
		}
		defer metrics.Close()
	}
	peer, err := root.Open(root.Config{
		NodeID: o.node, Workdir: o.workdir, Peers: o.peers, Advertise: o.advertise, ElectionTimeout: o.election, Logger: logger,
	})
	if err != nil {
		return err
	}
	return serveMetrics(ctx, metrics, debugvars.Source{Vars: peer.Vars, Healthy: peer.Healthy}, func(ctx context.Context) error {
		return peer.Run(ctx, lis, peerLis)
	})
}

// resolve takes what flags leave open from the config, and returns the gRPC address.
func (o *metaRootOptions) resolve(s *serverFlags) (string, error) {
	file, scope, err := s.load()
	if err != nil {
		return "", err
	}
	addr := *s.addr
	if file != nil && (addr == "" || o.workdir == "") {
		fileAddr, fileDir, err := file.ResolveMetaRoot(o.node, scope)
		if err != nil {
			return "", err
		}
		if addr == "" {
			addr = fileAddr
		}
		if o.workdir == "" {
			o.workdir = fileDir
		}
	}
	if addr == "" {
		addr = "127.0.0.1:2380"
	}
	if o.transport == "" {
		o.transport = o.peers[o.node]
	}
	return addr, nil
}

func (o *metaRootOptions) check(addr string) error {
	switch n := len(o.peers); {
	case o.node == 0:
		return usagef("-node-id is required: this peer's id in the -peer list, 1 or more")
	case o.workdir == "":
		return usagef("-workdir is required: a folder of this peer alone")
	case n != 1 && n != 3 && n != 5:
		return usagef("-peer: %d peers; want 3 (1 for a trial, 5 to survive two failures), each as ID=ADDR", n)
	case o.peers[o.node] == "":
		return usagef("-peer: node %d is not in the list %v; the list has every peer, this one included", o.node, sortedIDs(o.peers))
	case o.election < 20*time.Millisecond:
		return usagef("-election-timeout %s: want 20ms or more", o.election)
	}
	if err := checkAddr(o.transport); err != nil {
		return usagef("-transport-addr %s", err)
	}
	return checkListen(addr, o.advertise)
}
