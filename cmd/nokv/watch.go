package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/rooted"
)

// watchOutput is one line of `nokv watch -o json`. The field names stay.
type watchOutput struct {
	// Change is snapshot, snapshot_end, region, region_removed, keyspace,
	// keyspace_removed or member.
	Change   string          `json:"change"`
	Token    string          `json:"token"`
	Region   *regionOutput   `json:"region,omitempty"`
	Keyspace *keyspaceOutput `json:"keyspace,omitempty"`
	Member   rawJSON         `json:"member,omitempty"`
}

func watchCommand() *command {
	return &command{
		name: "watch", args: "[flags]", summary: "print changes of regions, keyspaces and members as they happen",
		long: `
Prints what is there, then every change, until Ctrl-C. With --after it goes on
from a token that an earlier watch printed, without a gap: when that position is
no longer retained a new snapshot comes first, and says so.
With -o json each change is one line.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			keyspace := f.String("keyspace", "", "only this keyspace (default all)")
			after := f.String("after", "", "go on behind this `token`")
			count := f.Int("count", 0, "stop after so many changes behind the snapshot; 0: never")
			forDur := f.duration("for", 0, "stop after this `time`; 0: never")
			addr := f.coordinatorFlag()
			verbose := f.Bool("v", false, "log reconnects to standard error")
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				from := rooted.Token{}
				if *after != "" {
					var err error
					if from, err = parseToken(*after); err != nil {
						return err
					}
				}
				cl, err := dialCoordinators(ctx, *addr, patience, *verbose)
				if err != nil {
					return err
				}
				defer cl.Close()
				if err := checkHistory(ctx, cl, from); err != nil {
					return err
				}
				w := &watcher{env: e, most: *count}
				return w.run(ctx, cl, *keyspace, from, *forDur)
			}
		},
	}
}

// checkHistory refuses a token that this cluster can never reach: a watch from
// there would wait for ever.
func checkHistory(ctx context.Context, cl *client.Client, from rooted.Token) error {
	if from == (rooted.Token{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	st, err := cl.Status(ctx, "")
	if err != nil {
		return nil //nolint:nilerr // the watch itself finds out, and tries for longer
	}
	if now := st.GetCluster().GetIncarnation(); now != 0 && from.Incarnation > now {
		return fmt.Errorf("token %s is of cluster incarnation %d, this cluster is at incarnation %d: it is another cluster's token",
			showToken(from.Proto()), from.Incarnation, now)
	}
	return nil
}

// watcher prints a watch.
type watcher struct {
	env  *env
	most int
	// printed counts changes behind snapshots.
	printed    int
	inSnapshot bool
}

func (w *watcher) run(ctx context.Context, cl *client.Client, keyspace string, from rooted.Token, forDur time.Duration) error {
	watchCtx, cancel := ctx, context.CancelFunc(func() {})
	if forDur > 0 {
		watchCtx, cancel = context.WithTimeout(ctx, forDur)
	}
	defer cancel()
	for batch, err := range cl.WatchRegions(watchCtx, keyspace, from) {
		if err != nil {
			if watchCtx.Err() != nil {
				return nil // Ctrl-C or --for: the watch has done what was asked
			}
			return err
		}
		if err := w.batch(batch); err != nil {
			return err
		}
		if w.most > 0 && w.printed >= w.most {
			return nil
		}
	}
	return nil
}

func (w *watcher) batch(b client.Batch) error {
	token := showToken(b.GetToken())
	if b.SnapshotBegin {
		w.inSnapshot = true
		if err := w.line(watchOutput{Change: "snapshot", Token: token}); err != nil {
			return err
		}
	}
	for _, k := range b.GetKeyspaces() {
		out := showKeyspace(k.GetKeyspace())
		if err := w.line(watchOutput{Change: removed("keyspace", k.GetRemoved()), Token: token, Keyspace: &out}); err != nil {
			return err
		}
	}
	for _, m := range b.GetMembers() {
		if err := w.line(watchOutput{Change: "member", Token: token, Member: showMessage(m)}); err != nil {
			return err
		}
	}
	for _, r := range b.GetChanges() {
		out := showRegion(r.GetRegion())
		if err := w.line(watchOutput{Change: removed("region", r.GetRemoved()), Token: token, Region: &out}); err != nil {
			return err
		}
	}
	if b.GetSnapshotEnd() {
		w.inSnapshot = false
		return w.line(watchOutput{Change: "snapshot_end", Token: token})
	}
	return nil
}

func removed(what string, gone bool) string {
	if gone {
		return what + "_removed"
	}
	return what
}

func (w *watcher) line(o watchOutput) error {
	if !w.inSnapshot && o.Change != "snapshot_end" {
		w.printed++
	}
	if w.env.output == "json" {
		return w.env.printLine(o)
	}
	tw := tabwriter.NewWriter(w.env.stdout, 16, 4, 2, ' ', 0)
	switch {
	case o.Region != nil:
		r := o.Region
		row(tw, o.Token, o.Change, r.ID, fmt.Sprintf("[%s, %s)", orDash(r.StartKey), orDash(r.EndKey)), fmt.Sprintf("epoch %d.%d", r.Version, r.ConfVer))
	case o.Keyspace != nil:
		row(tw, o.Token, o.Change, o.Keyspace.Name, o.Keyspace.Layout)
	case o.Member != nil:
		row(tw, o.Token, o.Change, string(o.Member))
	default:
		row(tw, o.Token, o.Change)
	}
	return tw.Flush()
}
