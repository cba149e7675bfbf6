package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Options say what a caller wants of a route. The zero value is the quickest: whatever
// there is.
type Options struct {
	// Keyspace is one of Config.Keyspaces. Empty: the first.
	Keyspace string
	// ClaimOnMiss has a region made where there is none.
	ClaimOnMiss bool
	// ReassignOrphans waits, where no owner lives, for the region to be given to another
	// member, which the control plane does by itself; without it that is an error at once.
	ReassignOrphans bool

	// Strong asks for a route that reflects every change acknowledged before the call.
	Strong bool
	// AtLeast asks for a route that reflects a position.
	AtLeast rooted.Token
	// MaxAge asks for a route that was the newest at most so long ago. 0: as Config.MaxAge
	// says.
	MaxAge time.Duration

	// Idempotent says that Do may run the function again when it may have run.
	Idempotent bool
	// Hold is how long a coordinator's answer and an owner who lives are waited for, and how long
	// Do goes on behind a first failure. 0: as Config.Hold says; below 0: as long as the context
	// lasts.
	Hold time.Duration
}

// Target is where requests for a key go.
type Target struct {
	// Member that owns the region, where callers reach it, and the incarnation that the
	// region was granted to; 0 in reported keyspaces.
	Member      rooted.MemberID
	Address     string
	Incarnation uint64
	// Region that the key is in. It is shared: read only. nil: the member named another
	// one whose region is not known yet.
	Region *rooted.Region
	// Epoch goes with every request, so that a member that is not the owner any more, or
	// not yet, says so.
	Epoch rooted.Epoch
	// Token is the position that this reflects, and AsOf when that was the newest, at the
	// latest; the zero Time: it is not known.
	Token rooted.Token
	AsOf  time.Time
	// Claimed: the region was made by this call. Reassigned: this call waited for an owner.
	Claimed, Reassigned bool

	peer *client.Peer
}

// Age is how old the route is at most; below 0: it is not known.
func (t Target) Age() time.Duration {
	if t.AsOf.IsZero() {
		return -1
	}
	return time.Since(t.AsOf)
}

// Resolve finds the owner of a key. What becomes of it:
//
//	region               without options        with options
//	none                 not_found              ClaimOnMiss: made
//	an owner lives       one of these           one of these
//	no owner lives       unhealthy_member       ReassignOrphans: waited for
//	nobody can own it    no_active_members      no_active_members
//
// Errors are *client.Error with that reason; others are those of
// client.GetRegionByKey. The binding of a region whose owners are dead stays: beside that error
// the Target has the Region and its Epoch.
func (r *Router) Resolve(ctx context.Context, key []byte, o Options) (Target, error) {
	v := r.first
	if o.Keyspace != "" && o.Keyspace != v.keyspace {
		if v = r.views[o.Keyspace]; v == nil {
			return Target{}, refuse(rootv1.Reason_REASON_INVALID_REQUEST, nil, "keyspace %.80q is not one of Config.Keyspaces", o.Keyspace)
		}
	}
	if !isKey(key) {
		return Target{}, noKey(key)
	}
	if !o.Strong {
		if h, ok := v.cache.Find(key); ok && v.fits(&h, &o) {
			if p := v.pick(key, &h); p != nil {
				return v.target(&h, p), nil
			}
		}
	}
	return v.resolve(ctx, key, &o)
}

func isKey(key []byte) bool { return len(key) > 0 && len(key) <= rooted.MaxKeyBytes }

func noKey(key []byte) error {
	return refuse(rootv1.Reason_REASON_INVALID_REQUEST, nil, "the key has %d bytes, not 1 to %d", len(key), rooted.MaxKeyBytes)
}

// fits says whether what is held is as fresh as a caller wants.
func (v *view) fits(h *client.Held, o *Options) bool {
	if o.AtLeast != (rooted.Token{}) && h.At().Compare(o.AtLeast) < 0 {
		return false
	}
	most := v.maxAge(o)
	return most == 0 || time.Since(v.known(h.AsOf())) <= most
}

func (v *view) maxAge(o *Options) time.Duration {
	if o.MaxAge > 0 {
		return o.MaxAge
	}
	return v.r.cfg.MaxAge
}

func (v *view) target(h *client.Held, p *client.Peer) Target {
	m := p.Now()
	return Target{
		Member: m.ID, Address: m.Address, Incarnation: granted(h, p), Region: h.Region(), Epoch: h.Epoch(),
		Token: h.At(), AsOf: v.known(h.AsOf()), peer: p,
	}
}

// granted is the incarnation of an owner that the region was granted to.
func granted(h *client.Held, p *client.Peer) uint64 {
	for i := 1; i < len(h.Peers()); i++ {
		if h.Peers()[i] == p {
			return h.Region().Owners[i].Incarnation
		}
	}
	return h.Incarnation()
}

