package main

import (
	"context"
	"iter"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// query yields the records of a list.
type query[T any] func(ctx context.Context, cl *client.Client, opts ...client.ReadOption) iter.Seq2[T, error]

// list makes the work of a command that lists records: parse judges its arguments,
// show is a record in JSON, header and cells are the table.
func list[T, O any](f *flags, parse func(args []string) (query[T], error), show func(T) O, header []any, cells func(O) []any) func(context.Context, *env, []string) error {
	limit := f.Int("limit", 0, "print so many; 0: all")
	c, r := f.client(), f.read()
	f.withOutput()
	return func(ctx context.Context, e *env, args []string) error {
		opts, err := r.options()
		if err != nil {
			return err
		}
		if *limit < 0 {
			return usagef("limit %d: want 0 or more", *limit)
		}
		ask, err := parse(args)
		if err != nil {
			return err
		}
		return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
			out := []O{}
			for record, err := range ask(ctx, cl, append(opts, client.Limit(*limit))...) {
				if err != nil {
					return err
				}
				out = append(out, show(record))
			}
			return e.print(out, func(w *tabwriter.Writer) {
				row(w, header...)
				for _, o := range out {
					row(w, cells(o)...)
				}
			})
		})
	}
}

// unargued is the parse of a list that takes no arguments.
func unargued[T any](ask func(*client.Client, context.Context, ...client.ReadOption) iter.Seq2[T, error]) func([]string) (query[T], error) {
	return func(args []string) (query[T], error) {
		if len(args) > 0 {
			return nil, usagef("no arguments, got %q", args)
		}
		return func(ctx context.Context, cl *client.Client, opts ...client.ReadOption) iter.Seq2[T, error] {
			return ask(cl, ctx, opts...)
		}, nil
	}
}

// coordinatorOutput is a registered coordinator in JSON. The field names stay.
type coordinatorOutput struct {
	ID           string `json:"id"`
	Address      string `json:"address"`
	FeatureLevel uint32 `json:"feature_level"`
	Revision     uint64 `json:"revision"`
}

func coordinatorList() *command {
	return &command{
		name: "list", args: "[flags]", summary: "list the coordinators that are registered in the root",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			show := func(k *rootv1.Coordinator) coordinatorOutput {
				return coordinatorOutput{k.GetId(), k.GetAddress(), max(k.GetFeatureLevel(), 1), k.GetRevision()}
			}
			return list(f, unargued((*client.Client).ListCoordinators), show,
				[]any{"ID", "ADDRESS", "FEATURE LEVEL", "REVISION"},
				func(o coordinatorOutput) []any { return []any{o.ID, orDash(o.Address), o.FeatureLevel, o.Revision} })
		},
	}
}

// removedOutput is what `nokv coordinator remove -o json` prints. The field names stay.
type removedOutput struct {
	ID    string `json:"id"`
	Token string `json:"token"`
}

func coordinatorRemove() *command {
	return &command{
		name: "remove", args: "ID [flags]", summary: "take a coordinator that is gone off the list",
		long: `
A coordinator that is stopped takes itself off the list. One whose machine died
stays there: "nokv status" shows it as unreachable, and it stands in the way of
"nokv root upgrade". One that answers is refused.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			c := f.changing()
			f.withOutput()
			return func(ctx context.Context, e *env, args []string) error {
				if len(args) != 1 {
					return usagef("%d arguments, want 1", len(args))
				}
				return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
					at, err := cl.RemoveCoordinator(ctx, args[0])
					if err != nil {
						return err
					}
					return e.print(removedOutput{args[0], at.String()}, func(w *tabwriter.Writer) {
						row(w, "coordinator "+args[0]+" is off the list")
					})
				})
			}
		},
	}
}

func transitionCommand() *command {
	return &command{
		name: "transition", summary: "list planned changes of regions",
		children: []*command{transitionList()},
	}
}

// transitionOutput is a planned change in JSON. The field names stay.
type transitionOutput struct {
	ID            string `json:"id"`
	Kind          string `json:"kind"`
	Status        string `json:"status"`
	RegionID      uint64 `json:"region_id"`
	RightRegionID uint64 `json:"right_region_id,omitempty"`
	KeyspaceID    uint32 `json:"keyspace_id"`
	From          string `json:"from,omitempty"`
	To            string `json:"to,omitempty"`
	SplitKey      string `json:"split_key,omitempty"`
	PlannedAt     string `json:"planned_at"`
	EndedAt       string `json:"ended_at,omitempty"`
	Reason        string `json:"reason,omitempty"`
}

func showTransition(t *rootv1.Transition) transitionOutput {
	out := transitionOutput{
		ID: t.GetId(), Kind: word(t.GetKind().String(), "TRANSITION_KIND_"), Status: word(t.GetStatus().String(), "TRANSITION_STATUS_"),
		RegionID: t.GetRegionId(), RightRegionID: t.GetRightRegionId(), KeyspaceID: t.GetKeyspaceId(),
		From: t.GetFrom().GetMemberId(), To: t.GetOwner().GetMemberId(), SplitKey: showKey(t.GetSplitKey()),
		PlannedAt: showToken(t.GetPlannedAt()), Reason: t.GetReason(),
	}
	if t.GetKind() == rootv1.TransitionKind_TRANSITION_KIND_REMOVE_PEER {
		out.From, out.To = out.To, ""
	}
	if t.GetEndedAt() != nil {
		out.EndedAt = showToken(t.GetEndedAt())
	}
	return out
}

func transitionList() *command {
	return &command{
		name: "list", args: "[REGION_ID] [flags]", summary: "list planned changes, of one region or of all",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			ended := f.Bool("ended", false, "also those that have ended lately, and how")
			parse := func(args []string) (query[*rootv1.Transition], error) {
				var region rooted.RegionID
				if len(args) > 1 {
					return nil, usagef("want one region ID at most")
				}
				if len(args) == 1 {
					id, err := regionID(args[0])
					if err != nil {
						return nil, err
					}
					region = id
				}
				return func(ctx context.Context, cl *client.Client, opts ...client.ReadOption) iter.Seq2[*rootv1.Transition, error] {
					return cl.ListTransitions(ctx, region, *ended, opts...)
				}, nil
			}
			return list(f, parse, showTransition,
				[]any{"ID", "STATUS", "REGION", "RIGHT", "FROM", "TO", "SPLIT KEY", "PLANNED AT", "ENDED AT", "REASON"},
				func(o transitionOutput) []any {
					right := any("-")
					if o.RightRegionID != 0 {
						right = o.RightRegionID
					}
					return []any{
						o.ID, o.Status, o.RegionID, right, orDash(o.From), orDash(o.To), orDash(o.SplitKey),
						o.PlannedAt, orDash(o.EndedAt), orDash(o.Reason),
					}
				})
		},
	}
}
