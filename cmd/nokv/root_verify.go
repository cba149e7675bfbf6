package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
)

// verifyOutput is what `nokv root verify -o json` prints. The field names stay.
type verifyOutput struct {
	Workdir         string         `json:"workdir"`
	OK              bool           `json:"ok"`
	InUse           bool           `json:"in_use"`
	NodeID          uint64         `json:"node_id"`
	ClusterID       string         `json:"cluster_id"`
	Segments        int            `json:"segments"`
	Frames          int            `json:"frames"`
	Entries         int            `json:"entries"`
	FirstIndex      uint64         `json:"first_index"`
	LastIndex       uint64         `json:"last_index"`
	CheckpointIndex uint64         `json:"checkpoint_index"`
	Torn            bool           `json:"torn"`
	Damage          []damageOutput `json:"damage"`
}

type damageOutput struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	What   string `json:"what"`
	Do     string `json:"do"`
}

func rootVerify() *command {
	return &command{
		name: "verify", args: "WORKDIR|FILE [flags]", summary: "check a root peer's workdir or a backup, offline, changing nothing",
		long: `
Of a workdir it checks identity, log and checkpoint; of a backup every record,
and that they give the state hash the root told. Exit status 0 when all is
well, 1 when something is damaged; each damage is printed with file and offset.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			f.withOutput()
			return func(_ context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("name one workdir or one backup")
				}
				if info, err := os.Stat(args[0]); err == nil && info.Mode().IsRegular() {
					return verifyBackup(e, args[0])
				}
				return verify(e, args[0])
			}
		},
	}
}

func verify(e *env, dir string) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%s is neither a folder nor a file: name the workdir of a meta-root, or a backup", dir)
	}
	report, err := storage.Verify(dir, storage.Options{CheckRecords: state.CheckPart})
	if err != nil {
		return err
	}
	if report.Identity.NodeID == 0 && report.Segments == 0 && len(report.Damage) == 0 {
		return fmt.Errorf("%s is not the workdir of a root peer: it has neither identity nor log", dir)
	}
	out := verifyOutput{
		Workdir: dir, OK: len(report.Damage) == 0, InUse: report.InUse, NodeID: report.Identity.NodeID,
		ClusterID: fmt.Sprintf("%016x", report.Identity.ClusterID), Segments: report.Segments, Frames: report.Frames, Entries: report.Entries,
		FirstIndex: report.FirstIndex, LastIndex: report.LastIndex, CheckpointIndex: report.Checkpoint.Index, Torn: report.Torn,
		Damage: []damageOutput{},
	}
	for _, d := range report.Damage {
		out.Damage = append(out.Damage, damageOutput(d))
	}
	err = e.print(out, func(w *tabwriter.Writer) {
		row(w, "workdir", dir)
		if report.Identity.ClusterID == 0 && out.OK {
			row(w, "identity", fmt.Sprintf("node %d, not yet in a cluster", out.NodeID))
		} else {
			row(w, "identity", fmt.Sprintf("node %d of cluster %s", out.NodeID, out.ClusterID))
		}
		row(w, "log", fmt.Sprintf("%d segments, %d frames, %d entries: [%d, %d]", out.Segments, out.Frames, out.Entries, out.FirstIndex, out.LastIndex))
		row(w, "checkpoint", fmt.Sprintf("at %d", out.CheckpointIndex))
		if out.Torn {
			row(w, "note", "an append was cut short by a crash; a start cuts it off. Nothing acknowledged is missing")
		}
		if out.InUse {
			row(w, "note", "a process has this workdir open: what looks like damage may be work in progress")
		}
		for _, d := range out.Damage {
			row(w, "DAMAGE", fmt.Sprintf("%s at offset %d: %s", d.File, d.Offset, d.What))
			row(w, "", d.Do)
		}
	})
	if err == nil && !out.OK {
		return fmt.Errorf("%s is damaged (places: %d); a peer does not start on it", dir, len(out.Damage))
	}
	return err
}
