package client

import (
	"time"

	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"github.com/nokv/nokv/rooted"
)

// ReadOption says where to read and how fresh the answer must be. Conditions
// add up; none is ever weakened silently. Without any a read is best effort,
// in keyspace "default".
type ReadOption func(*read)

// read is what options add up to.
type read struct {
	keyspace string
	options  *coordinatorv1.ReadOptions
	limit    int
	session  *Session
	members  bool // of a watch
}

// In reads in a keyspace.
func In(keyspace string) ReadOption { return func(r *read) { r.keyspace = keyspace } }

// Strong asks for a linearizable read: it reflects every change acknowledged
// before the call.
func Strong() ReadOption {
	return func(r *read) { r.set().Freshness = coordinatorv1.Freshness_FRESHNESS_STRONG }
}

// BestEffort asks for whatever the coordinator has, labelled. It is the default.
func BestEffort() ReadOption {
	return func(r *read) { r.set().Freshness = coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT }
}

// Bounded asks for an answer at most so many log entries behind, and from a
// view that was level with the root at most so long ago, to the millisecond.
// A coordinator that lags more refuses; when all do, the error is
// ErrRootLagExceeded.
func Bounded(entries uint64, age time.Duration) ReadOption {
	return func(r *read) {
		o, millis := r.set(), uint64(max(age, 0).Milliseconds())
		o.Freshness, o.MaxRootLag, o.MaxRootLagMillis = coordinatorv1.Freshness_FRESHNESS_BOUNDED, &entries, &millis
	}
}

// AtLeast asks for an answer that reflects a position: read your writes. The
// call waits for it within its deadline.
func AtLeast(token rooted.Token) ReadOption {
	return func(r *read) {
		if o := r.set(); token.Compare(rooted.TokenFromProto(o.GetRequiredRootToken())) > 0 {
			o.RequiredRootToken = token.Proto()
		}
	}
}

// AtRevision asks for a region's descriptor of at least that revision.
func AtRevision(revision uint64) ReadOption {
	return func(r *read) {
		o := r.set()
		o.RequiredDescriptorRevision = max(o.RequiredDescriptorRevision, revision)
	}
}

// Limit ends a list after so many items. Without it, or at 0, a list is complete.
func Limit(items int) ReadOption { return func(r *read) { r.limit = items } }

func (r *read) set() *coordinatorv1.ReadOptions {
	if r.options == nil {
		r.options = &coordinatorv1.ReadOptions{}
	}
	return r.options
}

func readOf(opts []ReadOption) read {
	var r read
	for _, o := range opts {
		o(&r)
	}
	return r
}

// mayWait says whether a coordinator may hold the answer back until its view
// has got somewhere.
func (r *read) mayWait() bool {
	o := r.options
	return o.GetFreshness() == coordinatorv1.Freshness_FRESHNESS_STRONG || o.GetRequiredRootToken() != nil || o.GetRequiredDescriptorRevision() != 0
}

// saw notes what an answer reflects.
func (r *read) saw(d *coordinatorv1.Disclosure) {
	if r.session != nil {
		r.session.Saw(rooted.TokenFromProto(d.GetServedRootToken()))
	}
}
