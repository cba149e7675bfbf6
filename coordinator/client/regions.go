package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Published is what became of a region.
type Published struct {
	// Region as rooted.
	Region *rooted.Region
	// Token at which it is visible.
	Token rooted.Token
	// Changed is false when all of it was true already.
	Changed bool
}

// Split is what became of a region that was cut in two.
type Split struct {
	// Left and Right parts as rooted; Left has the id of the whole.
	Left, Right *rooted.Region
	// Token at which they are visible.
	Token rooted.Token
}

// PublishRegion roots a region. Id 0: the root
// gives one. With the zero Epoch a known region gets the epoch that follows the
// rooted one: the version rises with another range or frontier, the conf version
// with other owners, in whatever order. ErrEpochStale: somebody changed it meanwhile.
func (c *Client) PublishRegion(ctx context.Context, r *rooted.Region) (Published, error) {
	if r == nil {
		return Published{}, invalid("PublishRegion", "there is no region")
	}
	event := &rootv1.RegionPublished{Region: r.Proto()}
	if r.ID != 0 && r.Epoch == (rooted.Epoch{}) {
		known, err := c.GetRegion(ctx, r.ID, Strong())
		switch {
		case err == nil:
			event.ExpectedEpoch, event.Region.Epoch = known.Region.Epoch.Proto(), followed(known.Region, r).Proto()
		case errors.Is(err, ErrNotFound):
			event.ExpectedEpoch = new(rootv1.RegionEpoch)
		default:
			return Published{}, err
		}
	}
	result, err := c.PublishEvent(ctx, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: event}})
	if err != nil {
		return Published{}, err
	}
	made := rooted.RegionFromProto(event.Region)
	if events := result.GetEvents(); len(events) > 0 && events[0].GetRegion() != nil {
		made = rooted.RegionFromProto(events[0].GetRegion())
	}
	changed := result.GetOutcome() == rootv1.Outcome_OUTCOME_APPLIED
	return Published{Region: made, Token: rooted.TokenFromProto(result.GetToken()), Changed: changed}, nil
}

// SplitRegion cuts a region in two before key. The left part keeps the id, the
// right one gets that of right, or 0: one from the root. Like MergeRegions and
// MoveRegion it is planned behind the region's rooted epoch and completed in one
// atomic command. ErrEpochStale: somebody changed the region meanwhile.
//
// An exclusive region of an assigned keyspace has an owner that lets go of it first, and
// gets both parts back: SplitRegion then returns when that has been done, or with
// ErrTransitionClosed when it was given up, as past the keyspace's deadline. It goes on if
// the context ends.
func (c *Client) SplitRegion(ctx context.Context, id rooted.RegionID, key []byte, right rooted.RegionID) (Split, error) {
	known, err := c.GetRegion(ctx, id, Strong())
	if err != nil {
		return Split{}, err
	}
	plan := &rootv1.SplitPlanned{RegionId: uint64(id), ExpectedEpoch: known.Region.Epoch.Proto(), SplitKey: key, RightRegionId: uint64(right)}
	made, at, err := c.reshape(ctx, "SplitRegion", rootv1.TransitionKind_TRANSITION_KIND_SPLIT, known.Region,
		&rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: plan}})
	if err != nil {
		return Split{}, err
	}
	return Split{Left: rooted.RegionFromProto(made.GetRegion()), Right: rooted.RegionFromProto(made.GetRightRegion()), Token: at}, nil
}

