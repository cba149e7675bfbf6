package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/nokv/nokv/coordinator/client"
)

func pinCommand() *command {
	return &command{
		name: "pin", summary: "make the keys of pins, and see whom a pin is of",
		children: []*command{pinRotate(), pinOpen()},
	}
}

// rotatedPins is what `nokv pin rotate -o json` prints. The field names stay.
type rotatedPins struct {
	Key uint32 `json:"key"`
}

func pinRotate() *command {
	return &command{
		name: "rotate", args: "[flags]", summary: "make the next key that seals pins; the first one lets members begin some",
		long: `
Pins of the key before stay good until their end: the last two keys are rooted, and
processes that have seen an older one keep it for a day. Rotated twice within a day, pins
of the oldest key are refused by routers and proxies that were started since.

  nokv pin rotate --coordinator-addr 127.0.0.1:7100

The key itself is shown to nobody.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) > 0 {
					return usagef("no arguments, got %q", args)
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					id, err := cl.RotatePins(ctx)
					if err != nil {
						return err
					}
					return e.print(rotatedPins{id}, func(w *tabwriter.Writer) { row(w, fmt.Sprintf("key %d seals pins from now on", id)) })
				})
			}
		},
	}
}

// openedPin is what `nokv pin open -o json` prints. The field names stay.
type openedPin struct {
	Member      string `json:"member"`
	Address     string `json:"address"`
	Incarnation uint64 `json:"incarnation"`
	Region      uint64 `json:"region"`
	Expires     string `json:"expires"`
}

func pinOpen() *command {
	return &command{
		name: "open", args: "PIN [flags]", summary: "see which process a pin is of, and whether it is there",
		long: `
An error says why a pin is none of the keyspace, or that its process has ended (pin_lost).
Whether the work that it is of is still open, only that process knows.

  nokv pin open --keyspace games nokvpin_AQAAAA...`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			keyspace := f.String("keyspace", "default", "`name` of the keyspace")
			c := f.client()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("%d arguments, want a pin", len(args))
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					r, err := cl.ResolvePin(ctx, *keyspace, args[0], client.Strong())
					if err != nil {
						return err
					}
					o := r.GetOwner()
					out := openedPin{o.GetMemberId(), o.GetAddress(), o.GetIncarnation(), r.GetRegionId(), time.UnixMilli(int64(r.GetExpiresUnixMillis())).UTC().Format(time.RFC3339)}
					return e.print(out, func(w *tabwriter.Writer) {
						row(w, "MEMBER", "ADDRESS", "INCARNATION", "REGION", "EXPIRES")
						row(w, out.Member, out.Address, out.Incarnation, out.Region, out.Expires)
					})
				})
			}
		},
	}
}
