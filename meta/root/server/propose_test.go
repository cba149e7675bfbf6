package server_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/server"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestProposeStreamDoesNotWaitForEarlierRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		r.hold = make(chan struct{})
		s := serve(t, r, func(c *server.Config) { c.MaxStreamProposals = 5 })
		ctx, cancel := within(time.Minute)
		defer cancel()
		stream, err := s.root().ProposeStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for id := range uint64(8) {
			if err := stream.Send(&rootv1.ProposeRequest{ClusterId: cluster, RequestId: id, Commands: []*rootv1.Command{joined(fmt.Sprintf("m%d", id), 1)}}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		r.with(func() {
			if r.held != 5 {
				t.Errorf("%d requests are with the replica, want the 5 that a stream may have", r.held)
			}
		})
		close(r.hold)
		seen := map[uint64]bool{}
		for range 8 {
			resp, err := stream.Recv()
			if err != nil || resp.Error != nil || len(resp.Results) != 1 || seen[resp.RequestId] {
				t.Fatalf("answer %v, %v", resp, err)
			}
			seen[resp.RequestId] = true
		}
		if got := s.Metrics().RPCs[rootv1.Root_Propose_FullMethodName].Codes["OK"]; got != 8 {
			t.Errorf("%d requests counted, want 8", got)
		}
		if open := s.Metrics().Streams[rootv1.Root_ProposeStream_FullMethodName].Open; open != 1 {
			t.Errorf("%d streams are open, want 1", open)
		}
	})
}

func TestFollowerNamesTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		r.lead(2)
		s := serve(t, r, nil)
		root := s.root()
		ctx, cancel := within(time.Minute)
		defer cancel()
		_, err := root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{joined("a", 1)}})
		check := func(d *rootv1.ErrorDetail) {
			t.Helper()
			if d.GetReason() != rootv1.Reason_REASON_NOT_LEADER || d.GetLeaderId() != 2 || d.GetLeaderAddress() != "b:1" {
				t.Errorf("refused with %v", d)
			}
		}
		check(reason.From(err))
		_, err = root.ConfirmTenure(ctx, &rootv1.ConfirmTenureRequest{Era: 1})
		check(reason.From(err))
		confirms, err := root.ConfirmStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := confirms.Send(&rootv1.ConfirmTenureRequest{Era: 1}); err != nil {
			t.Fatal(err)
		}
		_, err = confirms.Recv()
		check(reason.From(err))
		stream, err := root.ProposeStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&rootv1.ProposeRequest{ClusterId: cluster, RequestId: 4, Commands: []*rootv1.Command{joined("a", 1)}}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil || resp.RequestId != 4 {
			t.Fatalf("answer %v, %v", resp, err)
		}
		check(resp.Error)
	})
}

// A stream of confirmations answers in turn, and ends with the server.
func TestConfirmStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, newFakeReplica(t), nil)
		ctx, cancel := within(time.Minute)
		defer cancel()
		stream, err := s.root().ConfirmStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for era := range uint64(10) {
			if err := stream.Send(&rootv1.ConfirmTenureRequest{Era: era}); err != nil {
				t.Fatal(err)
			}
			if resp, err := stream.Recv(); err != nil || resp.GetActive() != (era == 1) {
				t.Fatalf("era %d: %v, %v", era, resp, err)
			}
		}
		if err := stream.Send(&rootv1.ConfirmTenureRequest{Era: 1, ClusterId: 99}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); reason.Of(err) != rootv1.Reason_REASON_CLUSTER_MISMATCH {
			t.Errorf("another cluster: %v", err)
		}
		m := s.Metrics()
		if asked := m.RPCs[rootv1.Root_ConfirmTenure_FullMethodName].Codes; asked["OK"] != 10 || asked["FailedPrecondition"] != 1 || len(m.RPCs) != 1 {
			t.Errorf("counted %v", m.RPCs)
		}
		if ended := m.Streams[rootv1.Root_ConfirmStream_FullMethodName]; ended.Open != 0 || ended.Ended["FailedPrecondition"] != 1 {
			t.Errorf("streams %+v", ended)
		}
		idle, err := s.root().ConfirmStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s.stop()
		if _, err := idle.Recv(); status.Code(err) != codes.Unavailable || time.Since(began) > 100*time.Millisecond {
			t.Errorf("the server stopped: %v after %v", err, time.Since(began))
		}
	})
}

// A command that the replica refuses costs its neighbours nothing.
func TestBadCommandStandsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		r.refuse = func(commands []*rootv1.Command) error {
			for _, c := range commands {
				if c.GetRequireEra() == 666 {
					return reason.New(rootv1.Reason_REASON_CLOCK_BOUND, "too far ahead")
				}
			}
			return nil
		}
		s := serve(t, r, nil)
		ctx, cancel := within(time.Minute)
		defer cancel()
		var commands []*rootv1.Command
		for n := range 9 {
			commands = append(commands, joined(fmt.Sprintf("m%d", n), 1))
		}
		commands[3].RequireEra = 666
		resp, err := s.root().Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: commands})
		if err != nil || len(resp.Results) != 9 {
			t.Fatalf("Propose = %v, %v", resp, err)
		}
		for n, result := range resp.Results {
			want, why := rootv1.Outcome_OUTCOME_APPLIED, rootv1.Reason_REASON_UNSPECIFIED
			if n == 3 {
				want, why = rootv1.Outcome_OUTCOME_REJECTED, rootv1.Reason_REASON_CLOCK_BOUND
			}
			if result.Outcome != want || result.Error.GetReason() != why {
				t.Errorf("command %d: %v", n, result)
			}
		}
	})
}

func TestRefusalsBeforeTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		r.hold = make(chan struct{})
		s := serve(t, r, func(c *server.Config) { c.MaxProposals = 1 })
		root := s.root()
		ctx, cancel := within(time.Minute)
		defer cancel()
		expect := func(what string, err error, want rootv1.Reason) {
			t.Helper()
			if reason.Of(err) != want {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		one := []*rootv1.Command{joined("a", 1)}
		_, err := root.Propose(context.Background(), &rootv1.ProposeRequest{ClusterId: cluster, Commands: one})
		expect("no deadline", err, rootv1.Reason_REASON_DEADLINE_REQUIRED)
		_, err = root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster})
		expect("no commands", err, rootv1.Reason_REASON_INVALID_REQUEST)
		_, err = root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: make([]*rootv1.Command, 1025)})
		expect("too many commands", err, rootv1.Reason_REASON_INVALID_REQUEST)
		_, err = root.Propose(ctx, &rootv1.ProposeRequest{Commands: one, ClusterId: 5})
		expect("other cluster", err, rootv1.Reason_REASON_CLUSTER_MISMATCH)
		_, err = root.ReadIndex(ctx, &rootv1.ReadIndexRequest{ClusterId: 5})
		expect("other cluster", err, rootv1.Reason_REASON_CLUSTER_MISMATCH)
		_, err = root.TransferLeadership(ctx, &rootv1.TransferLeadershipRequest{ClusterId: 5})
		expect("other cluster", err, rootv1.Reason_REASON_CLUSTER_MISMATCH)
		_, err = root.ClaimTenure(ctx, &rootv1.ClaimTenureRequest{ClusterId: cluster})
		expect("no claim", err, rootv1.Reason_REASON_INVALID_REQUEST)
		large := &rootv1.Command{Events: []*rootv1.Event{{Kind: &rootv1.Event_PinKeyRotated{PinKeyRotated: &rootv1.PinKeyRotated{Secret: make([]byte, 3<<20)}}}}}
		if _, err = root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: []*rootv1.Command{large}}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("oversized message: %v", err)
		}
		first := make(chan error, 1)
		go func() {
			_, err := root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: one})
			first <- err
		}()
		synctest.Wait()
		_, err = root.Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: one})
		expect("queue full", err, rootv1.Reason_REASON_OVERLOADED)
		close(r.hold)
		if err := <-first; err != nil {
			t.Errorf("the first proposal: %v", err)
		}
	})
}

func TestOnlyTheLeaderSaysExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		ctx, cancel := within(time.Minute)
		defer cancel()
		resp, err := s.root().ClaimTenure(ctx, &rootv1.ClaimTenureRequest{ClusterId: cluster, Claim: &rootv1.TenureClaimed{HolderId: "c1", PredecessorExpired: true}})
		if err != nil || resp.RetryAfterMillis != 5 {
			t.Fatalf("ClaimTenure = %v, %v", resp, err)
		}
		r.with(func() {
			if len(r.claims) != 1 || r.claims[0].PredecessorExpired || r.claims[0].HolderId != "c1" {
				t.Errorf("claims = %v", r.claims)
			}
		})
	})
}

func TestStatusOfALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		ctx, cancel := within(time.Minute)
		defer cancel()
		st, err := s.root().Status(ctx, &rootv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if st.ClusterId != cluster || st.NodeId != 1 || st.Role != rootv1.RaftRole_RAFT_ROLE_LEADER || st.LeaderAddress != "a:1" ||
			st.CommitIndex != 1 || st.StateHash != r.View().State.Hash() || st.Keyspaces != 1 || len(st.Peers) != 3 {
			t.Errorf("Status = %v", st)
		}
		if p := st.Peers[0]; p.Address != "a:1" || !p.Connected || p.FeatureLevel != 4 || st.SupportedFeatureLevel != 4 || p.MatchIndex != 1 || p.TransportAddress != "a:2" {
			t.Errorf("own peer = %v", p)
		}
		if p := st.Peers[2]; p.Address != "c:1" || p.Connected || p.FeatureLevel != 0 || p.MatchIndex != 0 {
			t.Errorf("peer 3 = %v", p)
		}
	})
}

func TestHealthIsAReadIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFakeReplica(t)
		s := serve(t, r, nil)
		client := healthv1.NewHealthClient(s.conn())
		ctx, cancel := within(time.Minute)
		defer cancel()
		check := func(service string, want healthv1.HealthCheckResponse_ServingStatus) {
			t.Helper()
			if resp, err := client.Check(ctx, &healthv1.HealthCheckRequest{Service: service}); err != nil || resp.Status != want {
				t.Errorf("Check(%q) = %v, %v, want %v", service, resp, err, want)
			}
		}
		check("", healthv1.HealthCheckResponse_SERVING)
		check("nokv.root.v1.Root", healthv1.HealthCheckResponse_SERVING)
		r.with(func() {
			if r.reads != 1 {
				t.Errorf("%d read indexes for two checks", r.reads)
			}
			r.readErr = errors.New("no quorum")
		})
		time.Sleep(201 * time.Millisecond)
		check("", healthv1.HealthCheckResponse_NOT_SERVING)
		if _, err := client.Check(ctx, &healthv1.HealthCheckRequest{Service: "x"}); status.Code(err) != codes.NotFound {
			t.Errorf("unknown service: %v", err)
		}
		watch, err := client.Watch(ctx, &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := watch.Recv(); err != nil || resp.Status != healthv1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("Watch = %v, %v", resp, err)
		}
		r.with(func() { r.readErr = nil })
		if resp, err := watch.Recv(); err != nil || resp.Status != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("Watch = %v, %v", resp, err)
		}
	})
}
