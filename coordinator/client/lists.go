package client

import (
	"context"
	"iter"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// pageSize is how many records a list asks for at a time.
const pageSize = 256

// paged yields the records of a list, a page at a time, at most so many as Limit
// says. ask returns a page and where the next one begins; empty: there is none.
// An error ends the sequence.
func paged[T any](r read, ask func(after string, limit uint32) (page []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after, given := "", 0; ; {
			limit := pageSize
			if r.limit > 0 {
				limit = min(limit, r.limit-given)
			}
			page, next, err := ask(after, uint32(limit))
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range page {
				if given++; !yield(item, nil) || given == r.limit {
					return
				}
			}
			if next == "" || len(page) == 0 {
				return
			}
			after = next
		}
	}
}

// lastOf is the id of a page's last record when more follow.
func lastOf[T any](page []T, more bool, id func(T) string) string {
	if !more || len(page) == 0 {
		return ""
	}
	return id(page[len(page)-1])
}

// ListKeyspaces yields the keyspaces by name.
func (c *Client) ListKeyspaces(ctx context.Context, opts ...ReadOption) iter.Seq2[*rootv1.Keyspace, error] {
	r := readOf(opts)
	return paged(r, func(after string, limit uint32) ([]*rootv1.Keyspace, string, error) {
		req := &coordinatorv1.ListKeyspacesRequest{After: after, Limit: limit, Read: r.options}
		reply, err := do(ctx, c, operation{name: "ListKeyspaces"}, req, coordinatorv1.CoordinatorClient.ListKeyspaces)
		r.saw(reply.GetDisclosure())
		return reply.GetKeyspaces(), lastOf(reply.GetKeyspaces(), reply.GetMore(), (*rootv1.Keyspace).GetName), err
	})
}

// ListMembers yields the members by id, with what is rooted of them and what the
// coordinator that answers has observed.
func (c *Client) ListMembers(ctx context.Context, opts ...ReadOption) iter.Seq2[*coordinatorv1.MemberStatus, error] {
	r := readOf(opts)
	return paged(r, func(after string, limit uint32) ([]*coordinatorv1.MemberStatus, string, error) {
		req := &coordinatorv1.ListMembersRequest{After: after, Limit: limit, Read: r.options}
		reply, err := do(ctx, c, operation{name: "ListMembers"}, req, coordinatorv1.CoordinatorClient.ListMembers)
		r.saw(reply.GetDisclosure())
		id := func(m *coordinatorv1.MemberStatus) string { return m.GetMember().GetId() }
		return reply.GetMembers(), lastOf(reply.GetMembers(), reply.GetMore(), id), err
	})
}

// ListCoordinators yields the coordinators by id.
func (c *Client) ListCoordinators(ctx context.Context, opts ...ReadOption) iter.Seq2[*rootv1.Coordinator, error] {
	r := readOf(opts)
	return paged(r, func(after string, limit uint32) ([]*rootv1.Coordinator, string, error) {
		req := &coordinatorv1.ListCoordinatorsRequest{After: after, Limit: limit, Read: r.options}
		reply, err := do(ctx, c, operation{name: "ListCoordinators"}, req, coordinatorv1.CoordinatorClient.ListCoordinators)
		r.saw(reply.GetDisclosure())
		return reply.GetCoordinators(), lastOf(reply.GetCoordinators(), reply.GetMore(), (*rootv1.Coordinator).GetId), err
	})
}

// ListTransitions yields planned changes of a region, 0 for all, with how the
// recent ones ended if they are asked for.
func (c *Client) ListTransitions(ctx context.Context, region rooted.RegionID, ended bool, opts ...ReadOption) iter.Seq2[*rootv1.Transition, error] {
	r := readOf(opts)
	return paged(r, func(after string, limit uint32) ([]*rootv1.Transition, string, error) {
		req := &coordinatorv1.ListTransitionsRequest{RegionId: uint64(region), IncludeEnded: ended, Limit: limit, Read: r.options, Page: after}
		reply, err := do(ctx, c, operation{name: "ListTransitions"}, req, coordinatorv1.CoordinatorClient.ListTransitions)
		r.saw(reply.GetDisclosure())
		return reply.GetTransitions(), reply.GetNextPage(), err
	})
}
