package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// A peer that does not lead does not judge by its own, older feature level: a
// rejection is final, and the command may have been applied by the leader before.
func TestFollowersDoNotJudgeFeatureLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t) // has not applied the raise yet
		s := serve(t, r, nil)
		ctx, cancel := within(time.Minute)
		defer cancel()
		r.lead(2)
		resp, err := s.root().Propose(ctx, &rootv1.ProposeRequest{Commands: []*rootv1.Command{move()}})
		if reason.Of(err) != rootv1.Reason_REASON_NOT_LEADER {
			t.Errorf("a follower that lags answers %v (err %v), want %v", resp.GetResults(), err, rootv1.Reason_REASON_NOT_LEADER)
		}
	})
}
