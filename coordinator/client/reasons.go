package client

import (
	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

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
)

// sentinel is a reason as an error to compare with.
type sentinel rootv1.Reason

// Error implements error.
func (s sentinel) Error() string { return reason.Name(rootv1.Reason(s)) }
