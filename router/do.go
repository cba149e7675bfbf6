package router

import (
	"context"
	"errors"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/rooted"
)

// Do runs a function at the owner of a key: with what Resolve finds, and once more, with
// the route repaired, when the function returns the refusal of a member that did not run
// the request (RefusalOf), when nothing was sent, or, with Options.Idempotent, when the
// answer was lost. It returns what the function returned last, or why there is no owner
// to go to.
//
// Where a member names the next owner that one is asked at once; else the route is asked
// for again, and where the next owner is not known yet, or the only one cannot be
// reached, it is waited for, at most for Config.Hold. Then the same one is asked again.
func (r *Router) Do(ctx context.Context, key []byte, o Options, run func(context.Context, Target) error) error {
	t, err := r.Resolve(ctx, key, o)
	if err != nil {
		return err
	}
	err = r.run(ctx, t, run)
	if err == nil || ctx.Err() != nil {
		return err
	}
	v := r.first
	if o.Keyspace != "" {
		v = r.views[o.Keyspace]
	}
	next, again := v.repair(ctx, key, &o, t, err)
	if !again {
		return err
	}
	return r.run(ctx, next, run)
}

// run runs the function, and takes note of how that went.
func (r *Router) run(ctx context.Context, t Target, run func(context.Context, Target) error) error {
	p := t.peer
	if p != nil {
		p.Begin()
		defer p.End()
	}
	err := run(ctx, t)
	if err != nil && ctx.Err() == nil && unsent(err) {
		r.unreachable(t, err)
	}
	return err
}

// Unreachable has a member avoided for Config.AvoidFor where there are others: a caller
// who does not use Do could not reach it.
func (r *Router) Unreachable(t Target, err error) { r.unreachable(t, err) }

func (r *Router) unreachable(t Target, err error) {
	if t.peer != nil {
		t.peer.Avoid(time.Now().Add(r.cfg.AvoidFor))
	}
	if r.cfg.OnUnreachable != nil {
		r.cfg.OnUnreachable(client.Member{ID: t.Member, Address: t.Address, Incarnation: t.Incarnation}, err)
	}
}

// Repair is what Do does between its two tries, for who keeps requests of their own: where
// to go after a request failed at t. false: the error stands.
func (r *Router) Repair(ctx context.Context, key []byte, o Options, t Target, failed error) (Target, bool) {
	v := r.first
	if o.Keyspace != "" && r.views[o.Keyspace] != nil {
		v = r.views[o.Keyspace]
	}
	return v.repair(ctx, key, &o, t, failed)
}

func (v *view) repair(ctx context.Context, key []byte, o *Options, t Target, failed error) (Target, bool) {
	no := RefusalOf(failed)
	most := v.r.cfg.Hold
	switch {
	case no == nil && !unsent(failed) && !(o.Idempotent && lost(failed)):
		return Target{}, false
	case no == nil:
	case no.Ran && !o.Idempotent:
		return Target{}, false
	case no.Kind == Moved && no.Address != "" && no.Epoch.NewerThan(t.Epoch):
		// Nothing is dropped: the root may not say so yet, and the watch tells when it does.
		return Target{
			Member: no.Member, Address: no.Address, Epoch: no.Epoch, Region: t.Region,
			Token: t.Token, AsOf: t.AsOf, Claimed: t.Claimed, Reassigned: true,
		}, true
	case no.Kind == Busy || no.Kind == Unconfirmed:
		most = min(most, askEvery)
	case no.Epoch == (rooted.Epoch{}) || !t.Epoch.NewerThan(no.Epoch):
		v.stale(t)
	}
	other := func(next Target) bool {
		return next.Member != t.Member || next.Epoch != t.Epoch || next.Incarnation != t.Incarnation || next.Address != t.Address
	}
	relaxed := Options{Keyspace: o.Keyspace, AtLeast: o.AtLeast}
	if f, ok := v.here(key, &relaxed); ok && f.target.Member != "" && other(f.target) {
		return f.target, true
	}
	if f, err := v.askWithin(ctx, most, key, &relaxed); err == nil && f.target.Member != "" && other(f.target) {
		return f.target, true
	}
	next, err := v.await(ctx, key, &relaxed, most, other)
	if errors.Is(err, errHeld) && ctx.Err() == nil {
		// Nothing has changed: what was not run may go there once more.
		next, err = t, nil
	}
	return next, err == nil
}

// stale drops a route that a member refused, unless there is a newer one.
func (v *view) stale(t Target) {
	if t.Region != nil {
		v.cache.Invalidate(client.Route{Region: t.Region, At: t.Token})
	}
}
