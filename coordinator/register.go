package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/identity"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	registerTimeout = 2 * time.Second
	registerRetry   = 200 * time.Millisecond
	// rivalWithin is how long the process that is registered under this id has to answer,
	// before it counts as one that has ended, rivalAsk how long one question may take.
	rivalWithin = 3 * time.Second
	rivalAsk    = 500 * time.Millisecond
)

// register roots this coordinator's address, then watches for a newer process
// of the same id: the view then shows another incarnation.
func (c *Coordinator) register(ctx context.Context, stop context.CancelCauseFunc) {
	joinedAt, err := c.join(ctx)
	for err == nil && ctx.Err() == nil {
		changed := c.follower.Changed()
		view := c.follower.View()
		known := view.State.Coordinator(state.CoordinatorID(c.cfg.ID))
		if known == nil && view.Token.Index >= joinedAt {
			c.cfg.Logger.Warn("taken off the list of coordinators, but alive: joining again", "coordinator", c.cfg.ID)
			joinedAt, err = c.join(ctx)
			continue
		}
		if known != nil && known.Incarnation != c.cfg.Incarnation && known.Revision > joinedAt {
			c.cfg.Logger.Error("superseded by a newer process of the same id", "coordinator", c.cfg.ID, "address", known.Address)
			c.holder.OnSuperseded()
			stop(ErrSuperseded)
			return
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	if err != nil {
		stop(err)
	}
}

// leaveWithin is how long a process that ends waits to be off the list.
const leaveWithin = 500 * time.Millisecond

// leave takes this process off the list: callers need not look for it, and its
// level holds nobody up. Without an answer in time an operator does it.
func (c *Coordinator) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	_, err := c.root.Propose(ctx, &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_CoordinatorLeft{
		CoordinatorLeft: &rootv1.CoordinatorLeft{Id: c.cfg.ID, Incarnation: c.cfg.Incarnation},
	}}}})
	if err != nil {
		c.cfg.Logger.Warn("still on the list of coordinators: nokv coordinator remove takes it off", "coordinator", c.cfg.ID, "err", err)
	}
}

// joined is the registration of a process that follows another one of its id; 0:
// none.
func (c *Config) joined(follows uint64) *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_CoordinatorJoined{
		CoordinatorJoined: &rootv1.CoordinatorJoined{Id: c.ID, Address: c.Advertise, Incarnation: c.Incarnation, Follows: follows, FeatureLevel: state.SupportedLevel()},
	}}}}
}

// registration is what is proposed until its outcome is known: one that arrives
// late, when its process is gone and another one has registered, does nothing.
type registration struct {
	cfg        *Config
	identities *identity.Source
	cmd        *rootv1.Command
}

// follow makes the command anew.
func (r *registration) follow(incarnation, known uint64) {
	r.cmd = r.cfg.joined(incarnation)
	r.cmd.Identity = r.identities.Next(known)
}

// refused learns from a rejection whom to follow, and how far the log is. Under the
// old identity the registration would stay refused.
func (r *registration) refused(d *rootv1.ErrorDetail) {
	follows := r.cmd.GetEvents()[0].GetCoordinatorJoined().GetFollows()
	if d.GetReason() == rootv1.Reason_REASON_COORDINATOR_SUPERSEDED {
		follows = d.GetIncarnation()
	}
	r.follow(follows, max(r.cmd.GetIdentity().GetKnownIndex(), d.GetCurrentToken().GetIndex()))
}

// rival is how the process that is registered under an id is found to live or not.
type rival struct {
	ask func(ctx context.Context, address string) (*coordinatorv1.StatusResponse, error)
	// refuses says that nobody listens at an address.
	refuses func(ctx context.Context, address string) bool
}

// lives says whether the registered process answers. One that does not within
// rivalWithin, or whose machine refuses, has ended or is as good as that; should it wake,
// it finds itself superseded. Where this process is reached at that address, it answers itself: what was
// registered there has ended.
func (r rival) lives(ctx context.Context, cfg *Config, known *rootv1.Coordinator) bool {
	ctx, cancel := context.WithTimeout(ctx, rivalWithin)
	defer cancel()
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, rivalAsk)
		answer, err := r.ask(try, known.GetAddress())
		cancel()
		if err == nil {
			return answer.GetCoordinatorId() == cfg.ID && answer.GetIncarnation() == known.GetIncarnation()
		}
		if r.refuses(ctx, known.GetAddress()) {
			return false
		}
		select {
		case <-ctx.Done():
		case <-time.After(registerRetry):
		}
	}
	return false
}

// giveWay returns ErrInUse when the process that a registration follows lives. Where that
// is the view says, once it is as new as the registration.
func (c *Coordinator) giveWay(ctx context.Context, r *registration) error {
	follows := r.cmd.GetEvents()[0].GetCoordinatorJoined().GetFollows()
	for follows != 0 && follows != c.cfg.Incarnation && ctx.Err() == nil {
		changed := c.follower.Changed()
		view := c.follower.View()
		known := view.State.Coordinator(state.CoordinatorID(c.cfg.ID))
		if known.GetIncarnation() == follows {
			if !c.rival.lives(ctx, &c.cfg, known) {
				return nil
			}
			return fmt.Errorf("coordinator %s at %s, process %016x: %w", c.cfg.ID, known.GetAddress(), follows, ErrInUse)
		}
		if view.Token.Index >= r.cmd.GetIdentity().GetKnownIndex() {
			return nil // It follows one that is not rooted any more, and is refused.
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return nil
}

// join proposes the registration until its outcome is known, and returns the
// index of its entry. A record of another process with a higher index is newer
// than this one. An error: ctx ended, the cluster is above what this process
// understands, or another process under this id lives.
func (c *Coordinator) join(ctx context.Context) (index uint64, err error) {
	r, refused := &registration{cfg: &c.cfg, identities: identity.NewSource()}, ""
	view := c.follower.View()
	r.follow(view.State.Coordinator(state.CoordinatorID(c.cfg.ID)).GetIncarnation(), view.Known.Index)
	for ask := true; ctx.Err() == nil; {
		if ask { // of each that is followed, and not of each try
			if err := c.giveWay(ctx, r); err != nil {
				return 0, err
			}
			ask = false
		}
		try, cancel := context.WithTimeout(ctx, registerTimeout)
		results, err := c.root.Propose(try, r.cmd)
		cancel()
		if err == nil && results[0].Error == nil {
			return results[0].Token.GetIndex(), nil
		}
		if err == nil && results[0].Error.GetReason() == rootv1.Reason_REASON_TOO_OLD {
			return 0, &reason.Error{Detail: results[0].Error}
		}
		if err == nil {
			r.refused(results[0].Error)
			ask = true
			if why := results[0].Error.GetMessage(); why != refused {
				refused = why
				c.cfg.Logger.Warn("registration refused; trying on", "coordinator", c.cfg.ID, "err", why)
			}
		} else {
			c.cfg.Logger.Debug("registration not answered", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(registerRetry):
		}
	}
	return 0, ctx.Err()
}
