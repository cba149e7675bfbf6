package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/internal/reason"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func rootCommand() *command {
	return &command{
		name: "root", summary: "inspect and steer the metadata root",
		children: []*command{rootStatus(), rootEvents(), rootVerify(), rootBackup(), rootRestore(), rootReplace(), rootUpgrade(), rootSettings(), rootTransfer()},
	}
}

// rootFlags are the flags of commands that talk to root peers.
type rootFlags struct {
	env     *env
	peers   peerMap
	certs   *string
	timeout *time.Duration
	verbose *bool
}

func (f *flags) root() *rootFlags { return f.rootWithin(5 * time.Second) }

func (f *flags) rootWithin(timeout time.Duration) *rootFlags {
	r := &rootFlags{env: f.env}
	f.Var(&r.peers, "root-peer", "root peer `ID=ADDR`: its node id and gRPC address; repeat for each (default: those of the coordinators in NOKV_COORDINATOR_ADDR, of a running `nokv dev`, 127.0.0.1:2380 to 2382)")
	r.certs = f.certsFlag()
	r.timeout = f.duration("timeout", timeout, "`time` to wait for the whole command")
	r.verbose = f.Bool("v", false, "log retries to standard error")
	return r
}

// call runs fn with a root client, for so long; 0: without an end.
func (r *rootFlags) call(ctx context.Context, timeout time.Duration, fn func(context.Context, *rootclient.Client) error) error {
	return r.callAs(ctx, "", timeout, fn)
}

// callAs is call by a reader with an id: it is told the secrets.
func (r *rootFlags) callAs(ctx context.Context, reader string, timeout time.Duration, fn func(context.Context, *rootclient.Client) error) error {
	peers, certs, err := r.resolve(ctx)
	if err != nil {
		return err
	}
	cl, err := rootclient.New(rootclient.Config{Peers: peers, ReaderID: reader, TLS: certs, Logger: r.env.logger(*r.verbose)})
	if err != nil {
		return usagef("%s", err)
	}
	runCtx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cl.Run(runCtx) }()
	callCtx, cancel := runCtx, context.CancelFunc(func() {})
	if timeout > 0 {
		callCtx, cancel = context.WithTimeout(runCtx, timeout)
	}
	err = fn(callCtx, cl)
	cancel()
	stop()
	<-ended
	cl.Close()
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// letsIn fails fast when no root peer is there, or none lets this process in.
func (r *rootFlags) letsIn(ctx context.Context) error {
	peers, certs, err := r.resolve(ctx)
	if err != nil {
		return err
	}
	t := target{certs: certs, hint: "Start the root peers, or say where they are with --root-peer ID=ADDR"}
	for _, id := range sortedIDs(peers) {
		t.addrs = append(t.addrs, peers[id])
	}
	return t.letsIn(ctx, principal.Root, patience)
}

// rootPeerOutput is one peer of `nokv root status -o json`. The field names stay.
type rootPeerOutput struct {
	NodeID      uint64 `json:"node_id"`
	Address     string `json:"address"`
	Error       string `json:"error,omitempty"`
	ClusterID   string `json:"cluster_id,omitempty"`
	Incarnation uint64 `json:"incarnation"`
	Role        string `json:"role"`
	// PeerRole is voter, learner, joining, leaving or replaced; empty: not known.
	PeerRole string `json:"peer_role"`
	// Replaces is the peer that a learner or joining one is to replace.
	Replaces        uint64 `json:"replaces"`
	Term            uint64 `json:"term"`
	LeaderID        uint64 `json:"leader_id"`
	CommitIndex     uint64 `json:"commit_index"`
	AppliedIndex    uint64 `json:"applied_index"`
	FirstIndex      uint64 `json:"first_index"`
	LastIndex       uint64 `json:"last_index"`
	CheckpointIndex uint64 `json:"checkpoint_index"`
	CheckpointBytes uint64 `json:"checkpoint_bytes"`
	StateHash       string `json:"state_hash"`
	TailReaders     uint64 `json:"tail_readers"`
	Stalled         bool   `json:"stalled"`
	// NoRoom is what the peer does without because its disk is full; empty: nothing.
	NoRoom string `json:"no_room"`
	// DiskFreeBytes of DiskTotalBytes are free; 0 of 0: not known. DiskLow says that they are too few.
	DiskFreeBytes  uint64 `json:"disk_free_bytes"`
	DiskTotalBytes uint64 `json:"disk_total_bytes"`
	DiskLow        string `json:"disk_low,omitempty"`
	// StateDiffers says whose state differs from this peer's; empty: nobody's. NotVoting: it
	// does not vote for that.
	StateDiffers string `json:"state_differs,omitempty"`
	NotVoting    bool   `json:"not_voting"`
	// Replaying: it has not applied yet what it knows to be committed, as after a start.
	Replaying bool   `json:"replaying"`
	Regions   uint64 `json:"regions"`
	Keyspaces uint64 `json:"keyspaces"`
	Members   uint64 `json:"members"`
	Era       uint64 `json:"era"`
	IDFence   uint64 `json:"id_fence"`
	TSOFence  uint64 `json:"tso_fence"`
}

