package main

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// byOperator is why commands of people change owners.
const byOperator = rootv1.OperationReason_OPERATION_REASON_OPERATOR

func regionAssign() *command {
	return &command{
		name: "assign", args: "ID MEMBER [flags]", summary: "give a region of an assigned keyspace to a member",
		long: `
A region whose only owner is alive is moved: the next owner prepares, the old one
releases it, and callers see no error; nokv transition list ID --ended shows how far that is.
Otherwise it is given at once. With fence ttl that is refused while another member may still act
for its keys: an owner that failed, or one that they were taken from. Such a region is given
to a member by itself when that is over. --now gives it without waiting for anybody: with fence
ttl, the one before may serve it until its ttl is over.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			now := f.Bool("now", false, "do not ask the owner")
			return regionOwners(f, func(ctx context.Context, cl *client.Client, known client.Route, member rooted.MemberID) (*rootv1.Event, error) {
				r := known.Region
				if len(r.Owners) > 1 {
					return nil, fmt.Errorf("region %d has %d owners: use nokv region add-owner and remove-owner", r.ID, len(r.Owners))
				}
				if !*now && len(r.Owners) == 1 && r.Owners[0].Member != member {
					alive, err := acts(ctx, cl, r.Owners[0])
					if err != nil {
						return nil, err
					}
					if alive {
						return moveTo(ctx, cl, r, member)
					}
				}
				return assignment(r, []rooted.Owner{{Member: member}}, *now), nil
			})
		},
	}
}

func regionAddOwner() *command {
	return &command{
		name: "add-owner", args: "ID MEMBER [flags]", summary: "give a shared region of an assigned keyspace one owner more",
		setup: func(f *flags) func(context.Context, *env, []string) error {
			return regionOwners(f, func(_ context.Context, _ *client.Client, known client.Route, member rooted.MemberID) (*rootv1.Event, error) {
				if _, has := known.Region.Owner(member); has {
					return nil, fmt.Errorf("member %s owns region %d already", member, known.Region.ID)
				}
				return assignment(known.Region, append(slices.Clone(known.Region.Owners), rooted.Owner{Member: member}), false), nil
			})
		},
	}
}

func regionRemoveOwner() *command {
	return &command{
		name: "remove-owner", args: "ID MEMBER [flags]", summary: "take a region of an assigned keyspace from an owner, without waiting for it",
		long: `
Without an owner, a region gets another one once the member has been shown that it is not
its own any more, or has failed and its ttl is over, or, in a keyspace that gives regions to who
asks for them, when somebody does. What was not saved is lost. To empty a member, drain it.`,
		setup: func(f *flags) func(context.Context, *env, []string) error {
			return regionOwners(f, func(_ context.Context, _ *client.Client, known client.Route, member rooted.MemberID) (*rootv1.Event, error) {
				owners := slices.DeleteFunc(slices.Clone(known.Region.Owners), func(o rooted.Owner) bool { return o.Member == member })
				if len(owners) == len(known.Region.Owners) {
					return nil, fmt.Errorf("member %s does not own region %d", member, known.Region.ID)
				}
				return assignment(known.Region, owners, false), nil
			})
		},
	}
}

// acts reports whether an owner may act.
func acts(ctx context.Context, cl *client.Client, o rooted.Owner) (bool, error) {
	m, err := cl.GetMember(ctx, o.Member, client.Strong())
	if err != nil {
		return false, err
	}
	is := m.GetMember().GetState()
	return m.GetMember().GetIncarnation() == o.Incarnation && (is == rootv1.MemberState_MEMBER_STATE_ACTIVE || is == rootv1.MemberState_MEMBER_STATE_DRAINING), nil
}

// moveTo plans a move, in the times of the region's keyspace.
func moveTo(ctx context.Context, cl *client.Client, r *rooted.Region, to rooted.MemberID) (*rootv1.Event, error) {
	k, err := keyspaceOf(ctx, cl, r)
	if err != nil {
		return nil, err
	}
	times := state.MovesOf(k.GetSettings())
	return &rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: &rootv1.MovePlanned{
		RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), From: r.Owners[0].Proto(), To: &rootv1.Owner{MemberId: string(to)},
		PrepareMaxMillis: times.GetPrepareMaxMillis(), DeadlineMillis: times.GetDeadlineMillis(), Reason: byOperator,
	}}}, nil
}

// keyspaceOf finds the keyspace of a region.
func keyspaceOf(ctx context.Context, cl *client.Client, r *rooted.Region) (*rootv1.Keyspace, error) {
	for k, err := range cl.ListKeyspaces(ctx, client.Strong()) {
		if err != nil || k.GetId() == uint32(r.Keyspace) {
			return k, err
		}
	}
	return nil, fmt.Errorf("region %d is in keyspace %d, which is not shown", r.ID, r.Keyspace)
}

// assignment gives a region to owners; atOnce: whoever else may act for its keys.
func assignment(r *rooted.Region, owners []rooted.Owner, atOnce bool) *rootv1.Event {
	a := &rootv1.Assignment{RegionId: uint64(r.ID), ExpectedEpoch: r.Epoch.Proto(), Reason: byOperator, AtOnce: atOnce}
	for _, o := range owners {
		a.Owners = append(a.Owners, o.Proto())
	}
	return &rootv1.Event{Kind: &rootv1.Event_RegionsAssigned{RegionsAssigned: &rootv1.RegionsAssigned{Assignments: []*rootv1.Assignment{a}}}}
}

// regionOwners runs a command that changes who owns a region: plan says by which event.
func regionOwners(f *flags, plan func(context.Context, *client.Client, client.Route, rooted.MemberID) (*rootv1.Event, error)) func(context.Context, *env, []string) error {
	c := f.changing()
	f.withOutput()
	return func(ctx context.Context, e *env, args []string) error {
		if len(args) != 2 {
			return usagef("want a region ID and a MEMBER")
		}
		id, err := regionID(args[0])
		if err != nil {
			return err
		}
		return c.call(ctx, func(ctx context.Context, cl *client.Client) error {
			known, err := cl.GetRegion(ctx, id, client.Strong())
			if err != nil {
				return err
			}
			event, err := plan(ctx, cl, known, rooted.MemberID(args[1]))
			if err != nil {
				return err
			}
			result, err := cl.PublishEvent(ctx, event)
			if err != nil {
				return err
			}
			at := rooted.TokenFromProto(result.GetToken())
			after, err := cl.GetRegion(ctx, id, client.AtLeast(at))
			if err != nil {
				return err
			}
			return printOwners(e, result.GetOutcome() == rootv1.Outcome_OUTCOME_APPLIED, at, after.Region, event.GetMovePlanned())
		})
	}
}

// assignOutput is what `nokv region assign -o json` prints. The field names stay.
type assignOutput struct {
	changeOutput
	// TransitionID is a move that was planned.
	TransitionID string `json:"transition_id,omitempty"`
}

func printOwners(e *env, changed bool, at rooted.Token, r *rooted.Region, move *rootv1.MovePlanned) error {
	out := assignOutput{changeOutput: showChange(changed, at, r)}
	text := ""
	if move != nil {
		out.TransitionID = rooted.TransitionID(rootv1.TransitionKind_TRANSITION_KIND_MOVE, r.ID, rooted.EpochFromProto(move.GetExpectedEpoch()))
		text = fmt.Sprintf("# it is to move from %s to %s: nokv transition list %d --ended says how far it is", move.GetFrom().GetMemberId(), move.GetTo().GetMemberId(), r.ID)
	}
	return e.print(out, func(w *tabwriter.Writer) {
		out.table(w)
		if text != "" {
			row(w, text)
		}
	})
}
