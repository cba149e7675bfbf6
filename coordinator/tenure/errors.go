package tenure

import (
	"context"
	"errors"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func overloaded(limit int) error {
	e := reason.New(rootv1.Reason_REASON_OVERLOADED, "%d requests wait already", limit)
	e.Detail.Limit = uint64(limit)
	return e
}

func exhausted(m rootv1.Mandate) error {
	return reason.New(rootv1.Reason_REASON_EXHAUSTED, "%s: the number space is used up", m)
}

// gaveUp is the error of a request whose context ended while it waited.
func gaveUp(ctx context.Context, what string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return reason.New(rootv1.Reason_REASON_ROOT_UNAVAILABLE, "%s", what)
	}
	return ctx.Err()
}

// refusalFor is the answer of a coordinator that has no era, made once for each
// Tenure.
func refusalFor(t *rootv1.Tenure, self string, superseded bool) *reason.Error {
	if superseded {
		return reason.New(rootv1.Reason_REASON_COORDINATOR_SUPERSEDED,
			"a newer process runs as coordinator %q", self)
	}
	e := reason.New(rootv1.Reason_REASON_TENURE_NOT_HELD, "no coordinator is known to hold the Tenure")
	e.Detail.Era = t.GetEra()
	if t != nil && !t.Retired && t.HolderId != self {
		e.Detail.HolderId, e.Detail.HolderAddress = t.HolderId, t.HolderAddress
		e.Detail.Message = "coordinator " + t.HolderId + " holds the Tenure"
	}
	return e
}

// eraStale says that era is over.
func eraStale(era, current uint64) *reason.Error {
	e := reason.New(rootv1.Reason_REASON_ERA_STALE, "era %d is over", era)
	e.Detail.Era = current
	return e
}
