package client

import (
	"context"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
)

// Witness shows who held authority and who holds it, and how the four
// guarantees were judged from rooted truth by the coordinator that answers.
func (c *Client) Witness(ctx context.Context, opts ...ReadOption) (*coordinatorv1.WitnessResponse, error) {
	r := readOf(opts)
	reply, err := do(ctx, c, operation{name: "Witness"}, &coordinatorv1.WitnessRequest{Read: r.options}, coordinatorv1.CoordinatorClient.Witness)
	r.saw(reply.GetDisclosure())
	return reply, err
}
