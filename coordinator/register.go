package coordinator

import (
	"context"
	"time"

	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

const (
	registerTimeout = 2 * time.Second
	registerRetry   = 200 * time.Millisecond
)

// register roots this coordinator's address, then watches for a newer process
// of the same id: the view then shows another incarnation.
func (c *Coordinator) register(ctx context.Context, stop context.CancelCauseFunc) {
	joinedAt, ok := c.join(ctx)
	if !ok {
		return
	}
	for ctx.Err() == nil {
		changed := c.follower.Changed()
		known := c.follower.View().State.Coordinator(state.CoordinatorID(c.cfg.ID))
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
}

// joined is the registration behind the process that is rooted.
func (c *Config) joined(follows uint64) *rootv1.Command {
	return &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_CoordinatorJoined{
		CoordinatorJoined: &rootv1.CoordinatorJoined{Id: c.ID, Address: c.Advertise, Incarnation: c.Incarnation, Follows: follows, FeatureLevel: state.SupportedLevel()},
	}}}}
}

// join proposes the registration until its outcome is known, and returns the
// index of its entry; false when ctx ended. A record of another process with a
// higher index is newer than this one.
func (c *Coordinator) join(ctx context.Context) (index uint64, ok bool) {
	joined, refused := c.cfg.joined(c.follower.View().State.Coordinator(state.CoordinatorID(c.cfg.ID)).GetIncarnation()), ""
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, registerTimeout)
		results, err := c.root.Propose(try, joined)
		cancel()
		if err == nil && results[0].Error == nil {
			return results[0].Token.GetIndex(), true
		}
		if err == nil {
			if why := results[0].Error.GetMessage(); why != refused {
				refused = why
				joined = c.cfg.joined(results[0].Error.GetIncarnation())
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
	return 0, false
}
