package server

import (
	"context"
	"errors"
	"strings"

	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// methodPrefix is what the full name of every method of the service begins with.
const methodPrefix = "/nokv.coordinator.v1.Coordinator/"

// admitUnary lets a unary call in when there is room and when it has a
// deadline, and says what became of it in the words of package reason.
func (s *Server) admitUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !strings.HasPrefix(info.FullMethod, methodPrefix) {
		return handler(ctx, req)
	}
	if err := s.inFlight.enter(); err != nil {
		return nil, err
	}
	defer s.inFlight.leave()
	if _, ok := ctx.Deadline(); !ok {
		return nil, errDeadlineRequired
	}
	resp, err := handler(ctx, req)
	if err != nil {
		return nil, s.refusal(err)
	}
	return resp, nil
}

var errDeadlineRequired = reason.New(rootv1.Reason_REASON_DEADLINE_REQUIRED,
	"the call has no deadline: set one, in Go by context.WithTimeout, with grpcurl by -max-time, on the wire by the header grpc-timeout")

// notLeader is what a refusal for want of the Tenure says.
const notLeader = "coordinator not leader"

// refusal turns an error of a handler into what crosses the wire. Refusals
// and gRPC statuses go as they are.
func (s *Server) refusal(err error) error {
	if refused, ok := errors.AsType[*reason.Error](err); ok {
		if refused.Detail.GetReason() == rootv1.Reason_REASON_TENURE_NOT_HELD {
			return s.notHeld(refused.Detail)
		}
		return refused
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	s.log.Error("call failed", "err", err)
	return status.Error(codes.Internal, err.Error())
}

// notHeld completes a refusal for want of the Tenure: who holds it, as far as
// the view knows.
func (s *Server) notHeld(d *rootv1.ErrorDetail) error {
	out := &rootv1.ErrorDetail{
		Reason: d.GetReason(), Message: d.GetMessage(), RetryAfterMillis: d.GetRetryAfterMillis(),
		HolderId: d.GetHolderId(), HolderAddress: d.GetHolderAddress(), Era: d.GetEra(),
	}
	if t := s.view().State.Tenure(); out.GetHolderId() == "" && t != nil && !t.GetRetired() && t.GetHolderId() != string(s.cfg.ID) {
		out.HolderId, out.HolderAddress, out.Era = t.GetHolderId(), t.GetHolderAddress(), t.GetEra()
	}
	if !strings.Contains(out.GetMessage(), notLeader) {
		out.Message = strings.TrimSuffix(notLeader+": "+out.GetMessage(), ": ")
	}
	return &reason.Error{Detail: out}
}

// invalid is a refusal of a request that names the field.
func invalid(field, format string, args ...any) *reason.Error {
	e := reason.New(rootv1.Reason_REASON_INVALID_REQUEST, format, args...)
	e.Detail.Message = field + ": " + e.Detail.GetMessage()
	return e
}

// invalidLimit is invalid for a value above a limit.
func invalidLimit(field string, got, limit uint64) *reason.Error {
	e := invalid(field, "%d is above the limit of %d", got, limit)
	e.Detail.Limit = limit
	return e
}

// checkRead says what is wrong with the options of a read.
func checkRead(read *coordinatorv1.ReadOptions) error {
	if read == nil {
		return nil
	}
	if f := read.GetFreshness(); f < 0 || f > coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT {
		return invalid("read.freshness", "%d is not a freshness", f)
	}
	if t := read.GetRequiredRootToken(); t.GetIndex() == 0 && t.GetIncarnation()|t.GetTerm() != 0 {
		return invalid("read.required_root_token", "it has no index: no position to wait for")
	}
	if read.GetFreshness() != coordinatorv1.Freshness_FRESHNESS_BOUNDED {
		if read.MaxRootLag != nil {
			return invalid("read.max_root_lag", "only FRESHNESS_BOUNDED has a bound")
		}
		if read.MaxRootLagMillis != nil {
			return invalid("read.max_root_lag_millis", "only FRESHNESS_BOUNDED has a bound")
		}
	}
	return nil
}

// checkKey says what is wrong with a key that may not be empty.
func checkKey(field string, key []byte) error {
	if len(key) == 0 {
		return invalid(field, "it is empty")
	}
	return checkBound(field, key)
}

// checkBound says what is wrong with a key that may be empty.
func checkBound(field string, key []byte) error {
	if len(key) > MaxKeyBytes {
		return invalidLimit(field, uint64(len(key)), MaxKeyBytes)
	}
	return nil
}

// limitOf is the number of records to return: the default for 0.
func limitOf(asked, standard, most uint32) (int, error) {
	switch {
	case asked == 0:
		return int(standard), nil
	case asked > most:
		return 0, invalidLimit("limit", uint64(asked), uint64(most))
	default:
		return int(asked), nil
	}
}
