package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/rooted"
)

// Do runs a function at the owner of a key: with what Resolve finds, and again, with
// the route repaired, when the function returns the refusal of a member that did not run
// the request (RefusalOf), when nothing was sent, or, with Options.Idempotent, when the
// answer was lost. It returns what the function returned last, or why there is no owner
// to go to. See Tries for when and where it is run again. The context that the function gets ends
// with the function, and before it as WhileOwner says; then the error is a *Gone, and the answer lost.
func (r *Router) Do(ctx context.Context, key []byte, o Options, run func(context.Context, Target) error) error {
	t, err := r.Resolve(ctx, key, o)
	if err != nil {
		return err
	}
	if err = r.run(ctx, key, o, t, run); err == nil {
		return nil
	}
	tries := r.Tries(key, o)
	for {
		var again bool
		if t, again = tries.Next(ctx, t, err); !again {
			return err
		}
		if err = r.run(ctx, key, o, t, run); err == nil {
			return nil
		}
	}
}

// run runs the function while the member counts it as under way, and owns the key.
func (r *Router) run(ctx context.Context, key []byte, o Options, t Target, run func(context.Context, Target) error) error {
	t.Begin()
	defer t.End()
	ctx, a := r.WhileOwner(ctx, key, o, t)
	defer a.End(nil)
	err := run(ctx, t)
	if err == nil || a.End(nil) || RefusalOf(err) != nil || unsent(err, t.Address) {
		return err
	}
	return context.Cause(ctx)
}

// Begin counts a request as under way at the member, for LeastLoaded and TwoChoices, until
// End, for who does not use Do.
func (t Target) Begin() {
	if t.peer != nil {
		t.peer.Begin()
	}
}

// End ends what Begin began.
func (t Target) End() {
	if t.peer != nil {
		t.peer.End()
	}
}

// Unreachable has a member avoided for Config.AvoidFor where there are others: a caller
// who uses neither Do nor Tries could not reach it.
func (r *Router) Unreachable(t Target, err error) {
	if t.peer != nil {
		t.peer.Avoid(time.Now().Add(r.cfg.AvoidFor))
	}
	if r.cfg.OnUnreachable != nil {
		r.cfg.OnUnreachable(client.Member{ID: t.Member, Address: t.Address, Incarnation: t.Incarnation}, err)
	}
}

// Between two tries at the same place there is a pause of firstPause, twice as long each
// time, of lastPause at most. Behind the first repair there is one of firstPause at least,
// wherever the next try goes: two members that name each other are not asked in a circle.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 160 * time.Millisecond
)

// Tries says for one request that failed where to go next, and when. It is what Do does
// between two tries, for who keeps requests of their own. One goroutine uses it.
type Tries struct {
	v     *view
	key   []byte
	o     Options
	until time.Time // zero: no try has failed yet
	pause time.Duration
}

// Tries makes the Tries of a request. The key is kept.
func (r *Router) Tries(key []byte, o Options) *Tries {
	v := r.first
	if o.Keyspace != "" && r.views[o.Keyspace] != nil {
		v = r.views[o.Keyspace]
	}
	return &Tries{v: v, key: key, o: o}
}

// Next returns where to go after a request failed at t, when it is time to. false: the error
// stands, because the request may have been run, or because Options.Hold, counted from the
// first failure, or the context is over.
//
// Another owner that is known is asked at once, and so is a registered member that the member names. Else the
// next one is waited for, while the same one is asked again and again: it may have been busy,
// or the route newer than what it had heard.
func (c *Tries) Next(ctx context.Context, t Target, failed error) (Target, bool) {
	no := RefusalOf(failed)
	if no != nil && no.region != 0 && t.Region != nil && no.region != t.Region.ID {
		no = nil // it is about another region, of which a handler asked
	}
	notSent := no == nil && unsent(failed, t.Address)
	if ctx.Err() != nil {
		return Target{}, false
	}
	if notSent {
		c.v.r.Unreachable(t, failed)
	}
	safe := notSent || c.o.Idempotent && lost(failed)
	if no != nil {
		safe = no.Kind != PinLost && (!no.Ran || c.o.Idempotent)
	}
	if !safe {
		return Target{}, false
	}
	first := c.until.IsZero()
	if first {
		c.until, c.pause = time.Now().Add(c.v.hold(&c.o)), firstPause
	}
	ctx, cancel := context.WithDeadline(ctx, c.until)
	defer cancel()
	if !first && !sleep(ctx, firstPause) {
		return Target{}, false
	}
	if no != nil && no.Kind == Moved && no.Epoch.NewerThan(t.Epoch) {
		if next, ok := c.v.registered(ctx, no.Member); ok {
			// Nothing is dropped: the root may not say so yet, and the watch tells when it does.
			next.Epoch, next.Region, next.Token, next.AsOf = no.Epoch, t.Region, t.Token, t.AsOf
			next.Claimed, next.Reassigned = t.Claimed, true
			return next, true
		}
	}
	ask := true
	switch {
	case no == nil:
	case no.Kind == Busy, no.Kind == Unconfirmed:
		ask = false
	case no.Epoch == (rooted.Epoch{}) || !t.Epoch.NewerThan(no.Epoch):
		c.v.stale(t)
	}
	return c.find(ctx, t, ask, !first)
}

