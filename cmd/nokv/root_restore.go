package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/backup"
)

// restoreOutput is what `nokv root restore -o json` prints. The field names stay.
type restoreOutput struct {
	FormerClusterID string   `json:"former_cluster_id"`
	BackupToken     string   `json:"backup_token"`
	ClusterID       string   `json:"cluster_id"`
	Token           string   `json:"token"`
	Regions         int      `json:"regions"`
	StateHash       string   `json:"state_hash"`
	IDFence         uint64   `json:"id_fence"`
	TSOFence        uint64   `json:"tso_fence"`
	Era             uint64   `json:"era"`
	Workdirs        []string `json:"workdirs"`
}

func rootRestore() *command {
	return &command{
		name: "restore", args: "--backup FILE --out DIR -peer ID=ADDR ... [flags]", summary: "make the workdirs of a new cluster of a backup, offline",
		long: `
Only when every root peer is lost for good: what was committed behind the
backup is lost. Stop what still runs of the old cluster first. DIR gets a
workdir for each peer, named by its node id, all equal; start each meta-root
with its own and with this same -peer list, then start or restart coordinators
and clients. It is a new cluster: what still runs of the old one is refused
with cluster_mismatch. No id and no timestamp of the old one is served again:

  ids go on behind the backup's fence plus --id-gap. Choose more than the old
  cluster can have given out since the backup;
  timestamps go on behind the later of the backup's fence and this machine's
  clock, plus --tso-gap. The default is how far ahead of its clock a cluster
  ever serves; the first timestamp is served a few seconds after the restore.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			var peers peerMap
			file := f.String("backup", "", "`file` that nokv root backup wrote (required)")
			dir := f.String("out", "", "`folder` to make; must not exist (required)")
			f.Var(&peers, "peer", "root peer `ID=ADDR`: its node id and raft transport address; every peer of the new cluster (required)")
			ids := f.Uint64("id-gap", backup.DefaultIDGap, "`count` of ids to skip behind the backup's fence")
			tso := f.duration("tso-gap", backup.DefaultTSOGap, "`time` to skip behind the backup's fence and the clock")
			f.withOutput()
			return func(_ context.Context, e *env, args []string) error {
				plan := backup.Plan{Dir: *dir, Peers: peers.peers, IDGap: *ids, TSOGap: *tso, Now: time.Now()}
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				if *file == "" {
					return usagef("--backup is required: a file that nokv root backup wrote")
				}
				if err := plan.Validate(); err != nil {
					return usagef("%s", err)
				}
				return restore(e, *file, plan)
			}
		},
	}
}

func restore(e *env, file string, plan backup.Plan) error {
	c, err := backup.Open(disk.OS(), file)
	if err != nil {
		return err
	}
	r, err := backup.Restore(c, plan)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; nothing is written over: choose another folder", err)
	}
	if err != nil {
		return err
	}
	out := restoreOutput{
		FormerClusterID: fmt.Sprintf("%016x", c.Meta.ClusterID), BackupToken: c.State.Token().String(),
		ClusterID: fmt.Sprintf("%016x", r.Cluster.GetClusterId()), Token: r.State.Token().String(),
		Regions: r.State.RegionCount(), StateHash: fmt.Sprintf("%016x", r.State.Hash()),
		IDFence: r.State.Allocators().GetIdFence(), TSOFence: r.State.Allocators().GetTsoFence(), Era: r.State.Tenure().GetEra(),
	}
	for _, id := range slices.Sorted(maps.Keys(r.Workdirs)) {
		out.Workdirs = append(out.Workdirs, r.Workdirs[id])
	}
	return e.print(out, func(w *tabwriter.Writer) {
		row(w, "backup", fmt.Sprintf("cluster %s at %s, %d regions", out.FormerClusterID, out.BackupToken, out.Regions))
		row(w, "restored", fmt.Sprintf("cluster %s at %s, state hash %s", out.ClusterID, out.Token, out.StateHash))
		row(w, "fences", fmt.Sprintf("ids above %d, timestamps above %d, eras above %d", out.IDFence, out.TSOFence, out.Era))
		for _, dir := range out.Workdirs {
			row(w, "workdir", dir)
		}
	})
}
