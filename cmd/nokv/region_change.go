package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

func regionSplit() *command {
	return &command{
		name: "split", args: "ID KEY [flags]", summary: "cut a region in two at a key",
		long: `
The left part keeps the id and ends before KEY; the right part starts with it.
Planned and completed in one atomic command.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			right := f.Uint64("right-id", 0, "`id` of the right part; 0: the root gives one")
			c := f.client()
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
					region, err := current(ctx, cl, id)
					if err != nil {
						return err
					}
					plan := &rootv1.SplitPlanned{RegionId: uint64(id), ExpectedEpoch: region.Epoch, SplitKey: key, RightRegionId: *right}
					return publish(ctx, e, cl,
						&rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: plan}},
						completed(rootv1.TransitionKind_TRANSITION_KIND_SPLIT, region))
				})
			}
		},
	}
}

func regionMerge() *command {
	return &command{
		name: "merge", args: "LEFT_ID RIGHT_ID [flags]", summary: "join a region and its right neighbour",
		long: `
The left region keeps its id and takes the right one's range; the right one ends.
Planned and completed in one atomic command.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c := f.client()
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
					left, err := current(ctx, cl, leftID)
					if err != nil {
						return err
					}
					right, err := current(ctx, cl, rightID)
					if err != nil {
						return err
					}
					plan := &rootv1.MergePlanned{
						LeftRegionId: left.Id, LeftExpectedEpoch: left.Epoch,
						RightRegionId: right.Id, RightExpectedEpoch: right.Epoch,
					}
					return publish(ctx, e, cl,
						&rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: plan}},
						completed(rootv1.TransitionKind_TRANSITION_KIND_MERGE, left))
				})
			}
		},
	}
}

// current is the rooted descriptor of a region.
func current(ctx context.Context, cl *client.Client, id rooted.RegionID) (*rootv1.Region, error) {
	route, err := cl.GetRegion(ctx, id, client.Strong())
	if err != nil {
		return nil, err
	}
	return route.Region.Proto(), nil
}

// completed completes the transition that a plan at region's epoch makes.
func completed(kind rootv1.TransitionKind, region *rootv1.Region) *rootv1.Event {
	id := state.TransitionID(kind, rooted.RegionID(region.Id), rooted.Epoch{Version: region.Epoch.Version, ConfVersion: region.Epoch.ConfVersion})
	return &rootv1.Event{Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: &rootv1.TransitionCompleted{TransitionId: string(id)}}}
}

func regionRemove() *command {
	return &command{
		name: "remove", args: "ID [flags]", summary: "remove a region",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			version := f.Uint64("version", 0, "remove only at this epoch `version`")
			conf := f.Uint64("conf-version", 0, "remove only at this epoch conf `version`")
			c := f.client()
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
						return fmt.Errorf("region %d does not exist; nothing was removed", id)
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
