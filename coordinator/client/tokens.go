package client

import (
	"context"
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// CreateToken makes a bearer token, with which whoever has it is operator/name or
// client/name at the HTTP ports: see docs/operations.md. It is good for ttl, in whole
// seconds, 1 minute to 400 days.
func (c *Client) CreateToken(ctx context.Context, role, name string, ttl time.Duration) (*coordinatorv1.CreateTokenResponse, error) {
	req := &coordinatorv1.CreateTokenRequest{Role: role, Name: name, TtlSeconds: uint64(max(ttl, 0) / time.Second)}
	return do(ctx, c, operation{name: "CreateToken", changes: true}, req, coordinatorv1.CoordinatorClient.CreateToken)
}

// RevokeToken ends a token by its id. Changed is false when it was revoked already,
// or its key is gone.
func (c *Client) RevokeToken(ctx context.Context, id string) (*coordinatorv1.RevokeTokenResponse, error) {
	return change(ctx, c, "RevokeToken", func(identity *rootv1.CommandIdentity) *coordinatorv1.RevokeTokenRequest {
		return &coordinatorv1.RevokeTokenRequest{Id: id, Identity: identity}
	}, coordinatorv1.CoordinatorClient.RevokeToken)
}

// RotateTokenKey makes the next key for tokens. What the key before the newest signed
// ends; so two rotations end all tokens that there are.
func (c *Client) RotateTokenKey(ctx context.Context) (*coordinatorv1.RotateTokenKeyResponse, error) {
	return change(ctx, c, "RotateTokenKey", func(identity *rootv1.CommandIdentity) *coordinatorv1.RotateTokenKeyRequest {
		return &coordinatorv1.RotateTokenKeyRequest{Identity: identity}
	}, coordinatorv1.CoordinatorClient.RotateTokenKey)
}
