// Package reason carries refusals across the wire: one table from reason codes
// to gRPC codes, used by servers and clients alike.
//
// It promises that an Error sent by a server arrives at the client as an Error
// with the same detail.
package reason

import (
	"errors"
	"fmt"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is a refusal: nothing changed, the detail says why and what to do. The
// one exception is REASON_OUTCOME_UNKNOWN, which says that nobody knows.
type Error struct {
	Detail *rootv1.ErrorDetail
}

// New makes an Error from a reason and a sentence.
func New(r rootv1.Reason, format string, args ...any) *Error {
	return &Error{Detail: &rootv1.ErrorDetail{Reason: r, Message: fmt.Sprintf(format, args...)}}
}

// Error implements error.
func (e *Error) Error() string {
	if e.Detail.GetMessage() == "" {
		return Name(e.Detail.GetReason())
	}
	return Name(e.Detail.GetReason()) + ": " + e.Detail.GetMessage()
}

// GRPCStatus lets a gRPC server send the Error as it is.
func (e *Error) GRPCStatus() *status.Status {
	s := status.New(Code(e.Detail.GetReason()), e.Detail.GetMessage())
	if d, err := s.WithDetails(e.Detail); err == nil {
		return d
	}
	return s
}

// From finds the detail of a refusal in err: an *Error, or a gRPC status with
// an ErrorDetail. It returns nil when there is none.
func From(err error) *rootv1.ErrorDetail {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Detail
	}
	s, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, d := range s.Details() {
		if detail, ok := d.(*rootv1.ErrorDetail); ok {
			return detail
		}
	}
	return nil
}

// Of returns the reason of a refusal, or REASON_UNSPECIFIED.
func Of(err error) rootv1.Reason { return From(err).GetReason() }

// FromGRPC turns a gRPC status with an ErrorDetail into an *Error, and returns
// any other error as it is.
func FromGRPC(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	if d := From(err); d != nil {
		return &Error{Detail: d}
	}
	return err
}

// Name is the reason as users see it: lower case without the prefix.
func Name(r rootv1.Reason) string {
	if row, ok := table[r]; ok {
		return row.name
	}
	return fmt.Sprintf("reason_%d", int32(r))
}

// Code is the gRPC code that a reason travels under.
func Code(r rootv1.Reason) codes.Code {
	if row, ok := table[r]; ok {
		return row.code
	}
	return codes.Unknown
}

type row struct {
	name string
	code codes.Code
}

