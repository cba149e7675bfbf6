package server

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/nokv/nokv/internal/bearer"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// newKey is what the root keeps of a key that is made here, behind the newest one.
func (s *Server) newKey(p seal.Purpose, newest uint32) (kept []byte, sealed bool) {
	secret := make([]byte, state.KeySecretBytes)
	_, _ = rand.Read(secret) // never fails: crypto/rand crashes the process instead
	return s.cfg.Secret.Seal(p, newest+1, secret)
}

// strong is what is rooted now.
func (s *Server) strong(ctx context.Context) (served, error) {
	return s.serve(ctx, &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG})
}

// CreateToken implements coordinatorv1.CoordinatorServer. Only that it was made is
// logged; the token goes to its caller alone.
func (s *Server) CreateToken(ctx context.Context, req *coordinatorv1.CreateTokenRequest) (*coordinatorv1.CreateTokenResponse, error) {
	role, err := principal.ParseRole(req.GetRole())
	if err != nil {
		return nil, invalid("role", "%.64q is none: operator or client", req.GetRole())
	}
	life := time.Duration(min(req.GetTtlSeconds(), uint64(bearer.MaxLife/time.Second)+1)) * time.Second
	if err := bearer.CheckClaims(role, req.GetName(), life); err != nil {
		return nil, invalid("token", "%v", err)
	}
	v, err := s.strong(ctx)
	if err != nil {
		return nil, err
	}
	if len(v.state.TokenKeys()) == 0 {
		// Another coordinator may make it at the same time: any will do.
		if _, err := s.rotateTokenKey(ctx, nil, v.state); err != nil && reason.Of(err) != rootv1.Reason_REASON_VERSION_STALE {
			return nil, err
		}
		if v, err = s.strong(ctx); err != nil {
			return nil, err
		}
	}
	token, claims, err := bearer.Rooted{State: v.state, Secret: s.cfg.Secret}.Make(role, req.GetName(), time.UnixMilli(int64(s.cfg.Clock.Wall())).Add(life))
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "coordinator %s: %v", s.cfg.ID, err)
	}
	s.log.Info("token made", "id", claims.ID, "for", principal.Principal{Role: role, Name: claims.Name}, "expires", claims.Expires.UTC().Format(time.RFC3339),
		"by", principal.FromContext(ctx).Actor())
	return &coordinatorv1.CreateTokenResponse{Token: token, Id: claims.ID.String(), ExpiresUnixSeconds: uint64(claims.Expires.Unix())}, nil
}

// RevokeToken implements coordinatorv1.CoordinatorServer. That a token is worth nothing
// already is an answer.
func (s *Server) RevokeToken(ctx context.Context, req *coordinatorv1.RevokeTokenRequest) (*coordinatorv1.RevokeTokenResponse, error) {
	id, err := bearer.ParseID(req.GetId())
	if err != nil {
		return nil, invalid("id", "%v", err)
	}
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_TokenRevoked{TokenRevoked: &rootv1.TokenRevoked{KeyId: id.Key, Serial: id.Serial}}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.RevokeTokenResponse{Token: result.GetToken(), Changed: changed(result)}, nil
}

// RotateTokenKey implements coordinatorv1.CoordinatorServer.
func (s *Server) RotateTokenKey(ctx context.Context, req *coordinatorv1.RotateTokenKeyRequest) (*coordinatorv1.RotateTokenKeyResponse, error) {
	v, err := s.strong(ctx)
	if err != nil {
		return nil, err
	}
	result, err := s.rotateTokenKey(ctx, req.GetIdentity(), v.state)
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.RotateTokenKeyResponse{Id: made(result).GetTokenKeyId(), Token: result.GetToken()}, nil
}

// rotateTokenKey makes the key behind the newest one of a state.
func (s *Server) rotateTokenKey(ctx context.Context, id *rootv1.CommandIdentity, now *state.State) (*rootv1.CommandResult, error) {
	e := &rootv1.TokenKeyRotated{}
	if keys := now.TokenKeys(); len(keys) > 0 {
		e.ExpectedId = keys[len(keys)-1].GetId()
	}
	e.Secret, e.Sealed = s.newKey(seal.Tokens, e.ExpectedId)
	return s.change(ctx, id, &rootv1.Event{Kind: &rootv1.Event_TokenKeyRotated{TokenKeyRotated: e}})
}
