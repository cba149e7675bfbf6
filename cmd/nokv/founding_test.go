package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/mtls/principal"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Root peers that wait for others say to whoever asks what they wait for, with and
// without certificates, until there is a cluster.
func TestPeersThatWaitSaySo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*cluster{"plain": newCluster(t, 1), "certificates": newCluster(t, 1).Secure()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Start(0)
			c.Start(3) // a coordinator that has no root yet
			status := func(want func(rootPeerOutput) error) {
				t.Helper()
				proctest.Eventually(t, recoverWithin, func() error {
					r := c.Run(append([]string{"root", "status", "-o", "json"}, c.RootFlags()...)...)
					var peers []rootPeerOutput
					if err := json.Unmarshal([]byte(r.Stdout), &peers); err != nil || len(peers) != 3 || r.Code != exitUnavailable {
						return fmt.Errorf("%v: exit status %d\n%s%s", err, r.Code, r.Stdout, r.Stderr)
					}
					return want(peers[0])
				})
			}
			waits := func(sentence string) func(rootPeerOutput) error {
				return func(p rootPeerOutput) error {
					if p.Role != "waiting" || !strings.Contains(p.Error, sentence) || strings.Contains(p.Error, "\n") {
						return fmt.Errorf("role %s, %q, want %q", p.Role, p.Error, sentence)
					}
					return nil
				}
			}
			status(waits("waiting for root peers 2 and 3 to found the cluster: 2: dial tcp "))
			proctest.Eventually(t, recoverWithin, func() error {
				if r := c.Run(append([]string{"root", "events", "--timeout", "1s"}, c.RootFlags()...)...); r.Code != exitUnavailable || !strings.Contains(r.Stderr, "to found the cluster") {
					return fmt.Errorf("root events: exit status %d, %s", r.Code, r.Stderr)
				}
				return nil
			})
			if got, err := grpcHealth(t, c); err != nil || got != healthpb.HealthCheckResponse_NOT_SERVING {
				t.Errorf("health of a peer that waits: %v, %v", got, err)
			}
			c.Start(1)
			status(waits("waiting for root peer 3 to found the cluster: 3: dial tcp "))
			c.Start(2)
			c.WaitHealthy(recoverWithin)
			if got, err := grpcHealth(t, c); err != nil || got != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("health of a peer of a cluster: %v, %v", got, err)
			}
			c.StopAll()
		})
	}
}

// grpcHealth is what the first root peer answers to who asks for its health.
func grpcHealth(t *testing.T, c *cluster) (healthpb.HealthCheckResponse_ServingStatus, error) {
	t.Helper()
	conn, err := grpc.NewClient(c.RootAddrs[0], grpc.WithTransportCredentials(c.TLS().Client(mtls.Peer{Role: principal.Root})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	return resp.GetStatus(), err
}
