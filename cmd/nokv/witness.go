package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/meta/root/audit"
	rootclient "github.com/nokv/nokv/meta/root/client"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/meta/root/witness"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func witnessCommand() *command {
	return &command{
		name: "witness", args: "[--workdir DIR... | --backup FILE | --root-peer ID=ADDR...] [--history FILE] [flags]",
		summary: "prove who held authority and who owns what: five guarantees, with the numbers",
		long: `
Judges from rooted truth, not from what the holder says of itself:

  Primacy      at most one era is active
  Inheritance  a successor starts above everything its predecessor may have served
  Silence      a retired era does not serve
  Finality     no handover stays half done
  Placement    a region has the owners that the log gave it, or counts as orphaned

Of the invariants that are counted, I1 (a single holder an era) is Primacy. The
others are Placement: I2 every region has an owner or counts as orphaned, I3
regions are given to members that are up, I4 who has a region keeps it until it
lets go or has ended, I5 who leads a region is one of its owners.

Asks a coordinator for a linearizable view; with --root-peer, root peers
themselves. With --workdir or --backup no process is asked: the files are read,
unchanged, and every entry of the log is judged. --workdir may be given again, for
folders of other peers of the cluster: their states are compared wherever two have
the same position, as are those of root peers that are asked. --history checks what clients
were told, in the format of docs/api.md, against that truth.

Exit status 0 when all holds, 1 when a guarantee is broken or states differ, 3 when that cannot
be told: nobody answered, or what it takes is not known.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			w := &witnessFlags{client: f.client()}
			f.Var(&w.workdirs, "workdir", "audit the `folder` of a stopped root peer; repeat to compare folders")
			f.StringVar(&w.backup, "backup", "", "audit a backup `file`")
			f.StringVar(&w.history, "history", "", "check a recorded client history, a `file` of JSON lines (docs/api.md)")
			f.Var(&w.peers, "root-peer", "ask this root peer, `ID=ADDR`: its node id and gRPC address; repeat for each")
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return w.run(ctx, e)
			}
		},
	}
}

type witnessFlags struct {
	client          *clientFlags
	workdirs        folders
	backup, history string
	peers           peerMap
}

// Verdicts end the command when they have been printed.
var (
	errBroken     = errors.New("a guarantee is broken: see above")
	errCannotTell = errors.New("whether all guarantees hold cannot be told: see above")
)

func (w *witnessFlags) run(ctx context.Context, e *env) error {
	var where int
	for _, given := range []bool{len(w.workdirs) > 0, w.backup != "", len(w.peers.peers) > 0} {
		if given {
			where++
		}
	}
	if where > 1 {
		return usagef("--workdir, --backup and --root-peer exclude each other")
	}
	calls, err := readHistory(w.history) // before anything is asked
	if err != nil {
		return err
	}
	p, err := w.proof(ctx)
	if err != nil {
		return err
	}
	out := p.output()
	if w.history != "" {
		out.judge(p, calls)
	}
	if err := e.print(out, out.table); err != nil {
		return err
	}
	switch out.Verdict {
	case witness.Holds.String():
		return nil
	case witness.Broken.String():
		return errBroken
	default:
		return errCannotTell
	}
}

// proof is a report and where it is from.
type proof struct {
	report *witness.Report
	// source says who or what was asked, freshness how new that is.
	source, freshness string
	disclosure        *coordinatorv1.Disclosure
	// compared is what peers or folders have in common.
	compared []comparedOutput
	// audit is set when files were read.
	audit *audit.Result
	// tenures are one an era; ends says that no newer era can be missing.
	tenures []*rootv1.Tenure
	ends    bool
}

func (w *witnessFlags) proof(ctx context.Context) (*proof, error) {
	switch {
	case len(w.workdirs) > 0:
		p, err := compareFolders(w.workdirs)
		if errors.As(err, new(*storage.LockedError)) {
			return nil, fmt.Errorf("%w. Stop the root peer first, or ask the running cluster: nokv witness without --workdir", err)
		}
		return p, err
	case w.backup != "":
		r, err := audit.Backup(w.backup)
		return fromFiles(r, err, "backup "+w.backup)
	case len(w.peers.peers) > 0:
		root := &rootFlags{env: w.client.ends.env, peers: w.peers, certs: w.client.ends.certs, timeout: w.client.timeout, verbose: w.client.verbose}
		var p *proof
		err := root.call(ctx, *root.timeout, func(ctx context.Context, cl *rootclient.Client) (err error) {
			if err := root.letsIn(ctx); err != nil {
				return err
			}
			if p, err = askRoot(ctx, cl); err == nil {
				p.compared = compareRoot(ctx, cl)
			}
			return err
		})
		return p, err
	default:
		var p *proof
		err := w.client.call(ctx, func(ctx context.Context, cl *client.Client) (err error) {
			p, err = askCoordinator(ctx, cl)
			return err
		})
		return p, err
	}
}

func fromFiles(r *audit.Result, err error, source string) (*proof, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s", source)
	}
	if err != nil {
		return nil, err
	}
	p := &proof{report: r.Report, source: source, audit: r, tenures: r.Tenures, freshness: "as the files end; the cluster may have gone on"}
	if r.NodeID != 0 {
		p.source = fmt.Sprintf("%s of root peer %d", source, r.NodeID)
	}
	return p, nil
}

// askCoordinator asks for a linearizable view, or, when the root is away, for
// what there is.
func askCoordinator(ctx context.Context, cl *client.Client) (*proof, error) {
	half, cancel := halfOf(ctx)
	resp, err := cl.Witness(half, client.Strong())
	cancel()
	if err != nil && unavailable(err) {
		resp, err = cl.Witness(ctx)
	}
	if err != nil {
		return nil, err
	}
	d := resp.GetDisclosure()
	truth := witness.Truth{
		Token: rooted.TokenFromProto(d.GetServedRootToken()), Cluster: resp.GetCluster(), Tenure: resp.GetTenure(),
		Handovers: resp.GetHandovers(), Allocators: resp.GetAllocators(),
		OpenFor: time.Duration(resp.GetHandoverOpenMillis()) * time.Millisecond, Placed: placedFrom(resp),
	}
	p := &proof{source: "coordinator " + d.GetCoordinatorId(), disclosure: d, tenures: truth.Tenures(), ends: true, freshness: "linearizable"}
	if d.GetServingClass() != coordinatorv1.ServingClass_SERVING_CLASS_LINEARIZABLE {
		truth.Unknown = "no root quorum answers: what holds now is not known"
		p.freshness = fmt.Sprintf("last level with the root %s before the answer", time.Duration(d.GetRootLagMillis())*time.Millisecond)
		if d.GetRootLagMillis() > uint64(time.Hour/time.Millisecond)*24*365 {
			p.freshness = "never level with the root"
		}
		p.ends = false
	}
	p.report = witness.Judge(truth)
	return p, nil
}

// placedFrom is what a coordinator found of who owns regions; nil: it did not say.
func placedFrom(resp *coordinatorv1.WitnessResponse) *witness.Placed {
	said := resp.GetPlaced()
	if said == nil {
		return nil
	}
	p := &witness.Placed{
		Assigned: said.Assigned, Orphaned: said.Orphaned, Led: said.Led, Walked: true, Followed: true, Since: rooted.TokenFromProto(said.Since),
		Judged: witness.Judged{Grants: said.Grants, Moved: said.Moved, Asked: said.Asked},
	}
	copy(p.Violations[:], said.Violations)
	for _, a := range resp.GetAnomalies() {
		if kind := witness.Kind(a.Kind); kind.Invariant() > 0 {
			p.Found = append(p.Found, witness.Anomaly{
				Kind: kind, Guarantee: witness.Guarantee(a.Guarantee - coordinatorv1.Guarantee_GUARANTEE_PRIMACY), Era: a.Era, Region: rooted.RegionID(a.RegionId),
				At: rooted.TokenFromProto(a.Token), Note: a.Note, Numbers: a.Numbers,
			})
		}
	}
	return p
}

// askRoot reads a root peer's snapshot, at a position that is not before the call when a
// leader answers. When it does not come whole in time, the records of authority, which
// come first, are judged.
func askRoot(ctx context.Context, cl *rootclient.Client) (*proof, error) {
	half, cancel := halfOf(ctx)
	at, atErr := cl.ReadIndex(half)
	cancel()
	var truth witness.Truth
	restoring, authority := state.NewRestoring(), false
	var last *rootv1.SnapshotChunk
	err := cl.Snapshot(ctx, func(chunk *rootv1.SnapshotChunk) error {
		truth.Token, last = rooted.TokenFromProto(chunk.GetToken()), chunk
		for _, r := range chunk.GetRecords() {
			switch k := r.GetKind().(type) {
			case *rootv1.Record_Cluster:
				truth.Cluster = k.Cluster
			case *rootv1.Record_Allocators:
				truth.Allocators = k.Allocators
			case *rootv1.Record_Counters:
			case *rootv1.Record_Tenure:
				truth.Tenure = k.Tenure
			case *rootv1.Record_Handover:
				truth.Handovers = append(truth.Handovers, k.Handover)
			default:
				authority = true
			}
		}
		part, err := state.PartOf(chunk.GetRecords())
		if err != nil {
			return err
		}
		return restoring.Add(part)
	})
	if err != nil && (ctx.Err() == nil || !authority) {
		return nil, err
	}
	if err == nil {
		st, err := restoring.Finish(truth.Token, last.GetStateHash())
		if err != nil {
			return nil, fmt.Errorf("snapshot of a root peer at %s: %w", truth.Token, err)
		}
		truth = witness.Whole(st)
	}
	p := &proof{source: "a root peer", tenures: truth.Tenures(), ends: true, freshness: "linearizable"}
	switch {
	case atErr != nil:
		truth.Unknown = "no root leader answers (" + explain(atErr) + "): what holds now is not known"
		p.freshness, p.ends = "as this peer has it", false
	case truth.Token.Compare(at) < 0:
		truth.Unknown = fmt.Sprintf("the peer that answered is at %s, the root at %s: ask again", truth.Token, at)
		p.freshness, p.ends = "behind the root", false
	}
	p.report = witness.Judge(truth)
	return p, nil
}

// halfOf is a context for a first try: half the time that is left.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	return context.WithCancel(ctx)
}
