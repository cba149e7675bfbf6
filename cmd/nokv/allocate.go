package main

import (
	"context"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
)

// idOutput is what `nokv id -o json` prints. The field names stay.
type idOutput struct {
	First uint64 `json:"first"`
	Count uint64 `json:"count"`
	Era   uint64 `json:"era"`
}

// tsoOutput is what `nokv tso -o json` prints. The field names stay.
type tsoOutput struct {
	First uint64 `json:"first"`
	Count uint64 `json:"count"`
	Era   uint64 `json:"era"`
	// UnixMillis is the wall time in First.
	UnixMillis int64 `json:"unix_millis"`
}

func idCommand() *command {
	return &command{
		name: "id", args: "[--count N]", summary: "allocate ids that were never given out before",
		long: `
Prints the first of N consecutive ids. JSON: {"first","count","era"}.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			count := f.Uint64("count", 1, "how many consecutive ids, 1 to 1,000,000")
			c := f.client()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if err := checkCount(*count, client.MaxIDCount, args); err != nil {
					return err
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					ids, err := cl.AllocID(ctx, *count)
					if err != nil {
						return err
					}
					out := idOutput{ids.First, ids.Count, uint64(ids.Era)}
					return e.print(out, func(w *tabwriter.Writer) {
						row(w, "FIRST", "LAST", "COUNT", "ERA")
						row(w, ids.First, ids.Last(), ids.Count, ids.Era)
					})
				})
			}
		},
	}
}

func tsoCommand() *command {
	return &command{
		name: "tso", args: "[--count N]", summary: "get timestamps, strictly increasing across the cluster",
		long: `
Prints the first of N consecutive timestamps: 46 bits of Unix milliseconds, 18
bits of counter. JSON: {"first","count","era","unix_millis"}.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			count := f.Uint64("count", 1, "how many consecutive timestamps, 1 to 262,144")
			c := f.client()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if err := checkCount(*count, client.MaxTsoCount, args); err != nil {
					return err
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					ts, err := cl.Tso(ctx, *count)
					if err != nil {
						return err
					}
					out := tsoOutput{uint64(ts.First), ts.Count, uint64(ts.Era), ts.First.UnixMillis()}
					return e.print(out, func(w *tabwriter.Writer) {
						row(w, "FIRST", "LAST", "COUNT", "ERA", "TIME")
						row(w, uint64(ts.First), uint64(ts.Last()), ts.Count, ts.Era, ts.First.Time().UTC().Format(time.RFC3339Nano))
					})
				})
			}
		},
	}
}

func checkCount(count, most uint64, args []string) error {
	if len(args) > 0 {
		return usagef("no arguments, got %q", args)
	}
	if count == 0 || count > most {
		return usagef("count %d: want 1 to %d", count, most)
	}
	return nil
}
