package client

import (
	"context"
	"iter"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// CreateKeyspace makes a keyspace from a preset ("" for none) and settings
// that replace the preset's (nil for none). Making it again with the same
// settings is no error.
func (c *Client) CreateKeyspace(ctx context.Context, name, preset string, settings *rootv1.KeyspaceSettings) (*coordinatorv1.CreateKeyspaceResponse, error) {
	return change(ctx, c, "CreateKeyspace", func(id *rootv1.CommandIdentity) *coordinatorv1.CreateKeyspaceRequest {
		return &coordinatorv1.CreateKeyspaceRequest{Name: name, Preset: preset, Settings: settings, Identity: id}
	}, coordinatorv1.CoordinatorClient.CreateKeyspace)
}

// UpdateKeyspace replaces the settings of a keyspace at a version.
func (c *Client) UpdateKeyspace(ctx context.Context, name string, version uint64, settings *rootv1.KeyspaceSettings) (*coordinatorv1.UpdateKeyspaceResponse, error) {
	return change(ctx, c, "UpdateKeyspace", func(id *rootv1.CommandIdentity) *coordinatorv1.UpdateKeyspaceRequest {
		return &coordinatorv1.UpdateKeyspaceRequest{Name: name, ExpectedVersion: version, Settings: settings, Identity: id}
	}, coordinatorv1.CoordinatorClient.UpdateKeyspace)
}

// DeleteKeyspace removes an empty keyspace at a version; 0 for any.
func (c *Client) DeleteKeyspace(ctx context.Context, name string, version uint64) (*coordinatorv1.DeleteKeyspaceResponse, error) {
	return change(ctx, c, "DeleteKeyspace", func(id *rootv1.CommandIdentity) *coordinatorv1.DeleteKeyspaceRequest {
		return &coordinatorv1.DeleteKeyspaceRequest{Name: name, ExpectedVersion: version, Identity: id}
	}, coordinatorv1.CoordinatorClient.DeleteKeyspace)
}

// GetKeyspace finds a keyspace by name; "" is "default". ErrNotFound: there is none.
func (c *Client) GetKeyspace(ctx context.Context, name string, opts ...ReadOption) (*coordinatorv1.GetKeyspaceResponse, error) {
	r := readOf(opts)
	req := &coordinatorv1.GetKeyspaceRequest{Name: name, Read: r.options}
	reply, err := do(ctx, c, operation{name: "GetKeyspace"}, req, coordinatorv1.CoordinatorClient.GetKeyspace)
	r.saw(reply.GetDisclosure())
	return reply, err
}

// ListKeyspaces yields all keyspaces by name, a page at a time. An error ends
// the sequence.
func (c *Client) ListKeyspaces(ctx context.Context, opts ...ReadOption) iter.Seq2[*rootv1.Keyspace, error] {
	r := readOf(opts)
	return func(yield func(*rootv1.Keyspace, error) bool) {
		after, given := "", 0
		for {
			req := &coordinatorv1.ListKeyspacesRequest{After: after, Limit: 256, Read: r.options}
			reply, err := do(ctx, c, operation{name: "ListKeyspaces"}, req, coordinatorv1.CoordinatorClient.ListKeyspaces)
			if err != nil {
				yield(nil, err)
				return
			}
			r.saw(reply.GetDisclosure())
			for _, k := range reply.GetKeyspaces() {
				if given++; !yield(k, nil) || given == r.limit {
					return
				}
				after = k.GetName()
			}
			if !reply.GetMore() || len(reply.GetKeyspaces()) == 0 {
				return
			}
		}
	}
}
