package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
)

// watchOutput is one line of `nokv watch -o json`. The field names stay.
type watchOutput struct {
	// Change is snapshot, snapshot_end, region, region_removed, keyspace,
	// keyspace_removed, member or member_removed.
	Change string `json:"change"`
	// Token is where to go on so that nothing behind this line is lost: the
	// position that the watch has reached with all of its changes printed. Of
	// changes that belong together only the last one moves it.
	Token    client.Position `json:"token"`
	Region   *regionOutput   `json:"region,omitempty"`
	Keyspace *keyspaceOutput `json:"keyspace,omitempty"`
	Member   rawJSON         `json:"member,omitempty"`
}

func watchCommand() *command {
	return &command{
		name: "watch", args: "[flags]", summary: "print changes of regions, keyspaces and members as they happen",
		long: `
Prints what is there, then every change, until Ctrl-C. With --after it goes on
from the token of any line that an earlier watch printed, without a gap: when
that position is no longer retained a new snapshot comes first, and says so.
What happened together has the token before it, but for its last line: behind
another line's token it comes again as a whole.
With --max-lag or --max-stale the watch ends when no coordinator is that close to
the root. With -o json each change is one line.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			keyspace := f.String("keyspace", "", "only this keyspace (default all)")
			after := f.String("after", "", "go on behind this `token`")
			count := f.Uint("count", 0, "stop after so many changes behind the snapshot; 0: never")
			forDur := f.duration("for", 0, "stop after this `time`; 0: never")
			read := f.read()
			ends := f.endpoints()
			verbose := f.Bool("v", false, "log reconnects to standard error")
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				from, err := client.ParsePosition(*after)
				if err != nil {
					return usagef("%s", err)
				}
				opts, err := read.options()
				if err != nil {
					return err
				}
				opts = append(opts, client.WithMembers())
				if *keyspace != "" {
					opts = append(opts, client.In(*keyspace))
				}
				cl, err := ends.dial(ctx, patience, *verbose)
				if err != nil {
					return err
				}
				defer cl.Close()
				w := &watcher{env: e, most: *count, at: from}
				return w.run(ctx, cl, *forDur, opts)
			}
		},
	}
}

// watcher prints a watch.
type watcher struct {
	env  *env
	most uint
	// printed counts changes behind snapshots.
	printed uint
	at      client.Position // everything up to here is printed
}

func (w *watcher) run(ctx context.Context, cl *client.Client, forDur time.Duration, opts []client.ReadOption) error {
	watchCtx, cancel := ctx, context.CancelFunc(func() {})
	if forDur > 0 {
		watchCtx, cancel = context.WithTimeout(ctx, forDur)
	}
	defer cancel()
	for batch, err := range cl.WatchRegions(watchCtx, w.at, opts...) {
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

// batch prints a batch, or a part of one.
func (w *watcher) batch(b client.Batch) error {
	var lines []watchOutput
	if b.GetSnapshot() && b.First {
		lines = append(lines, watchOutput{Change: "snapshot"})
	}
	for _, k := range b.GetKeyspaces() {
		out := showKeyspace(k.GetKeyspace())
		lines = append(lines, watchOutput{Change: removed("keyspace", k.GetRemoved()), Keyspace: &out})
	}
	for _, m := range b.GetMembers() {
		lines = append(lines, watchOutput{Change: removed("member", m.GetRemoved()), Member: showMessage(m.GetMember())})
	}
	for _, r := range b.GetChanges() {
		out := showRegion(r.GetRegion())
		lines = append(lines, watchOutput{Change: removed("region", r.GetRemoved()), Region: &out})
	}
	if !b.GetSnapshot() {
		w.printed += uint(len(lines))
	} else if b.Last {
		lines = append(lines, watchOutput{Change: "snapshot_end"})
	}
	for i := range lines {
		if lines[i].Token = w.at; b.Last && i == len(lines)-1 {
			lines[i].Token = b.Position()
		}
		if err := w.line(lines[i]); err != nil {
			return err
		}
	}
	if b.Last {
		w.at = b.Position()
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
	token := orDash(o.Token.String())
	if w.env.output == "json" {
		return w.env.printLine(o)
	}
	tw := tabwriter.NewWriter(w.env.stdout, 16, 4, 2, ' ', 0)
	switch {
	case o.Region != nil:
		r := o.Region
		row(tw, token, o.Change, r.ID, fmt.Sprintf("[%s, %s)", orDash(r.StartKey), orDash(r.EndKey)), fmt.Sprintf("epoch %d.%d", r.Version, r.ConfVer))
	case o.Keyspace != nil:
		row(tw, token, o.Change, o.Keyspace.Name, o.Keyspace.Layout)
	case o.Member != nil:
		row(tw, token, o.Change, string(o.Member))
	default:
		row(tw, token, o.Change)
	}
	return tw.Flush()
}
