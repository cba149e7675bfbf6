package pin

import (
	"fmt"

	"google.golang.org/grpc/status"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// Kind says why a pin is not taken, in a word that stays.
type Kind string

// The kinds. The first six are said of the pin itself, the others of the work that it
// is for.
const (
	Malformed     Kind = "malformed"
	Forged        Kind = "forged"
	OtherCluster  Kind = "other_cluster"
	OtherKeyspace Kind = "other_keyspace"
	OtherMember   Kind = "other_member"
	KeyUnknown    Kind = "key_unknown"

	// Expired: it has come to its end.
	Expired Kind = "expired"
	// Lost: the process that it was begun in has ended, or may not act for the region any
	// more.
	Lost Kind = "lost"
	// Ended: the process is there, and the work is not: it was ended, by its caller or by
	// a time limit.
	Ended Kind = "ended"
	// Busy: too much is pinned, or asked for a pin at once.
	Busy Kind = "busy"
)

// Error says why a pin is not taken. Nothing was done for the request.
type Error struct {
	Kind Kind
	Said string
}

// Error implements error.
func (e *Error) Error() string { return e.Said }

// Reason is how it crosses the wire: pin_lost for what was there once, so that the caller
// begins the work anew; not_found for what was never a pin here; overloaded.
func (e *Error) Reason() rootv1.Reason {
	switch e.Kind {
	case Expired, Lost, Ended:
		return rootv1.Reason_REASON_PIN_LOST
	case Busy:
		return rootv1.Reason_REASON_OVERLOADED
	}
	return rootv1.Reason_REASON_NOT_FOUND
}

// Detail is what is told of it on the wire.
func (e *Error) Detail() *rootv1.ErrorDetail {
	return &rootv1.ErrorDetail{Reason: e.Reason(), Message: e.Said}
}

// GRPCStatus lets a gRPC server return it.
func (e *Error) GRPCStatus() *status.Status { return (&reason.Error{Detail: e.Detail()}).GRPCStatus() }

// Refuse makes an Error.
func Refuse(k Kind, format string, args ...any) *Error { return refuse(k, format, args...) }

func refuse(k Kind, format string, args ...any) *Error {
	return &Error{k, fmt.Sprintf(format, args...)}
}

var errMalformed = refuse(Malformed, "that is no pin of NoKV: it is the text that the beginning of the work answered with, whole")

// Lives says whether a member, nil for one that there is not, is still the process of
// an incarnation.
func Lives(m *rootv1.Member, incarnation uint64) bool {
	return m.GetIncarnation() == incarnation && incarnation != 0 &&
		m.GetState() != rootv1.MemberState_MEMBER_STATE_FAILED && m.GetState() != rootv1.MemberState_MEMBER_STATE_REMOVED
}

// LostWith is the refusal of a pin whose process has ended.
func LostWith(m rooted.MemberID) *Error {
	return refuse(Lost, "the process of member %.80q that the pin is of has ended, and what it had begun with it: begin the work anew", m)
}
