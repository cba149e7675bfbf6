package server

import (
	"context"

	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/principal"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// permitted names who asks for commands, and judges them by that. What may not be
// proposed has its refusal at its place in refused, which is nil when all may.
func (s *Server) permitted(ctx context.Context, cmds []*rootv1.Command) (kept []*rootv1.Command, refused []*rootv1.CommandResult, err error) {
	gate := s.cfg.Access
	actor := principal.FromContext(ctx).Actor()
	known := access.Known{State: s.view().State}
	doubtful := false
	for _, cmd := range cmds {
		cmd.Actor = actor
		doubtful = doubtful || gate.Asked(ctx, cmd, known) != nil
	}
	if !doubtful {
		return cmds, nil, nil
	}
	// The view may be behind what its caller knows: it is refused by what is rooted now.
	now, err := s.strong(ctx)
	if err != nil {
		return nil, nil, err
	}
	known = access.Known{State: now.state, Newest: true}
	refused = make([]*rootv1.CommandResult, len(cmds))
	for i, cmd := range cmds {
		if err := gate.Asked(ctx, cmd, known); err != nil {
			refused[i] = &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Token: now.view.Token.Proto(), Error: reason.From(err)}
		} else {
			kept = append(kept, cmd)
		}
	}
	return kept, refused, nil
}

// mayRead refuses a caller whom the grants of the view keep out of a keyspace;
// empty: the default one.
func (v *served) mayRead(ctx context.Context, keyspace string) error {
	return v.atToken(v.server.cfg.Access.May(ctx, v.state, rootv1.Verb_VERB_READ, keyspace))
}

// mayReadOf is mayRead for the keyspace of an id.
func (v *served) mayReadOf(ctx context.Context, id state.KeyspaceID) error {
	if v.server.cfg.Access == nil {
		return nil
	}
	return v.mayRead(ctx, v.state.Keyspace(id).GetName())
}

// Access counts refusals and callers; nil without certificates.
func (s *Server) Access() *access.Metrics { return s.cfg.Access.Metrics() }
