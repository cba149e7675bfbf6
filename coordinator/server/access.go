package server

import (
	"cmp"
	"context"
	"slices"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/internal/access"
	"github.com/nokv/nokv/internal/oneline"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/mtls/principal"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// readable makes what people wrote in a command lines that the root takes.
func readable(cmd *rootv1.Command) {
	cmd.Why = oneline.Of(cmd.GetWhy())
	for _, e := range cmd.GetEvents() {
		if c := e.GetMemberStateChanged(); c != nil {
			c.Reason = oneline.Of(c.GetReason())
		}
		if c := e.GetTransitionCancelled(); c != nil {
			c.Reason = oneline.Of(c.GetReason())
		}
	}
}

// permitted names who asks for commands, and judges them by that. What may not be
// proposed has its refusal at its place in refused, which is nil when all may.
func (s *Server) permitted(ctx context.Context, cmds []*rootv1.Command) (kept []*rootv1.Command, refused []*rootv1.CommandResult, err error) {
	gate := s.cfg.Access
	actor := principal.FromContext(ctx).Actor()
	known := s.view().State
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
	refused = make([]*rootv1.CommandResult, len(cmds))
	for i, cmd := range cmds {
		if err := gate.Asked(ctx, cmd, now.state); err != nil {
			refused[i] = &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Token: now.view.Token.Proto(), Error: reason.From(err)}
		} else {
			kept = append(kept, cmd)
		}
	}
	return kept, refused, nil
}

// mayRead refuses a caller whom the grants of the view keep out of a keyspace, in the
// words for one that is not there: names would tell what others have. Empty: the default one.
func (v *served) mayRead(ctx context.Context, keyspace string) error {
	if v.server.cfg.Access.May(ctx, v.state, rootv1.Verb_VERB_READ, keyspace) != nil {
		return v.atToken(catalog.NoKeyspace(cmp.Or(keyspace, catalog.DefaultKeyspace)))
	}
	return nil
}

// mayReadOf is mayRead for the keyspace of an id; of one that is gone, only who may read all of them.
func (v *served) mayReadOf(ctx context.Context, id state.KeyspaceID) error {
	if v.server.cfg.Access == nil {
		return nil
	}
	if k := v.state.Keyspace(id); k != nil {
		return v.mayRead(ctx, k.GetName())
	}
	return v.server.cfg.Access.MayAll(ctx, v.state, rootv1.Verb_VERB_READ)
}

// conceal takes out of refusals the regions that are in the way of a caller who may
// neither read nor publish in their keyspace, and does not own them. That of a region
// which is gone has no keyspace, and says its last epoch.
func (s *Server) conceal(ctx context.Context, results ...*rootv1.CommandResult) {
	gate := s.cfg.Access
	if gate == nil {
		return
	}
	st, p := s.view().State, principal.FromContext(ctx)
	for _, result := range results {
		region := result.GetError().GetRegion()
		if region.GetKeyspaceId() == 0 || p.Role == principal.Member && slices.ContainsFunc(region.GetOwners(), func(o *rootv1.Owner) bool { return o.GetMemberId() == p.Name }) {
			continue
		}
		keyspace := st.Keyspace(state.KeyspaceID(region.GetKeyspaceId()))
		if keyspace == nil || gate.May(ctx, st, rootv1.Verb_VERB_READ, keyspace.GetName()) != nil && gate.May(ctx, st, rootv1.Verb_VERB_PUBLISH, keyspace.GetName()) != nil {
			result.Error = proto.CloneOf(result.Error)
			result.Error.Region = nil
		}
	}
}

// region finds a region by its id. One that the caller may not read is not there
// for it: ids would tell what others have.
func (v *served) region(ctx context.Context, id state.RegionID) (*state.Region, error) {
	r, err := catalog.Get(v.state, id)
	if err == nil && v.mayReadOf(ctx, r.Keyspace) != nil {
		return nil, catalog.NoRegion(id)
	}
	return r, err
}

// Access counts refusals and callers; nil without certificates.
func (s *Server) Access() *access.Metrics { return s.cfg.Access.Metrics() }
