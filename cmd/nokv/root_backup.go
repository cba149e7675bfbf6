package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"text/tabwriter"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/backup"
	rootclient "github.com/nokv/nokv/meta/root/client"
)

// backupOutput is what `nokv root backup -o json` prints, and `nokv root verify`
// of a backup. The field names stay.
type backupOutput struct {
	File      string `json:"file"`
	ClusterID string `json:"cluster_id"`
	Token     string `json:"token"`
	Bytes     uint64 `json:"bytes"`
	Records   uint64 `json:"records"`
	Regions   int    `json:"regions"`
	StateHash string `json:"state_hash"`
	IDFence   uint64 `json:"id_fence"`
	TSOFence  uint64 `json:"tso_fence"`
}

func rootBackup() *command {
	return &command{
		name: "backup", args: "--out FILE [flags]", summary: "copy the whole rooted state of a running cluster to a file",
		long: `
Any root peer will do, and nothing stops meanwhile. The copy has everything that
was acknowledged before: a majority of the root peers is asked how much that is.
Without a majority, --isolated copies what one peer has, which may be old: only
for a cluster that has lost its majority for good. The file has its name only
when it is whole, durable, read back, and gives the state hash the root told.
It holds the state at the token that is printed, and nothing newer.
Check one with nokv root verify FILE; make a cluster of it with nokv root restore.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			file := f.String("out", "", "`file` to write; must not exist (required)")
			isolated := f.Bool("isolated", false, "copy what one root peer has, without asking a majority: it may be old")
			r := f.rootWithin(0)
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				switch {
				case len(args) > 0:
					return usagef("no arguments, got %q", args)
				case *file == "":
					return usagef("--out is required: the file to write")
				}
				return r.callAs(ctx, "backup", *r.timeout, func(ctx context.Context, cl *rootclient.Client) error {
					if err := r.letsIn(ctx); err != nil {
						return err
					}
					take := backup.Take
					if *isolated {
						take = backup.TakeIsolated
					}
					c, err := take(ctx, cl, disk.OS(), *file)
					switch {
					case errors.Is(err, fs.ErrExist):
						return fmt.Errorf("%s exists; nothing is written over: choose another name", *file)
					case errors.Is(err, backup.ErrNoQuorum):
						return fmt.Errorf("%w; if that majority is lost for good, --isolated copies what one peer has", err)
					case err != nil:
						return err
					}
					return showBackup(e, *file, c)
				})
			}
		},
	}
}

func verifyBackup(e *env, file string) error {
	c, err := backup.Open(disk.OS(), file)
	if err != nil {
		return err
	}
	return showBackup(e, file, c)
}

func showBackup(e *env, file string, c *backup.Copy) error {
	out := backupOutput{
		File: file, ClusterID: fmt.Sprintf("%016x", c.Meta.ClusterID), Token: c.State.Token().String(),
		Bytes: c.Meta.Bytes, Records: c.Meta.Records, Regions: c.State.RegionCount(), StateHash: fmt.Sprintf("%016x", c.Meta.StateHash),
		IDFence: c.State.Allocators().GetIdFence(), TSOFence: c.State.Allocators().GetTsoFence(),
	}
	return e.print(out, func(w *tabwriter.Writer) {
		row(w, "backup", out.File)
		row(w, "cluster", out.ClusterID)
		row(w, "token", out.Token)
		row(w, "content", fmt.Sprintf("%d regions, %d records, %d bytes", out.Regions, out.Records, out.Bytes))
		row(w, "state hash", out.StateHash)
		row(w, "fences", fmt.Sprintf("ids %d, timestamps %d", out.IDFence, out.TSOFence))
	})
}
