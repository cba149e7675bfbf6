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

// conceal takes out of results what a caller may not read, and does not own: of refusals the region
// that is in the way, of repetitions what there is now of what was made then, by somebody who may have
// lost its grant since. What is gone has no keyspace, and says its number alone.
func (s *Server) conceal(ctx context.Context, results ...*rootv1.CommandResult) {
	if s.cfg.Access == nil {
		return
	}
	view := s.view()
	v, p := &served{server: s, view: view, state: view.State}, principal.FromContext(ctx)
	hidden := func(region *rootv1.Region, keyspace uint32) bool {
		owns := p.Role == principal.Member && slices.ContainsFunc(region.GetOwners(), func(o *rootv1.Owner) bool { return o.GetMemberId() == p.Name })
		return keyspace != 0 && !owns && v.mayReadOf(ctx, state.KeyspaceID(keyspace)) != nil
	}
	for _, result := range results {
		if region := result.GetError().GetRegion(); hidden(region, region.GetKeyspaceId()) {
			result.Error = proto.CloneOf(result.Error)
			result.Error.Region = nil
		}
		if !result.GetRepetition() {
			continue
		}
		for _, e := range result.GetEvents() {
			if t := e.GetTransition(); hidden(e.GetRegion(), t.GetKeyspaceId()) {
				e.Transition = &rootv1.Transition{Id: t.GetId()}
			}
			for _, r := range []**rootv1.Region{&e.Region, &e.RightRegion} {
				if hidden(*r, (*r).GetKeyspaceId()) {
					*r = &rootv1.Region{Id: (*r).GetId()}
				}
			}
			if k := e.GetKeyspace(); hidden(nil, k.GetId()) {
				e.Keyspace = &rootv1.Keyspace{Id: k.GetId()}
			} else if k != nil {
				e.Keyspace = v.keyspaceFor(ctx, k)
			}
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

// keyspaceOf is the keyspace of a region; 0: the region is gone.
func (v *served) keyspaceOf(id state.RegionID) state.KeyspaceID {
	if r := v.state.Region(id); r != nil {
		return r.Keyspace
	}
	return 0
}

// Access counts refusals and callers; nil without certificates.
func (s *Server) Access() *access.Metrics { return s.cfg.Access.Metrics() }
