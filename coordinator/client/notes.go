package client

import (
	"context"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// RegionNotes says what the coordinator that assigns knows beside the root of a region, or,
// with id 0, of those of a keyspace that are over a limit, in quarantine or refused; more:
// there are others.
func (c *Client) RegionNotes(ctx context.Context, id rooted.RegionID, keyspace string) (notes []*coordinatorv1.RegionNote, more bool, err error) {
	req := &coordinatorv1.RegionNotesRequest{RegionId: uint64(id)}
	if id == 0 {
		req.Keyspace = keyspace
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	reply, err := atHolderOnce(ctx, c, operation{name: "RegionNotes"}, req, coordinatorv1.CoordinatorClient.RegionNotes)
	return reply.GetNotes(), reply.GetMore(), err
}

// ReleaseRegion gives a region another chance that is in quarantine because its owners
// died; released: it was. WithWhy says why. It may be asked for again.
func (c *Client) ReleaseRegion(ctx context.Context, id rooted.RegionID) (released bool, err error) {
	op := operation{name: "ReleaseRegion", changes: true}
	reply, err := atHolder(ctx, c, op, &coordinatorv1.ReleaseRegionRequest{RegionId: uint64(id)}, coordinatorv1.CoordinatorClient.ReleaseRegion)
	return reply.GetReleased(), err
}

// atHolderOnce asks who holds the Tenure, as a coordinator says, and does not wait for one.
func atHolderOnce[Q, R any](ctx context.Context, c *Client, op operation, req *Q, m method[Q, R]) (*R, error) {
	st, err := c.Status(ctx, "")
	if err != nil {
		return nil, err
	}
	if st.GetTenure().GetHolderAddress() == "" || st.GetTenure().GetRetired() {
		return nil, &Error{Op: op.name, Reason: rootv1.Reason_REASON_TENURE_NOT_HELD, Cause: ErrTenureNotHeld}
	}
	return askOne(ctx, c, op, st.GetTenure().GetHolderAddress(), req, m)
}
