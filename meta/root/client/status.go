package client

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// PeerStatus is what one peer says of itself, or why it does not.
type PeerStatus struct {
	NodeID uint64
	// Address is the gRPC address that was asked, host:port.
	Address string
	// Status is nil when Err is not.
	Status *rootv1.StatusResponse
	Err    error
}

// Status asks every known peer at the same time, then those that an answer names
// besides or elsewhere, if they were not reached, and returns the answers in order of node id. A peer that does
// not answer within AttemptTimeout has an Err; so has one of another cluster,
// which then says REASON_CLUSTER_MISMATCH beside its Status, and one that has
// another node id, with REASON_INVALID_REQUEST.
func (c *Client) Status(ctx context.Context) []PeerStatus {
	out := c.statusOfEach(ctx, c.peers.ids())
	for _, answer := range out {
		if answer.Err != nil {
			continue
		}
		for _, p := range answer.Status.GetPeers() {
			c.peers.learn(p.GetNodeId(), p.GetAddress())
		}
	}
	out = slices.DeleteFunc(out, func(s PeerStatus) bool {
		p, err := c.peers.get(s.NodeID)
		return s.Err != nil && err == nil && c.unreached(p)
	})
	more := slices.DeleteFunc(c.peers.ids(), func(id uint64) bool {
		return slices.ContainsFunc(out, func(s PeerStatus) bool { return s.NodeID == id })
	})
	out = append(out, c.statusOfEach(ctx, more)...)
	slices.SortFunc(out, func(a, b PeerStatus) int { return cmp.Compare(a.NodeID, b.NodeID) })
	return out
}

func (c *Client) statusOfEach(ctx context.Context, ids []uint64) []PeerStatus {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
	defer cancel()
	out := make([]PeerStatus, len(ids))
	var asking sync.WaitGroup
	for i, id := range ids {
		asking.Go(func() { out[i] = c.statusOf(ctx, id) })
	}
	asking.Wait()
	return out
}

func (c *Client) statusOf(ctx context.Context, id uint64) PeerStatus {
	p, err := c.peers.get(id)
	if err != nil {
		return PeerStatus{NodeID: id, Err: err}
	}
	status, err := p.root.Status(ctx, &rootv1.StatusRequest{})
	out := PeerStatus{NodeID: id, Address: p.address, Status: status, Err: reason.FromGRPC(err)}
	if err == nil {
		out.Err = c.pin(p, status.GetClusterId())
		if who := status.GetNodeId(); out.Err == nil && who != 0 && who != id {
			out.Err = reason.New(rootv1.Reason_REASON_INVALID_REQUEST,
				"root peer %d at %s answers as root peer %d: correct the list of root peers", id, p.address, who)
		}
	}
	return out
}