var table = map[rootv1.Reason]row{
	rootv1.Reason_REASON_UNSPECIFIED:            {"unspecified", codes.Unknown},
	rootv1.Reason_REASON_INVALID_REQUEST:        {"invalid_request", codes.InvalidArgument},
	rootv1.Reason_REASON_NOT_LEADER:             {"not_leader", codes.FailedPrecondition},
	rootv1.Reason_REASON_TENURE_NOT_HELD:        {"tenure_not_held", codes.FailedPrecondition},
	rootv1.Reason_REASON_ERA_STALE:              {"era_stale", codes.FailedPrecondition},
	rootv1.Reason_REASON_EPOCH_STALE:            {"epoch_stale", codes.FailedPrecondition},
	rootv1.Reason_REASON_ROOT_UNAVAILABLE:       {"root_unavailable", codes.Unavailable},
	rootv1.Reason_REASON_ROOT_LAG_EXCEEDED:      {"root_lag_exceeded", codes.FailedPrecondition},
	rootv1.Reason_REASON_BOOTSTRAP_REQUIRED:     {"bootstrap_required", codes.OutOfRange},
	rootv1.Reason_REASON_RANGE_OVERLAP:          {"range_overlap", codes.FailedPrecondition},
	rootv1.Reason_REASON_MEMBER_NOT_FOUND:       {"member_not_found", codes.NotFound},
	rootv1.Reason_REASON_UNHEALTHY_MEMBER:       {"unhealthy_member", codes.FailedPrecondition},
	rootv1.Reason_REASON_MEMBER_DRAINING:        {"member_draining", codes.FailedPrecondition},
	rootv1.Reason_REASON_NO_ACTIVE_MEMBERS:      {"no_active_members", codes.FailedPrecondition},
	rootv1.Reason_REASON_TOO_MANY_REPLICAS:      {"too_many_replicas", codes.FailedPrecondition},
	rootv1.Reason_REASON_CAPACITY_EXCEEDED:      {"capacity_exceeded", codes.ResourceExhausted},
	rootv1.Reason_REASON_NOT_FOUND:              {"not_found", codes.NotFound},
	rootv1.Reason_REASON_PIN_LOST:               {"pin_lost", codes.FailedPrecondition},
	rootv1.Reason_REASON_REGISTER_FIRST:         {"register_first", codes.FailedPrecondition},
	rootv1.Reason_REASON_MASS_FAILURE_HOLD:      {"mass_failure_hold", codes.FailedPrecondition},
	rootv1.Reason_REASON_ALREADY_EXISTS:         {"already_exists", codes.AlreadyExists},
	rootv1.Reason_REASON_VERSION_STALE:          {"version_stale", codes.FailedPrecondition},
	rootv1.Reason_REASON_INVALID_RANGE:          {"invalid_range", codes.InvalidArgument},
	rootv1.Reason_REASON_RANGE_CHANGE_PENDING:   {"range_change_pending", codes.FailedPrecondition},
	rootv1.Reason_REASON_MEMBER_RETIRED:         {"member_retired", codes.FailedPrecondition},
	rootv1.Reason_REASON_NOT_EMPTY:              {"not_empty", codes.FailedPrecondition},
	rootv1.Reason_REASON_PRIMACY:                {"primacy", codes.FailedPrecondition},
	rootv1.Reason_REASON_INHERITANCE:            {"inheritance", codes.FailedPrecondition},
	rootv1.Reason_REASON_MANDATE:                {"mandate", codes.FailedPrecondition},
	rootv1.Reason_REASON_SILENCE:                {"silence", codes.FailedPrecondition},
	rootv1.Reason_REASON_FINALITY:               {"finality", codes.FailedPrecondition},
	rootv1.Reason_REASON_INVALID_TENURE:         {"invalid_tenure", codes.InvalidArgument},
	rootv1.Reason_REASON_CLUSTER_MISMATCH:       {"cluster_mismatch", codes.FailedPrecondition},
	rootv1.Reason_REASON_OVERLOADED:             {"overloaded", codes.ResourceExhausted},
	rootv1.Reason_REASON_DEADLINE_REQUIRED:      {"deadline_required", codes.InvalidArgument},
	rootv1.Reason_REASON_REQUIRED_TOKEN:         {"required_token", codes.DeadlineExceeded},
	rootv1.Reason_REASON_CLOCK_BOUND:            {"clock_bound", codes.FailedPrecondition},
	rootv1.Reason_REASON_COORDINATOR_SUPERSEDED: {"coordinator_superseded", codes.FailedPrecondition},
	rootv1.Reason_REASON_LAYOUT_MISMATCH:        {"layout_mismatch", codes.FailedPrecondition},
	rootv1.Reason_REASON_TRANSITION_CLOSED:      {"transition_closed", codes.FailedPrecondition},
	rootv1.Reason_REASON_EXHAUSTED:              {"exhausted", codes.ResourceExhausted},
	rootv1.Reason_REASON_OUTCOME_UNKNOWN:        {"outcome_unknown", codes.Unavailable},
	rootv1.Reason_REASON_FEATURE_LEVEL:          {"feature_level", codes.FailedPrecondition},
	rootv1.Reason_REASON_TOO_OLD:                {"too_old", codes.FailedPrecondition},
	rootv1.Reason_REASON_CLUSTER_REQUIRED:       {"cluster_required", codes.InvalidArgument},
	rootv1.Reason_REASON_STILL_RUNNING:          {"still_running", codes.FailedPrecondition},
	rootv1.Reason_REASON_PERMISSION_DENIED:      {"permission_denied", codes.PermissionDenied},
}
