package client

import (
	"context"
	"errors"
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

// PublishRegion roots a region. Id 0: the root
// gives one. With the zero Epoch a known region gets the epoch that follows the
// rooted one: the version rises with another range, the conf version with other
// owners. ErrEpochStale: somebody changed it meanwhile.
func (c *Client) PublishRegion(ctx context.Context, r *rooted.Region) (Published, error) {
	event := &rootv1.RegionPublished{Region: r.Proto()}
	if r.ID != 0 && r.Epoch == (rooted.Epoch{}) {
		known, err := c.GetRegion(ctx, r.ID, Strong())
		switch {
		case err == nil:
			event.ExpectedEpoch, event.Region.Epoch = known.Region.Epoch.Proto(), followed(known.Region, r).Proto()
		case !errors.Is(err, ErrNotFound):
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
	changed := result.GetOutcome() == rootv1.Outcome_OUTCOME_APPLIED || result.GetRepetition()
	return Published{Region: made, Token: rooted.TokenFromProto(result.GetToken()), Changed: changed}, nil
}

// followed is the epoch of next behind known.
func followed(known, next *rooted.Region) rooted.Epoch {
	epoch := known.Epoch
	if known.Start != next.Start || known.End != next.End {
		epoch.Version++
	}
	same := func(a, b rooted.Owner) bool { return a.Member == b.Member && a.Peer == b.Peer && a.Role == b.Role }
	if !slices.EqualFunc(known.Owners, next.Owners, same) {
		epoch.ConfVersion++
	}
	return epoch
}
