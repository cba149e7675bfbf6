package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func regionSplit() *command {
	return &command{
		name: "split", args: "ID KEY [flags]", summary: "cut a region in two at a key",
		long: `
The left part keeps the id and ends before KEY; the right part starts with it. Planned
and completed in one atomic command; but where the region has an owner that acts for it
alone, in an assigned keyspace, that lets go of it first, and gets both parts back.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			right := f.Uint64("right-id", 0, "`id` of the right part; 0: the root gives one")
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 2 {
					return usagef("want a region ID and a KEY")
				}
				id, err := regionID(args[0])
				if err != nil {
					return err
				}
				key, err := parseKey(args[1])
				if err != nil {
					return err
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					parts, err := cl.SplitRegion(ctx, id, key, rooted.RegionID(*right))
					if err != nil {
						return err
					}
					return printChange(e, true, parts.Token, parts.Left, parts.Right)
				})
			}
		},
	}
}

func regionMerge() *command {
	return &command{
		name: "merge", args: "LEFT_ID RIGHT_ID [flags]", summary: "join a region and its right neighbour",
		long: `
The left region keeps its id and takes the right one's range; the right one ends. As for
split, the owner of both lets go of them first, where they have one.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 2 {
					return usagef("want the ids of two neighbours, left and right")
				}
				leftID, err := regionID(args[0])
				if err != nil {
					return err
				}
				rightID, err := regionID(args[1])
				if err != nil {
					return err
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					whole, err := cl.MergeRegions(ctx, leftID, rightID)
					if err != nil {
						return err
					}
					return printChange(e, whole.Changed, whole.Token, whole.Region)
				})
			}
		},
	}
}

func regionRemove() *command {
	return &command{
		name: "remove", args: "ID [flags]", summary: "remove a region",
		long: `
Its owner is not asked: it is shown that the region ends, and what it has not saved is lost. A
region that is published in its place is another one; with fence ttl, it gets another owner once
that one has let go, or its ttl is over.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			version := f.Uint64("version", 0, "remove only at this epoch `version`")
			conf := f.Uint64("conf-version", 0, "remove only at this epoch conf `version`")
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("want one region ID")
				}
				id, err := regionID(args[0])
				if err != nil {
					return err
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					r, err := cl.RemoveRegion(ctx, id, rooted.Epoch{Version: *version, ConfVersion: *conf})
					if err != nil {
						return err
					}
					if !r.Removed {
						return reason.New(rootv1.Reason_REASON_NOT_FOUND, "there is no region %d: nothing was removed", id)
					}
					out := struct {
						ID    uint64 `json:"id"`
						Token string `json:"token"`
					}{uint64(id), showToken(r.Token)}
					return e.print(out, func(w *tabwriter.Writer) { row(w, fmt.Sprintf("removed region %d at %s", out.ID, out.Token)) })
				})
			}
		},
	}
}
