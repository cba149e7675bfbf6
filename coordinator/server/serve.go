package server

import (
	"context"
	"errors"

	"github.com/nokv/nokv/coordinator/catalog"
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/coordinator/tenure"
	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/places"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Views gives views of the root by freshness. It is filled by
// *rootview.Follower.
type Views interface {
	// View is the newest view; never nil.
	View() *rootview.View
	// Serve returns a view that is as fresh as read asks for, and by what right
	// it is served, or a refusal (*reason.Error). It waits within ctx.
	Serve(ctx context.Context, read *coordinatorv1.ReadOptions) (*rootview.View, coordinatorv1.ServingClass, error)
	// AtRevision judges required_descriptor_revision after a lookup in v found a
	// descriptor of revision found (0: none): v when that is enough, a later view
	// to look up in again, or a refusal.
	AtRevision(ctx context.Context, v *rootview.View, found, required uint64) (*rootview.View, error)
	// Subscribe reads the changes behind a position.
	Subscribe(after state.Token) *rootview.Reader
	// KeyspacesNamed returns the keyspaces that have a name or had it within the
	// changes that can be read.
	KeyspacesNamed(name string) []state.KeyspaceID
}

// Authority hands out ids and timestamps while this coordinator holds the
// Tenure, and refuses with REASON_TENURE_NOT_HELD otherwise. It is filled by
// *tenure.Holder.
type Authority interface {
	// AllocID returns the first id of a run of count, and the era it belongs to.
	AllocID(ctx context.Context, count uint64) (first, era uint64, err error)
	// Tso is AllocID for timestamps.
	Tso(ctx context.Context, count uint64) (first, era uint64, err error)
	// ReserveTso is the first half of Tso: the run may be served when check,
	// called once, has returned nil. Runs reserved later are higher. A nil check:
	// the run may be served.
	ReserveTso(ctx context.Context, count uint64) (first, era uint64, check func(context.Context) error, err error)
	// ReserveAllocID is ReserveTso for ids.
	ReserveAllocID(ctx context.Context, count uint64) (first, era uint64, check func(context.Context) error, err error)
	// Check says that an era is held at a moment behind the call, or refuses: what
	// was made before may be served.
	Check(ctx context.Context, era uint64) error
	// Status says what the holder may do now.
	Status() tenure.Status
}

// Root changes rooted truth. It is filled by *client.Client of meta/root.
type Root interface {
	// Propose has commands judged and returns one result each. An error with
	// REASON_OUTCOME_UNKNOWN, or without a reason, leaves the outcome open.
	Propose(ctx context.Context, commands ...*rootv1.Command) ([]*rootv1.CommandResult, error)
	// ReadIndex returns a position that a linearizable read must reach.
	ReadIndex(ctx context.Context) (state.Token, error)
}

// served is a view that a request is answered from.
type served struct {
	server *Server
	view   *rootview.View
	state  *state.State
	class  coordinatorv1.ServingClass
	now    clock.Instant
}

func (s *Server) view() *rootview.View { return s.cfg.Views.View() }

// serve finds a view for a request.
func (s *Server) serve(ctx context.Context, read *coordinatorv1.ReadOptions) (served, error) {
	if read.GetRequiredDescriptorRevision() != 0 {
		return served{}, invalid("read.required_descriptor_revision", "only lookups of regions by key or id have one")
	}
	return s.serveRegion(ctx, read)
}

// serveRegion is serve for a lookup, which may require a descriptor's revision
// besides: see find.
func (s *Server) serveRegion(ctx context.Context, read *coordinatorv1.ReadOptions) (served, error) {
	if err := checkRead(read); err != nil {
		return served{}, err
	}
	if waits(read) {
		who := places.Of(ctx)
		if err := s.reads.Enter(who); err != nil {
			return served{}, err
		}
		defer s.reads.Leave(who)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.Limits.ReadWait)
		defer cancel()
	}
	view, class, err := s.cfg.Views.Serve(ctx, read)
	if err != nil {
		return served{}, err
	}
	return served{s, view, view.State, class, s.cfg.Clock.Now()}, nil
}

// waits says whether a read may wait for the root before anything is looked up.
func waits(read *coordinatorv1.ReadOptions) bool {
	return read.GetFreshness() == coordinatorv1.Freshness_FRESHNESS_STRONG || read.GetRequiredRootToken() != nil
}

// disclosure says what the answer is worth.
func (v *served) disclosure() *coordinatorv1.Disclosure {
	d := v.view.Disclosure(v.now, v.class)
	d.CoordinatorId = string(v.server.cfg.ID)
	d.ServedByLeader = v.server.holds(v.view)
	return d
}

// holds says whether this process holds the Tenure, as the view has it.
func (s *Server) holds(view *rootview.View) bool {
	t := view.State.Tenure()
	return t != nil && !t.GetRetired() && t.GetHolderId() == string(s.cfg.ID) && t.GetHolderIncarnation() == s.cfg.Incarnation
}

// keyspace finds a keyspace by name; empty is "default".
func (v *served) keyspace(name string) (*rootv1.Keyspace, error) {
	keyspace, err := catalog.Keyspace(v.state, name)
	return keyspace, v.atToken(err)
}

// find looks a region up until it has the descriptor revision that the request
// requires.
func (v *served) find(ctx context.Context, read *coordinatorv1.ReadOptions, look func() (*state.Region, error)) (*state.Region, error) {
	for {
		region, missing := look()
		var revision uint64
		if region != nil {
			revision = region.Revision
		}
		newer, err := v.atRevision(ctx, read, revision)
		if err != nil {
			return nil, err
		}
		if newer == v.view {
			return region, v.atToken(missing)
		}
		v.view, v.state = newer, newer.State
	}
}

// atToken adds to a refusal as of when it is true.
func (v *served) atToken(err error) error {
	if refused, ok := errors.AsType[*reason.Error](err); ok && refused.Detail.GetCurrentToken() == nil {
		refused.Detail.CurrentToken = v.view.Token.Proto()
	}
	return err
}

// atRevision is the view itself when a descriptor found in it is new enough,
// or the view to look in again.
func (v *served) atRevision(ctx context.Context, read *coordinatorv1.ReadOptions, found uint64) (*rootview.View, error) {
	required := read.GetRequiredDescriptorRevision()
	if found >= required {
		return v.view, nil
	}
	who := places.Of(ctx)
	if err := v.server.reads.Enter(who); err != nil {
		return nil, err
	}
	defer v.server.reads.Leave(who)
	ctx, cancel := context.WithTimeout(ctx, v.server.cfg.Limits.ReadWait)
	defer cancel()
	return v.server.cfg.Views.AtRevision(ctx, v.view, found, required)
}