// refuse makes the error of a call that no coordinator refused.
func refuse(why rootv1.Reason, cause error, format string, args ...any) *client.Error {
	d := &rootv1.ErrorDetail{Reason: why, Message: fmt.Sprintf(format, args...)}
	if cause == nil {
		cause = &reason.Error{Detail: d}
		return &client.Error{Op: "Resolve", Reason: why, Detail: d, Cause: cause}
	}
	return &client.Error{Op: "Resolve", Reason: why, Detail: d, Cause: cause}
}

// found is a region that somebody has to be chosen of.
type found struct {
	target Target // its Member is empty: no owner lives
	region *rooted.Region
	owners []client.Member // when none lives
	made   bool
}

// resolve is Resolve of what is not held, or not as it is wanted.
func (v *view) resolve(ctx context.Context, key []byte, o *Options) (Target, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, v.hold(o), errHeld)
	defer cancel()
	demands := o.Strong || o.AtLeast != (rooted.Token{}) || v.maxAge(o) > 0
	f, ok := v.here(key, o)
	if !ok {
		var err error
		if f, err = v.ask(ctx, key, o, demands); err != nil {
			return Target{}, err
		}
	}
	if f.target.Member != "" {
		f.target.Claimed = f.made
		return f.target, nil
	}
	nobody := Target{Region: f.region, Epoch: f.region.Epoch}
	if _, complete := v.cache.At(); complete && v.cache.Takers() == 0 {
		return nobody, v.orphan(rootv1.Reason_REASON_NO_ACTIVE_MEMBERS, &f, nil, "and no active member takes regions of the keyspace: start one, or end a drain")
	}
	if !o.ReassignOrphans {
		return nobody, v.orphan(rootv1.Reason_REASON_UNHEALTHY_MEMBER, &f, nil, "ask with ReassignOrphans to wait for the next one")
	}
	next, err := v.await(ctx, key, o, func(Target) bool { return true })
	if err != nil {
		return nobody, v.orphan(rootv1.Reason_REASON_UNHEALTHY_MEMBER, &f, err, "it has not been given to another one in time")
	}
	next.Reassigned, next.Claimed = true, f.made
	return next, nil
}

// orphan is the error of a region that nobody owns who can be asked.
func (v *view) orphan(why rootv1.Reason, f *found, cause error, way string) error {
	if said, ok := errors.AsType[*client.Error](cause); ok {
		return said
	}
	r := f.region
	if len(f.owners) == 0 {
		return refuse(why, cause, "region %d of keyspace %q has no owner: %s", r.ID, v.keyspace, way)
	}
	for _, m := range f.owners {
		if m.Address == "" && m.State == rootv1.MemberState_MEMBER_STATE_ACTIVE {
			return refuse(why, cause, "owner %q of region %d of keyspace %q has no address: register it with one", m.ID, r.ID, v.keyspace)
		}
	}
	return refuse(why, cause, "no owner of region %d of keyspace %q lives (of %d, %q first): %s", r.ID, v.keyspace, len(f.owners), f.owners[0].ID, way)
}

// here is what is held of a key, where nobody has to be asked.
func (v *view) here(key []byte, o *Options) (found, bool) {
	h, ok := v.cache.Find(key)
	if !ok || o.Strong || !v.fits(&h, o) {
		return found{}, false
	}
	f := found{region: h.Region()}
	if p := v.pick(key, &h); p != nil {
		f.target = v.target(&h, p)
	} else {
		f.owners = h.Route().Members()
	}
	return f, true
}

// ask asks coordinators for a route, and has one made if that is wanted.
func (v *view) ask(ctx context.Context, key []byte, o *Options, demands bool) (found, error) {
	var opts []client.ReadOption
	if o.Strong {
		opts = append(opts, client.Strong())
	}
	if o.AtLeast != (rooted.Token{}) {
		opts = append(opts, client.AtLeast(o.AtLeast))
	}
	if most := v.maxAge(o); most > 0 && !o.Strong {
		opts = append(opts, client.MaxAge(most))
	}
	asked := time.Now()
	route, err := v.cache.Route(ctx, key, opts...)
	var f found
	if err == nil {
		f = v.found(key, route, asked)
	} else if o.ClaimOnMiss && errors.Is(err, client.ErrNotFound) {
		f, err = v.claim(ctx, key)
	}
	if err != nil {
		return found{}, v.cannot(err, key, demands)
	}
	return f, nil
}

// claim has a region made of a key that has none.
func (v *view) claim(ctx context.Context, key []byte) (found, error) {
	asked := time.Now()
	route, made, err := v.r.cfg.Claim.Claim(ctx, v.keyspace, key)
	if err != nil {
		return found{}, err
	}
	v.cache.Keep(route)
	f := v.found(key, route, asked)
	f.made = made
	return f, nil
}

