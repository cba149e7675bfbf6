package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/mtls"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrClosed is the cause of errors of calls on a Client, or an IDSource, after Close.
var ErrClosed = errors.New("client is closed")

// ErrUnreachable is the cause when a coordinator could not be reached or broke
// the connection off.
var ErrUnreachable = errors.New("coordinator unreachable")

// Error is why a call ended without an answer. It is equal, by errors.Is, to
// the Err value of its reason, and to its cause: context.DeadlineExceeded,
// context.Canceled, ErrClosed or ErrUnreachable. The cause is a *mtls.Refusal when
// no coordinator can be talked to with the certificates of either side.
type Error struct {
	// Op is the call, such as "GetRegionByKey".
	Op string
	// Reason says why the last coordinator refused; REASON_UNSPECIFIED if none did.
	Reason rootv1.Reason
	// Detail is what the refusal carried, with the way out; nil if there was none.
	Detail *rootv1.ErrorDetail
	// Endpoint is the address that Reason came from; empty if none was asked.
	Endpoint string
	// Tries are the coordinators asked, each with the last thing it said, in
	// order of first asking.
	Tries []Try
	// Cause is what ended the call when no refusal did.
	Cause error
}

// Try is what one coordinator said to a call.
type Try struct {
	// Endpoint is its address; empty where one answer of several in a message is meant.
	Endpoint string
	// Times is how often it was asked.
	Times int
	// Said is its last answer, for people.
	Said string

	// refusal is why there was no connection, if it does not pass by itself.
	refusal *mtls.Refusal
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if _, refused := errors.AsType[*mtls.Refusal](e.Cause); refused {
		return e.Op + ": " + e.Cause.Error() // names the coordinator
	}
	if e.Cause != nil && !errors.Is(e.Cause, errRefused) {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	if e.Detail != nil && len(e.Tries) == 0 { // found by the client itself
		fmt.Fprintf(&b, ": %v", &reason.Error{Detail: e.Detail})
	}
	for i, t := range e.Tries {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString("; ")
		}
		if t.Endpoint != "" {
			b.WriteString(t.Endpoint + ": ")
		}
		b.WriteString(t.Said)
		if t.Times > 1 {
			fmt.Fprintf(&b, " (asked %d times)", t.Times)
		}
	}
	return b.String()
}

