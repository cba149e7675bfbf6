package server_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/server"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Whoever means the cluster before a restore is told of the restore.
func TestRestoredClusterSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		st, err := r.st.Renew(state.Renewal{ClusterID: cluster + 1, Peers: []*rootv1.RootPeer{{NodeId: 1, Incarnation: 9}}})
		if err != nil {
			t.Fatal(err)
		}
		r.st = st
		s := serve(t, r, func(c *server.Config) { c.ClusterID = cluster + 1 })
		defer s.stop()
		root := s.root()
		ctx, cancel := within(time.Minute)
		defer cancel()
		_, err = root.ReadIndex(ctx, &rootv1.ReadIndexRequest{ClusterId: cluster})
		if reason.Of(err) != rootv1.Reason_REASON_CLUSTER_MISMATCH || !strings.Contains(err.Error(), "restored from a backup") {
			t.Errorf("the cluster before the restore: %v", err)
		}
		_, err = root.ReadIndex(ctx, &rootv1.ReadIndexRequest{ClusterId: 5})
		if reason.Of(err) != rootv1.Reason_REASON_CLUSTER_MISMATCH || strings.Contains(err.Error(), "restored from a backup") {
			t.Errorf("another cluster: %v", err)
		}
	})
}