// MergeRegions joins a region and its right neighbour, which ends: the left one
// keeps its id and its owners and takes the range. See SplitRegion.
func (c *Client) MergeRegions(ctx context.Context, left, right rooted.RegionID) (Published, error) {
	l, err := c.GetRegion(ctx, left, Strong())
	if err != nil {
		return Published{}, err
	}
	r, err := c.GetRegion(ctx, right, Strong())
	if err != nil {
		return Published{}, err
	}
	plan := &rootv1.MergePlanned{
		LeftRegionId: uint64(left), LeftExpectedEpoch: l.Region.Epoch.Proto(),
		RightRegionId: uint64(right), RightExpectedEpoch: r.Region.Epoch.Proto(),
	}
	made, at, err := c.reshape(ctx, "MergeRegions", rootv1.TransitionKind_TRANSITION_KIND_MERGE, l.Region,
		&rootv1.Event{Kind: &rootv1.Event_MergePlanned{MergePlanned: plan}})
	if err != nil {
		return Published{}, err
	}
	return Published{Region: rooted.RegionFromProto(made.GetRegion()), Token: at, Changed: true}, nil
}

// MoveRegion gives the share of one owner of a region, of an assigned keyspace, to
// another member, which is not asked first. Under a fence of time an owner that may act is not
// passed over: plan the move alone, and the Tenure holder carries it out. See SplitRegion.
// A caller with a grant of publish may plan a move of a region whose owner acts for it (PublishEvent), and not
// make it: ErrPermissionDenied.
func (c *Client) MoveRegion(ctx context.Context, id rooted.RegionID, from, to rooted.MemberID) (Published, error) {
	known, err := c.GetRegion(ctx, id, Strong())
	if err != nil {
		return Published{}, err
	}
	// The next owner replicates as the one that it follows did.
	gives, _ := known.Region.Owner(from)
	plan := &rootv1.MovePlanned{
		RegionId: uint64(id), ExpectedEpoch: known.Region.Epoch.Proto(),
		From: rooted.Owner{Member: from, Incarnation: gives.Incarnation}.Proto(),
		To:   rooted.Owner{Member: to, Role: gives.Role}.Proto(),
	}
	made, at, err := c.complete(ctx, rootv1.TransitionKind_TRANSITION_KIND_MOVE, known.Region,
		&rootv1.Event{Kind: &rootv1.Event_MovePlanned{MovePlanned: plan}})
	if err != nil {
		return Published{}, err
	}
	return Published{Region: rooted.RegionFromProto(made.GetRegion()), Token: at, Changed: true}, nil
}

// complete roots a plan for a known region and its completion together, and
// returns what they made.
func (c *Client) complete(ctx context.Context, kind rootv1.TransitionKind, known *rooted.Region, plan *rootv1.Event) (*rootv1.EventResult, rooted.Token, error) {
	end := &rootv1.TransitionCompleted{TransitionId: rooted.TransitionID(kind, known.ID, known.Epoch)}
	result, err := c.Publish(ctx, &rootv1.Command{Events: []*rootv1.Event{
		plan, {Kind: &rootv1.Event_TransitionCompleted{TransitionCompleted: end}},
	}})
	at := rooted.TokenFromProto(result.GetToken())
	if err != nil {
		return nil, at, err
	}
	events := result.GetEvents()
	if len(events) == 0 || events[len(events)-1].GetRegion() == nil {
		return nil, at, &Error{Op: "Publish", Cause: fmt.Errorf("%w: the result names no region", errUnfit)}
	}
	return events[len(events)-1], at, nil
}

// followed is the epoch of next behind known.
func followed(known, next *rooted.Region) rooted.Epoch {
	epoch := known.Epoch
	if known.Start != next.Start || known.End != next.End || next.Frontier != "" && known.Frontier != next.Frontier {
		epoch.Version++
	}
	if !sameOwners(known.Owners, next.Owners) {
		epoch.ConfVersion++
	}
	return epoch
}

// sameOwners judges as the root does: the order says nothing, and incarnation 0
// is any.
func sameOwners(known, next []rooted.Owner) bool {
	return len(known) == len(next) && !slices.ContainsFunc(next, func(n rooted.Owner) bool {
		return !slices.ContainsFunc(known, func(k rooted.Owner) bool {
			return n.Member == k.Member && n.Peer == k.Peer && n.Role == k.Role &&
				(n.Incarnation == 0 || k.Incarnation == 0 || n.Incarnation == k.Incarnation)
		})
	})
}