// found is what an answer says that was asked for at a time.
func (v *view) found(key []byte, route client.Route, asked time.Time) found {
	asOf := v.learn(route, asked)
	f := found{region: route.Region, target: v.of(key, route, asOf)}
	if f.target.Member == "" {
		f.owners = route.Members()
	}
	return f
}

// cannot says of a call that failed what is held, which the caller did not want.
func (v *view) cannot(err error, key []byte, demands bool) error {
	if !demands {
		return err
	}
	h, ok := v.cache.Find(key)
	if !ok || !errors.Is(err, client.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, client.ErrRootLagExceeded) {
		return err
	}
	if asOf := v.known(h.AsOf()); !asOf.IsZero() {
		return refuse(rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, err, "the route held here is of %s and up to %v old, and no coordinator has a newer one", h.At(), time.Since(asOf).Round(time.Millisecond))
	}
	return err
}

// learn takes note of how fresh an answer is that was asked for at a time.
func (v *view) learn(route client.Route, asked time.Time) time.Time {
	d := route.Disclosure()
	if d == nil {
		return v.known(v.cache.AsOf())
	}
	asOf := asked.Add(-time.Duration(min(d.GetRootLagMillis(), 1<<40)) * time.Millisecond)
	if at, ok := v.cache.At(); ok && at.Token.Compare(rooted.TokenFromProto(d.GetServedRootToken())) >= 0 {
		for known := v.asOf.Load(); (known == nil || asOf.After(*known)) && !v.asOf.CompareAndSwap(known, &asOf); {
			known = v.asOf.Load()
		}
	}
	return asOf
}

// of chooses an owner of a route that was asked for. What the cache has of it is the same
// or newer, and knows whom to avoid.
func (v *view) of(key []byte, route client.Route, asOf time.Time) Target {
	if h, ok := v.cache.Find(key); ok && h.Region().ID == route.Region.ID && h.Region().Revision >= route.Region.Revision {
		p := v.pick(key, &h)
		if p == nil {
			return Target{}
		}
		t := v.target(&h, p)
		if route.At.Compare(t.Token) >= 0 {
			t.Token, t.AsOf = route.At, asOf
		}
		return t
	}
	for i, m := range route.Members() {
		owner := route.Region.Owners[i]
		if lives(&m, owner.Incarnation) {
			return Target{
				Member: m.ID, Address: m.Address, Incarnation: owner.Incarnation, Region: route.Region, Epoch: route.Region.Epoch,
				Token: route.At, AsOf: asOf,
			}
		}
	}
	return Target{}
}

// askEvery is how often a caller who waits asks a coordinator, besides hearing of every
// change that is followed.
const askEvery = 250 * time.Millisecond

// await waits for a key to have an owner who lives and will do. The error is the cause why
// the context is over, or that too many wait.
func (v *view) await(ctx context.Context, key []byte, o *Options, do func(Target) bool) (Target, error) {
	if v.waiting.Add(1) > int64(v.r.cfg.MaxWaiting) {
		v.waiting.Add(-1)
		return Target{}, refuse(rootv1.Reason_REASON_OVERLOADED, nil, "%d callers wait for owners in keyspace %q already", v.r.cfg.MaxWaiting, v.keyspace)
	}
	defer v.waiting.Add(-1)
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	relaxed := Options{Keyspace: o.Keyspace, AtLeast: o.AtLeast, MaxAge: o.MaxAge}
	for {
		changed, end := v.changed(key, &relaxed)
		if f, ok := v.here(key, &relaxed); ok && f.target.Member != "" && do(f.target) {
			end()
			return f.target, nil
		}
		ask := false
		select {
		case <-changed:
		case <-ctx.Done():
			end()
			return Target{}, context.Cause(ctx)
		case <-ticker.C:
			ask = true
		}
		end()
		if ask {
			strong := relaxed
			strong.Strong = true
			if f, err := v.askWithin(ctx, askEvery, key, &strong); err == nil && f.target.Member != "" && do(f.target) {
				return f.target, nil
			}
		}
	}
}

// changed is closed when here says something else of a key.
func (v *view) changed(key []byte, o *Options) (changed <-chan struct{}, end func()) {
	if o.AtLeast != (rooted.Token{}) || v.maxAge(o) > 0 {
		return v.cache.Changed(), func() {} // it waits for a position
	}
	return v.cache.ChangedAt(key)
}

func (v *view) askWithin(ctx context.Context, most time.Duration, key []byte, o *Options) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return v.ask(ctx, key, o, false)
}

// errHeld says that the longest wait is over.
var errHeld = fmt.Errorf("no owner came in time: %w", context.DeadlineExceeded)