// registered is the target that a member named. Where it is the root says, and nobody else: a member could send
// requests, with all that callers show, anywhere.
func (v *view) registered(ctx context.Context, id rooted.MemberID) (Target, bool) {
	if h, ok := v.cache.Member(id); ok {
		if m := h.Now(); lives(m, 0) {
			return Target{Member: id, Address: m.Address, Incarnation: m.Incarnation, peer: h}, true
		}
	}
	if id == "" {
		return Target{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, askEvery)
	defer cancel()
	said, err := v.r.cfg.Client.GetMember(ctx, id, client.Strong())
	m := said.GetMember()
	if err != nil || over(m.GetState()) || m.GetAddress() == "" {
		return Target{}, false
	}
	return Target{Member: id, Address: m.GetAddress(), Incarnation: m.GetIncarnation()}, true
}

// hold is how long a caller goes on.
func (v *view) hold(o *Options) time.Duration {
	switch {
	case o.Hold == 0:
		return v.r.cfg.Hold
	case o.Hold < 0:
		return longest
	}
	return o.Hold
}

// longest stands for a wait that only the context ends.
const longest = 1 << 62 * time.Nanosecond

// find looks for another owner than t, for a pause, and asks for one where the route may be
// wrong; then t is as good as any. The watch may say so before who is asked does. With
// Options.ClaimOnMiss a region that is gone is made anew.
func (c *Tries) find(ctx context.Context, t Target, ask, strong bool) (Target, bool) {
	v, relaxed := c.v, Options{Keyspace: c.o.Keyspace, AtLeast: c.o.AtLeast}
	other := func(next Target) bool {
		// A region that was made anew at the same member may begin with the epoch that the one before had.
		anew := next.Region != nil && t.Region != nil && next.Region.ID != t.Region.ID
		return next.Member != "" && (anew || next.Member != t.Member || next.Epoch != t.Epoch || next.Incarnation != t.Incarnation || next.Address != t.Address)
	}
	if f, ok := v.here(c.key, &relaxed); ok && other(f.target) {
		return f.target, true
	}
	asked := relaxed
	asked.Strong = strong
	var said Target
	var asking sync.WaitGroup
	waiting, over := context.WithCancelCause(ctx)
	asking.Go(func() {
		defer over(errHeld)
		if ask || strong {
			f, err := v.askWithin(waiting, askEvery, c.key, &asked)
			if c.o.ClaimOnMiss && errors.Is(err, client.ErrNotFound) {
				// The region was released and removed. The claim has all of the time that is left:
				// one that were given up every askEvery might never end on a busy cluster.
				f, err = v.claim(waiting, c.key)
			}
			if err == nil && other(f.target) {
				said = f.target
				said.Claimed = f.made
				return
			}
		}
		sleep(waiting, c.pause)
	})
	next, err := v.await(waiting, c.key, &relaxed, other)
	if err == nil {
		over(nil)
	}
	asking.Wait()
	c.pause = min(2*c.pause, lastPause)
	switch {
	case said.Claimed:
		return said, true
	case err == nil:
		return next, true
	case said.Member != "":
		return said, true
	case errors.Is(err, errHeld) && ctx.Err() == nil:
		return t, true
	}
	return Target{}, false
}

func sleep(ctx context.Context, d time.Duration) bool {
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stale drops a route that a member refused, unless there is a newer one.
func (v *view) stale(t Target) {
	if t.Region != nil {
		v.cache.Invalidate(client.Route{Region: t.Region, At: t.Token})
	}
}
