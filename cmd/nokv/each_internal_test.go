package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/testing/proctest"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
)

// together are coordinators of which none answers before all were asked.
type together struct {
	coordinatorv1.UnimplementedCoordinatorServer
	waited chan struct{} // closed when so many were asked
	left   atomic.Int32
}

func (s *together) wait(ctx context.Context) error {
	if s.left.Add(-1) == 0 {
		close(s.waited)
	}
	select {
	case <-s.waited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *together) Status(ctx context.Context, _ *coordinatorv1.StatusRequest) (*coordinatorv1.StatusResponse, error) {
	return &coordinatorv1.StatusResponse{Rounds: []*coordinatorv1.BalanceRound{{Keyspace: "games", Trigger: "members"}}}, s.wait(ctx)
}

func (s *together) ListMembers(ctx context.Context, req *coordinatorv1.ListMembersRequest) (*coordinatorv1.ListMembersResponse, error) {
	if req.GetRead() == nil { // of one coordinator's own view
		if err := s.wait(ctx); err != nil {
			return nil, err
		}
	}
	m := &rootv1.Member{Id: "m1", Incarnation: 1, State: rootv1.MemberState_MEMBER_STATE_ACTIVE}
	return &coordinatorv1.ListMembersResponse{Members: []*coordinatorv1.MemberStatus{{Member: m}}}, nil
}

func (s *together) ListTransitions(context.Context, *coordinatorv1.ListTransitionsRequest) (*coordinatorv1.ListTransitionsResponse, error) {
	return &coordinatorv1.ListTransitionsResponse{}, nil
}

// Commands that ask every coordinator ask all of them at once: those that hang cost no more than one.
func TestCoordinatorsAreAskedAtOnce(t *testing.T) {
	const coordinators = 5
	for _, c := range []struct {
		name  string
		run   func(ctx context.Context, e *env, cl *client.Client) error
		judge func(t *testing.T, said []byte)
	}{
		{"status", showStatus, func(t *testing.T, said []byte) {
			var out statusOutput
			if err := json.Unmarshal(said, &out); err != nil || len(out.Coordinators) != coordinators {
				t.Fatalf("%v in %s", err, said)
			}
			for _, one := range out.Coordinators {
				if one.Error != "" {
					t.Errorf("%s: %s", one.Address, one.Error)
				}
			}
		}},
		{"member get", func(ctx context.Context, e *env, cl *client.Client) error {
			return showWholeMember(ctx, e, cl, "m1", 0, []client.ReadOption{client.BestEffort()})
		}, func(t *testing.T, said []byte) {
			var out memberGetOutput
			if err := json.Unmarshal(said, &out); err != nil || len(out.Observed) != coordinators {
				t.Fatalf("%v in %s", err, said)
			}
			for _, one := range out.Observed {
				if one.Error != "" {
					t.Errorf("%s: %s", one.Coordinator, one.Error)
				}
			}
		}},
		{"keyspace get", func(ctx context.Context, e *env, cl *client.Client) error {
			k := &rootv1.Keyspace{Name: "games", Settings: &rootv1.KeyspaceSettings{Placement: rootv1.Placement_PLACEMENT_ASSIGNED}}
			if lastRound(ctx, cl, k) == nil {
				return fmt.Errorf("nobody told of the last round")
			}
			return nil
		}, func(*testing.T, []byte) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &together{waited: make(chan struct{})}
			s.left.Store(coordinators)
			var addresses []string
			for range coordinators {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				server := grpc.NewServer()
				coordinatorv1.RegisterCoordinatorServer(server, s)
				go func() { _ = server.Serve(l) }()
				t.Cleanup(server.Stop)
				addresses = append(addresses, l.Addr().String())
			}
			cl, err := client.New(client.Config{Endpoints: addresses})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cl.Close() }()
			ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
			defer cancel()
			var said bytes.Buffer
			if err := c.run(ctx, &env{stdout: &said, output: "json"}, cl); err != nil {
				t.Fatal(err)
			}
			c.judge(t, said.Bytes())
		})
	}
}