func rootStatus() *command {
	return &command{
		name: "status", args: "[flags]", summary: "show every root peer",
		long: `
Exit status 0 when a leader answers, 1 when states differ, 3 otherwise.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			r := f.root()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return r.call(ctx, *r.timeout, func(ctx context.Context, cl *rootclient.Client) error {
					peers := cl.Status(ctx)
					for _, p := range peers {
						if reason.Of(p.Err) == rootv1.Reason_REASON_PERMISSION_DENIED {
							return p.Err // as all of them would say
						}
					}
					return showRootStatus(e, peers)
				})
			}
		},
	}
}

// refusedByAll is the refusal when no peer takes a connection of this process.
func refusedByAll(peers []rootclient.PeerStatus) error {
	var first *mtls.Refusal
	for _, p := range peers {
		refused, ok := mtls.RefusalOf(p.Err)
		if !ok {
			return nil
		}
		if first == nil {
			first = refused
		}
	}
	if first == nil {
		return nil
	}
	return first
}

func showRootStatus(e *env, peers []rootclient.PeerStatus) error {
	if err := refusedByAll(peers); err != nil {
		return err
	}
	out, led := peersOf(peers)
	compared := comparePeers(peers)
	err := e.print(out, func(w *tabwriter.Writer) {
		row(w, "NODE", "ADDRESS", "ROLE", "PEER", "TERM", "COMMIT", "APPLIED", "LOG", "CHECKPOINT", "STATE HASH", "READERS")
		for _, p := range out {
			if p.Error != "" {
				row(w, p.NodeID, p.Address, p.Role, p.part(), p.Error)
				continue
			}
			role := p.Role
			if p.Replaying {
				role = "replaying"
			}
			row(w, p.NodeID, p.Address, role, p.part(), p.Term, p.CommitIndex, p.AppliedIndex, fmt.Sprintf("[%d, %d]", p.FirstIndex, p.LastIndex),
				p.CheckpointIndex, p.StateHash, p.TailReaders)
		}
		for _, p := range out {
			switch {
			case p.NoRoom != "":
				fmt.Fprintf(w, "\nThe disk of root peer %d is full: %s. Make room: writes go on for as long as its log has room.\n", p.NodeID, plain(p.NoRoom))
			case p.DiskLow != "":
				fmt.Fprintf(w, "\nThe disk of root peer %d is nearly full: %s. Make room: a full disk ends the peer.\n", p.NodeID, plain(p.DiskLow))
			}
		}
		for _, c := range compared {
			if c.DiffersAt > 0 {
				row(w, c.text())
			}
		}
	})
	switch {
	case err != nil:
		return err
	case differing(compared):
		return errStatesDiffer
	case !led:
		return errNoLeader
	}
	return nil
}

// errStatesDiffer ends the command when it has been printed.
var errStatesDiffer = errors.New("the states of root peers differ: see above")

// peersOf makes what is printed of what the peers say, and of what the one that
// is furthest says of the others.
func peersOf(peers []rootclient.PeerStatus) (out []rootPeerOutput, led bool) {
	newest := &rootv1.StatusResponse{}
	for _, p := range peers {
		if p.Err == nil && p.Status.GetAppliedIndex() >= newest.GetAppliedIndex() {
			newest = p.Status
		}
	}
	for _, p := range peers {
		if p.Err != nil {
			role, text := "unreachable", plain(p.Err.Error())
			if d := reason.From(p.Err); d.GetReason() == rootv1.Reason_REASON_ROOT_UNAVAILABLE {
				role, text = "waiting", d.GetMessage() // it belongs to no cluster yet
			}
			out = append(out, rootPeerOutput{NodeID: p.NodeID, Address: p.Address, Role: role, Error: text})
			continue
		}
		s := p.Status
		led = led || s.Role == rootv1.RaftRole_RAFT_ROLE_LEADER
		out = append(out, rootPeerOutput{
			NodeID: p.NodeID, Address: p.Address, ClusterID: fmt.Sprintf("%016x", s.ClusterId), Incarnation: s.Incarnation,
			Role: word(s.Role.String(), "RAFT_ROLE_"), Term: s.Term, LeaderID: s.LeaderId,
			CommitIndex: s.CommitIndex, AppliedIndex: s.AppliedIndex, FirstIndex: s.FirstIndex, LastIndex: s.LastIndex,
			CheckpointIndex: s.CheckpointIndex, CheckpointBytes: s.CheckpointBytes, StateHash: fmt.Sprintf("%016x", s.StateHash),
			TailReaders: s.TailReaders, Stalled: s.Stalled, NoRoom: s.NoRoom, DiskFreeBytes: s.DiskFreeBytes, DiskTotalBytes: s.DiskTotalBytes, DiskLow: s.DiskLow, StateDiffers: s.StateDiffers, NotVoting: s.NotVoting, Replaying: s.AppliedIndex < s.CommitIndex, Regions: s.Regions, Keyspaces: s.Keyspaces, Members: s.Members,
			Era: s.GetTenure().GetEra(), IDFence: s.GetAllocators().GetIdFence(), TSOFence: s.GetAllocators().GetTsoFence(),
		})
	}
	for _, p := range newest.GetPeers() {
		if !slices.ContainsFunc(out, func(o rootPeerOutput) bool { return o.NodeID == p.GetNodeId() }) {
			out = append(out, rootPeerOutput{NodeID: p.GetNodeId(), Role: "unknown", Error: "where it serves gRPC is not known: name it with --root-peer"})
		}
	}
	for i := range out {
		out[i].PeerRole, out[i].Replaces = partOf(newest, out[i].NodeID)
	}
	slices.SortFunc(out, func(a, b rootPeerOutput) int { return cmp.Compare(a.NodeID, b.NodeID) })
	return out, led
}

// partOf is the part of a peer in what the root decides, and whom it is to
// replace; empty: nobody knows it.
func partOf(s *rootv1.StatusResponse, node uint64) (part string, replaces uint64) {
	for _, p := range s.GetPeers() {
		switch {
		case p.GetNodeId() != node:
		case p.GetRole() == rootv1.RootPeerRole_ROOT_PEER_ROLE_UNSPECIFIED:
			return "voter", 0
		default:
			return word(p.GetRole().String(), "ROOT_PEER_ROLE_"), p.GetReplaces()
		}
	}
	for _, p := range s.GetReplaced() {
		if p.GetNodeId() == node {
			return "replaced", 0
		}
	}
	return "", 0
}

// part is the peer's part in the table.
func (p *rootPeerOutput) part() string {
	switch {
	case p.Replaces != 0:
		return fmt.Sprintf("%s for %d", p.PeerRole, p.Replaces)
	case p.PeerRole == "":
		return "-"
	}
	return p.PeerRole
}

// errNoLeader ends `nokv root status` with exit status 3 after it has printed.
var errNoLeader = errors.New("no root peer leads: see above")

func rootTransfer() *command {
	return &command{
		name: "transfer", args: "[--to NODE_ID] [flags]", summary: "hand root leadership to another peer",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			to := f.Uint64("to", 0, "peer to hand over to; 0: the most advanced one")
			r := f.root()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return r.call(ctx, *r.timeout, func(ctx context.Context, cl *rootclient.Client) error {
					if err := r.letsIn(ctx); err != nil {
						return err
					}
					leader, err := cl.Transfer(ctx, *to)
					if err != nil {
						return err
					}
					out := struct {
						LeaderID uint64 `json:"leader_id"`
					}{leader}
					return e.print(out, func(w *tabwriter.Writer) { row(w, fmt.Sprintf("node %d leads", leader)) })
				})
			}
		},
	}
}