// Is says whether target is the Err value of the reason.
func (e *Error) Is(target error) bool {
	s, ok := target.(sentinel)
	return ok && rootv1.Reason(s) == e.Reason && e.Reason != rootv1.Reason_REASON_UNSPECIFIED
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// errRefused marks the end of a call by a refusal, which speaks for itself.
var errRefused = errors.New("refused")

// class says what to do about a failed try.
type class uint8

const (
	// final: the answer would be the same everywhere. Never retried.
	final class = iota
	// elsewhere: the next coordinator at once; after all of them, a pause.
	elsewhere
	// round: each other coordinator once, then final.
	round
	// later: a pause first.
	later
	// redirect: the coordinator named by the refusal at once.
	redirect
	// barred: there is no connection for reasons that do not pass by themselves. The
	// next coordinator at once; final when that is so with all, or the own certificate
	// has ended.
	barred
)

// classify says what to do about err of a try whose own context has not ended.
func classify(err error) (class, *rootv1.ErrorDetail) {
	if errors.Is(err, errUnfit) || errors.Is(err, errSilent) {
		return elsewhere, nil
	}
	if d := reason.From(err); d != nil {
		return classOfReason(d), d
	}
	if _, refused := mtls.RefusalOf(err); refused {
		return barred, nil
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted, codes.Canceled, codes.DeadlineExceeded:
		return elsewhere, nil
	case codes.Internal, codes.Unknown:
		return round, nil
	default:
		return final, nil
	}
}

func classOfReason(d *rootv1.ErrorDetail) class {
	switch d.GetReason() {
	case rootv1.Reason_REASON_TENURE_NOT_HELD:
		if d.GetHolderAddress() != "" {
			return redirect
		}
		return elsewhere
	case rootv1.Reason_REASON_NOT_LEADER,
		rootv1.Reason_REASON_ROOT_UNAVAILABLE,
		rootv1.Reason_REASON_BOOTSTRAP_REQUIRED,
		rootv1.Reason_REASON_REQUIRED_TOKEN,
		rootv1.Reason_REASON_COORDINATOR_SUPERSEDED:
		return elsewhere
	case rootv1.Reason_REASON_OUTCOME_UNKNOWN:
		if tooOld(d) {
			return final
		}
		return elsewhere
	case rootv1.Reason_REASON_ROOT_LAG_EXCEEDED, rootv1.Reason_REASON_CLUSTER_MISMATCH:
		return round
	case rootv1.Reason_REASON_OVERLOADED:
		return later
	default:
		return final
	}
}

func retryAfter(d *rootv1.ErrorDetail) time.Duration {
	return time.Duration(min(d.GetRetryAfterMillis(), 60_000)) * time.Millisecond
}

// said is err in words for Try.
func said(err error) string {
	if d := reason.From(err); d != nil {
		return (&reason.Error{Detail: d}).Error()
	}
	if refused, ok := mtls.RefusalOf(err); ok {
		return refused.Error()
	}
	s, ok := status.FromError(err)
	if ok && s.Code() == codes.DeadlineExceeded {
		return errSilent.Error() // whoever's deadline it was
	}
	if ok && s.Code() != codes.Unknown {
		return strings.ToLower(s.Code().String()) + ": " + s.Message()
	}
	return err.Error()
}

// trail remembers what was tried in one call.
type trail struct {
	tries []Try
	last  error
	where string
	// The last answer that was a refusal, which tells more than a broken connection.
	refusal   *rootv1.ErrorDetail
	refusedAt string
}

func (t *trail) note(endpoint string, err error) {
	t.last, t.where = err, endpoint
	if d := reason.From(err); d != nil {
		t.refusal, t.refusedAt = d, endpoint
	}
	try := Try{Endpoint: endpoint, Times: 1, Said: said(err)}
	if class, _ := classify(err); class == barred {
		try.refusal, _ = mtls.RefusalOf(err)
	}
	for i := range t.tries {
		if t.tries[i].Endpoint == endpoint {
			try.Times += t.tries[i].Times
			t.tries[i] = try
			return
		}
	}
	t.tries = append(t.tries, try)
}

// barred says that none of these can be talked to, as they said last.
func (t *trail) barred(at []*endpoint) bool {
	for _, try := range t.tries {
		if try.refusal == nil && slices.ContainsFunc(at, func(e *endpoint) bool { return e.address == try.Endpoint }) {
			return false
		}
	}
	return true
}

// noteEnd is note for a try that the end of the call cut off: it adds to what
// coordinators said before and replaces none of it.
func (t *trail) noteEnd(endpoint string, err error) {
	if d := reason.From(err); d != nil && t.refusal == nil {
		t.refusal, t.refusedAt = d, endpoint
	}
	for i := range t.tries {
		if t.tries[i].Endpoint == endpoint {
			return
		}
	}
	words := said(err)
	if status.Code(err) == codes.Canceled || errors.Is(err, errSilent) {
		words = errSilent.Error()
	}
	t.tries = append(t.tries, Try{Endpoint: endpoint, Times: 1, Said: words})
	if t.where == "" {
		t.where = endpoint
	}
}

// errSilent is what a coordinator says that says nothing.
var errSilent = errors.New("no answer")

// fail makes the error of the call. A nil cause means that the last answer is
// it; otherwise the last refusal is what was seen before the call was cut off.
func (t *trail) fail(op string, cause error) *Error {
	e := &Error{Op: op, Endpoint: t.where, Tries: slices.Clone(t.tries), Cause: cause}
	if cause == nil {
		e.Detail, e.Cause = reason.From(t.last), causeOf(t.last)
	} else if t.refusal != nil {
		e.Detail, e.Endpoint = t.refusal, t.refusedAt
	}
	e.Reason = e.Detail.GetReason()
	return e
}

// causeOf is the cause of a call that ended with an answer.
func causeOf(err error) error {
	if reason.From(err) != nil {
		return errRefused
	}
	if refused, ok := mtls.RefusalOf(err); ok {
		return refused
	}
	switch status.Code(err) {
	case codes.Unavailable:
		return ErrUnreachable
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	default:
		return errRefused
	}
}

// refused is a refusal that came inside a reply.
func refused(d *rootv1.ErrorDetail) error { return &reason.Error{Detail: d} }

// words is a refusal for people.
func words(d *rootv1.ErrorDetail) string { return (&reason.Error{Detail: d}).Error() }

// Every reason of the wire is an error here, for errors.Is. The *Error that
// carries it has the details: the region in the way, the current epoch, the
// address to go to.
var (
	// ErrInvalidRequest: the request is malformed; nothing was tried.
	ErrInvalidRequest error = sentinel(rootv1.Reason_REASON_INVALID_REQUEST)
	// ErrNotLeader: this root peer does not lead; ErrorDetail.leader_* say who does.
	ErrNotLeader error = sentinel(rootv1.Reason_REASON_NOT_LEADER)
	// ErrTenureNotHeld: this coordinator does not hold the Tenure; ErrorDetail.holder_* say who does.
	ErrTenureNotHeld error = sentinel(rootv1.Reason_REASON_TENURE_NOT_HELD)
	// ErrEraStale: the era in the request is over; ErrorDetail.era is the current one.
	ErrEraStale error = sentinel(rootv1.Reason_REASON_ERA_STALE)
	// ErrEpochStale: the region epoch in the request is not newer than the rooted one.
	ErrEpochStale error = sentinel(rootv1.Reason_REASON_EPOCH_STALE)
	// ErrRootUnavailable: no root quorum answered in time.
	ErrRootUnavailable error = sentinel(rootv1.Reason_REASON_ROOT_UNAVAILABLE)
	// ErrRootLagExceeded: the view lags more than the request allows; ErrorDetail.root_lag says how much.
	ErrRootLagExceeded error = sentinel(rootv1.Reason_REASON_ROOT_LAG_EXCEEDED)
	// ErrBootstrapRequired: the position asked for is no longer retained: start from a snapshot.
	ErrBootstrapRequired error = sentinel(rootv1.Reason_REASON_BOOTSTRAP_REQUIRED)
	// ErrRangeOverlap: the key range overlaps ErrorDetail.region.
	ErrRangeOverlap error = sentinel(rootv1.Reason_REASON_RANGE_OVERLAP)
	// ErrMemberNotFound: no member of that id was ever registered.
	ErrMemberNotFound error = sentinel(rootv1.Reason_REASON_MEMBER_NOT_FOUND)
	// ErrUnhealthyMember: the member is failed.
	ErrUnhealthyMember error = sentinel(rootv1.Reason_REASON_UNHEALTHY_MEMBER)
	// ErrMemberDraining: the member is draining and takes nothing new.
	ErrMemberDraining error = sentinel(rootv1.Reason_REASON_MEMBER_DRAINING)
	// ErrNoActiveMembers: no member can take the region.
	ErrNoActiveMembers error = sentinel(rootv1.Reason_REASON_NO_ACTIVE_MEMBERS)
	// ErrTooManyReplicas: more owners than the keyspace allows.
	ErrTooManyReplicas error = sentinel(rootv1.Reason_REASON_TOO_MANY_REPLICAS)
	// ErrCapacityExceeded: a named limit of the keyspace or of the root is reached.
	ErrCapacityExceeded error = sentinel(rootv1.Reason_REASON_CAPACITY_EXCEEDED)
	// ErrNotFound: the named thing does not exist.
	ErrNotFound error = sentinel(rootv1.Reason_REASON_NOT_FOUND)
	// ErrPinLost: the pin's member incarnation is gone.
	ErrPinLost error = sentinel(rootv1.Reason_REASON_PIN_LOST)
	// ErrRegisterFirst: the sender must register before it may report.
	ErrRegisterFirst error = sentinel(rootv1.Reason_REASON_REGISTER_FIRST)
	// ErrMassFailureHold: too many members vanished at once; the verdict is held.
	ErrMassFailureHold error = sentinel(rootv1.Reason_REASON_MASS_FAILURE_HOLD)
	// ErrAlreadyExists: a thing of that name or id exists and differs.
	ErrAlreadyExists error = sentinel(rootv1.Reason_REASON_ALREADY_EXISTS)
	// ErrVersionStale: the keyspace version in the request is not the rooted one.
	ErrVersionStale error = sentinel(rootv1.Reason_REASON_VERSION_STALE)
	// ErrInvalidRange: the range is empty, inverted, or not one the layout allows.
	ErrInvalidRange error = sentinel(rootv1.Reason_REASON_INVALID_RANGE)
	// ErrRangeChangePending: a planned change of this region is pending; ErrorDetail.transition_id names it.
	ErrRangeChangePending error = sentinel(rootv1.Reason_REASON_RANGE_CHANGE_PENDING)
	// ErrMemberRetired: the member is removed, or speaks for an incarnation that is over.
	ErrMemberRetired error = sentinel(rootv1.Reason_REASON_MEMBER_RETIRED)
	// ErrNotEmpty: the keyspace still has regions, or the member still owns some.
	ErrNotEmpty error = sentinel(rootv1.Reason_REASON_NOT_EMPTY)
	// ErrPrimacy: Primacy: an active era other than the expected one exists.
	ErrPrimacy error = sentinel(rootv1.Reason_REASON_PRIMACY)
	// ErrInheritance: Inheritance: a fence or frontier would fall below what was served.
	ErrInheritance error = sentinel(rootv1.Reason_REASON_INHERITANCE)
	// ErrMandate: Mandate: the Tenure does not cover this duty.
	ErrMandate error = sentinel(rootv1.Reason_REASON_MANDATE)
	// ErrSilence: Silence: the era has retired and may not act.
	ErrSilence error = sentinel(rootv1.Reason_REASON_SILENCE)
	// ErrFinality: Finality: the handover step is out of order.
	ErrFinality error = sentinel(rootv1.Reason_REASON_FINALITY)
	// ErrInvalidTenure: the Tenure record in the request is not well formed.
	ErrInvalidTenure error = sentinel(rootv1.Reason_REASON_INVALID_TENURE)
	// ErrClusterMismatch: the request names another cluster or cluster incarnation.
	ErrClusterMismatch error = sentinel(rootv1.Reason_REASON_CLUSTER_MISMATCH)
	// ErrOverloaded: the queue for this kind of request is full; try again later.
	ErrOverloaded error = sentinel(rootv1.Reason_REASON_OVERLOADED)
	// ErrDeadlineRequired: the request has no deadline, or none is left.
	ErrDeadlineRequired error = sentinel(rootv1.Reason_REASON_DEADLINE_REQUIRED)
	// ErrRequiredToken: the view has not reached the token or revision asked for.
	ErrRequiredToken error = sentinel(rootv1.Reason_REASON_REQUIRED_TOKEN)
	// ErrClockBound: the fence is further ahead of the root leader's clock than allowed.
	ErrClockBound error = sentinel(rootv1.Reason_REASON_CLOCK_BOUND)
	// ErrCoordinatorSuperseded: a newer process runs under the same coordinator id.
	ErrCoordinatorSuperseded error = sentinel(rootv1.Reason_REASON_COORDINATOR_SUPERSEDED)
	// ErrLayoutMismatch: the operation does not fit the keyspace's layout or placement.
	ErrLayoutMismatch error = sentinel(rootv1.Reason_REASON_LAYOUT_MISMATCH)
	// ErrTransitionClosed: the transition is no longer pending.
	ErrTransitionClosed error = sentinel(rootv1.Reason_REASON_TRANSITION_CLOSED)
	// ErrExhausted: the allocator's number space is used up.
	ErrExhausted error = sentinel(rootv1.Reason_REASON_EXHAUSTED)
	// ErrOutcomeUnknown: the outcome is unknown: sent, not answered. A retry is safe.
	ErrOutcomeUnknown error = sentinel(rootv1.Reason_REASON_OUTCOME_UNKNOWN)
	// ErrFeatureLevel: some process of the cluster does not understand this yet; ErrorDetail.feature_level is the rooted level.
	ErrFeatureLevel error = sentinel(rootv1.Reason_REASON_FEATURE_LEVEL)
	// ErrTooOld: the process is too old for the rooted feature level.
	ErrTooOld error = sentinel(rootv1.Reason_REASON_TOO_OLD)
	// ErrClusterRequired: the call changes something and does not name the cluster that it is for.
	ErrClusterRequired error = sentinel(rootv1.Reason_REASON_CLUSTER_REQUIRED)
	// ErrStillRunning: the coordinator that is to be removed answers.
	ErrStillRunning error = sentinel(rootv1.Reason_REASON_STILL_RUNNING)
	// ErrPermissionDenied: the caller may not do that; nothing was tried.
	ErrPermissionDenied error = sentinel(rootv1.Reason_REASON_PERMISSION_DENIED)
)

// sentinel is a reason as an error to compare with.
type sentinel rootv1.Reason

// Error implements error.
func (s sentinel) Error() string { return reason.Name(rootv1.Reason(s)) }
