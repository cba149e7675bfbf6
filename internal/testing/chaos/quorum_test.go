package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/internal/clusterid"
	"github.com/nokv/nokv/internal/reason"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// beginNoQuorum takes two root peers away for long: what needs a quorum is
// refused, soon and by name, and nothing piles up.
func beginNoQuorum(r *run, f fault) *active {
	a := r.killNow(r.both("leader", "follower")...)
	asked := make(chan error, 1)
	go func() { asked <- r.withoutQuorum() }()
	fired, end := a.fired, a.end
	var err error
	a.end = func() {
		err = <-asked
		end()
	}
	a.fired = func() error {
		if err != nil {
			r.t.Errorf("%s: %v", f, err)
		}
		return fired()
	}
	return a
}

// What needs a quorum is refused, on a machine of any speed, before askFor is over,
// which its caller gives it. Ids and timestamps wait as long as their caller does.
const (
	askFor     = patience
	waitForIDs = 2 * time.Second
)

// withoutQuorum asks every coordinator for what needs a quorum, which is refused
// long before the caller's time is over, and for what does not, which is served.
func (r *run) withoutQuorum() error {
	var found []error
	for k := range coordinators {
		n := coordinatorv1.NewCoordinatorClient(dial(r.t, r.c.CoordinatorAddrs[k], clusterid.Caller(r.load.clusterID).Options()...))
		ask := func(what string, limit time.Duration, served bool, call func(context.Context) error) {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			err := call(ctx)
			code, why := status.Code(err), reason.Of(reason.FromGRPC(err))
			switch {
			case served && err != nil:
				found = append(found, fmt.Errorf("%s of %s was refused: %w", what, coordinatorPlace(k), err))
			case !served && err == nil:
				found = append(found, fmt.Errorf("%s of %s was answered", what, coordinatorPlace(k)))
			case limit == askFor && ctx.Err() != nil:
				found = append(found, fmt.Errorf("%s of %s took all of its time: %w", what, coordinatorPlace(k), err))
			case !served && code != codes.DeadlineExceeded && why != rootv1.Reason_REASON_ROOT_UNAVAILABLE && why != rootv1.Reason_REASON_TENURE_NOT_HELD:
				found = append(found, fmt.Errorf("%s of %s was refused as %v: %w", what, coordinatorPlace(k), why, err))
			}
		}
		keys := [][]byte{[]byte(sharedKey(0))}
		ask("best effort", askFor, true, func(ctx context.Context) error {
			_, err := n.GetRegionsByKeys(ctx, &coordinatorv1.GetRegionsByKeysRequest{Keys: keys})
			return err
		})
		ask("a strong read", askFor, false, func(ctx context.Context) error {
			_, err := n.GetRegionsByKeys(ctx, &coordinatorv1.GetRegionsByKeysRequest{Keys: keys, Read: &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG}})
			return err
		})
		ask("a million ids", waitForIDs, false, func(ctx context.Context) error {
			_, err := n.AllocID(ctx, &coordinatorv1.AllocIDRequest{Count: 1_000_000})
			return err
		})
	}
	return errors.Join(found...)
}
