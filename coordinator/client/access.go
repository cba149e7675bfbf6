package client

import (
	"context"
	"iter"

	"github.com/nokv/nokv/internal/why"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// WithWhy returns a context by which changes say why they are made, in at most 256
// bytes: it stands in the log beside them. Publish of a command that says it itself
// leaves that.
func WithWhy(ctx context.Context, text string) context.Context { return why.With(ctx, text) }

// EndTenure asks an era to end, 0 for the one that is active now: its holder retires
// it, or its ttl ends it, never earlier. Asked twice is once. ErrEraStale: another era
// is active; ErrSilence: it has ended.
func (c *Client) EndTenure(ctx context.Context, era rooted.Era) (*coordinatorv1.EndTenureResponse, error) {
	if era == 0 {
		reply, err := do(ctx, c, operation{name: "EndTenure"}, &coordinatorv1.WitnessRequest{
			Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG},
		}, coordinatorv1.CoordinatorClient.Witness)
		if err != nil {
			return nil, err
		}
		if era = rooted.Era(reply.GetTenure().GetEra()); era == 0 {
			d := &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_NOT_FOUND, Message: "no era has begun: there is none to end"}
			return nil, &Error{Op: "EndTenure", Reason: d.Reason, Detail: d, Cause: errRefused}
		}
	}
	return change(ctx, c, "EndTenure", func(id *rootv1.CommandIdentity) *coordinatorv1.EndTenureRequest {
		return &coordinatorv1.EndTenureRequest{Era: uint64(era), Identity: id}
	}, coordinatorv1.CoordinatorClient.EndTenure)
}

// GrantAccess adds verbs to what a principal, ROLE/NAME where NAME may end in *, may
// do with a keyspace, whose name may end in * too. The first grant that names a
// keyspace closes it to everybody whom none names. Changed is false when all of it
// was granted.
func (c *Client) GrantAccess(ctx context.Context, principal, keyspace string, verbs ...rootv1.Verb) (*coordinatorv1.GrantAccessResponse, error) {
	return change(ctx, c, "GrantAccess", func(id *rootv1.CommandIdentity) *coordinatorv1.GrantAccessRequest {
		return &coordinatorv1.GrantAccessRequest{Grant: &rootv1.Grant{Principal: principal, Keyspace: keyspace, Verbs: verbs}, Identity: id}
	}, coordinatorv1.CoordinatorClient.GrantAccess)
}

// RevokeAccess takes verbs back that were granted by the same names; all without
// any. The last grant that names a keyspace leaves it open.
func (c *Client) RevokeAccess(ctx context.Context, principal, keyspace string, verbs ...rootv1.Verb) (*coordinatorv1.RevokeAccessResponse, error) {
	return change(ctx, c, "RevokeAccess", func(id *rootv1.CommandIdentity) *coordinatorv1.RevokeAccessRequest {
		return &coordinatorv1.RevokeAccessRequest{Principal: principal, Keyspace: keyspace, Verbs: verbs, Identity: id}
	}, coordinatorv1.CoordinatorClient.RevokeAccess)
}

// ListGrants yields what was granted, by keyspace and principal, those of prefixes
// last.
func (c *Client) ListGrants(ctx context.Context, opts ...ReadOption) iter.Seq2[*rootv1.Grant, error] {
	r := readOf(opts)
	return paged(r, func(after string, limit uint32) ([]*rootv1.Grant, string, error) {
		req := &coordinatorv1.ListGrantsRequest{Page: after, Limit: limit, Read: r.options}
		reply, err := do(ctx, c, operation{name: "ListGrants"}, req, coordinatorv1.CoordinatorClient.ListGrants)
		r.saw(reply.GetDisclosure())
		return reply.GetGrants(), reply.GetNextPage(), err
	})
}

// CheckAccess says whether a principal, ROLE/NAME, may do something to a keyspace,
// and by which grant.
func (c *Client) CheckAccess(ctx context.Context, principal string, verb rootv1.Verb, keyspace string, opts ...ReadOption) (*coordinatorv1.CheckAccessResponse, error) {
	return c.checkAccess(ctx, &coordinatorv1.CheckAccessRequest{Principal: principal, Verb: verb, Keyspace: keyspace}, opts)
}

// CheckToken is CheckAccess of whose a bearer token is, which the answer says too: nobody's, if it does
// not count.
func (c *Client) CheckToken(ctx context.Context, token string, verb rootv1.Verb, keyspace string, opts ...ReadOption) (*coordinatorv1.CheckAccessResponse, error) {
	return c.checkAccess(ctx, &coordinatorv1.CheckAccessRequest{BearerToken: token, Verb: verb, Keyspace: keyspace}, opts)
}

func (c *Client) checkAccess(ctx context.Context, req *coordinatorv1.CheckAccessRequest, opts []ReadOption) (*coordinatorv1.CheckAccessResponse, error) {
	r := readOf(opts)
	req.Read = r.options
	reply, err := do(ctx, c, operation{name: "CheckAccess"}, req, coordinatorv1.CoordinatorClient.CheckAccess)
	r.saw(reply.GetDisclosure())
	return reply, err
}
