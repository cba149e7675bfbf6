package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/nokv/nokv/internal/debugvars"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/meta/root"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
)

func metaRootCommand() *command {
	return &command{
		name: "meta-root", args: "-node-id N -workdir DIR -transport-addr ADDR -peer ID=ADDR ... [flags]", summary: "run one peer of the metadata root",
		long: `
A root peer owns rooted truth in its workdir. Start three with the same -peer
list; only -addr, -workdir, -node-id and -transport-addr differ. On the first
start they agree on a cluster when all of them are there. Later starts may name
some of the others; who the peers are is in the workdir.

  nokv meta-root -addr 127.0.0.1:2380 -workdir ./artifacts/cluster/meta-root-1 -node-id 1 \
    -transport-addr 127.0.0.1:3380 \
    -peer 1=127.0.0.1:3380 -peer 2=127.0.0.1:3381 -peer 3=127.0.0.1:3382

A lost peer is replaced by a new one: an empty workdir and a node id that was
never used, started with -join, then ` + "`nokv root replace`" + `:

  nokv meta-root -join -addr 127.0.0.1:2383 -workdir ./artifacts/cluster/meta-root-4 -node-id 4 \
    -transport-addr 127.0.0.1:3383 -peer 1=127.0.0.1:3380 -peer 3=127.0.0.1:3382
  nokv root replace --lost 2 --with 4`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			s := f.server("127.0.0.1:2380")
			var peers peerMap
			f.Var(&peers, "peer", "root peer `ID=ADDR`: its node id and raft transport address; at the first start the same list on every peer, this one included")
			join := f.Bool("join", false, "become a peer of the cluster of the -peer list: wait for nokv root replace (ignored once it is one)")
			node := f.Uint64("node-id", 0, "this peer's `id` in the -peer list (required)")
			workdir := f.String("workdir", "", "`folder` of this peer alone (required, or from -config)")
			transport := f.String("transport-addr", "", "`address` of the raft transport (default: this peer's in the -peer list)")
			advertise := f.String("advertise-addr", "", "gRPC `address` that clients use (default -addr)")
			election := f.duration("election-timeout", 500*time.Millisecond, "silence of the leader after which peers elect another; a heartbeat takes a fifth of it")
			checkpoint := f.Uint64("checkpoint-entries", 50_000, "`number` of entries of the log after which a checkpoint is written; two fifths of them stay in the log behind it")
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				o := &metaRootOptions{
					node: *node, workdir: *workdir, transport: *transport, advertise: *advertise,
					peers: peers.peers, election: *election, checkpoint: *checkpoint, join: *join,
				}
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
	checkpoint                    uint64 // entries
	join                          bool
}

func (o *metaRootOptions) serve(ctx context.Context, e *env, s *serverFlags) error {
	addr, err := o.resolve(s)
	if err != nil {
		return err
	}
	if err := o.check(addr); err != nil {
		return err
	}
	e.tuneGC()
	logger, flush, err := s.logger(e, fmt.Sprintf("meta-root-%d", o.node))
	if err != nil {
		return err
	}
	defer flush()
	certs, insecure, err := s.secure(principal.Root, fmt.Sprint(o.node), logger, listening{"-addr", addr}, listening{"-advertise-addr", o.advertise},
		listening{"-transport-addr", o.transport}, listening{"-peer", o.peers[o.node]}, listening{"-metrics-addr", *s.metricsAddr})
	if err != nil {
		return err
	}
	secret, err := seal.Open(*s.secretFile)
	if err != nil {
		return err
	}
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
		NodeID: o.node, Workdir: o.workdir, Peers: o.peers, Transport: o.reached(peerLis), Join: o.join,
		Advertise: o.advertise, ElectionTimeout: o.election, CheckpointEntries: o.checkpoint, TLS: certs, Insecure: insecure, Secret: secret, Budget: s.budget(), Logger: logger,
	})
	if err != nil {
		return err
	}
	return serveMetrics(ctx, metrics, debugvars.Source{Vars: peer.Vars, Healthy: peer.Healthy, TLS: certs, Verify: peer.Verify, Logger: logger}, func(ctx context.Context) error {
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

// reached is where the others reach the transport: as the -peer list says, or
// else where it listens.
func (o *metaRootOptions) reached(lis net.Listener) string {
	if a := o.peers[o.node]; a != "" {
		return a
	}
	return advertised(o.transport, lis)
}

// minCheckpoint and maxCheckpoint bound -checkpoint-entries: a checkpoint is as
// large as the state, and a restart applies again what came behind the last one.
const (
	minCheckpoint = 100
	maxCheckpoint = 10_000_000
)

func (o *metaRootOptions) check(addr string) error {
	switch {
	case o.node > state.MaxID:
		return usagef("-node-id %d: want at most %d", o.node, uint64(state.MaxID))
	case o.node == 0:
		return usagef("-node-id is required: this peer's id in the -peer list, 1 or more")
	case o.workdir == "":
		return usagef("-workdir is required: a folder of this peer alone")
	case o.election < 20*time.Millisecond:
		return usagef("-election-timeout %s: want 20ms or more", o.election)
	case o.checkpoint < minCheckpoint || o.checkpoint > maxCheckpoint:
		return usagef("-checkpoint-entries %d: want %d to %d", o.checkpoint, uint64(minCheckpoint), uint64(maxCheckpoint))
	}
	if err := o.checkPeers(); err != nil {
		return err
	}
	if err := checkAddr(o.transport); err != nil {
		return usagef("-transport-addr %s", err)
	}
	return checkListen(addr, o.advertise)
}

// checkPeers checks the -peer list. Of a workdir that is in use the list says
// addresses alone; whether it may found a cluster is looked at when it is open.
func (o *metaRootOptions) checkPeers() error {
	n, own := len(o.peers), o.peers[o.node]
	switch {
	case o.join && (n == 0 || n == 1 && own != ""):
		return usagef("-join: name another root peer with -peer ID=ADDR, better all of them")
	case o.join && own == "" && o.transport == "":
		return usagef("-join: say with -transport-addr where the others reach this peer's transport")
	case o.join && own == "" && everywhere(o.transport):
		return usagef("-join: -transport-addr %s listens on every address: say which one the others use with -peer %d=ADDR", o.transport, o.node)
	case o.join:
		return nil
	case n != 1 && n != 3 && n != 5 && isEmpty(o.workdir):
		return usagef("-peer: %d peers; want 3 (1 for a trial, 5 to survive two failures), each as ID=ADDR", n)
	case own == "":
		return usagef("-peer: node %d is not in the list %v; the list has every peer, this one included", o.node, sortedIDs(o.peers))
	}
	return nil
}

// isEmpty says whether a folder is missing or has nothing in it.
func isEmpty(dir string) bool {
	names, err := os.ReadDir(dir)
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0
}

// everywhere says whether an address listens on every one of the machine.
func everywhere(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	return host == "" || net.ParseIP(host).IsUnspecified()
}
