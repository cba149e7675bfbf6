package server_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/nokv/nokv/internal/testing/impersonate"
	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls/principal"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Who listens with certificates is told which are revoked: all of them at once, and again when they are others. A coordinator that
// the root cannot reach tells nobody: what has been revoked since it does not know.
func TestWatchRevoked(t *testing.T) {
	w := secureWorld(t)
	set := func(version, ttl uint64, revoked ...string) {
		w.must(t, &rootv1.Event{Kind: &rootv1.Event_ClusterSettingsChanged{ClusterSettingsChanged: &rootv1.ClusterSettingsChanged{
			ExpectedVersion: version, Settings: &rootv1.ClusterSettings{MaxTenureTtlMillis: ttl, RevokedCertificates: revoked},
		}}})
	}
	member := coordinatorv1.NewCoordinatorClient(w.as(t, impersonate.Named(principal.Member, "m9")))
	watch := func() coordinatorv1.Coordinator_WatchRevokedClient {
		stream, err := member.WatchRevoked(within(t), &coordinatorv1.WatchRevokedRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	told := func(stream coordinatorv1.Coordinator_WatchRevokedClient, want ...string) {
		t.Helper()
		for {
			r, err := stream.Recv()
			if err != nil {
				t.Fatalf("want %q: %v", want, err)
			}
			if slices.Equal(r.GetCertificates(), want) {
				return
			}
		}
	}
	first := watch()
	told(first)
	set(0, 0, "ab12", "member/m1")
	told(first, "ab12", "member/m1")
	second := watch()
	told(second, "ab12", "member/m1")
	set(1, 40_000, "ab12")
	told(first, "ab12")
	told(second, "ab12")

	w.root.setDown(true)
	_, err := first.Recv()
	refused(t, err, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED)
	_, err = watch().Recv()
	refused(t, err, rootv1.Reason_REASON_ROOT_LAG_EXCEEDED)
	w.root.setDown(false)
	proctest.Eventually(t, proctest.Patience, func() error {
		r, err := watch().Recv()
		if err == nil && !slices.Equal(r.GetCertificates(), []string{"ab12"}) {
			err = errors.New(r.String())
		}
		return err
	})
}
