package rootview

import (
	"context"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Serve returns a View that is as fresh as the options ask for, and by what
// right it may be served. All conditions hold together; what cannot be met
// within the context's deadline is refused:
//
//	REASON_ROOT_LAG_EXCEEDED  the view is further behind than allowed; the detail says how far
//	REASON_REQUIRED_TOKEN     the view did not reach the required token in time
//	REASON_ROOT_UNAVAILABLE   the root did not answer, or the view is not loaded yet
//	REASON_CLUSTER_MISMATCH   the required token is of another incarnation
//	REASON_OVERLOADED         too many requests wait
//	REASON_INVALID_REQUEST    the freshness is not one
//
// required_descriptor_revision is for after the lookup: see AtRevision. Nil
// options ask for best effort, which takes one atomic load.
func (f *Follower) Serve(ctx context.Context, o *coordinatorv1.ReadOptions) (*View, coordinatorv1.ServingClass, error) {
	if o == nil || o.GetFreshness() <= 0 && o.GetRequiredRootToken() == nil {
		return f.bestEffort()
	}
	switch o.GetFreshness() {
	case coordinatorv1.Freshness_FRESHNESS_UNSPECIFIED, coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT:
		if o.GetRequiredRootToken().GetIndex() == 0 {
			return f.bestEffort()
		}
		v, err := f.atToken(ctx, o)
		return v, coordinatorv1.ServingClass_SERVING_CLASS_BOUNDED, err
	case coordinatorv1.Freshness_FRESHNESS_BOUNDED:
		if o.MaxRootLag == nil && o.MaxRootLagMillis == nil {
			return nil, 0, reason.New(rootv1.Reason_REASON_INVALID_REQUEST,
				"FRESHNESS_BOUNDED has no bound: set max_root_lag, max_root_lag_millis or both")
		}
		if o.MaxRootLagMillis != nil && o.GetMaxRootLagMillis() == 0 {
			return nil, 0, reason.New(rootv1.Reason_REASON_INVALID_REQUEST,
				"max_root_lag_millis 0: every view is older than that; ask for FRESHNESS_STRONG, or for 1 or more")
		}
		v, err := f.atToken(ctx, o)
		if err == nil {
			err = f.withinBounds(v, o)
		}
		return v, coordinatorv1.ServingClass_SERVING_CLASS_BOUNDED, err
	case coordinatorv1.Freshness_FRESHNESS_STRONG:
		if _, err := f.Strong(ctx); err != nil {
			return nil, 0, err
		}
		v, err := f.atToken(ctx, o)
		return v, coordinatorv1.ServingClass_SERVING_CLASS_LINEARIZABLE, err
	default:
		return nil, 0, reason.New(rootv1.Reason_REASON_INVALID_REQUEST, "freshness %d is unknown", o.GetFreshness())
	}
}

func (f *Follower) bestEffort() (*View, coordinatorv1.ServingClass, error) {
	v := f.view.Load()
	if !v.Loaded() {
		return nil, 0, f.notLoaded(v)
	}
	return v, coordinatorv1.ServingClass_SERVING_CLASS_BEST_EFFORT, nil
}

// notLoaded refuses while a view is empty or replays the past: it would say of
// much that it does not exist.
func (f *Follower) notLoaded(v *View) error {
	e := reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "this coordinator is loading what the root has: entry %d of %d", v.Token.Index, v.Known.Index)
	return f.withLag(e, v)
}

// atToken waits for the required token, if there is one.
func (f *Follower) atToken(ctx context.Context, o *coordinatorv1.ReadOptions) (*View, error) {
	if t := o.GetRequiredRootToken(); t.GetIndex() != 0 {
		return f.WaitFor(ctx, state.TokenFromProto(t))
	}
	v := f.View()
	if !v.Loaded() {
		return nil, f.notLoaded(v)
	}
	return v, nil
}

// withinBounds says whether a view meets max_root_lag and max_root_lag_millis.
// A bound in entries alone cannot be judged while the root is unavailable: how far
// it went on is unknown.
func (f *Follower) withinBounds(v *View, o *coordinatorv1.ReadOptions) error {
	now := f.cfg.Clock.Now()
	if o.MaxRootLagMillis != nil {
		age, ok := v.Age(now)
		bound := time.Duration(min(o.GetMaxRootLagMillis(), uint64(maxBound.Milliseconds()))) * time.Millisecond
		if !ok || age > bound {
			return f.withLag(reason.New(rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, "the view is older than %s", bound), v)
		}
	} else if v.Mode(now) == coordinatorv1.DegradedMode_DEGRADED_MODE_ROOT_UNAVAILABLE {
		return f.withLag(reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "how far the view is behind is unknown"), v)
	}
	if lag := v.Lag(); o.MaxRootLag != nil && lag > o.GetMaxRootLag() {
		return f.withLag(reason.New(rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, "the view is %d entries behind, %d are allowed", lag, o.GetMaxRootLag()), v)
	}
	return nil
}

// maxBound is the longest bound in time that is told apart from none.
const maxBound = 366 * 24 * time.Hour

// AtRevision judges ReadOptions.required_descriptor_revision after a lookup in
// v found a descriptor of revision found (0: none). It returns v when that is
// enough; a later View, in which the caller looks up again, when v had not
// reached that log index; and otherwise refuses with REASON_REQUIRED_TOKEN: the
// descriptor has no such revision.
func (f *Follower) AtRevision(ctx context.Context, v *View, found, required uint64) (*View, error) {
	if found >= required {
		return v, nil
	}
	if v.Token.Index < required {
		return f.WaitFor(ctx, state.Token{Incarnation: v.Token.Incarnation, Index: required})
	}
	e := reason.New(rootv1.Reason_REASON_REQUIRED_TOKEN, "the descriptor is at revision %d, %d was asked for", found, required)
	return nil, f.withLag(e, v)
}
